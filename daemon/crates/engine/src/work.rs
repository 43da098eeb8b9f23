//! What the engine, the fetch threads and the work threads share of one session: slots, rows and which rows are ready.
//!
//! See the states in [`super`]. Each row's cell has a mutex for the compiler's sake; it is handed over together with the
//! row's state, so it is never contended and nobody blocks on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::ids::SampleId;
use forebay_protocol::slots::RowWriter;
use forebay_protocol::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_protocol::tensor::{Extent, TensorSpec};

use super::batch_run::run_batch_operations;
use super::row_cells::{RowCell, RowCells, RowFailure};
use super::stream::Stream;
use super::units::{Units, Wanted};
use super::work_parking::BitSet;
use forebay_pipeline::batch::BatchCaller;
use forebay_source::storage::Retries;

/// No batch is open in the slot.
const CLOSED: u64 = u64::MAX;

/// What is kept of each row of a ring beside its data: the cell and what it has on the heap, its bits, its place in the
/// queue of rows to fetch, and what only operations on the batch see.
pub(crate) fn row_bytes(stream: &Stream) -> u64 {
    let is_ragged = |tensor: &TensorSpec| matches!(tensor.extent, Extent::Ragged { .. });
    let ragged = if stream.tensors().iter().any(is_ragged) { stream.tensors().len() } else { 0 };
    let lists = ragged * size_of::<u64>();
    let beside = stream.plan.beside_tensors().iter().map(|tensor| tensor.row_pitch_bytes());
    let beside_bytes: u64 = beside.map(|bytes| bytes.unwrap_or(0)).sum();
    (size_of::<Mutex<RowCell>>() + lists + size_of::<FetchJob>() + 1) as u64 + beside_bytes
}

/// One slot and the batch that is being made in it.
#[derive(Debug)]
pub struct SlotWork {
    /// The number of the batch in the session, or `CLOSED`.
    order: AtomicU64,
    /// Set when the batch is not wanted any more; its rows end without work.
    cancelled: AtomicBool,
    /// The rows of the batch.
    open_rows: AtomicU32,
    /// Rows that are not finished.
    pending: AtomicU32,
    /// A bit for each row that failed and that the engine has not looked at.
    failed: BitSet,
    /// For each stage, a bit for each row that waits for it.
    ready: Box<[BitSet]>,
    rows: RowCells,
    /// Whether the complete batch is to be finished, is being, or has been.
    finishing: AtomicU32,
    /// What that gave. Handed over like a cell.
    finished: Mutex<Finished>,
    /// The rows that are made of each dataset, where there are several.
    by_dataset: Box<[AtomicU32]>,
}

/// What finishing a batch gives: the elements of each tensor whose ragged rows were moved together, or why a batch
/// operation failed.
pub(crate) type Finished = Result<Vec<u64>, RowFailure>;

/// Added to the urgency of rows that yield: more than a ring has slots.
const YIELDING: u64 = 1 << 32;
const FINISHING_NONE: u32 = 0;
const FINISHING_WANTED: u32 = 1;
const FINISHING_RUNNING: u32 = 2;
const FINISHING_DONE: u32 = 3;

/// Slots of fewer rows are quickly made by the engine.
const MANY_ROWS: u32 = 4096;

/// One session's slots.
#[derive(Debug)]
pub struct SessionWork {
    /// The session's number.
    pub number: u64,
    pub stream: Arc<Stream>,
    pub slots: Box<[SlotWork]>,
    /// The number of the batch that is published next: what is oldest to this session.
    pub next_to_publish: Arc<AtomicU64>,
    /// Whether rows of other sessions come first.
    yields: AtomicBool,
    /// Where samples share units: the stream's.
    pub(crate) units: Option<Arc<Units<FetchJob>>>,
}

/// One row to fetch.
#[derive(Debug)]
pub(crate) struct FetchJob {
    pub session: Arc<SessionWork>,
    pub slot: usize,
    pub row: usize,
    /// The number of the batch in its session.
    pub order: u64,
    pub id: SampleId,
    /// The units that it needs, where the dataset's samples share some; else empty.
    pub units: Box<[Wanted<FetchJob>]>,
    /// The attempts that have failed.
    pub retries: Option<Retries>,
}

/// A stage to run on a row.
#[derive(Debug, Clone, Copy)]
pub struct RowClaim {
    pub slot: usize,
    pub row: usize,
    pub stage: usize,
}

