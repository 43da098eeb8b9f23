//! State of one session that the engine, the fetch threads and the work threads share: slots, rows, and bits of ready
//! rows.
//!
//! See the states in [`super`]. Each row's cell has a mutex for the compiler's sake; it is passed on together with the
//! row's state, so it is never contended and no thread blocks on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_protocol::ids::SampleId;
use forebay_protocol::slots::RowWriter;
use forebay_protocol::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_protocol::tensor::{Extent, TensorSpec};

use crate::ground::batch_run::run_batch_operations;
use crate::ground::row_cells::{RowCell, RowCells, RowFailure};
use crate::ground::shared_rows::{KeptRow, Lead, SharedRows};
use crate::ground::stream::Stream;
use crate::ground::turns::{Turn, Turns};
use crate::ground::units::{Units, Wanted};
use crate::ground::work_parking::BitSet;
use forebay_storage::Retries;
use forebay_transform::batch::BatchCaller;

/// No batch is open in the slot.
const CLOSED: u64 = u64::MAX;

/// Memory per row of a ring in addition to its data: the cell and its heap memory, its bits, its entry in the queue of
/// rows to fetch, and the tensors that only operations on the batch see.
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
    /// Set when the batch is no longer needed; its rows end without work.
    cancelled: AtomicBool,
    /// Number of rows in the batch.
    open_rows: AtomicU32,
    /// Number of unfinished rows.
    pending: AtomicU32,
    /// A bit for each failed row; the engine clears it.
    failed: BitSet,
    /// For each stage, a bit for each row that waits for it.
    ready: Box<[BitSet]>,
    rows: RowCells,
    /// Whether finishing the complete batch is requested, in progress or done.
    finishing: AtomicU32,
    /// The result of finishing. Passed on like a cell.
    finished: Mutex<Finished>,
    /// Number of rows made of each dataset, if there are several.
    by_dataset: Box<[AtomicU32]>,
}

/// The result of finishing a batch: by tensor the number of elements whose ragged rows were compacted, or the number of
/// the rows' shape; or why a batch operation failed.
pub(crate) type Finished = Result<Vec<u64>, RowFailure>;

/// Added to the place of rows that yield, so that they come after all others.
const YIELDING: u64 = 1 << 62;
const FINISHING_NONE: u32 = 0;
const FINISHING_WANTED: u32 = 1;
const FINISHING_RUNNING: u32 = 2;
const FINISHING_DONE: u32 = 3;

/// For smaller slots the engine creates the cells quickly itself.
const MANY_ROWS: u32 = 4096;

/// One session's slots.
#[derive(Debug)]
pub struct SessionWork {
    /// The session's number.
    pub number: u64,
    pub stream: Arc<Stream>,
    pub slots: Box<[SlotWork]>,
    /// The number of the next batch to publish, which is the session's oldest.
    pub next_to_publish: Arc<AtomicU64>,
    /// The work threads' time that it has used, and when its trainer would wait.
    pub(crate) turn: Turn,
    /// Whether rows of other sessions come first.
    yields: AtomicBool,
    /// The stream's units, if samples share units.
    pub(crate) units: Option<Arc<Units<FetchJob>>>,
    /// The rows that the stream's trainers share.
    pub(crate) shared_rows: Arc<SharedRows<FetchJob>>,
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
    /// The units that it needs, if the dataset's samples share units; otherwise empty.
    pub units: Box<[Wanted<FetchJob>]>,
    /// The failed attempts.
    pub retries: Option<Retries>,
    /// Whether it is made for other trainers too, or is a copy of a kept row.
    pub sharing: Sharing,
}

impl FetchJob {
    /// What the row's dataset draws by.
    pub(crate) fn draw(&self) -> u64 {
        self.session.slots[self.slot].cell(self.row).task.key.of_sample()
    }
}

/// A row's relation to the same row of other trainers.
#[derive(Debug)]
pub(crate) enum Sharing {
    /// It has none.
    Alone,
    /// It is made for all that want it.
    Leads(Lead<FetchJob>),
    /// It is a copy of a kept row.
    Copies(Arc<KeptRow>),
}

/// A stage to run on a row.
#[derive(Debug, Clone, Copy)]
pub struct RowClaim {
    pub slot: usize,
    pub row: usize,
    pub stage: usize,
}

/// The work that a thread has claimed.
#[derive(Debug, Clone, Copy)]
pub enum Claim {
    /// A row; the thread has entered its stage.
    Row(RowClaim),
    /// A complete batch to finish.
    Batch { slot: usize },
}

impl FetchJob {
    /// Takes its lead of other trainers' rows, if it has one.
    pub(crate) fn take_lead(&mut self) -> Option<Lead<Self>> {
        match std::mem::replace(&mut self.sharing, Sharing::Alone) {
            Sharing::Leads(lead) => Some(lead),
            other => {
                self.sharing = other;
                None
            }
        }
    }
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

