//! Entry points for fuzzers.

use std::ops::ControlFlow;

use super::{Cell, PackedCell, Reads, TableColumn, TableFormat};
use forebay_index::window::InMemory;

/// Reads all columns of a table in memory. Gives its columns and rows.
///
/// # Errors
/// Describes the fault of the table.
pub(crate) fn read_in_memory(
    format: &TableFormat,
    table: &[u8],
) -> Result<(Vec<TableColumn>, Vec<Vec<Cell>>), String> {
    let file = InMemory(table);
    let columns = (format.columns)(&file).map_err(|error| error.to_string())?;
    let places: Vec<usize> = (0..columns.len().min(64)).collect();
    let mut rows = Vec::new();
    // The number of rows is limited, because few bytes can announce many empty rows. The window is small, so that parts
    // cross its ends.
    let reads = Reads { piece: 24, is_local: true };
    (format.rows)(&file, &places, reads, &mut |_, cells: &[Cell]| {
        rows.push(cells.to_vec());
        Ok(if rows.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
    .map_err(|error| error.to_string())?;
    Ok((columns, rows))
}

/// Reads a table as [`read_in_memory`] does.
///
/// # Panics
/// If a value's range is not in the table.
pub(crate) fn read_for_fuzzing(format: &TableFormat, table: &[u8]) {
    let Ok((_, rows)) = read_in_memory(format, table) else { return };
    for cell in rows.iter().flatten() {
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
            Cell::Null | Cell::Number { .. } | Cell::Unread(_) => {}
        }
    }
}