/// What a work thread has claimed.
#[derive(Debug, Clone, Copy)]
pub enum Claim {
    /// A row; its stage is entered.
    Row(RowClaim),
    /// A complete batch to finish.
    Batch { slot: usize },
}

impl SlotWork {
    fn new(rows: Vec<RowWriter>, stages: usize, datasets: usize) -> Self {
        Self {
            order: AtomicU64::new(CLOSED),
            cancelled: AtomicBool::new(false),
            open_rows: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            failed: BitSet::new(rows.len()),
            ready: (0..stages).map(|_| BitSet::new(rows.len())).collect(),
            finishing: AtomicU32::new(FINISHING_NONE),
            finished: Mutex::new(Ok(Vec::new())),
            by_dataset: (0..datasets).map(|_| AtomicU32::new(0)).collect(),
            rows: RowCells::new(rows),
        }
    }

    /// The row's cell. Only whoever the row's state names calls this; see the module's head.
    pub fn cell(&self, row: usize) -> MutexGuard<'_, RowCell> {
        self.rows.cell(row)
    }

    /// Opens the slot for a batch of so many rows. Engine only.
    pub fn open(&self, order: u64, rows: u32) {
        self.rows.make();
        self.cancelled.store(false, Ordering::Relaxed);
        // Every row of the batch before is finished. One that failed after its batch was given up was not looked at.
        self.failed.clear();
        self.finishing.store(FINISHING_NONE, Ordering::Relaxed);
        for rows in &self.by_dataset {
            rows.store(0, Ordering::Relaxed);
        }
        self.open_rows.store(rows, Ordering::Relaxed);
        self.pending.store(rows, Ordering::Relaxed);
        // Release: pairs with the acquire load in `claim`.
        self.order.store(order, Ordering::Release);
    }

    /// A row of a dataset is made; before it is finished.
    pub(crate) fn count_row(&self, dataset: usize) {
        // Relaxed: ordered by `finish_row`.
        self.by_dataset[dataset].fetch_add(1, Ordering::Relaxed);
    }

    /// The rows of each dataset, where there are several. Of a complete batch; engine only.
    pub(crate) fn rows_by_dataset(&self) -> impl Iterator<Item = u32> {
        self.by_dataset.iter().map(|rows| rows.load(Ordering::Relaxed))
    }

    /// Closes the slot: complete or given up. Engine only.
    pub fn close(&self) {
        self.order.store(CLOSED, Ordering::Release);
    }

    /// The number of the batch that is made in it. For whoever holds one of its rows.
    pub fn order(&self) -> u64 {
        // Relaxed: set before any row was handed over.
        self.order.load(Ordering::Relaxed)
    }

    /// Whether every row is finished.
    pub fn is_complete(&self) -> bool {
        // Acquire: pairs with the release in `finish_rows`; the rows' bytes come first.
        self.pending.load(Ordering::Acquire) == 0
    }

    /// A row is finished, with data or without. True: the engine should look, since it was the last or it failed.
    pub fn finish_row(&self, row: usize, failed: bool) -> bool {
        if failed {
            // The reason in the cell comes first. Before the count, so that whoever sees the batch complete sees the
            // failure too.
            self.failed.add(row);
        }
        // AcqRel: releases this row's bytes, and the last one to finish has seen the others'.
        let last = self.pending.fetch_sub(1, Ordering::AcqRel) == 1;
        last || failed
    }

    /// Rows of a batch that is given up end before they were admitted. Engine only.
    pub fn finish_rows(&self, count: u32) {
        self.pending.fetch_sub(count, Ordering::AcqRel);
    }

    /// The rows that are not finished.
    pub fn unfinished(&self) -> u32 {
        // Relaxed: a look, for the watchdog.
        self.pending.load(Ordering::Relaxed)
    }

    /// A row that waits for a stage, and which, if there is one.
    pub fn ready_row(&self) -> Option<(usize, usize)> {
        self.ready.iter().enumerate().find_map(|(stage, rows)| Some((stage, rows.first()?)))
    }

    /// A failed row gets another sample. Engine only.
    pub fn reopen_row(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks for a complete batch to be finished, if that was not asked yet. Engine only.
    pub fn is_asked_to_finish(&self) -> bool {
        // As in `finished`.
        let asked = self.finishing.compare_exchange(
            FINISHING_NONE,
            FINISHING_WANTED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        asked.is_ok()
    }

    /// Asks for a complete batch to be finished; what that gave once it is. Engine only.
    pub fn finished(&self) -> Option<Finished> {
        // Release, and acquire on the answer: pair with `claim_finishing` and `finish`.
        let asked = self.finishing.compare_exchange(
            FINISHING_NONE,
            FINISHING_WANTED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        (asked == Err(FINISHING_DONE))
            .then(|| self.finished.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Withdraws a request to finish the batch. False: a work thread has begun, holds the rows' cells, and wakes the
    /// engine when it is done. Engine only.
    pub fn withdraw_finishing(&self) -> bool {
        // Acquire: pairs with the release in `finish`.
        self.finishing.compare_exchange(
            FINISHING_WANTED,
            FINISHING_NONE,
            Ordering::Acquire,
            Ordering::Acquire,
        ) != Err(FINISHING_RUNNING)
    }

    fn claim_finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed) == FINISHING_WANTED
            && self
                .finishing
                .compare_exchange(
                    FINISHING_WANTED,
                    FINISHING_RUNNING,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Finishes a complete batch: runs the batch operations, then moves ragged rows together.
    pub fn finish(&self, stream: &Stream, caller: &BatchCaller<'_>) {
        // Relaxed: written before the batch was opened.
        let rows = self.open_rows.load(Ordering::Relaxed) as usize;
        let mut cells: Vec<_> = (0..rows).map(|row| self.cell(row)).collect();
        let operations = if stream.plan.has_batch_operations() {
            let begun = stream.clock.now();
            let outcome = run_batch_operations(stream, &mut cells, caller);
            match &outcome {
                Ok(()) => stream.batch_figures.record(stream.clock.elapsed(begun)),
                Err(_) => stream.batch_figures.record_failure(),
            }
            outcome
        } else {
            Ok(())
        };
        let finished = operations.map(|()| {
            let mut writers: Vec<&mut RowWriter> =
                cells.iter_mut().map(|cell| &mut cell.writer).collect();
            let compacted = |(tensor, spec): (usize, &TensorSpec)| match spec.extent {
                Extent::Ragged { compact: true, .. } => RowWriter::compact(&mut writers, tensor),
                _ => 0,
            };
            stream.tensors().iter().enumerate().map(compacted).collect()
        });
        *self.finished.lock().unwrap_or_else(PoisonError::into_inner) = finished;
        self.finishing.store(FINISHING_DONE, Ordering::Release);
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The next failed row that was not looked at. Engine only.
    pub fn take_failed(&self) -> Option<usize> {
        self.failed.take_first()
    }

    /// Whether a failed row was not looked at.
    pub fn has_failed(&self) -> bool {
        // Whoever saw the batch complete has acquired the bits that were set before.
        self.failed.any()
    }

    /// A row waits for a stage from now on; its cell comes first.
    pub fn mark_ready(&self, stage: usize, row: usize) {
        self.ready[stage].add(row);
    }

    fn has_ready(&self, stage: usize) -> bool {
        self.ready[stage].any()
    }

    /// The rows of the open batch that are not finished, divided among so many.
    pub fn share_of_unfinished(&self, threads: u32) -> usize {
        (self.unfinished().div_ceil(threads.max(1))) as usize
    }

    /// Claims the first row that waits for a stage.
    pub fn take_ready(&self, stage: usize) -> Option<usize> {
        self.ready[stage].take_first()
    }
}

impl SessionWork {
    pub(crate) fn new(
        number: u64,
        stream: Arc<Stream>,
        units: Option<Arc<Units<FetchJob>>>,
        rows: Vec<Vec<RowWriter>>,
    ) -> Self {
        let (stages, datasets) = (stream.stages.len(), stream.datasets().len());
        let slots = rows.into_iter().map(|rows| SlotWork::new(rows, stages, datasets)).collect();
        let (next_to_publish, yields) = (Arc::default(), AtomicBool::new(false));
        Self { number, stream, slots, next_to_publish, yields, units }
    }

    /// Makes the cells of large slots on a thread of its own, in the order in which slots are opened first.
    pub(crate) fn make_cells_ahead(self: &Arc<Self>) {
        if self.stream.config.batch.size.get() < MANY_ROWS {
            return;
        }
        // It holds up no session that ends.
        let session = Arc::downgrade(self);
        let run = move || {
            for slot in 0.. {
                let Some(session) = session.upgrade() else { return };
                let Some(slot) = session.slots.get(slot) else { return };
                slot.rows.make();
            }
        };
        // Without it the engine makes them when it opens a slot.
        let _ = std::thread::Builder::new().name("forebay-cells".to_owned()).spawn(run);
    }

    /// Has the rows of other sessions come first, or no longer. Engine only.
    pub(crate) fn set_yields(&self, yields: bool) {
        // Relaxed: a matter of order only.
        self.yields.store(yields, Ordering::Relaxed);
    }

    /// The urgency of rows this far from being published, below which others come first.
    pub(crate) fn urgency_of(&self, distance: u64) -> u64 {
        // Relaxed: as above.
        let yields = self.yields.load(Ordering::Relaxed);
        distance + if yields { YIELDING } else { 0 }
    }

    /// The units that a sample needs, where samples share some. Engine thread.
    pub(crate) fn want_units(&self, id: SampleId) -> Box<[Wanted<FetchJob>]> {
        let Some(units) = &self.units else {
            return Box::default();
        };
        let mut locations = Vec::new();
        self.stream.dataset.locate(id, &mut locations);
        locations.into_iter().map(|location| units.want(location)).collect()
    }

    /// Whether every row of every batch is finished.
    pub fn is_finished(&self) -> bool {
        self.slots.iter().all(SlotWork::is_complete)
    }

    /// How far the session's most urgent ready row is from being published, if there is one. Rows of a cancelled batch
    /// take no time and give their bytes back: they never yield.
    pub fn urgency(&self) -> Option<u64> {
        let next = self.next_to_publish.load(Ordering::Relaxed);
        let urgency = |slot: &SlotWork| {
            let distance = slot.order.load(Ordering::Acquire).saturating_sub(next);
            if slot.is_cancelled() { distance } else { self.urgency_of(distance) }
        };
        self.slots.iter().filter(|slot| self.has_work(slot)).map(urgency).min()
    }

    /// Claims a row of the oldest batch that has one for a stage with room; later stages first within a batch. The
    /// stage is entered for a thread of the group.
    pub fn claim(&self, group: usize) -> Option<Claim> {
        if let Some(slot) = self.claim_finishing() {
            return Some(Claim::Batch { slot });
        }
        let mut after = None;
        loop {
            let (order, slot) = self.oldest_after(after)?;
            for stage in (0..self.stream.stages.len()).rev() {
                if !self.slots[slot].has_ready(stage)
                    || !self.stream.stages[stage].gate.enter(group)
                {
                    continue;
                }
                if let Some(row) = self.slots[slot].take_ready(stage) {
                    return Some(Claim::Row(RowClaim { slot, row, stage }));
                }
                self.stream.stages[stage].gate.leave(group);
            }
            after = Some(order);
        }
    }

    /// Claims the oldest batch that is to be finished.
    fn claim_finishing(&self) -> Option<usize> {
        let wanted = |(_, slot): &(usize, &SlotWork)| {
            slot.finishing.load(Ordering::Relaxed) == FINISHING_WANTED
        };
        loop {
            let slots = self.slots.iter().enumerate().filter(wanted);
            let (slot, oldest) = slots.min_by_key(|(_, slot)| slot.order())?;
            if oldest.claim_finishing() {
                return Some(slot);
            }
        }
    }

    /// Whether [`claim`](Self::claim) would find something for the group now.
    pub fn has_claimable(&self, group: usize) -> bool {
        self.slots.iter().any(|slot| {
            // Relaxed: a look; callers that must not miss a row have passed a fence.
            slot.finishing.load(Ordering::Relaxed) == FINISHING_WANTED
                || (slot.order.load(Ordering::Relaxed) != CLOSED
                    && self.stream.stages.iter().enumerate().any(|(number, stage)| {
                        slot.has_ready(number) && stage.gate.has_room(group)
                    }))
        })
    }

    fn has_work(&self, slot: &SlotWork) -> bool {
        slot.finishing.load(Ordering::Relaxed) == FINISHING_WANTED
            || (0..self.stream.stages.len()).any(|stage| slot.has_ready(stage))
    }

    /// The open slot of the least order above `after` that has a ready row.
    fn oldest_after(&self, after: Option<u64>) -> Option<(u64, usize)> {
        self.slots
            .iter()
            .enumerate()
            .map(|(index, slot)| (slot.order.load(Ordering::Acquire), index))
            .filter(|(order, index)| {
                *order != CLOSED
                    && after.is_none_or(|after| *order > after)
                    && (0..self.stream.stages.len())
                        .any(|stage| self.slots[*index].has_ready(stage))
            })
            .min()
    }
}
