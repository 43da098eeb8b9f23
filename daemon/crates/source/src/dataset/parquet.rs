//! `parquet`: tables in Parquet files, as Hugging Face's hub has them and as other writers write them.
//!
//! The footer ([`footer`]) says where the parts of each column lie; the headers of their pages and what stands in front of
//! the values ([`pages`]) are read once. Pictures and other bytes are then read alone, or unpacked from their page where it
//! is compressed; numbers and short texts are kept in the index. The reader is this
//! crate's own: the crate `parquet` gives values, not where they lie, and that is what a shuffle needs.

mod delta;
mod differences;
mod footer;
mod hybrid;
mod pages;
mod thrift;

use std::collections::BTreeSet;

use forebay_config::DatasetConfig;

use self::footer::Footer;
use self::pages::Pages;
use super::error::DatasetError;
use super::folder::scan::FolderFormat;
use super::opening::{OpenOptions, OpenedFormat};
use super::shard_paths;
use super::tables::{self, Bytes, Cell, TableColumn, TableFormat, Visit, Window};
use crate::storage::Storage;

/// What is read.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "parquet", extensions: &[".parquet"], flat_is_valid: true };

/// What is read at once of a file's end.
const TAIL_BYTES: u64 = 64 << 10;
/// What is read at once where values lie far apart, on this machine.
const LENGTH_BYTES: u64 = 16;
/// Packed texts that the index keeps of a file: so many bytes, and so many for each of the file's.
const KEPT_BYTES: (u64, u64) = (256 << 20, 64);
/// Values of a group of rows that are held together.
const MAX_GROUP_VALUES: u64 = 16 << 20;
/// What files of several splits are called, by Hugging Face's rule.
const SPLITS: [&str; 6] = ["train", "test", "validation", "valid", "dev", "eval"];

pub(super) const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    expected: "a .parquet file, or a folder of them",
    listed,
    columns,
    rows,
};

/// Opens a folder or files.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    tables::open(config, storage, options, TABLES)
}

/// The folder that a path's files lie in.
pub(super) fn root(path: &std::path::Path) -> std::path::PathBuf {
    shard_paths::split(path, FORMAT.extensions).0
}

/// All files of a folder, unless they are those of several splits.
fn listed(
    storage: &dyn Storage,
    config: &DatasetConfig,
) -> Result<Option<Vec<Vec<u8>>>, DatasetError> {
    let found = shard_paths::find(storage, &config.path, None, FORMAT.extensions)
        .map_err(super::saved_index::tell_missing)?;
    let split = |path: &Vec<u8>| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_of = |split: &&&str| {
            name.strip_prefix(split.as_bytes())
                .is_some_and(|rest| matches!(rest.first(), Some(b'-' | b'.' | b'_')))
        };
        SPLITS.iter().find(is_of).copied()
    };
    let splits: BTreeSet<&str> = found.iter().filter_map(split).collect();
    if let (Some(first), true) = (splits.first(), splits.len() > 1) {
        let reason = format!(
            "it has the splits {}; name the files of one, as in dataset.path = \"{}/{first}-*.parquet\"",
            splits.iter().copied().collect::<Vec<_>>().join(", "),
            config.path.display()
        );
        return Err(DatasetError::BrokenFile { path: config.path.clone(), reason });
    }
    Ok(Some(found))
}

fn columns(file: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    let footer = Footer::read(&mut Window::new(file, TAIL_BYTES))?;
    Ok(footer.leaves.into_iter().map(|leaf| leaf.column).collect())
}

fn rows(
    file: &dyn Bytes,
    wanted: &[usize],
    piece: u64,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let footer = Footer::read(&mut Window::new(file, TAIL_BYTES))?;
    let mut window = Window::new(file, piece);
    // Behind a URL a request costs more than what lies between two lengths.
    let is_local = piece <= TAIL_BYTES;
    let mut values = Window::new(file, if is_local { LENGTH_BYTES } else { piece });
    let leaves: Vec<_> = wanted.iter().filter_map(|place| footer.leaves.get(*place)).collect();
    let (mut row, mut cells) = (0, Vec::with_capacity(leaves.len()));
    let mut budget = KEPT_BYTES.0.saturating_add(file.length().saturating_mul(KEPT_BYTES.1));
    for group in &footer.groups {
        if group.rows.saturating_mul(leaves.len() as u64) > MAX_GROUP_VALUES {
            return Err(file.fault(format!(
                "a group has {} rows of {} columns, and at most {MAX_GROUP_VALUES} values are held; name fewer columns in \
                 dataset.fields, or write it with row_group_size=100000",
                group.rows,
                leaves.len()
            )));
        }
        let mut columns = Vec::with_capacity(leaves.len());
        for leaf in &leaves {
            let Some(chunk) = group.chunks.get(leaf.place) else { continue };
            let (window, values, budget) = (&mut window, &mut values, &mut budget);
            columns.push(Pages { leaf, chunk, window, values, budget }.read(group.rows)?);
        }
        for place in 0..usize::try_from(group.rows).unwrap_or(0) {
            cells.clear();
            cells.extend(columns.iter_mut().map(|column| {
                column.get_mut(place).map_or(Cell::Null, |cell| std::mem::replace(cell, Cell::Null))
            }));
            if visit(row, &cells)?.is_break() {
                return Ok(());
            }
            row += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod tests;
