//! A session's progress for the stall watchdog: its oldest batch and its trainer. No row's cell is locked.

use forebay_protocol::ids::SampleId;
use forebay_protocol::lease::SlotState;

use crate::core::session::Session;

/// The oldest batch, which is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontBatch {
    /// Its number in the session.
    pub order: u64,
    pub slot: usize,
    pub rows: u32,
    pub unfinished: u32,
}

/// The counters of a ring whose trainer must take or return a batch before the session can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullRing {
    pub taken: u64,
    pub returned: u64,
    /// Published and not taken.
    pub ready: u64,
    /// Taken and not returned.
    pub leased: u64,
}

/// The reason why a row waits that no thread processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitingRow {
    /// It waits for a fetch lane.
    ToBeRead(SampleId),
    /// It waits for a work thread: the stage's number and the sample.
    ForStage(usize, SampleId),
}

impl Session {
    /// The oldest batch, if it is not complete.
    pub fn front_batch(&self) -> Option<FrontBatch> {
        let batch = self.batches.open.front()?;
        let slot = usize::from(batch.slot.0);
        let unfinished = self.work.slots[slot].unfinished();
        let rows = batch.planned.rows.len();
        (unfinished > 0).then_some(FrontBatch { order: batch.order, slot, rows, unfinished })
    }

    /// The counters of a ring without free or filling slots: the trainer has all batches.
    pub fn full_ring(&self) -> Option<FullRing> {
        let is_full =
            self.fault.is_none() && self.batches.is_idle() && self.ring.count(SlotState::Free) == 0;
        let [_, _, ready, leased] = self.ring.slots_by_state();
        is_full.then(|| FullRing {
            taken: self.ring.taken(),
            returned: self.ring.returned(),
            ready,
            leased,
        })
    }

    /// A row of the oldest batch that no thread processes.
    pub fn waiting_row(&self) -> Option<WaitingRow> {
        let batch = self.batches.open.front()?;
        let slot = usize::from(batch.slot.0);
        if let Some((stage, row)) = self.work.slots[slot].ready_row() {
            return Some(WaitingRow::ForStage(stage, self.sample_in_row(row)?));
        }
        self.batches.next_admission(slot).map(WaitingRow::ToBeRead)
    }

    /// The sample of a row of the oldest batch.
    fn sample_in_row(&self, row: usize) -> Option<SampleId> {
        let batch = self.batches.open.front()?;
        let planned = self.order.row(&batch.planned, row)?;
        let Some((bad, attempts)) = batch.replaced.get(&row) else {
            return Some(planned.sample);
        };
        let (seed, draw) = (self.stream.config.order.seed, attempts.checked_sub(1)?);
        let kept = self.stream.draws.kept.as_deref();
        self.stream.selection().substitute(kept, seed, planned.pass, *bad, draw)
    }
}
