//! Lance files of the versions 2.1 and 2.2: the location of each row's values.
//!
//! The [`footer`] locates the [`schema`] and the description of each column, which consists of [`pages`]. A page's
//! description has its [`layout`]. Large values are stored one after the other, and are located ([`full_zip`]); small
//! ones are in chunks ([`mini_block`]), which are unpacked ([`values`]) and kept in the index. [`manifest`] finds the
//! data files of a version of a dataset.
//!
//! Lance's crates are not used: they give values, but not their offsets, and bring Arrow and an asynchronous runtime.

mod bitpacking;
mod footer;
mod fsst;
mod full_zip;
mod layout;
pub mod manifest;
mod mini_block;
mod pages;
mod rows;
mod schema;
mod values;

use self::footer::{Footer, Kind};
use self::pages::Column;
use self::schema::{Leaf, Schema};
use self::values::Damaged;
use crate::protobuf::Fault;
use crate::{Cell, Reader, Reads, TableColumn, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The number of bytes read at once from a file's end.
const TAIL_BYTES: u64 = 64 << 10;
/// The budget of values kept in the index for a file: this many bytes, and this many per byte of the file.
const KEPT_BYTES: (u64, u64) = (256 << 20, 64);
/// The maximum number of a file's values, each of which has a cell in the index: at least this many, and this many per
/// byte of the file.
const INDEXED_VALUES: (u64, u64) = (16 << 20, 64);
/// The maximum memory of dictionaries, offsets and unfinished lists of all columns.
const HELD_BYTES: u64 = 256 << 20;
/// The memory for reads of all columns, unless [`LEAST_PIECE_BYTES`] for each of them is more.
const READ_BYTES: u64 = 64 << 20;
/// The minimum size of a read of a column.
const LEAST_PIECE_BYTES: u64 = 16 << 10;

/// Reads Lance files. A manifest has the columns of its dataset, and no rows.
pub const READER: Reader = Reader { columns, rows };

/// Why a column is not read to its end.
#[derive(Debug)]
enum Trouble {
    Read(DatasetError),
    Damaged,
}

impl From<DatasetError> for Trouble {
    fn from(error: DatasetError) -> Self {
        Self::Read(error)
    }
}

impl From<Damaged> for Trouble {
    fn from(_: Damaged) -> Self {
        Self::Damaged
    }
}

impl From<Fault> for Damaged {
    fn from(_: Fault) -> Self {
        Self
    }
}

fn columns(file: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    let mut window = Window::new(file, WindowSize::fixed(TAIL_BYTES));
    let schema = match footer::kind(&mut window)? {
        Kind::Data => Footer::read(&mut window)?.schema,
        Kind::Manifest => {
            let message = footer::manifest(&mut window)?;
            Schema::parse(message, 5).map_err(|reason| file.fault(reason))?
        }
    };
    Ok(schema.leaves.into_iter().map(|leaf| leaf.column).collect())
}

fn rows(
    file: &dyn Bytes,
    places: &[usize],
    reads: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let mut window = Window::new(file, WindowSize::fixed(TAIL_BYTES));
    if footer::kind(&mut window)? == Kind::Manifest {
        return Ok(());
    }
    let footer = Footer::read(&mut window)?;
    let indexed = file.length().saturating_mul(INDEXED_VALUES.1).max(INDEXED_VALUES.0);
    if footer.rows.saturating_mul(places.len() as u64) > indexed {
        return Err(file.fault(format!(
            "it has {} bytes, and {} rows of {} columns; at most {indexed} values are read of a file of this size; name fewer \
             columns in dataset.fields, or write fewer rows into a file",
            file.length(),
            footer.rows,
            places.len()
        )));
    }
    let leaves: Vec<_> =
        places.iter().filter_map(|place| footer.schema.leaves.get(*place)).collect();
    let described = |leaf: &&Leaf| leaf.stored.and_then(|stored| footer.columns.get(stored));
    let lengths = leaves.iter().filter_map(described).map(|described| described.1);
    if lengths.fold(0, u64::saturating_add) > file.length() {
        return Err(file.fault("its descriptions of columns overlap: it is damaged".to_owned()));
    }
    let piece = (READ_BYTES / (leaves.len() as u64).max(1)).max(LEAST_PIECE_BYTES);
    let reads = Reads { piece: piece.min(reads.piece), ..reads };
    let open = |leaf: &&Leaf| {
        described(leaf).map(|described| Column::open(file, *described, reads)).transpose()
    };
    let mut columns = leaves.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut budget = KEPT_BYTES.0.saturating_add(file.length().saturating_mul(KEPT_BYTES.1));
    let mut cells = Vec::with_capacity(leaves.len());
    for row in 0..footer.rows {
        cells.clear();
        let mut held = 0;
        for (leaf, column) in leaves.iter().zip(&mut columns) {
            let cell = match column {
                Some(column) => column.next().map_err(|trouble| match trouble {
                    Trouble::Read(error) => error,
                    Trouble::Damaged => damaged(file, leaf, row),
                })?,
                None => Cell::Null,
            };
            let end = match &cell {
                Cell::At { offset, length } => offset.checked_add(*length),
                Cell::Packed(cell) => cell.offset.checked_add(cell.bytes),
                _ => Some(0),
            };
            if end.is_none_or(|end| end > file.length()) {
                return Err(damaged(file, leaf, row));
            }
            if let Cell::Value(value) = &cell {
                budget = budget.checked_sub(value.len() as u64).ok_or_else(|| {
                    file.fault(format!(
                        "its values that cannot be read one by one have more bytes than the {} for {} bytes of the file",
                        KEPT_BYTES.0,
                        file.length()
                    ))
                })?;
            }
            cells.push(cell);
            held += column.as_ref().map_or(0, Column::held);
            if held > HELD_BYTES {
                return Err(file.fault(format!(
                    "its dictionaries, offsets and lists use more than {} MiB of memory; name fewer columns in dataset.fields",
                    HELD_BYTES >> 20
                )));
            }
        }
        if visit(row, &cells)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn damaged(file: &dyn Bytes, leaf: &Leaf, row: u64) -> DatasetError {
    file.fault(format!("column {} is damaged at row {row}", leaf.column.column.name))
}

#[cfg(test)]
mod tests;
