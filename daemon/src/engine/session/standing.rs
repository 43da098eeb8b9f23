//! Where a session stands, for the watchdog: what its oldest batch and its trainer do, without touching a row's cell.

use forebay_protocol::ids::SampleId;
use forebay_protocol::lease::SlotState;

use super::Session;
use crate::order::substitute;

/// The oldest batch that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct FrontBatch {
    /// Its number in the session.
    pub(in crate::engine) order: u64,
    pub(in crate::engine) slot: usize,
    pub(in crate::engine) rows: u32,
    pub(in crate::engine) unfinished: u32,
}

/// What is counted of a trainer that has to take or to give back something before anything goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct FullRing {
    pub(in crate::engine) taken: u64,
    pub(in crate::engine) returned: u64,
    /// Published and not taken.
    pub(in crate::engine) ready: u64,
    /// Taken and not returned.
    pub(in crate::engine) leased: u64,
}

/// Where a row waits that nobody works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) enum WaitingRow {
    /// No lane has taken it.
    ToBeRead(SampleId),
    /// No thread has taken it: the stage's place and the sample.
    ForStage(usize, SampleId),
}

impl Session {
    /// The oldest batch, if it is not complete.
    pub(in crate::engine) fn front_batch(&self) -> Option<FrontBatch> {
        let batch = self.open.front()?;
        let slot = usize::from(batch.slot.0);
        let unfinished = self.work.slots[slot].unfinished();
        let rows = batch.planned.rows.len();
        (unfinished > 0).then_some(FrontBatch { order: batch.order, slot, rows, unfinished })
    }

    /// The counts of a ring in which nothing is free and nothing is being made: the trainer has it all.
    pub(in crate::engine) fn full_ring(&self) -> Option<FullRing> {
        let is_full = self.fault.is_none()
            && self.open.is_empty()
            && self.cancelled.is_empty()
            && self.slots.count(SlotState::Free) == 0;
        let [_, _, ready, leased] = self.slots_by_state();
        is_full.then(|| FullRing {
            taken: self.returns.claimed_taken(),
            returned: self.returns.consumed(),
            ready,
            leased,
        })
    }

    /// A row of the oldest batch that waits for somebody to take it.
    pub(in crate::engine) fn waiting_row(&self) -> Option<WaitingRow> {
        let batch = self.open.front()?;
        let slot = usize::from(batch.slot.0);
        if let Some((stage, row)) = self.work.slots[slot].ready_row() {
            return Some(WaitingRow::ForStage(stage, self.sample_in_row(row)?));
        }
        let job = self.admissions.iter().find(|job| job.slot == slot)?;
        Some(WaitingRow::ToBeRead(job.id))
    }

    /// Whose data a row of the oldest batch is to get.
    fn sample_in_row(&self, row: usize) -> Option<SampleId> {
        let batch = self.open.front()?;
        let planned = &batch.planned;
        if let Some((bad, attempts)) = batch.replaced.get(&row) {
            let stream = &self.stream;
            let seed = stream.config.order.seed;
            let draw = attempts.checked_sub(1)?;
            return substitute(stream.sample_count(), seed, planned.epoch, *bad, draw);
        }
        let order = self.schedule.epoch(planned.epoch);
        planned.rows.iter(&order).nth(row).map(|planned| planned.sample)
    }
}
