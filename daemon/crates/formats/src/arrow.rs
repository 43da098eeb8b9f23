//! `arrow`: Apache Arrow tables from Hugging Face's `save_to_disk` (streams of batches, listed by a `state.json`), and
//! `.arrow` files of any writer.
//!
//! A stream consists of messages: a schema, then batches of rows, each with a description ([`flatbuffer`]) and its
//! buffers. The location of a row's values follows from the description and from offsets ([`batch`]), which are read
//! once; the values are not moved. Arrow's crates are not used: they build arrays in memory and do not give the values'
//! offsets.

mod batch;
mod flatbuffer;
mod packed;
mod schema;

use std::ops::ControlFlow;

use forebay_config::DatasetConfig;
use serde::Deserialize;

use self::batch::Batch;
use self::flatbuffer::{Broken, Table};
use self::packed::Budget;
pub(super) use self::schema::TimeUnit;
use self::schema::{Leaf, Schema};
use crate::tables::{Cell, Reads, TableColumn, TableFormat, TableKind, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::tell_missing;
use forebay_index::shard_paths::is_below;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::{Bytes, Window, WindowSize};
use forebay_storage::Storage;

const FORMAT: FolderFormat =
    FolderFormat { name: "arrow", extensions: &[".arrow"], loose: LooseFiles::NoFolders };

/// Files that `save_to_disk` writes next to the data.
const IN_FOLDERS: [&str; 2] = [STATE, SPLITS];
const STATE: &str = "state.json";
const SPLITS: &str = "dataset_dict.json";
/// Both are smaller.
const MAX_JSON_BYTES: u64 = 256 << 20;
/// The number of bytes read at once from a file's start.
const HEAD_BYTES: u64 = 16 << 10;
/// The number of rows of a batch that are processed together.
const ROWS_AT_ONCE: u64 = 4096;
/// The prefix of a file that ends with a list of its batches; a stream follows it.
const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// The prefix of a message.
const HEAD: [u8; 4] = [0xff; 4];

pub(super) const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &IN_FOLDERS,
    expected: "a folder that save_to_disk has written, a .arrow file, or a folder of them",
    listed,
    columns,
    rows,
    part: "buffer",
    uncompressed: "with pyarrow.ipc.IpcWriteOptions(compression=None)",
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

/// The header and body of a message.
struct Message<'m> {
    version: i16,
    kind: u8,
    header: Table<'m>,
    /// The offset and the length of the body.
    body: (u64, u64),
}

/// Visits a stream's messages, up to its end or until the visitor stops.
fn walk(
    file: &dyn Bytes,
    piece: u64,
    mut visit: impl FnMut(Message<'_>, &mut Window<'_>) -> Result<ControlFlow<()>, DatasetError>,
) -> Result<(), DatasetError> {
    let mut window = Window::new(file, WindowSize::fixed(piece));
    let length = file.length();
    let mut at = 0;
    if length >= 8 && window.get(0, 8)? == MAGIC {
        at = 8;
    }
    let start = at;
    loop {
        if length.saturating_sub(at) < 8 {
            return Err(file.fault(format!(
                "it ends at byte {length} without the mark that ends a stream: it is cut off"
            )));
        }
        let mut head = [0; 8];
        head.copy_from_slice(window.get(at, 8)?);
        let [a, b, c, d, size @ ..] = head;
        if [a, b, c, d] != HEAD {
            return Err(file.fault(match at == start {
                true => "it is no Arrow stream of version 0.15 or later".to_owned(),
                false => format!("at byte {at} there is no message: it is damaged"),
            }));
        }
        let size = u32::from_le_bytes(size);
        if size == 0 {
            return Ok(());
        }
        let text = window.get(at + 8, u64::from(size))?.to_vec();
        let broken = |_: Broken| file.fault(format!("its message at byte {at} is damaged"));
        let table = Table::root(&text).map_err(broken)?;
        let header = table.table(2).map_err(broken)?.ok_or_else(|| broken(Broken))?;
        let body = at + 8 + u64::from(size);
        let bytes = u64::try_from(table.i64(3, 0).map_err(broken)?).map_err(|_| broken(Broken))?;
        let end = body.checked_add(bytes).filter(|end| *end <= length).ok_or_else(|| {
            file.fault(format!(
                "its message at byte {at} has {bytes} bytes, and the file {length}: it is cut off or damaged"
            ))
        })?;
        let message = Message {
            version: table.i16(0, 0).map_err(broken)?,
            kind: table.u8(1, 0).map_err(broken)?,
            header,
            body: (body, bytes),
        };
        if (at == start) != (message.kind == 1) {
            return Err(file.fault(format!("its message at byte {at} is not where it belongs")));
        }
        if visit(message, &mut window)?.is_break() {
            return Ok(());
        }
        at = end;
    }
}