    /// The row's cell. Only the thread that the row's state names calls this; see the module's head.
    pub fn cell(&self, row: usize) -> MutexGuard<'_, RowCell> {
        self.rows.cell(row)
    }

    /// Opens the slot for a batch of `rows` rows. Engine only.
    pub fn open(&self, order: u64, rows: u32) {
        self.rows.make();
        self.cancelled.store(false, Ordering::Relaxed);
        // Every row of the previous batch is finished. Rows that failed after its cancellation were not handled.
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

    /// Counts a row of a dataset. Called before the row is finished.
    pub(crate) fn count_row(&self, dataset: usize) {
        // Relaxed: ordered by `finish_row`.
        self.by_dataset[dataset].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of rows of each dataset in a complete batch, if there are several. Engine only.
    pub(crate) fn rows_by_dataset(&self) -> impl Iterator<Item = u32> {
        self.by_dataset.iter().map(|rows| rows.load(Ordering::Relaxed))
    }

    /// Closes the slot: complete or cancelled. Engine only.
    pub fn close(&self) {
        self.order.store(CLOSED, Ordering::Release);
    }

    /// The number of its batch. Called by threads that hold one of its rows.
    pub fn order(&self) -> u64 {
        // Relaxed: set before any row was passed on.
        self.order.load(Ordering::Relaxed)
    }

    /// Whether every row is finished.
    pub fn is_complete(&self) -> bool {
        // Acquire: pairs with the release in `finish_rows`; makes the rows' bytes visible.
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Finishes a row, with data or without. True: the engine must handle it, since it was the last one or it failed.
    pub fn finish_row(&self, row: usize, failed: bool) -> bool {
        if failed {
            // After the reason in the cell. Before the count, so that a thread that sees the batch complete sees the
            // failure too.
            self.failed.add(row);
        }
        // AcqRel: releases this row's bytes, and the last row to finish has acquired the others'.
        let last = self.pending.fetch_sub(1, Ordering::AcqRel) == 1;
        last || failed
    }

    /// Finishes rows of a cancelled batch that were not admitted. Engine only.
    pub fn finish_rows(&self, count: u32) {
        self.pending.fetch_sub(count, Ordering::AcqRel);
    }

    /// Number of unfinished rows.
    pub fn unfinished(&self) -> u32 {
        // Relaxed: a snapshot, for the watchdog.
        self.pending.load(Ordering::Relaxed)
    }

    /// A row that waits for a stage: the stage and the row.
    pub fn ready_row(&self) -> Option<(usize, usize)> {
        self.ready.iter().enumerate().find_map(|(stage, rows)| Some((stage, rows.first()?)))
    }

    /// Reopens a failed row for another sample. Engine only.
    pub fn reopen_row(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Requests that a complete batch is finished. True: it was not requested before. Engine only.
    pub fn request_finishing(&self) -> bool {
        // As in `finished`.
        let asked = self.finishing.compare_exchange(
            FINISHING_NONE,
            FINISHING_WANTED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        asked.is_ok()
    }

    /// The result of finishing a complete batch, once there is one; requests it if that was not done before. Engine
    /// only.
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

    /// Finishes a complete batch: runs the batch operations, then moves rows together that do not fill their places.
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
        let bucket = cells.first().and_then(|cell| stream.plan.bucket_of(cell.task.id));
        let is_of_bucket =
            |cell: &MutexGuard<'_, RowCell>| stream.plan.bucket_of(cell.task.id) == bucket;
        let is_of_one_shape = cells.iter().all(is_of_bucket);
        let operations = operations.and_then(|()| {
            let reason = "has rows of several shapes";
            is_of_one_shape.then_some(()).ok_or_else(|| RowFailure::Defect(reason.to_owned()))
        });
        let finished = operations.map(|()| {
            let mut writers: Vec<&mut RowWriter> =
                cells.iter_mut().map(|cell| &mut cell.writer).collect();
            let compacted = |(tensor, spec): (usize, &TensorSpec)| match spec.extent {
                Extent::Ragged { compact: true, .. } => RowWriter::compact(&mut writers, tensor),
                Extent::Dense => {
                    let number = bucket.map_or(0, |bucket| bucket.number);
                    if let Some(shape) = spec.row_shapes.get(number) {
                        let row_bytes = spec.shape_bytes(shape).unwrap_or(0);
                        RowWriter::close_up(&mut writers, tensor, row_bytes);
                    }
                    number as u64
                }
                Extent::Ragged { .. } => 0,
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

    /// The next failed row that was not handled. Engine only.
    pub fn take_failed(&self) -> Option<usize> {
        self.failed.take_first()
    }

    /// Whether a failed row was not handled.
    pub fn has_failed(&self) -> bool {
        // A thread that saw the batch complete has acquired the bits that were set before.
        self.failed.any()
    }

    /// Marks a row as waiting for a stage; its cell must be written before.
    pub fn mark_ready(&self, stage: usize, row: usize) {
        self.ready[stage].add(row);
    }

    fn has_ready(&self, stage: usize) -> bool {
        self.ready[stage].any()
    }

    /// The number of unfinished rows of the open batch divided by `threads`.
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
        shared_rows: Arc<SharedRows<FetchJob>>,
        rows: Vec<Vec<RowWriter>>,
    ) -> Self {
        let (stages, datasets) = (stream.stages.len(), stream.datasets().len());
        let slots = rows.into_iter().map(|rows| SlotWork::new(rows, stages, datasets)).collect();
        let (next_to_publish, yields) = (Arc::default(), AtomicBool::new(false));
        Self {
            number,
            stream,
            slots,
            next_to_publish,
            turn: Turn::default(),
            yields,
            units,
            shared_rows,
        }
    }

    /// Creates the cells of large slots on a separate thread, in the order in which slots are first opened.
    pub(crate) fn make_cells_ahead(self: &Arc<Self>, batch_size: u32) {
        if batch_size < MANY_ROWS {
            return;
        }
        // A weak reference, so that it does not keep an ended session alive.
        let session = Arc::downgrade(self);
        let run = move || {
            for slot in 0.. {
                let Some(session) = session.upgrade() else { return };
                let Some(slot) = session.slots.get(slot) else { return };
                slot.rows.make();
            }
        };
        // Without the thread the engine creates them when it opens a slot.
        let _ = std::thread::Builder::new().name("forebay-cells".to_owned()).spawn(run);
    }

    /// Whether the rows of other sessions come first.
    pub(crate) fn yields(&self) -> bool {
        // Relaxed: as in `set_yields`.
        self.yields.load(Ordering::Relaxed)
    }

    /// Sets whether the rows of other sessions come first. Engine only.
    pub(crate) fn set_yields(&self, yields: bool) {
        // Relaxed: only the order depends on it.
        self.yields.store(yields, Ordering::Relaxed);
    }

    /// The place of rows of this batch among the rows of all sessions, lowest first.
    pub(crate) fn place_of(&self, order: u64, turns: &Turns, now_ns: u64) -> u64 {
        // Relaxed: a stale one costs a row's place.
        let distance = order.saturating_sub(self.next_to_publish.load(Ordering::Relaxed));
        let place = turns.place(&self.turn, now_ns, distance);
        place.saturating_add(if self.yields() { YIELDING } else { 0 })
    }

    /// The units that a sample needs, if samples share units. Engine thread.
    pub(crate) fn want_units(&self, id: SampleId, draw: u64) -> Box<[Wanted<FetchJob>]> {
        let Some(units) = &self.units else {
            return Box::default();
        };
        let mut locations = Vec::new();
        self.stream.dataset.locate_drawn(id, draw, &mut locations);
        locations.into_iter().map(|location| units.want(location)).collect()
    }

    /// Whether every row of every batch is finished.
    pub fn is_finished(&self) -> bool {
        self.slots.iter().all(SlotWork::is_complete)
    }

    /// Whether a row is ready for a stage, or a batch is to be finished.
    pub(crate) fn has_ready_rows(&self) -> bool {
        self.slots.iter().any(|slot| self.has_work(slot))
    }

    /// The place of its first ready row among all sessions. Rows of a cancelled batch take no time and release their
    /// bytes: they come first.
    pub(crate) fn place(&self, turns: &Turns, now_ns: u64) -> Option<u64> {
        let ready = self.slots.iter().filter(|slot| self.has_work(slot));
        let place = |slot: &SlotWork| {
            let order = slot.order.load(Ordering::Acquire);
            if slot.is_cancelled() { 0 } else { self.place_of(order, turns, now_ns) }
        };
        ready.map(place).min()
    }

    /// Mean time of a claimed row's stage so far.
    pub(crate) fn expected_time(&self, claim: &Claim) -> Duration {
        match claim {
            Claim::Row(claim) => self.stream.stages[claim.stage].mean_time(),
            Claim::Batch { .. } => Duration::ZERO,
        }
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

    /// Whether [`claim`](Self::claim) would succeed for the group now.
    pub fn has_claimable(&self, group: usize) -> bool {
        self.slots.iter().any(|slot| {
            // Relaxed: a snapshot; callers that must not miss a row have passed a fence.
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

    /// The open slot with the lowest order above `after` that has a ready row.
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
