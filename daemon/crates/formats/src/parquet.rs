//! `parquet`: tables in Parquet files, from Hugging Face's hub or any other writer.
//!
//! [`forebay_columnar::parquet`] locates the values in a file. The crate `parquet` is not used: it gives values, but not
//! their offsets, which a shuffle needs.

use std::collections::BTreeSet;

use forebay_config::DatasetConfig;

use crate::tables::{TableFormat, TableKind, none_deleted};
use forebay_columnar::parquet;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::shard_paths;
use forebay_storage::Storage;

const FORMAT: FolderFormat =
    FolderFormat { name: "parquet", extensions: &[".parquet"], loose: LooseFiles::NoFolders };

/// The names of splits, by Hugging Face's rule.
const SPLITS: [&str; 6] = ["train", "test", "validation", "valid", "dev", "eval"];

pub(super) const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &[],
    expected: "a .parquet file, or a folder of them",
    listed,
    deleted: none_deleted,
    reader: parquet::READER,
    part: "page",
    uncompressed: "with compression=\"none\" and use_dictionary=False",
    differing: None,
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

#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod tests;
