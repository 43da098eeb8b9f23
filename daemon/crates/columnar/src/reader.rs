//! How files of columns are read.

use std::ops::ControlFlow;

use forebay_dataset::error::DatasetError;
use forebay_index::window::Bytes;

use crate::{Cell, TableColumn};

/// How a file is read.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    /// The minimum size of a read, in bytes.
    pub piece: u64,
    /// Whether another read costs less than the bytes between two values that are far apart.
    pub is_local: bool,
}

/// Reads one kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// A file's columns.
    pub columns: fn(&dyn Bytes) -> Result<Vec<TableColumn>, DatasetError>,
    /// Visits a file's rows, for the given indices among [`columns`](Self::columns).
    pub rows: Walk,
}

/// Visits rows.
type Walk = fn(&dyn Bytes, &[usize], Reads, Visit<'_>) -> Result<(), DatasetError>;

/// Receives a row's number and its cells, in the order of the requested columns.
pub type Visit<'v> = &'v mut dyn FnMut(u64, &[Cell]) -> Result<ControlFlow<()>, DatasetError>;
