//! `arrow`: Apache Arrow tables from Hugging Face's `save_to_disk` (streams of batches, listed by a `state.json`), and
//! `.arrow` files of any writer.
//!
//! [`forebay_columnar::arrow`] locates the values in a file. Arrow's crates are not used: they build arrays in memory and
//! do not give the values' offsets.

use forebay_config::DatasetConfig;
use serde::Deserialize;

use crate::tables::{TableFormat, TableKind, none_deleted};
use forebay_columnar::arrow;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths::is_below;
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;

const FORMAT: FolderFormat =
    FolderFormat { name: "arrow", extensions: &[".arrow"], loose: LooseFiles::NoFolders };

/// Files that `save_to_disk` writes next to the data.
const IN_FOLDERS: [&str; 2] = [STATE, SPLITS];
const STATE: &str = "state.json";
const SPLITS: &str = "dataset_dict.json";
/// Both are smaller.
const MAX_JSON_BYTES: u64 = 256 << 20;

pub(super) const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &IN_FOLDERS,
    expected: "a folder that save_to_disk has written, a .arrow file, or a folder of them",
    listed,
    deleted: none_deleted,
    reader: arrow::READER,
    part: "buffer",
    uncompressed: "with pyarrow.ipc.IpcWriteOptions(compression=None)",
    differing: None,
};

#[derive(Debug)]
pub(super) struct Arrow;

impl TableKind for Arrow {
    const TABLES: TableFormat = TABLES;
}

#[derive(Deserialize)]
struct State {
    _data_files: Vec<DataFile>,
    #[serde(default)]
    _indices_files: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

/// The files that a `state.json` lists.
fn listed(
    storage: &dyn Storage,
    config: &DatasetConfig,
) -> Result<Option<Vec<Vec<u8>>>, DatasetError> {
    if let Some((_, text)) = read_if_there(storage, SPLITS)? {
        let splits = serde_json::from_slice::<Splits>(&text).map(|splits| splits.splits);
        let reason = format!(
            "it is a DatasetDict, whose splits are datasets of their own: {}; set dataset.path to one, such as {}",
            splits.as_deref().map_or("they cannot be read".to_owned(), |splits| splits.join(", ")),
            config
                .path
                .join(splits.ok().and_then(|splits| splits.into_iter().next()).unwrap_or_default())
                .display()
        );
        return Err(DatasetError::BrokenFile { path: config.path.clone(), reason });
    }
    let Some((file, text)) = read_if_there(storage, STATE)? else { return Ok(None) };
    let state: State = serde_json::from_slice(&text).map_err(|error| {
        file.fault(format!("it is no state of a dataset that save_to_disk has written: {error}"))
    })?;
    let has_indices = state._indices_files.is_some_and(|files| {
        files.as_array().is_none_or(|files| !files.is_empty()) && !files.is_null()
    });
    if has_indices {
        return Err(file.fault(
            "its rows are chosen by _indices_files, as old versions of datasets wrote them; write it anew: \
             ds.flatten_indices().save_to_disk(…)"
                .to_owned(),
        ));
    }
    let names = state._data_files.iter().map(|data| path_below(&file, &data.filename));
    names.collect::<Result<_, _>>().map(Some)
}

/// A path in a file, relative to the file's folder.
///
/// # Errors
/// It leads out of the folder.
pub(super) fn path_below(file: &StoredFile<'_>, name: &str) -> Result<Vec<u8>, DatasetError> {
    match is_below(name) {
        true => Ok(name.as_bytes().to_vec()),
        false => {
            Err(file
                .fault(format!("it names the file {name:?}, which is no path within its folder")))
        }
    }
}

/// Reads a small file of the dataset's folder, if the folder lists it. Opening a missing file would wait as in an
/// outage.
fn read_if_there<'s>(
    storage: &'s dyn Storage,
    name: &'static str,
) -> Result<Option<(StoredFile<'s>, Vec<u8>)>, DatasetError> {
    let mut is_there = false;
    let listed = storage.list(b"", &mut |entry, _| is_there |= entry == name.as_bytes());
    listed.map_err(|error| tell_missing(error.into()))?;
    if !is_there {
        return Ok(None);
    }
    let file = StoredFile::new(storage, name.as_bytes()).map_err(DatasetError::from)?;
    let text = file.read_whole(MAX_JSON_BYTES)?;
    Ok(Some((file, text)))
}

#[cfg(test)]
mod tests;
