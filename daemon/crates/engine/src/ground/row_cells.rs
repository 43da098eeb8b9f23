//! Per-row state of a slot, in addition to the rows' bytes: one cell per row.
//!
//! For large batches, touching the cells' memory for the first time takes longer than making a batch. So a slot's cells
//! are created when the slot is first opened, or earlier by a thread that runs ahead of the engine; the second of the
//! two waits.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use forebay_protocol::ids::SampleId;
use forebay_protocol::slots::RowWriter;

use crate::ground::budgets::RowPermits;
use crate::ground::shared_rows::Lead;
use crate::ground::work::FetchJob;
use forebay_order::DrawKey;
use forebay_transform::{MemoryRow, SampleTask};

/// Why a row has no data.
#[derive(Debug, Clone)]
pub enum RowFailure {
    /// The sample's bytes are defective.
    Defect(String),
    /// This file cannot be read, after all retries.
    Unreadable(String),
    /// The storage did not deliver the bytes, after all retries.
    Storage(String),
    /// The user's function raised an exception (`summary`: one line, `text`: the traceback), or its result is invalid
    /// or it takes too long (`text` is empty).
    Raised { stage: usize, summary: String, text: String },
    /// The same for the user's function on batches, `operation`.
    BatchRaised { operation: String, summary: String, text: String },
    /// The user's function can no longer be called.
    NoWorkers(String),
    /// An operation panicked: a bug in the daemon. The panic's message is on stderr.
    Panic,
}

/// A traceback in the form in which it is appended to a message; empty if there is none.
pub(crate) fn appended_traceback(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!("\n\n{text}") }
}

/// What a row is compared with once it is made here.
pub(crate) trait RowCheck: std::fmt::Debug + Send {
    /// Compares it. `sample`: its number, for messages.
    fn compare(&self, made: &mut RowCell, sample: u64);
}

/// The state of one row of a slot.
#[derive(Debug)]
pub struct RowCell {
    pub writer: RowWriter,
    /// The tensors that only operations on the batch see; empty until they are written.
    pub beside: MemoryRow,
    pub task: SampleTask,
    pub valid: bool,
    pub(crate) permits: RowPermits,
    pub failure: Option<RowFailure>,
    /// Set while the row is made for other trainers too.
    pub(crate) lead: Option<Lead<FetchJob>>,
    /// A supplier's copy with which the row is compared once it is made.
    pub(crate) check: Option<Box<dyn RowCheck>>,
}

impl RowCell {
    fn new(writer: RowWriter) -> Self {
        let key = DrawKey { seed: 0, epoch: 0, sample: 0 };
        Self {
            writer,
            beside: MemoryRow::default(),
            task: SampleTask::new(SampleId(0), key, Vec::new()),
            valid: true,
            permits: RowPermits::default(),
            failure: None,
            lead: None,
            check: None,
        }
    }
}

/// The cells of one slot.
#[derive(Debug)]
pub(crate) struct RowCells {
    cells: OnceLock<Box<[Mutex<RowCell>]>>,
    /// The writers from which the cells are created; empty afterwards.
    writers: Mutex<Vec<RowWriter>>,
}

impl RowCells {
    pub(crate) fn new(writers: Vec<RowWriter>) -> Self {
        Self { cells: OnceLock::new(), writers: Mutex::new(writers) }
    }

    /// Creates the cells, if they do not exist.
    pub(crate) fn make(&self) {
        self.made();
    }

    fn made(&self) -> &[Mutex<RowCell>] {
        self.cells.get_or_init(|| {
            let writers = std::mem::take(&mut *lock(&self.writers));
            writers.into_iter().map(|writer| Mutex::new(RowCell::new(writer))).collect()
        })
    }

    /// A row's cell.
    pub(crate) fn cell(&self, row: usize) -> MutexGuard<'_, RowCell> {
        lock(&self.made()[row])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use forebay_protocol::layout::SlotLayout;
    use forebay_protocol::segment::Segment;
    use forebay_protocol::slots::split_rows;
    use forebay_protocol::tensor::{DType, TensorSpec};

    use crate::ground::row_cells::*;

    #[test]
    fn cells_are_created_once_in_a_race() {
        const ROWS: u32 = 20_000;
        let layout =
            Arc::new(SlotLayout::new(&[TensorSpec::dense("x", DType::U8, &[1])], ROWS).unwrap());
        let segment = Segment::create("data", layout.slot_bytes()).unwrap();
        let writers = split_rows(segment.map().unwrap(), &layout, 1).remove(0);
        let (cells, barrier) = (RowCells::new(writers), Barrier::new(3));
        let last = ROWS as usize - 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                cells.make();
            });
            for row in [0, last] {
                let (cells, barrier) = (&cells, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    cells.cell(row).task.id = SampleId(7);
                });
            }
        });
        cells.make();
        // The written values are kept: the cells were created once.
        assert!([0, last].iter().all(|row| cells.cell(*row).task.id == SampleId(7)));
        assert_eq!(cells.made().len(), ROWS as usize);
        assert_eq!(cells.cell(1).task.id, SampleId(0));
    }
}