/// The units of a schema's times by column name, from a message with the schema; `None`: not such a message.
pub(super) fn time_units(message: &[u8]) -> Option<Vec<(String, TimeUnit)>> {
    // Before version 0.15, messages had no such prefix.
    let message = message.strip_prefix(&HEAD).unwrap_or(message);
    let header = Table::root(message.get(4..)?).ok()?.table(2).ok()??;
    schema::time_units(&header).ok()
}

fn columns(file: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    let mut found = Vec::new();
    walk(file, HEAD_BYTES, |message, _| {
        let schema = Schema::parse(&message.header, message.version);
        let schema = schema.map_err(|reason| file.fault(reason))?;
        found = schema.leaves.into_iter().map(|leaf| leaf.column).collect();
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

fn rows(
    file: &dyn Bytes,
    wanted: &[usize],
    reads: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let mut schema = None;
    let mut row = 0;
    let budget = Budget::of(file);
    walk(file, reads.piece, |message, window| {
        let fault = |reason: String| file.fault(reason);
        let Some(schema) = &schema else {
            schema = Some(Schema::parse(&message.header, message.version).map_err(fault)?);
            return Ok(ControlFlow::Continue(()));
        };
        // Other messages contain dictionaries; dictionary-encoded columns are not supported.
        if message.kind != 3 {
            return Ok(ControlFlow::Continue(()));
        }
        let batch = Batch::parse(&message.header, schema, message.body).map_err(fault)?;
        let leaves: Vec<&Leaf> =
            wanted.iter().filter_map(|place| schema.leaves.get(*place)).collect();
        if batch.is_packed() {
            let values = batch.rows.saturating_mul(leaves.len().max(1) as u64);
            budget.count(values).map_err(fault)?;
        }
        visit_batch((&batch, &budget), &leaves, window, &mut row, visit)
    })
}

/// Visits the rows of a batch.
fn visit_batch(
    (batch, budget): (&Batch<'_>, &Budget),
    leaves: &[&Leaf],
    window: &mut Window<'_>,
    row: &mut u64,
    visit: Visit<'_>,
) -> Result<ControlFlow<()>, DatasetError> {
    let mut columns: Vec<Vec<Cell>> = leaves.iter().map(|_| Vec::new()).collect();
    let mut cells = Vec::with_capacity(leaves.len());
    let mut start = 0;
    while start < batch.rows {
        let end = batch.rows.min(start + ROWS_AT_ONCE);
        for (leaf, column) in leaves.iter().zip(&mut columns) {
            column.clear();
            batch.cells(window, leaf, (start..end, budget), column)?;
        }
        for place in 0..usize::try_from(end - start).unwrap_or(0) {
            cells.clear();
            cells.extend(columns.iter_mut().map(|column| {
                column.get_mut(place).map_or(Cell::Null, |cell| std::mem::replace(cell, Cell::Null))
            }));
            if visit(*row, &cells)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            *row += 1;
        }
        start = end;
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
