//! The manifest of a Lance dataset: the data files of a version, and the files with the rows that were deleted.

use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

use super::footer;
use crate::protobuf::{Fault, Part, parts};

/// The first read of a manifest.
const PIECE_BYTES: u64 = 64 << 10;
/// The features that a reader must know, and this one does: deleted rows, row ids, the old flag of the version 2, the
/// configuration of a table, and other places of files, which are looked for where they are used.
const KNOWN_FEATURES: u64 = 1 | 2 | 4 | 8 | 16;

/// A data file, and the rows that were deleted from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Relative to the dataset.
    pub path: String,
    /// Its rows, including those that were deleted.
    pub rows: u64,
    /// The file that lists the deleted rows.
    pub deleted: Option<Deleted>,
}

/// A file of deleted rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Relative to the dataset.
    pub path: String,
    /// Whether it is a Roaring bitmap. Otherwise it is an Arrow table.
    pub is_bitmap: bool,
}

/// Reads the fragments of a manifest.
///
/// # Errors
/// It is damaged, or has a feature that is not supported.
pub fn fragments(file: &dyn Bytes) -> Result<Vec<Fragment>, DatasetError> {
    let mut window = Window::new(file, WindowSize::fixed(PIECE_BYTES));
    if footer::kind(&mut window)? != footer::Kind::Manifest {
        return Err(file.fault("it is a data file, and no manifest".to_owned()));
    }
    parse(footer::manifest(&mut window)?).map_err(|reason| file.fault(reason))
}

const DAMAGED: &str = "it is damaged";

fn parse(message: &[u8]) -> Result<Vec<Fragment>, String> {
    let mut found = Vec::new();
    for part in parts(message) {
        let part = part.map_err(|_| DAMAGED)?;
        match part.number {
            2 => found.push(fragment(part.content().ok_or(DAMAGED)?)?),
            9 if part.integer().ok_or(DAMAGED)? & !KNOWN_FEATURES != 0 => {
                return Err(
                    "it has a feature of newer versions of Lance; write it anew with data_storage_version=\"2.2\""
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    Ok(found)
}

fn fragment(message: &[u8]) -> Result<Fragment, String> {
    let (mut found, mut files, mut id, mut deleted) = (Fragment::default(), 0, 0, None);
    for part in parts(message) {
        let part = part.map_err(|_| DAMAGED)?;
        match part.number {
            1 => id = part.integer().ok_or(DAMAGED)?,
            2 => {
                files += 1;
                found.path = data_file(part.content().ok_or(DAMAGED)?)?;
            }
            3 => deleted = Some(part.content().ok_or(DAMAGED)?),
            4 => found.rows = part.integer().ok_or(DAMAGED)?,
            _ => {}
        }
    }
    if files != 1 {
        return Err(format!(
            "its fragment {id} has {files} data files, as after add_columns, and fragments of one are read; write it anew: \
             lance.write_dataset(ds, \"new.lance\")"
        ));
    }
    found.deleted = deleted.map(|deleted| deletion(id, deleted)).transpose()?;
    Ok(found)
}

fn data_file(message: &[u8]) -> Result<String, String> {
    let (mut path, mut is_changed) = (None, false);
    for part in parts(message) {
        let part = part.map_err(|_| DAMAGED)?;
        match part.number {
            1 => path = part.content().and_then(|path| std::str::from_utf8(path).ok()),
            2 => is_changed |= has_dropped(part).map_err(|_| DAMAGED)?,
            7 => return Err(elsewhere("a data file")),
            _ => {}
        }
    }
    if is_changed {
        return Err(
            "columns were dropped or replaced without rewriting its files; write it anew: lance.write_dataset(ds, \"new.lance\")"
                .to_owned(),
        );
    }
    path.map(|path| format!("data/{path}")).ok_or_else(|| DAMAGED.to_owned())
}

/// Whether a field of a file no longer belongs to the dataset, which negative numbers say.
fn has_dropped(part: Part<'_>) -> Result<bool, Fault> {
    let mut fields = Vec::new();
    crate::protobuf::append_integers(part, &mut fields)?;
    Ok(fields.iter().any(|field| field.cast_signed() < 0))
}

fn deletion(fragment: u64, message: &[u8]) -> Result<Deleted, String> {
    let (mut kind, mut version, mut id) = (0, 0, 0);
    for part in parts(message) {
        let part = part.map_err(|_| DAMAGED)?;
        let number = || part.integer().ok_or(DAMAGED);
        match part.number {
            1 => kind = number()?,
            2 => version = number()?,
            3 => id = number()?,
            7 => return Err(elsewhere("a list of deleted rows")),
            _ => {}
        }
    }
    let is_bitmap = kind == 1;
    let extension = if is_bitmap { "bin" } else { "arrow" };
    let path = format!("_deletions/{fragment}-{version}-{id}.{extension}");
    match kind {
        0 | 1 => Ok(Deleted { path, is_bitmap }),
        _ => Err("its deleted rows are listed in a way that is not read".to_owned()),
    }
}

fn elsewhere(what: &str) -> String {
    format!(
        "{what} is outside its folder, as in a clone; write it anew: lance.write_dataset(ds, \"new.lance\")"
    )
}
