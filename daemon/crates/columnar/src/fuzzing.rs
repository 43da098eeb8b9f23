//! Reads whole files in memory, for fuzzers and tests.

use std::ops::ControlFlow;

use crate::arrow;
use crate::{Cell, PackedCell, Reader, Reads, TableColumn};
use forebay_index::window::InMemory;

/// Reads all columns of a table in memory. Gives its columns and rows.
///
/// # Errors
/// Describes the fault of the table.
pub fn read_in_memory(
    reader: &Reader,
    table: &[u8],
) -> Result<(Vec<TableColumn>, Vec<Vec<Cell>>), String> {
    let file = InMemory(table);
    let columns = (reader.columns)(&file).map_err(|error| error.to_string())?;
    let places: Vec<usize> = (0..columns.len().min(64)).collect();
    let mut rows = Vec::new();
    // The number of rows is limited, because few bytes can announce many empty rows. The window is small, so that parts
    // cross its ends.
    let reads = Reads { piece: 24, is_local: true };
    (reader.rows)(&file, &places, reads, &mut |_, cells: &[Cell]| {
        rows.push(cells.to_vec());
        Ok(if rows.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
    .map_err(|error| error.to_string())?;
    Ok((columns, rows))
}

/// The end of each message of an Arrow stream.
///
/// # Panics
/// If it is damaged.
#[must_use]
pub fn message_ends(stream: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let walked = arrow::walk(&InMemory(stream), 64, |message, _| {
        ends.push(usize::try_from(message.body.0 + message.body.1).unwrap_or(usize::MAX));
        Ok(ControlFlow::Continue(()))
    });
    walked.unwrap_or_else(|error| panic!("{error}"));
    ends
}

/// Reads a table as [`read_in_memory`] does.
///
/// # Panics
/// If a value's range is not in the table.
pub fn read_for_fuzzing(reader: &Reader, table: &[u8]) {
    let Ok((_, rows)) = read_in_memory(reader, table) else { return };
    rows.iter().flatten().for_each(|cell| check(cell, table));
}

/// # Panics
/// If a value's range is not in the table.
fn check(cell: &Cell, table: &[u8]) {
    match cell {
        Cell::At { offset, length } => {
            assert!(offset.checked_add(*length).is_some_and(|end| end <= table.len() as u64));
        }
        Cell::Value(value) => assert!(value.len() <= 1 << 26),
        Cell::Packed(PackedCell { offset, bytes, part }) => {
            let is_in = |start: u64, length: u64, all: u64| {
                start.checked_add(length).is_some_and(|end| end <= all)
            };
            assert!(is_in(*offset, *bytes, table.len() as u64));
            assert!(is_in(part.start.into(), part.length.into(), part.unpacked_bytes.into()));
        }
        Cell::List(values) => values.iter().for_each(|value| check(value, table)),
        Cell::Null | Cell::Number { .. } | Cell::Unread(_) => {}
    }
}
