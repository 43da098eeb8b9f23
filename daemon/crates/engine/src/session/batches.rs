//! A session's open batches: those being filled in order, those cancelled, and the rows to fetch.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_protocol::frames::Fault;
use forebay_protocol::ids::{Generation, SampleId, SlotIndex};
use forebay_protocol::sync::Ordering;

use super::ring::Ring;
use super::substitutes::Substituted;
use crate::work::{FetchJob, SessionWork};
use forebay_order::PlannedBatch;

/// A batch that a slot is filled with.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) order: u64,
    pub(super) slot: SlotIndex,
    pub(super) generation: Generation,
    pub(super) planned: PlannedBatch,
    /// How long the session lacked a free slot before this batch.
    pub(super) held_up: Duration,
    /// Known while a recording runs.
    pub(super) opened_at: Option<Instant>,
    /// By row: the bad sample that is replaced, and the substitutes tried.
    pub(super) replaced: BTreeMap<usize, (SampleId, u64)>,
    pub(super) substituted: Vec<Substituted>,
    /// The lowest row that has no data, and why.
    pub(super) failed: Option<(usize, Fault)>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Oldest first.
    pub(super) open: VecDeque<OpenBatch>,
    /// Their rows still run.
    cancelled: Vec<OpenBatch>,
    /// Rows to fetch, in (batch, row) order; substitutes at the front.
    pub(super) admissions: VecDeque<FetchJob>,
    /// The number of the next batch to open.
    pub(super) next_order: u64,
}

impl Batches {
    /// Whether no batch is open and no cancelled one still runs.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.cancelled.is_empty()
    }

    /// Cancels every open batch; their slots are freed once their running rows have ended.
    pub(super) fn cancel_open(&mut self, work: &SessionWork) {
        for job in self.admissions.drain(..) {
            work.slots[job.slot].cancel();
            work.slots[job.slot].finish_row(job.row, false);
        }
        for batch in self.open.drain(..) {
            work.slots[usize::from(batch.slot.0)].cancel();
            self.cancelled.push(batch);
        }
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

    /// The next rows to fetch, at most `count`.
    pub(super) fn take_admissions(&mut self, count: usize) -> Vec<FetchJob> {
        let count = count.min(self.admissions.len());
        self.admissions.drain(..count).collect()
    }

    /// Takes a row back whose unit another row was to read, and did not.
    pub(super) fn admit_again(&mut self, job: FetchJob) {
        let place = (job.order, job.row);
        let later = |other: &FetchJob| (other.order, other.row) > place;
        let index = self.admissions.iter().position(later).unwrap_or(self.admissions.len());
        self.admissions.insert(index, job);
    }

    /// Batches between the next row to fetch and the next batch to publish.
    pub(super) fn urgency(&self, work: &SessionWork) -> Option<u64> {
        let job = self.admissions.front()?;
        Some(job.order.saturating_sub(work.next_to_publish.load(Ordering::Relaxed)))
    }
}
