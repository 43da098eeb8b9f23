//! `parquet`: tables in Parquet files, from Hugging Face's hub or any other writer.
//!
//! The footer ([`footer`]) locates the parts of each column. Page headers, levels and lengths ([`pages`]) are read
//! once. Images and other bytes are then read alone, or unpacked from a compressed page; numbers and short texts are
//! kept in the index. The crate `parquet` is not used: it gives values, but not their offsets, which a shuffle needs.

mod delta;
mod differences;
mod footer;
mod hybrid;
mod pages;
mod runs;
mod thrift;
mod times;

use std::collections::BTreeSet;

use forebay_config::DatasetConfig;

use self::footer::Footer;
use self::pages::Pages;
use self::runs::Rows;
use crate::tables::{Cell, Reads, TableColumn, TableFormat, TableKind, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::shard_paths;
use forebay_index::window::{Bytes, Window, WindowSize};
use forebay_storage::Storage;

const FORMAT: FolderFormat =
    FolderFormat { name: "parquet", extensions: &[".parquet"], loose: LooseFiles::NoFolders };

/// The number of bytes read at once from a file's end.
const TAIL_BYTES: u64 = 64 << 10;
/// The read size for values that are far apart in a local file.
const LENGTH_BYTES: u64 = 16;
/// The budget of compressed texts kept in the index for a file: this many bytes, and this many per byte of the file.
const KEPT_BYTES: (u64, u64) = (256 << 20, 64);
/// The maximum number of values of a row group in memory, with equal neighbours counted once: at least this many, this
/// many per byte of the file, and at most this many.
const HELD_VALUES: (u64, u64, u64) = (4 << 20, 16, 16 << 20);
/// The maximum number of a file's values, each of which has a cell in the index: at least this many, and this many per
/// byte of the file.
const INDEXED_VALUES: (u64, u64) = (16 << 20, 64);
/// The names of splits, by Hugging Face's rule.
const SPLITS: [&str; 6] = ["train", "test", "validation", "valid", "dev", "eval"];

pub(super) const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &[],
    expected: "a .parquet file, or a folder of them",
    listed,
    columns,
    rows,
    part: "page",
    uncompressed: "with compression=\"none\" and use_dictionary=False",
};

#[derive(Debug)]
pub(super) struct Parquet;

impl TableKind for Parquet {
    const TABLES: TableFormat = TABLES;
    // Earlier indexes have times in other units.
    const READING: &'static str = "times as Arrow's schema has them";
}

/// All files of a folder; refuses files of several splits.
fn listed(
    storage: &dyn Storage,
    config: &DatasetConfig,
) -> Result<Option<Vec<Vec<u8>>>, DatasetError> {
    let found = shard_paths::find(storage, &config.path, None, FORMAT.extensions)
        .map_err(forebay_index::saved_index::tell_missing)?;
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
    let footer = Footer::read(&mut Window::new(file, WindowSize::fixed(TAIL_BYTES)))?;
    Ok(footer.leaves.into_iter().map(|leaf| leaf.column).collect())
}

fn rows(
    file: &dyn Bytes,
    wanted: &[usize],
    Reads { piece, is_local }: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let footer = Footer::read(&mut Window::new(file, WindowSize::fixed(TAIL_BYTES)))?;
    let mut window = Window::new(file, WindowSize::fixed(piece));
    let mut values =
        Window::new(file, WindowSize::fixed(if is_local { LENGTH_BYTES } else { piece }));
    let leaves: Vec<_> = wanted.iter().filter_map(|place| footer.leaves.get(*place)).collect();
    let (mut row, mut cells) = (0_u64, Vec::with_capacity(leaves.len()));
    let held = file.length().saturating_mul(HELD_VALUES.1).clamp(HELD_VALUES.0, HELD_VALUES.2);
    let indexed = file.length().saturating_mul(INDEXED_VALUES.1).max(INDEXED_VALUES.0);
    let mut budget = KEPT_BYTES.0.saturating_add(file.length().saturating_mul(KEPT_BYTES.1));
    for group in &footer.groups {
        let rows = row.saturating_add(group.rows);
        if rows.saturating_mul(leaves.len() as u64) > indexed {
            return Err(file.fault(format!(
                "it has {} bytes, and {rows} rows or more of {} columns; at most {indexed} values are read of a file of this \
                 size; name fewer columns in dataset.fields, or write fewer rows into a file",
                file.length(),
                leaves.len()
            )));
        }
        // Values held by the preceding columns.
        let mut before = 0;
        let mut columns = Vec::with_capacity(leaves.len());
        for leaf in &leaves {
            let Some(chunk) = group.chunks.get(leaf.place) else { continue };
            let (window, values, budget) = (&mut window, &mut values, &mut budget);
            let room = usize::try_from(held - before).unwrap_or(usize::MAX);
            let pages = Pages { leaf, chunk, window, values, budget, room, unread: None };
            let runs = pages.read(group.rows)?;
            before += runs.held() as u64;
            columns.push(runs.into_rows());
        }
        for _ in 0..group.rows {
            cells.clear();
            let next = |column: &mut Rows| column.take(1).map_or(Cell::Null, |(cell, _)| cell);
            cells.extend(columns.iter_mut().map(next));
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
