//! What fuzzers run of these formats.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::{Bytes, Cell, PackedCell, TableColumn, TableFormat};
use crate::dataset::error::DatasetError;

/// A file in memory.
pub(in crate::dataset) struct InMemory<'a>(pub(in crate::dataset) &'a [u8]);

impl Bytes for InMemory<'_> {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        let start = usize::try_from(offset).unwrap();
        buffer.clear();
        buffer.extend_from_slice(&self.0[start..start + usize::try_from(length).unwrap()]);
        Ok(())
    }

    fn fault(&self, reason: String) -> DatasetError {
        DatasetError::BrokenFile { path: PathBuf::from("table"), reason }
    }
}

/// Reads a table in memory whole, with all of its columns. Gives its columns and rows, or why it is refused.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn read_in_memory(
    format: &TableFormat,
    table: &[u8],
) -> Result<(Vec<TableColumn>, Vec<Vec<Cell>>), String> {
    let file = InMemory(table);
    let columns = (format.columns)(&file).map_err(|error| error.to_string())?;
    let places: Vec<usize> = (0..columns.len().min(64)).collect();
    let mut rows = Vec::new();
    // A few numbers can announce rows of no bytes; a small window, so that parts lie over its ends.
    (format.rows)(&file, &places, 24, &mut |_, cells: &[Cell]| {
        rows.push(cells.to_vec());
        Ok(if rows.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
    .map_err(|error| error.to_string())?;
    Ok((columns, rows))
}

/// Reads a table as [`read_in_memory`] does.
///
/// # Panics
/// When a value does not lie in it.
pub(in crate::dataset) fn read_for_fuzzing(format: &TableFormat, table: &[u8]) {
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
            Cell::Null | Cell::Number { .. } => {}
        }
    }
}
