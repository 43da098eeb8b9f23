//! Rows of Zarr arrays: an array, or the arrays of a group in step. The first axis is the rows.
//!
//! The files of the index are the metadata. A chunk is a file whose name follows from its number: only the runs of
//! chunks that exist are kept ([`Piece`]: `first` is a chunk's number, `bytes` how many follow). A chunk that several
//! windows need is a block, which is read once while they are near; of an uncompressed one only the rows are read. Of a
//! shard, whose file has several chunks, the index is read for ours, and then its chunks by range.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chunks::{self, Chunks, Stored};
use super::index::{Piece, ScannedSet, WindowIndex};
use super::plan::Column;
use super::rows::{Found, Parts, RowFormat, Rows};
use super::{Windows, report};
use crate::indexed::Opening;
use crate::zarr::{Grid, ShardChunk, Shards, V2, V3, ZarrArray, decode, is_group};
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::ARRAY;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths::{below, is_below};
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;
use forebay_storage::listing::EntryKind;
use forebay_storage::location::{ByteRange, FileId, Location};

/// The file of a group of format 2.
const GROUP: &str = ".zgroup";
/// The most bytes of an array's or a group's metadata, which may be those of all arrays in it.
const MAX_METADATA_BYTES: u64 = 64 << 20;

/// The most files and chunks of all arrays: their numbers are those of files, whose highest bits have another use.
const MAX_FILES: u64 = 1 << 40;

/// The format.
#[derive(Debug)]
pub(crate) struct ZarrRows;

/// What a column has besides its type and shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunked {
    array: ZarrArray,
    /// Relative to the root.
    folder: String,
    /// The chunks of the columns before.
    before: u64,
}

/// An array.
struct Node {
    name: String,
    /// Whether its folder is the root, and not one of its name.
    is_root: bool,
    is_v3: bool,
}

impl Node {
    /// The folder, relative to the root.
    fn folder(&self) -> &str {
        if self.is_root { "" } else { &self.name }
    }
}

fn metadata_path(folder: &str, is_v3: bool) -> Vec<u8> {
    below(folder.as_bytes(), if is_v3 { V3 } else { V2 }.as_bytes())
}

/// Which metadata a folder has, and its folders.
#[derive(Debug, Default)]
struct Listed {
    has_v2: bool,
    has_v3: bool,
    has_group: bool,
    folders: Vec<Vec<u8>>,
}

/// Lists a folder that exists.
fn list(
    storage: &dyn Storage,
    folder: &[u8],
    take: &mut dyn FnMut(&[u8], EntryKind),
) -> Result<(), DatasetError> {
    storage.list(folder, take).map(drop).map_err(|error| tell_missing(error.into()))
}

/// Whether there is a folder. One that is absent cannot be listed without a wait as in an outage.
fn has_folder(storage: &dyn Storage, folder: &str) -> Result<bool, DatasetError> {
    let mut parent = String::new();
    for name in folder.split('/') {
        if !listed(storage, &parent)?.folders.iter().any(|folder| folder == name.as_bytes()) {
            return Ok(false);
        }
        if !parent.is_empty() {
            parent.push('/');
        }
        parent.push_str(name);
    }
    Ok(true)
}

fn listed(storage: &dyn Storage, folder: &str) -> Result<Listed, DatasetError> {
    let mut found = Listed::default();
    list(storage, folder.as_bytes(), &mut |name, kind| match kind {
        EntryKind::Directory | EntryKind::LinkedDirectory(_) => found.folders.push(name.to_vec()),
        _ => {
            found.has_v2 |= name == V2.as_bytes();
            found.has_v3 |= name == V3.as_bytes();
            found.has_group |= name == GROUP.as_bytes();
        }
    })?;
    found.folders.sort_unstable();
    found.folders.dedup();
    Ok(found)
}

/// Reads the metadata of a folder.
fn metadata(storage: &dyn Storage, path: &[u8]) -> Result<Vec<u8>, DatasetError> {
    StoredFile::new(storage, path)?.read_whole(MAX_METADATA_BYTES)
}

/// The array of a folder, if there is one. `None`: the root.
fn node(storage: &dyn Storage, folder: Option<&str>) -> Result<Option<Node>, DatasetError> {
    let path = folder.unwrap_or("");
    let Listed { has_v2, has_v3, .. } = listed(storage, path)?;
    if has_v3 && is_group(&metadata(storage, &metadata_path(path, true))?) {
        return Ok(None);
    }
    let name = folder.unwrap_or(ARRAY).to_owned();
    let node = Node { name, is_root: folder.is_none(), is_v3: has_v3 };
    Ok((has_v2 || has_v3).then_some(node))
}

