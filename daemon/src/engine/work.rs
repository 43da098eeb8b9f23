//! What the engine, the fetch threads and the work threads share of one session: slots, rows and which rows are ready.
//!
//! See the states in [`super`]. Each row's cell has a mutex for the compiler's sake; it is handed over together with the
//! row's state, so it is never contended and nobody blocks on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::ids::SampleId;
use forebay_protocol::slots::RowWriter;
use forebay_protocol::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_protocol::tensor::Extent;

use super::gate::BytePermit;
use super::hand_over::BitSet;
use super::stream::Stream;
use crate::operation::{Row, SampleTask};
use crate::order::DrawKey;

/// No batch is open in the slot.
const CLOSED: u64 = u64::MAX;

/// Why a row has no data.
#[derive(Debug, Clone)]
pub(crate) enum RowFailure {
    /// The sample's bytes are defective.
    Defect(String),
    /// The bytes could not be had, after all retries.
    Storage(String),
    /// An operation panicked: an error of the daemon's own. The panic's message is on stderr.
    Panic,
}

/// What belongs to one row of a slot.
#[derive(Debug)]
pub(crate) struct RowCell {
    pub(crate) writer: RowWriter,
    pub(crate) task: SampleTask,
    pub(crate) valid: bool,
    pub(crate) permit: Option<BytePermit>,
    pub(crate) failure: Option<RowFailure>,
}

/// One slot and the batch that is being made in it.
#[derive(Debug)]
pub(crate) struct SlotWork {
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
    rows: Box<[Mutex<RowCell>]>,
    /// Whether the rows of ragged tensors are to be moved together, are being, or have been.
    compaction: AtomicU32,
    /// The elements of each tensor after that. Handed over like a cell.
    compacted_elements: Mutex<Vec<u64>>,
}

const COMPACTION_NONE: u32 = 0;
const COMPACTION_WANTED: u32 = 1;
const COMPACTION_RUNNING: u32 = 2;
const COMPACTION_DONE: u32 = 3;

/// One session's slots.
#[derive(Debug)]
pub(crate) struct SessionWork {
    /// The session's number.
    pub(crate) number: u64,
    pub(crate) stream: Arc<Stream>,
    pub(crate) slots: Box<[SlotWork]>,
    /// The number of the batch that is published next: what is oldest to this session.
    pub(crate) next_to_publish: Arc<AtomicU64>,
}

/// A stage to run on a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowClaim {
    pub(crate) slot: usize,
    pub(crate) row: usize,
    pub(crate) stage: usize,
}

/// What a work thread has claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Claim {
    /// A row; its stage is entered.
    Row(RowClaim),
    /// The ragged rows of a complete batch to move together.
    Compaction { slot: usize },
}

impl SlotWork {
    fn new(rows: Vec<RowWriter>, stages: usize) -> Self {
        Self {
            order: AtomicU64::new(CLOSED),
            cancelled: AtomicBool::new(false),
            open_rows: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            failed: BitSet::new(rows.len()),
            ready: (0..stages).map(|_| BitSet::new(rows.len())).collect(),
            compaction: AtomicU32::new(COMPACTION_NONE),
            compacted_elements: Mutex::default(),
            rows: rows
                .into_iter()
                .map(|writer| {
                    let key = DrawKey { seed: 0, epoch: 0, sample: 0 };
                    Mutex::new(RowCell {
                        writer,
                        task: SampleTask::new(SampleId(0), key, Vec::new()),
                        valid: true,
                        permit: None,
                        failure: None,
                    })
                })
                .collect(),
        }
    }

    /// The row's cell. Only whoever the row's state names calls this; see the module's head.
    pub(crate) fn cell(&self, row: usize) -> MutexGuard<'_, RowCell> {
        self.rows[row].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the slot for a batch of so many rows. Engine only.
    pub(crate) fn open(&self, order: u64, rows: u32) {
        self.cancelled.store(false, Ordering::Relaxed);
        // Every row of the batch before is finished. One that failed after its batch was given up was not looked at.
        self.failed.clear();
        self.compaction.store(COMPACTION_NONE, Ordering::Relaxed);
        self.open_rows.store(rows, Ordering::Relaxed);
        self.pending.store(rows, Ordering::Relaxed);
        // Release: pairs with the acquire load in `claim`.
        self.order.store(order, Ordering::Release);
    }

    /// Closes the slot: complete or given up. Engine only.
    pub(crate) fn close(&self) {
        self.order.store(CLOSED, Ordering::Release);
    }

    /// The number of the batch that is made in it. For whoever holds one of its rows.
    pub(crate) fn order(&self) -> u64 {
        // Relaxed: set before any row was handed over.
        self.order.load(Ordering::Relaxed)
    }

    /// Whether every row is finished.
    pub(crate) fn is_complete(&self) -> bool {
        // Acquire: pairs with the release in `finish_rows`; the rows' bytes come first.
        self.pending.load(Ordering::Acquire) == 0
    }

    /// A row is finished, with data or without. True: the engine should look, since it was the last or it failed.
    pub(crate) fn finish_row(&self, row: usize, failed: bool) -> bool {
        if failed {
            // The reason in the cell comes first. Before the count, so that whoever sees the batch complete sees the
            // failure too.
            self.failed.add(row);
        }
        // AcqRel: releases this row's bytes, and the last one to finish has seen the others'.
        let last = self.pending.fetch_sub(1, Ordering::AcqRel) == 1;
        last || failed
    }

    /// The rows that are not finished.
    pub(crate) fn unfinished(&self) -> u32 {
        // Relaxed: a look, for the watchdog.
        self.pending.load(Ordering::Relaxed)
    }

