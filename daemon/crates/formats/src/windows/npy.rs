//! Rows of `.npy` files. A file is an episode; or files of one folder are arrays in step, which
//! `[dataset.windows.fields]` names, and a folder is an episode; `by` is an array too.
//!
//! A window is one range of each file: nothing else is read.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::index::{Piece, ScannedSet};
use super::plan::Column;
use super::rows::{Found, Parts, RowFormat, Rows};
use super::{Windows, report};
use crate::indexed::Opening;
use crate::npy;
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::{ARRAY, ArrayHeader, MAX_HEADER_BYTES};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths;
use forebay_index::stored_file::StoredFile;
use forebay_storage::location::{ByteRange, FileId, Location};

/// The format.
#[derive(Debug)]
pub(crate) struct NpyRows;

/// The files of a set, in the order of the columns.
type Group = Vec<Vec<u8>>;

/// The names of the columns, and the files of each set.
struct Arrays {
    names: Vec<String>,
    groups: Vec<Group>,
}

const EXTENSION: &str = ".npy";

/// A column's name: the file's without the extension, in letters of either case.
fn without_extension(name: &str) -> &str {
    let split = name.len().checked_sub(EXTENSION.len()).and_then(|at| name.split_at_checked(at));
    match split {
        Some((name, extension)) if extension.eq_ignore_ascii_case(EXTENSION) => name,
        _ => name,
    }
}

fn with_extension(name: &str) -> String {
    format!("{}{EXTENSION}", without_extension(name))
}

fn folder_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