fn nodes(opening: &Opening<'_, Windows<ZarrRows>>) -> Result<Vec<Node>, DatasetError> {
    let (storage, config) = (opening.storage, opening.request.config);
    let refuse = |reason: String| DatasetError::BrokenFile { path: config.path.clone(), reason };
    let root = listed(storage, "")?;
    if !(root.has_v2 || root.has_v3 || root.has_group) {
        return Err(refuse(format!(
            "it has none of {V3}, {V2} and {GROUP}, so it is neither a Zarr array nor a group of them"
        )));
    }
    if let Some(node) = node(storage, None)? {
        return Ok(vec![node]);
    }
    let mut names: Vec<String> = Vec::new();
    match &opening.keys.fields {
        Some(fields) => fields.iter().for_each(|field| names.push(field.from.clone())),
        None => {
            for folder in root.folders {
                let Ok(name) = String::from_utf8(folder) else { continue };
                if node(storage, Some(&name))?.is_some() {
                    names.push(name);
                }
            }
        }
    }
    names.extend(opening.keys.windows.by.clone());
    let mut nodes = Vec::<Node>::with_capacity(names.len());
    for name in names {
        if nodes.iter().any(|node| node.name == name) {
            continue;
        }
        let is_folder = is_below(&name) && has_folder(storage, &name)?;
        let found = if is_folder { node(storage, Some(&name))? } else { None };
        nodes.push(found.ok_or_else(|| {
            refuse(format!("it has no array {name:?}, which dataset.windows names"))
        })?);
    }
    match nodes.is_empty() {
        true => Err(opening.request.no_samples("the group has no arrays of its own; name those below its groups in dataset.windows.fields")),
        false => Ok(nodes),
    }
}

/// The chunks that exist, in runs; those of shards one by one.
fn stored_chunks(
    storage: &dyn Storage,
    folder: &str,
    array: &ZarrArray,
) -> Result<Vec<Piece>, DatasetError> {
    let numbers = stored_files(storage, folder, array.files())?;
    if let Some(shards) = &array.shards {
        return shard_chunks(storage, (folder, array, shards), &numbers);
    }
    let mut runs = Vec::<Piece>::new();
    for number in numbers {
        match runs.last_mut().filter(|run| run.first + run.bytes == number) {
            Some(run) => run.bytes += 1,
            None => runs.push(Piece { first: number, bytes: 1, ..Piece::default() }),
        }
    }
    Ok(runs)
}

/// The chunks of shards: each piece is one, `file` is its shard's number and `form` its size.
fn shard_chunks(
    storage: &dyn Storage,
    (folder, array, shards): (&str, &ZarrArray, &Shards),
    files: &[u64],
) -> Result<Vec<Piece>, DatasetError> {
    let (mut pieces, mut index) = (Vec::new(), Vec::new());
    for shard in files {
        let path = chunk_path(folder, array, *shard);
        let file = StoredFile::new(storage, &path)?;
        let bytes = file.stamp.bytes;
        let place = shards.place(array, bytes);
        let (offset, length) = place
            .ok_or_else(|| file.fault("it is shorter than the index of its shard".to_owned()))?;
        file.read(offset, length, &mut index)?;
        let found =
            shards.chunks(array, *shard, (&index, bytes)).map_err(|reason| file.fault(reason))?;
        pieces.extend(found.into_iter().map(|ShardChunk { number, offset, bytes }| Piece {
            first: number,
            file: *shard,
            offset,
            bytes: 1,
            form: bytes,
        }));
    }
    pieces.sort_unstable_by_key(|piece| piece.first);
    Ok(pieces)
}

