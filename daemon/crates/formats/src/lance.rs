//! `lance`: datasets that Lance has written: a folder of data files, and a manifest for each version.
//!
//! [`forebay_columnar::lance`] locates the values in a file. The manifest of the version is the first file of an index: a
//! newer one means that the index is out of date.

use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::{open_file, tell_missing};
use forebay_storage::Storage;
use roaring::RoaringBitmap;

use crate::arrow::path_below;
use crate::tables::{ColumnReader, DeletedRows, TableFormat, TableKind, reads};
use forebay_columnar::lance::manifest::{Deleted, Fragment, fragments};
use forebay_columnar::{Column, Encoding, Number, arrow, lance};

const FORMAT: FolderFormat =
    FolderFormat { name: "lance", extensions: &[".lance"], loose: LooseFiles::NoFolders };

const VERSIONS: &[u8] = b"_versions";
/// The length of names that have the number of the version subtracted from the greatest, so that the newest comes first.
const DESCENDING_DIGITS: usize = 20;
/// The maximum bytes of a list of deleted rows.
const MAX_DELETED_BYTES: u64 = 1 << 30;

const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &["_versions"],
    expected: "the folder of a dataset that lance.write_dataset has written",
    listed,
    deleted,
    reader: lance::READER,
    part: "value",
    uncompressed: "with the metadata {\"lance-encoding:compression\": \"none\"} of the field",
    differing: Some(
        "its columns are not those of the dataset: they were renamed or dropped without rewriting the file; write the \
         dataset anew: lance.write_dataset(ds, \"new.lance\")",
    ),
};

#[derive(Debug)]
pub(super) struct Lance;

impl TableKind for Lance {
    const TABLES: TableFormat = TABLES;
    const IS_FOLDER: bool = true;
}

/// The number of a version, by the name of its manifest.
fn version(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name.strip_suffix(b".manifest")?).ok()?;
    let number: u64 = digits.parse().ok()?;
    Some(match digits.len() {
        DESCENDING_DIGITS => u64::MAX - number,
        _ => number,
    })
}

/// The manifest of the newest version, and its data files.
fn listed(
    storage: &dyn Storage,
    config: &DatasetConfig,
) -> Result<Option<Vec<Vec<u8>>>, DatasetError> {
    let mut newest: Option<(u64, Vec<u8>)> = None;
    let mut has_versions = false;
    let root = storage.list(b"", &mut |name, _| has_versions |= name == VERSIONS);
    root.map_err(|error| tell_missing(error.into()))?;
    if has_versions {
        storage.list(VERSIONS, &mut |name, _| {
            let version = version(name);
            if version > newest.as_ref().map(|(version, _)| *version) {
                newest = version.map(|version| (version, [VERSIONS, b"/", name].concat()));
            }
        })?;
    }
    let Some((_, path)) = newest else {
        let reason = "it has no manifest in _versions, and is no dataset of Lance; name the folder of one, such as images.lance";
        return Err(DatasetError::NoSamples {
            path: config.path.clone(),
            reason: reason.to_owned(),
        });
    };
    let manifest = open_file(storage, &path)?;
    let data = fragments(&manifest)?;
    let data: Result<Vec<_>, _> =
        data.iter().map(|fragment| path_below(&manifest, &fragment.path)).collect();
    let mut files = vec![path.clone()];
    files.extend(data?);
    Ok(Some(files))
}

/// The deleted rows of data files, which are listed after their manifest.
fn deleted(storage: &dyn Storage, paths: &[Vec<u8>]) -> Result<DeletedRows, DatasetError> {
    let Some(path) = paths.first() else { return Ok(Vec::new()) };
    let all = fragments(&open_file(storage, path)?)?;
    if all.iter().all(|fragment| fragment.deleted.is_none()) {
        return Ok(Vec::new());
    }
    let of = |fragment: &Fragment| match &fragment.deleted {
        None => Ok(Vec::new()),
        Some(list) => rows_of(storage, list, fragment.rows),
    };
    std::iter::once(Ok(Vec::new())).chain(all.iter().map(of)).collect()
}

/// The rows in a list of deleted ones, in ascending order.
fn rows_of(storage: &dyn Storage, list: &Deleted, all: u64) -> Result<Vec<u64>, DatasetError> {
    let file = open_file(storage, list.path.as_bytes())?;
    let mut rows = Vec::new();
    if list.is_bitmap {
        let bytes = file.read_whole(MAX_DELETED_BYTES)?;
        let bitmap = RoaringBitmap::deserialize_from(&bytes[..])
            .map_err(|error| file.fault(format!("it is no bitmap of deleted rows: {error}")))?;
        if bitmap.len() > all {
            return Err(file.fault(format!("it deletes {} of {all} rows", bitmap.len())));
        }
        rows.extend(bitmap.into_iter().map(u64::from));
    } else {
        let column = Column { name: "row_id".to_owned(), encoding: Encoding::Bytes, bytes: None };
        let mut values = ColumnReader::new(&column);
        (arrow::READER.rows)(&file, &[0], reads(storage), &mut |row, cells| {
            if row >= all {
                return Err(file.fault(format!("it deletes more than {all} rows")));
            }
            let cell = cells.first().ok_or_else(|| file.fault("it has no rows".to_owned()))?;
            values.load(&file, cell)?;
            let value = values.bytes(cell).map_err(|reason| file.fault(reason))?;
            match Encoding::number("uint32", value.unwrap_or_default()) {
                Ok(Number::Integer(number)) => rows.push(number.cast_unsigned()),
                _ => return Err(file.fault("it is no list of rows".to_owned())),
            }
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        rows.sort_unstable();
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