fn arrays(opening: &Opening<'_, Windows<NpyRows>>) -> Result<Arrays, DatasetError> {
    let request = &opening.request;
    let path = &request.config.path;
    let refuse = |reason: String| DatasetError::BrokenFile { path: path.clone(), reason };
    let extensions = NpyRows::FORMAT.extensions;
    let files = shard_paths::find(opening.storage, path, opening.pattern, extensions)
        .map_err(tell_missing)?;
    if files.is_empty() {
        return Err(request.no_samples("it has no .npy files"));
    }
    let by = opening.keys.windows.by.as_deref();
    let mut names: Vec<String> = Vec::new();
    match (&opening.keys.fields, by) {
        (Some(fields), _) => {
            for field in fields {
                let name = without_extension(&field.from).to_owned();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            if by.is_none() && names == [ARRAY] && !files.iter().any(|file| is_named(file, ARRAY)) {
                // Windows of one array, with fields of several ranges of it.
                let groups = files.into_iter().map(|file| vec![file]).collect();
                return Ok(Arrays { names, groups });
            }
        }
        (None, None) => {
            let groups = files.into_iter().map(|file| vec![file]).collect();
            return Ok(Arrays { names: vec![ARRAY.to_owned()], groups });
        }
        (None, Some(by)) => {
            // All arrays of the folder of the first one.
            let folder = files.iter().find(|file| is_named(file, by)).map(|file| folder_of(file));
            let of_folder = files.iter().filter(|file| Some(folder_of(file)) == folder);
            for file in of_folder.filter(|file| !is_named(file, by)) {
                let name = &file[folder_of(file).len()..];
                let name = String::from_utf8_lossy(name.strip_prefix(b"/").unwrap_or(name));
                names.push(without_extension(&name).to_owned());
            }
            if folder.is_some() && names.is_empty() {
                return Err(refuse(format!(
                    "it has no .npy files beside {by:?}, which is dataset.windows.by"
                )));
            }
        }
    }
    let by = by.map(|by| without_extension(by).to_owned());
    names.extend(by.filter(|by| !names.contains(by)));
    let mut found = BTreeMap::<&[u8], Vec<Option<&Vec<u8>>>>::new();
    for file in &files {
        for (place, name) in names.iter().enumerate() {
            if is_named(file, name) {
                let folder = &file[..file.len() - with_extension(name).len()];
                let group = found.entry(folder).or_insert_with(|| vec![None; names.len()]);
                if let Some(other) = group[place].replace(file) {
                    return Err(refuse(format!(
                        "{:?} and {:?} are both the array {name:?}; move one of them away",
                        String::from_utf8_lossy(other),
                        String::from_utf8_lossy(file)
                    )));
                }
            }
        }
    }
    if found.is_empty() {
        let shown: Vec<_> =
            files.iter().take(4).map(|file| String::from_utf8_lossy(file).into_owned()).collect();
        return Err(refuse(format!(
            "none of its .npy files is {:?}, which dataset.windows names; it has {}{}",
            with_extension(&names[0]),
            shown.join(", "),
            if files.len() > shown.len() { ", …" } else { "" }
        )));
    }
    let complete = |(folder, group): (&[u8], Vec<Option<&Vec<u8>>>)| {
        let name = |(place, file): (usize, Option<&Vec<u8>>)| {
            file.cloned().ok_or_else(|| {
                refuse(format!(
                    "{:?} is missing beside the other arrays of {:?}",
                    with_extension(&names[place]),
                    String::from_utf8_lossy(folder)
                ))
            })
        };
        group.into_iter().enumerate().map(name).collect::<Result<Group, _>>()
    };
    let groups = found.into_iter().map(complete).collect::<Result<_, _>>()?;
    Ok(Arrays { names, groups })
}

/// Whether a path is that of an array with this name, in any folder.
fn is_named(path: &[u8], name: &str) -> bool {
    let name = without_extension(name).as_bytes();
    let Some((stem, extension)) =
        path.len().checked_sub(EXTENSION.len()).and_then(|at| path.split_at_checked(at))
    else {
        return false;
    };
    let folder =
        stem.strip_suffix(name).filter(|_| extension.eq_ignore_ascii_case(EXTENSION.as_bytes()));
    folder.is_some_and(|folder| folder.is_empty() || folder.ends_with(b"/"))
}

/// Reads a file's header.
fn header(file: &StoredFile<'_>) -> Result<ArrayHeader, DatasetError> {
    let mut bytes = Vec::new();
    file.read(0, file.stamp.bytes.min(MAX_HEADER_BYTES as u64), &mut bytes)?;
    let header = ArrayHeader::parse(&bytes)
        .and_then(|header| header.check_length(file.stamp.bytes).map(|()| header))
        .map_err(|Defect(reason)| file.fault(reason))?;
    if header.shape.is_empty() {
        return Err(
            file.fault("it holds a single number; the first axis must be the rows".to_owned())
        );
    }
    if header.fortran_order && header.shape.len() > 1 {
        return Err(file.fault(
            "it is in Fortran order, where a row's elements lie far apart; save it again with \
             numpy.save(path, numpy.ascontiguousarray(array))"
                .to_owned(),
        ));
    }
    Ok(header)
}

impl RowFormat for NpyRows {
    const FORMAT: FolderFormat = npy::FORMAT;
    const EXPECTED: &'static str = "a .npy file, several by a pattern, or a folder of them";
    const STORES_ROWS: bool = true;

    type More = ();

    fn column_name(from: &str) -> &str {
        without_extension(from)
    }

    fn files(opening: &Opening<'_, Windows<Self>>) -> Result<Vec<Vec<u8>>, DatasetError> {
        Ok(arrays(opening)?.groups.concat())
    }

    fn scan(
        opening: &Opening<'_, Windows<Self>>,
        _warnings: &mut Vec<String>,
    ) -> Result<Found<()>, DatasetError> {
        let Arrays { names, groups } = arrays(opening)?;
        let mut found = Found { columns: Vec::new(), files: Vec::new(), sets: Vec::new() };
        for group in groups {
            let first = found.files.len() as u64;
            let mut set = ScannedSet { file: first, ..ScannedSet::default() };
            for (place, path) in group.into_iter().enumerate() {
                let file = StoredFile::new(opening.storage, &path)?;
                let header = header(&file)?;
                let column = Column {
                    name: names[place].clone(),
                    dtype: header.dtype.name().to_owned(),
                    shape: header.shape[1..].to_vec(),
                    big_endian: header.big_endian,
                    more: (),
                };
                let rows = header.shape[0];
                if place == 0 {
                    set.rows = rows;
                } else if rows != set.rows {
                    let other = String::from_utf8_lossy(&found.files[found.files.len() - place].0);
                    return Err(file.fault(format!(
                        "it has {rows} rows, and {other} has {}: arrays in step have the same first axis",
                        set.rows
                    )));
                }
                match found.columns.get(place) {
                    None => found.columns.push(column),
                    Some(before) if *before == column => {}
                    Some(before) => {
                        return Err(file.fault(format!(
                            "its rows are {} {:?}, and {} {:?} in {}; files of different rows that are in step are named in \
                             dataset.windows.fields, as in x = {{ from = \"x.npy\" }}",
                            column.dtype,
                            column.shape,
                            before.dtype,
                            before.shape,
                            String::from_utf8_lossy(&found.files[place].0)
                        )));
                    }
                }
                let (offset, bytes) = (header.data_start as u64, header.data_bytes);
                let piece = Piece { file: first + place as u64, offset, bytes, ..Piece::default() };
                set.pieces.push(vec![piece]);
                let stamp = file.stamp;
                found.files.push((path, stamp));
            }
            found.sets.push(set);
            report(opening, 1, found.files.len() as u64)?;
        }
        Ok(found)
    }

    fn locate(rows: Rows<'_, ()>, locations: &mut Vec<Location>) {
        let piece = rows.index.pieces_from(rows.set, rows.place, 0).next().unwrap_or_default();
        let row_bytes = rows.column().row_bytes().unwrap_or(0);
        let offset = piece.offset.saturating_add(rows.rows.start.saturating_mul(row_bytes));
        let range = ByteRange { offset, length: Some(rows.bytes().unwrap_or(0)) };
        locations.push(Location { range, ..Location::whole(FileId(piece.file)) });
    }

    fn values<'a>(rows: Rows<'_, ()>, parts: &mut Parts<'a>) -> Result<Cow<'a, [u8]>, Defect> {
        let bytes = rows.bytes().unwrap_or(0);
        parts.take_exact(bytes, &rows.column().name).map(Cow::Borrowed)
    }
}