    /// A row that waits for a stage, and which, if there is one.
    pub(crate) fn ready_row(&self) -> Option<(usize, usize)> {
        self.ready.iter().enumerate().find_map(|(stage, rows)| Some((stage, rows.first()?)))
    }

    /// A failed row gets another sample. Engine only.
    pub(crate) fn reopen_row(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks for the ragged rows of a complete batch to be moved together; the elements of each tensor once they are.
    /// Engine only.
    pub(crate) fn compacted(&self) -> Option<Vec<u64>> {
        // Release, and acquire on the answer: pair with `claim_compaction` and `compact`.
        let asked = self.compaction.compare_exchange(
            COMPACTION_NONE,
            COMPACTION_WANTED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        (asked == Err(COMPACTION_DONE))
            .then(|| self.compacted_elements.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Takes a wish for compaction back. False: a work thread is at it, has the rows' cells, and rings when it is done.
    /// Engine only.
    pub(crate) fn withdraw_compaction(&self) -> bool {
        // Acquire: pairs with the release in `compact`.
        self.compaction.compare_exchange(
            COMPACTION_WANTED,
            COMPACTION_NONE,
            Ordering::Acquire,
            Ordering::Acquire,
        ) != Err(COMPACTION_RUNNING)
    }

    fn claim_compaction(&self) -> bool {
        self.compaction.load(Ordering::Relaxed) == COMPACTION_WANTED
            && self
                .compaction
                .compare_exchange(
                    COMPACTION_WANTED,
                    COMPACTION_RUNNING,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Moves the ragged rows of a complete batch together.
    pub(crate) fn compact(&self, stream: &Stream) {
        // Relaxed: written before the batch was opened.
        let rows = self.open_rows.load(Ordering::Relaxed) as usize;
        let mut cells: Vec<_> = (0..rows).map(|row| self.cell(row)).collect();
        let mut writers: Vec<&mut RowWriter> =
            cells.iter_mut().map(|cell| &mut cell.writer).collect();
        let elements = stream
            .tensors()
            .iter()
            .enumerate()
            .map(|(tensor, spec)| match spec.extent {
                Extent::Ragged { compact: true, .. } => RowWriter::compact(&mut writers, tensor),
                _ => 0,
            })
            .collect();
        *self.compacted_elements.lock().unwrap_or_else(PoisonError::into_inner) = elements;
        self.compaction.store(COMPACTION_DONE, Ordering::Release);
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The next failed row that was not looked at. Engine only.
    pub(crate) fn take_failed(&self) -> Option<usize> {
        self.failed.take_first()
    }

    /// Whether a failed row was not looked at.
    pub(crate) fn has_failed(&self) -> bool {
        // Whoever saw the batch complete has acquired the bits that were set before.
        self.failed.any()
    }

    /// A row waits for a stage from now on; its cell comes first.
    pub(crate) fn mark_ready(&self, stage: usize, row: usize) {
        self.ready[stage].add(row);
    }

    fn has_ready(&self, stage: usize) -> bool {
        self.ready[stage].any()
    }

    /// Claims the first row that waits for a stage.
    fn take_ready(&self, stage: usize) -> Option<usize> {
        self.ready[stage].take_first()
    }
}

impl SessionWork {
    pub(crate) fn new(number: u64, stream: Arc<Stream>, rows: Vec<Vec<RowWriter>>) -> Self {
        let stages = stream.stages.len();
        let slots = rows.into_iter().map(|rows| SlotWork::new(rows, stages)).collect();
        Self { number, stream, slots, next_to_publish: Arc::default() }
    }

    /// Whether every row of every batch is finished.
    pub(crate) fn is_finished(&self) -> bool {
        self.slots.iter().all(SlotWork::is_complete)
    }

    /// How far the session's most urgent ready row is from being published, if there is one.
    pub(crate) fn urgency(&self) -> Option<u64> {
        let next = self.next_to_publish.load(Ordering::Relaxed);
        self.slots
            .iter()
            .filter(|slot| self.has_work(slot))
            .map(|slot| slot.order.load(Ordering::Acquire).saturating_sub(next))
            .min()
    }

    /// Claims a row of the oldest batch that has one for a stage with room; later stages first within a batch. The
    /// stage is entered for a thread of the group.
    pub(crate) fn claim(&self, group: usize) -> Option<Claim> {
        if let Some(slot) = self.slots.iter().position(SlotWork::claim_compaction) {
            return Some(Claim::Compaction { slot });
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

    /// Whether [`claim`](Self::claim) would find something for the group now.
    pub(crate) fn has_claimable(&self, group: usize) -> bool {
        self.slots.iter().any(|slot| {
            // Relaxed: a look; callers that must not miss a row have passed a fence.
            slot.compaction.load(Ordering::Relaxed) == COMPACTION_WANTED
                || (slot.order.load(Ordering::Relaxed) != CLOSED
                    && self.stream.stages.iter().enumerate().any(|(number, stage)| {
                        slot.has_ready(number) && stage.gate.has_room(group)
                    }))
        })
    }

    fn has_work(&self, slot: &SlotWork) -> bool {
        slot.compaction.load(Ordering::Relaxed) == COMPACTION_WANTED
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

/// A row's writer as the operations see it.
pub(crate) struct SlotRow<'a>(pub(crate) &'a mut RowWriter);

impl Row for SlotRow<'_> {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        self.0.bytes_mut(tensor)
    }

    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        let size = self.0.layout().tensors()[tensor].dtype.size_bytes();
        let length = usize::try_from(bytes).ok()?;
        if length > self.0.bytes_mut(tensor).len() {
            return None;
        }
        self.0.set_ragged_length(tensor, bytes / size);
        Some(&mut self.0.bytes_mut(tensor)[..length])
    }
}