/// The numbers of the files of chunks that exist, in order.
fn stored_files(
    storage: &dyn Storage,
    folder: &str,
    array: &ZarrArray,
) -> Result<Vec<u64>, DatasetError> {
    let (grid, axes) = (Grid(array), array.shape.len());
    let mut numbers = Vec::new();
    if array.separator == '.' {
        let prefix = match array.prefix.as_str() {
            "" => Vec::new(),
            prefix => format!("{prefix}.").into_bytes(),
        };
        list(storage, folder.as_bytes(), &mut |name, _| {
            let Some(rest) = name.strip_prefix(&prefix[..]) else { return };
            let places = rest.split(|byte| *byte == b'.');
            let number = places.clone().enumerate().try_fold(0, |before, (axis, text)| {
                (axis < axes).then(|| grid.number(before, axis, text)).flatten()
            });
            numbers.extend(number.filter(|_| places.count() == axes));
        })?;
    } else {
        let root = match array.prefix.as_str() {
            "" => folder.as_bytes().to_vec(),
            prefix => below(folder.as_bytes(), prefix.as_bytes()),
        };
        // Without chunks, their folder does not exist.
        let is_there =
            listed(storage, folder)?.folders.iter().any(|name| *name == array.prefix.as_bytes());
        let mut waiting = Vec::new();
        if is_there || array.prefix.is_empty() {
            waiting.push((root, 0_u64, 0_usize));
        }
        while let Some((path, before, axis)) = waiting.pop() {
            list(storage, &path, &mut |name, kind| {
                let Some(number) = grid.number(before, axis, name) else { return };
                match kind {
                    EntryKind::Directory | EntryKind::LinkedDirectory(_) if axis + 1 < axes => {
                        waiting.push((below(&path, name), number, axis + 1));
                    }
                    EntryKind::File | EntryKind::Object(_) if axis + 1 == axes => {
                        numbers.push(number);
                    }
                    _ => {}
                }
            })?;
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The chunks of rows of a column.
struct ZarrChunks<'i> {
    rows: Rows<'i, Chunked>,
    buffers: [Vec<u8>; 2],
}

impl<'i> ZarrChunks<'i> {
    fn new(rows: Rows<'i, Chunked>) -> Self {
        Self { rows, buffers: [Vec::new(), Vec::new()] }
    }

    fn more(&self) -> &'i Chunked {
        &self.rows.column().more
    }

    /// The number of the first file of chunks.
    fn first_file(&self) -> u64 {
        self.rows.index.file_count().saturating_add(self.more().before)
    }
}

impl<'i> Chunks<'i> for ZarrChunks<'i> {
    fn array(&self) -> &'i ZarrArray {
        &self.more().array
    }

    fn is_plain(&self) -> bool {
        self.array().is_plain()
    }

    fn stored(&self, numbers: Range<u64>) -> impl Iterator<Item = Stored> {
        let (is_sharded, first) = (self.array().shards.is_some(), self.first_file());
        let pieces = self.rows.index.pieces_from(self.rows.set, self.rows.place, numbers.start);
        pieces.take_while(move |piece| piece.first < numbers.end).flat_map(move |piece| {
            let end = piece.first.saturating_add(piece.bytes);
            let each = piece.first.max(numbers.start)..end.min(numbers.end);
            each.map(move |number| {
                let (file, range) = match is_sharded {
                    false => (number, ByteRange { offset: 0, length: None }),
                    true => {
                        (piece.file, ByteRange { offset: piece.offset, length: Some(piece.form) })
                    }
                };
                Stored { number, file: FileId(first.saturating_add(file)), range, form: 0 }
            })
        })
    }

    fn unpack<'b>(&'b mut self, _: Stored, packed: &'b [u8]) -> Result<&'b [u8], Defect> {
        decode(&self.more().array, packed, &mut self.buffers)
    }

    fn named(&self, stored: Stored, Defect(reason): Defect) -> Defect {
        let Chunked { array, folder, .. } = self.more();
        let path = chunk_path(folder, array, stored.file.0.saturating_sub(self.first_file()));
        let name = &self.rows.column().name;
        Defect(format!("`{name}`, {}: {reason}", String::from_utf8_lossy(&path)))
    }
}

/// The file of a chunk or a shard, relative to the root.
fn chunk_path(folder: &str, array: &ZarrArray, number: u64) -> Vec<u8> {
    let mut name = Vec::new();
    Grid(array.files()).append_name(number, &mut name);
    below(folder.as_bytes(), &name)
}

impl RowFormat for ZarrRows {
    const FORMAT: FolderFormat =
        FolderFormat { name: "zarr", extensions: &[], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str = "the folder of a Zarr array, or of a group";
    const MARKS: &'static [&'static str] = &[V3, V2, GROUP];

    type More = Chunked;

    fn reads(_name: &[u8]) -> bool {
        false
    }

    fn files(opening: &Opening<'_, Windows<Self>>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let nodes = nodes(opening)?;
        Ok(nodes.iter().map(|node| metadata_path(node.folder(), node.is_v3)).collect())
    }

