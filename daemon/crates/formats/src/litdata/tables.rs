//! Chunks that are tables, of two kinds.
//!
//! Parquet files, which `index_parquet_dataset` lists in an `index.json` and `ParquetLoader` reads.
//!
//! Chunks whose items are rows of Arrow, as LitData 0.2.70 and later write dicts of plain values and lists. The chunk's
//! table of items lists empty items. Then follow an Arrow file with all items, its length as a little-endian `u32`, and
//! a mark. The source is `append_arrow_row_footer` of litdata/streaming/item_loader.py.

use std::ops::ControlFlow;

use forebay_config::DatasetConfig;

use super::{FORMAT, INDEX, Index, MAX_INDEX_BYTES};
use crate::arrow;
use crate::tables::{TableFormat, TableKind, none_deleted};
use forebay_columnar::{Cell, PackedCell, Reader, Reads, TableColumn, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::Bytes;
use forebay_storage::Storage;

/// The loader of chunks that are Parquet files.
const PARQUET: &str = "ParquetLoader";
/// The beginning of a Parquet file. A chunk of items begins with their number, and none has so many.
const PARQUET_MARK: &[u8] = b"PAR1";

/// The mark at the end of a chunk of rows; the length precedes it.
const MARK: &[u8; 8] = b"LDARW01\0";
const TAIL_BYTES: u64 = 12;

/// Chunks that are tables.
#[derive(Debug)]
pub(super) struct TableChunks;

impl TableKind for TableChunks {
    const TABLES: TableFormat = TABLES;
}

const TABLES: TableFormat = TableFormat {
    format: FORMAT,
    marks: &[],
    expected: "the folder of an index.json and its chunks",
    listed,
    deleted: none_deleted,
    reader: Reader { columns, rows },
    part: "page or buffer",
    uncompressed: "without compression (Parquet: with compression=\"none\" and use_dictionary=False)",
    differing: None,
};

/// Whether the chunks of a folder are tables: `index.json` names the loader of Parquet files, or it has `types`, and the
/// first chunk contains an Arrow file.
pub(super) fn are_here(storage: &dyn Storage) -> Result<bool, DatasetError> {
    let Some(file) = StoredFile::if_there(storage, INDEX.as_bytes())? else { return Ok(false) };
    let text = file.read_whole(MAX_INDEX_BYTES)?;
    // `records` reads it again and reports errors.
    let Ok(index) = serde_json::from_slice::<Index>(&text) else { return Ok(false) };
    if index.config.item_loader.as_deref() == Some(PARQUET) {
        return Ok(true);
    }
    let (Some(first), Some(_)) = (index.chunks.first(), &index.config.types) else {
        return Ok(false);
    };
    let name = arrow::path_below(&file, &first.filename)?;
    let Some(chunk) = StoredFile::if_there(storage, &name)? else { return Ok(false) };
    Ok(ArrowRows::find(&chunk)?.is_some())
}

/// The chunks, in the order of the index.
fn listed(
    storage: &dyn Storage,
    _config: &DatasetConfig,
) -> Result<Option<Vec<Vec<u8>>>, DatasetError> {
    let file = open_file(storage, INDEX.as_bytes())?;
    let index: Index = serde_json::from_slice(&file.read_whole(MAX_INDEX_BYTES)?)
        .map_err(|error| file.fault(format!("it is not an index of LitData: {error}")))?;
    let names = index.chunks.iter().map(|chunk| arrow::path_below(&file, &chunk.filename));
    names.collect::<Result<_, _>>().map(Some)
}

/// Whether a chunk is a Parquet file.
fn is_parquet(chunk: &dyn Bytes) -> Result<bool, DatasetError> {
    let mut bytes = Vec::new();
    if chunk.length() >= PARQUET_MARK.len() as u64 {
        chunk.read(0, PARQUET_MARK.len() as u64, &mut bytes)?;
    }
    Ok(bytes == PARQUET_MARK)
}

fn columns(chunk: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    match is_parquet(chunk)? {
        true => (forebay_columnar::parquet::READER.columns)(chunk),
        false => (forebay_columnar::arrow::READER.columns)(&ArrowRows::of(chunk)?),
    }
}

fn rows(
    chunk: &dyn Bytes,
    wanted: &[usize],
    reads: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    if is_parquet(chunk)? {
        return (forebay_columnar::parquet::READER.rows)(chunk, wanted, reads, visit);
    }
    let rows = ArrowRows::of(chunk)?;
    let mut cells = Vec::new();
    let mut moved = |row: u64, found: &[Cell]| -> Result<ControlFlow<()>, DatasetError> {
        cells.clear();
        cells.extend(found.iter().cloned().map(|cell| moved_by(rows.start, cell)));
        visit(row, &cells)
    };
    (forebay_columnar::arrow::READER.rows)(&rows, wanted, reads, &mut moved)
}

/// A cell of the Arrow file, by its place in the chunk.
fn moved_by(start: u64, cell: Cell) -> Cell {
    match cell {
        Cell::At { offset, length } => Cell::At { offset: start + offset, length },
        Cell::Packed(packed) => {
            Cell::Packed(PackedCell { offset: start + packed.offset, ..packed })
        }
        Cell::List(values) => {
            Cell::List(values.into_iter().map(|value| moved_by(start, value)).collect())
        }
        other => other,
    }
}

/// The Arrow file within a chunk.
struct ArrowRows<'c> {
    chunk: &'c dyn Bytes,
    start: u64,
    length: u64,
}

impl<'c> ArrowRows<'c> {
    fn find(chunk: &'c dyn Bytes) -> Result<Option<Self>, DatasetError> {
        let Some(tail) = chunk.length().checked_sub(TAIL_BYTES) else { return Ok(None) };
        let mut bytes = Vec::new();
        chunk.read(tail, TAIL_BYTES, &mut bytes)?;
        let Some((length, mark)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        if mark != MARK {
            return Ok(None);
        }
        let length = u64::from(u32::from_le_bytes(*length));
        let start = tail.checked_sub(length).ok_or_else(|| {
            chunk.fault(format!("its rows are to have {length} bytes, and the file has fewer"))
        })?;
        Ok(Some(Self { chunk, start, length }))
    }

    fn of(chunk: &'c dyn Bytes) -> Result<Self, DatasetError> {
        Self::find(chunk)?.ok_or_else(|| {
            chunk.fault(
                "it has no rows of Arrow, and other chunks of its dataset do: it is cut off, or write all of them with the same \
                 version of LitData"
                    .to_owned(),
            )
        })
    }
}

impl Bytes for ArrowRows<'_> {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        self.chunk.read(self.start + offset, length, buffer)
    }

    fn fault(&self, reason: String) -> DatasetError {
        self.chunk.fault(reason)
    }
}
