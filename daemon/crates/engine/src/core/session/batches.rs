//! A session's open batches: batches being filled in order, cancelled batches, and the rows to fetch.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::Fault;
use forebay_protocol::ids::{Generation, Position, SampleId, SlotIndex};

use crate::core::session::open_group::OpenGroup;
use crate::core::session::ring::Ring;
use crate::core::session::substitutes::Substituted;
use crate::ground::row_cells::RowFailure;
use crate::ground::work::{FetchJob, SessionWork, Sharing};
use forebay_order::{DrawKey, EpochOrder, PlannedBatch, PlannedRow};

/// A batch that is being filled into a slot.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) order: u64,
    pub(super) slot: SlotIndex,
    pub(super) generation: Generation,
    pub(super) planned: PlannedBatch,
    /// The position before it.
    pub(super) position: Position,
    /// The number of the request whose rows these are.
    pub(super) request: Option<u64>,
    /// How long the session lacked a free slot before this batch.
    pub(super) held_up: Duration,
    /// Set while a recording runs.
    pub(super) opened_at: Option<Instant>,
    /// By row: the bad sample that is replaced, and the number of substitutes tried.
    pub(super) replaced: BTreeMap<usize, (SampleId, u64)>,
    pub(super) substituted: Vec<Substituted>,
    /// The lowest row without data, and its fault.
    pub(super) failed: Option<(usize, Fault)>,
    /// By row of a feeder's request: why it was not made.
    pub(super) feed_failures: BTreeMap<usize, RowFailure>,
}

/// An open batch whose rows are not all admitted: each row is created when a fetch lane takes it, so that the time to
/// open a batch does not depend on its size.
#[derive(Debug)]
pub(super) struct Unadmitted {
    pub(super) order: u64,
    pub(super) slot: usize,
    pub(super) planned: PlannedBatch,
    pub(super) epoch_order: Rc<EpochOrder>,
    /// `order.seed`.
    pub(super) seed: u64,
    /// Below the number of rows.
    pub(super) next_row: u32,
}

impl Unadmitted {
    fn rows_left(&self) -> u32 {
        self.planned.rows.len() - self.next_row
    }

    fn next(&self) -> PlannedRow {
        self.planned.rows.row(self.next_row, &self.epoch_order)
    }

    fn admit(&mut self, work: &Arc<SessionWork>) -> (PlannedRow, FetchJob) {
        let (row, planned) = (self.next_row as usize, self.next());
        self.next_row += 1;
        let id = planned.sample;
        let mut cell = work.slots[self.slot].cell(row);
        let key = DrawKey { seed: self.seed, epoch: planned.pass, sample: id.0 };
        cell.task.reset(id, key);
        cell.valid = planned.valid;
        (cell.failure, cell.check) = (None, None);
        drop(cell);
        let job = FetchJob {
            session: Arc::clone(work),
            slot: self.slot,
            row,
            order: self.order,
            id,
            units: work.want_units(id, key.of_sample()),
            retries: None,
            sharing: Sharing::Alone,
        };
        (planned, job)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Oldest first.
    pub(super) open: VecDeque<OpenBatch>,
    /// Cancelled batches whose rows still run.
    cancelled: Vec<OpenBatch>,
    /// Rows to fetch, in (batch, row) order; substitutes at the front.
    pub(super) admissions: VecDeque<FetchJob>,
    /// Batches whose rows follow these, oldest first.
    unadmitted: VecDeque<Unadmitted>,
    /// The number of the next batch to open.
    pub(super) next_order: u64,
    open_group: OpenGroup<FetchJob>,
}

impl Batches {
    /// Whether no batch is open and no cancelled batch still runs.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.cancelled.is_empty()
    }

    /// Number of rows in open batches.
    pub(super) fn open_rows(&self) -> u64 {
        self.open.iter().map(|batch| u64::from(batch.planned.rows.len())).sum()
    }

    /// Cancels every open batch; their slots are freed once their running rows have ended.
    pub(super) fn cancel_open(&mut self, work: &SessionWork) {
        self.open_group.leave();
        for job in self.admissions.drain(..) {
            work.slots[job.slot].cancel();
            work.slots[job.slot].finish_row(job.row, false);
        }
        for batch in self.unadmitted.drain(..) {
            work.slots[batch.slot].cancel();
            work.slots[batch.slot].finish_rows(batch.rows_left());
        }
        for batch in self.open.drain(..) {
            work.slots[usize::from(batch.slot.0)].cancel();
            self.cancelled.push(batch);
        }
        let follows = |job: &FetchJob| std::ptr::eq(&raw const *job.session, work);
        for job in work.shared_rows.take_followers(follows) {
            work.slots[job.slot].finish_row(job.row, false);
        }
    }