    fn scan(
        opening: &Opening<'_, Windows<Self>>,
        _warnings: &mut Vec<String>,
    ) -> Result<Found<Chunked>, DatasetError> {
        let (storage, limits) = (opening.storage, &opening.request.config.limits);
        let mut found = Found { columns: Vec::new(), files: Vec::new(), sets: Vec::new() };
        let (mut set, mut before) = (ScannedSet::default(), 0_u64);
        for node in nodes(opening)? {
            let folder = node.folder();
            let path = metadata_path(folder, node.is_v3);
            let file = StoredFile::new(storage, &path)?;
            let json = file.read_whole(MAX_METADATA_BYTES)?;
            let array = ZarrArray::parse(&json, node.is_v3).map_err(|reason| file.fault(reason))?;
            if array.chunk_bytes() > limits.inflated_bytes {
                return Err(file.fault(format!(
                    "a chunk has {} bytes, and limits.inflated_bytes is {}",
                    array.chunk_bytes(),
                    limits.inflated_bytes
                )));
            }
            let chunks = Grid(array.files()).chunks();
            let files = before.saturating_add(chunks).saturating_add(found.files.len() as u64 + 1);
            if files > MAX_FILES {
                return Err(file.fault(format!(
                    "with it the arrays have {files} files, and at most {MAX_FILES} are read; write larger chunks"
                )));
            }
            let rows = array.shape[0];
            if found.columns.is_empty() {
                set.rows = rows;
            } else if rows != set.rows {
                let first = &found.columns[0];
                return Err(file.fault(format!(
                    "it has {rows} rows, and `{}` has {}: arrays in step have the same first axis; name those that have it in \
                     dataset.windows.fields",
                    first.name, set.rows
                )));
            }
            set.pieces.push(stored_chunks(storage, folder, &array)?);
            let column = Column {
                name: node.name.clone(),
                dtype: array.dtype.clone(),
                shape: array.shape[1..].to_vec(),
                big_endian: array.big_endian,
                more: Chunked { folder: folder.to_owned(), array, before },
            };
            before += chunks;
            found.columns.push(column);
            let stamp = file.stamp;
            found.files.push((path, stamp));
            report(opening, 1, found.files.len() as u64)?;
        }
        found.sets.push(set);
        Ok(found)
    }

    /// Lists the chunks again: a chunk that was written later would be read as the fill value. Behind a URL a list costs a
    /// request for each thousand chunks, and is made if the caller compares all files.
    fn is_complete(
        index: &WindowIndex,
        columns: &[Column<Chunked>],
        opening: &Opening<'_, Windows<Self>>,
    ) -> Result<bool, DatasetError> {
        let storage = opening.storage;
        if storage.remote_root().is_some() && !opening.request.options.compares_files {
            return Ok(true);
        }
        for (place, Column { more: Chunked { array, folder, .. }, .. }) in
            columns.iter().enumerate()
        {
            if !index.pieces_from(0, place, 0).eq(stored_chunks(storage, folder, array)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn locate(rows: Rows<'_, Chunked>, locations: &mut Vec<Location>) {
        chunks::locate(&ZarrChunks::new(rows.clone()), &rows.rows, locations);
    }

    fn values<'a>(rows: Rows<'_, Chunked>, parts: &mut Parts<'a>) -> Result<Cow<'a, [u8]>, Defect> {
        let of_rows = (&rows.rows, rows.bytes().unwrap_or(u64::MAX), &rows.column().name[..]);
        chunks::values(&mut ZarrChunks::new(rows.clone()), of_rows, parts)
    }

    fn shares_units(columns: &[Column<Chunked>]) -> bool {
        columns.iter().any(|column| !column.more.array.is_plain())
    }

    fn places(column: &Column<Chunked>, rows: u64) -> u64 {
        let array = &column.more.array;
        let along = (rows / array.chunk[0]).saturating_add(2);
        along.saturating_mul(Grid(array).chunks_of_row())
    }

    fn unpacked_bytes(column: &Column<Chunked>, rows: u64) -> u64 {
        let window = column.row_bytes().unwrap_or(0).saturating_mul(rows);
        window.saturating_add(column.more.array.chunk_bytes().saturating_mul(2))
    }

    fn append_path(
        columns: &[Column<Chunked>],
        index: &WindowIndex,
        file: FileId,
        path: &mut Vec<u8>,
    ) {
        let number = file.0.saturating_sub(index.file_count());
        let place = columns.partition_point(|column| column.more.before <= number);
        let Some(column) = place.checked_sub(1).and_then(|place| columns.get(place)) else {
            return;
        };
        let Chunked { array, folder, before } = &column.more;
        path.extend_from_slice(&chunk_path(folder, array, number - before));
    }
}
