//! What belongs to the rows of one slot beside their bytes: a cell each.
//!
//! For large batches, first touching the memory of the cells takes longer than a batch. So a slot's cells are made when
//! the slot is opened first, or before that by a thread that goes ahead of the engine; whoever comes second waits.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use forebay_protocol::ids::SampleId;
use forebay_protocol::slots::RowWriter;

use super::budgets::RowPermits;
use forebay_order::DrawKey;
use forebay_pipeline::{MemoryRow, SampleTask};

/// Why a row has no data.
#[derive(Debug, Clone)]
pub enum RowFailure {
    /// The sample's bytes are defective.
    Defect(String),
    /// The file alone cannot be read, after all retries.
    Unreadable(String),
    /// The storage did not give the bytes, after all retries.
    Storage(String),
    /// The user's own function raised an exception: on one line, and with its traceback.
    Raised { stage: usize, summary: String, text: String },
    /// The user's own function on batches raised an exception: what it is called, and as above.
    BatchRaised { operation: String, summary: String, text: String },
    /// The user's own function cannot be called any more.
    NoWorkers(String),
    /// An operation panicked: an error of the daemon's own. The panic's message is on stderr.
    Panic,
}

/// What belongs to one row of a slot.
#[derive(Debug)]
pub struct RowCell {
    pub writer: RowWriter,
    /// The tensors that only operations on the batch see; empty until they are written.
    pub beside: MemoryRow,
    pub task: SampleTask,
    pub valid: bool,
    pub(crate) permits: RowPermits,
    pub failure: Option<RowFailure>,
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
        }
    }
}

/// The cells of one slot.
#[derive(Debug)]
pub(crate) struct RowCells {
    cells: OnceLock<Box<[Mutex<RowCell>]>>,
    /// What they are made from; empty afterwards.
    writers: Mutex<Vec<RowWriter>>,
}

impl RowCells {
    pub(crate) fn new(writers: Vec<RowWriter>) -> Self {
        Self { cells: OnceLock::new(), writers: Mutex::new(writers) }
    }

    /// Makes the cells, if they are not made.
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

    use super::*;

    #[test]
    fn cells_are_made_once_whoever_comes_first() {
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
        // What was written is kept: nobody made them a second time.
        assert!([0, last].iter().all(|row| cells.cell(*row).task.id == SampleId(7)));
        assert_eq!(cells.made().len(), ROWS as usize);
        assert_eq!(cells.cell(1).task.id, SampleId(0));
    }
}