    /// Cancels the oldest batch, all of whose rows have ended.
    pub(super) fn cancel_front(&mut self, work: &SessionWork) {
        if let Some(batch) = self.open.pop_front() {
            work.slots[usize::from(batch.slot.0)].cancel();
            self.cancelled.push(batch);
        }
    }

    /// Cancels the batch of a request, whose rows may run.
    pub(super) fn cancel_request(&mut self, request: u64, work: &SessionWork) {
        let Some(place) = self.open.iter().position(|batch| batch.request == Some(request)) else {
            return;
        };
        let Some(batch) = self.open.remove(place) else { return };
        let slot = usize::from(batch.slot.0);
        work.slots[slot].cancel();
        for job in self.admissions.iter().filter(|job| job.slot == slot) {
            work.slots[slot].finish_row(job.row, false);
        }
        self.admissions.retain(|job| job.slot != slot);
        for batch in self.unadmitted.iter().filter(|batch| batch.slot == slot) {
            work.slots[slot].finish_rows(batch.rows_left());
        }
        self.unadmitted.retain(|batch| batch.slot != slot);
        self.cancelled.push(batch);
    }

    /// Frees the slots of cancelled batches whose rows have ended.
    pub(super) fn reap_cancelled(&mut self, work: &SessionWork, ring: &mut Ring) {
        self.cancelled.retain(|batch| {
            let slot = &work.slots[usize::from(batch.slot.0)];
            let running = !slot.is_complete() || !slot.withdraw_finishing();
            if !running {
                slot.close();
                ring.abandon(batch.slot);
            }
            running
        });
    }

    /// Queues an opened batch's rows for fetching.
    pub(super) fn admit_later(&mut self, mut batch: Unadmitted, work: &Arc<SessionWork>) {
        if work.units.is_none() {
            return self.unadmitted.push_back(batch);
        }
        // A block is read once for all rows that want it, so rows of shared blocks are admitted now.
        while batch.rows_left() > 0 {
            let (planned, job) = batch.admit(work);
            if planned.valid
                && let Some(group) = batch.epoch_order.group_at(planned.position)
            {
                self.open_group.enter((batch.planned.epoch, group), &job.units);
            }
            self.admissions.push_back(job);
        }
        if batch.planned.last_of_rank {
            self.open_group.leave();
        }
    }

    /// Whether there are rows to fetch.
    pub(super) fn has_admissions(&self) -> bool {
        !self.admissions.is_empty() || !self.unadmitted.is_empty()
    }

    /// Number of rows to fetch.
    pub(super) fn admissions_left(&self) -> usize {
        let left = |batch: &Unadmitted| batch.rows_left() as usize;
        self.admissions.len() + self.unadmitted.iter().map(left).sum::<usize>()
    }

    /// The next rows to fetch, at most `count`.
    pub(super) fn take_admissions(
        &mut self,
        count: usize,
        work: &Arc<SessionWork>,
    ) -> Vec<FetchJob> {
        let ready = count.min(self.admissions.len());
        let mut jobs: Vec<FetchJob> = self.admissions.drain(..ready).collect();
        while jobs.len() < count
            && let Some(batch) = self.unadmitted.front_mut()
        {
            jobs.push(batch.admit(work).1);
            if batch.rows_left() == 0 {
                self.unadmitted.pop_front();
            }
        }
        jobs
    }

    /// The next sample to fetch for the batch in a slot.
    pub(super) fn next_admission(&self, slot: usize) -> Option<SampleId> {
        let admitted = self.admissions.iter().find(|job| job.slot == slot).map(|job| job.id);
        admitted.or_else(|| {
            let batch = self.unadmitted.iter().find(|batch| batch.slot == slot)?;
            Some(batch.next().sample)
        })
    }

    /// Queues a row again whose unit another row was to read and did not.
    pub(super) fn admit_again(&mut self, job: FetchJob) {
        let place = (job.order, job.row);
        let later = |other: &FetchJob| (other.order, other.row) > place;
        let index = self.admissions.iter().position(later).unwrap_or(self.admissions.len());
        self.admissions.insert(index, job);
    }

    /// The batch of the next row to fetch.
    pub(super) fn next_order(&self) -> Option<u64> {
        let admitted = self.admissions.front().map(|job| job.order);
        admitted.or_else(|| Some(self.unadmitted.front()?.order))
    }

    /// Number of rows that lanes have taken and that are not finished.
    pub(super) fn rows_under_way(&self, work: &SessionWork) -> u64 {
        let slots = self.open.iter().map(|batch| &work.slots[usize::from(batch.slot.0)]);
        let unfinished: u64 = slots.map(|slot| u64::from(slot.unfinished())).sum();
        unfinished.saturating_sub(self.admissions_left() as u64)
    }
}
