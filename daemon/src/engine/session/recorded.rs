//! What a recording asks of a session: when its batches were made, and how far its client is.

use std::time::Instant;

use super::{OpenBatch, Session};
use crate::observe::recorder::text::SessionNames;
use crate::observe::recorder::{Kind, Recorder, Track, What};

/// How far a session is at one moment; what the client says is its word.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Pulse {
    /// Slots free, filling, ready and leased.
    pub(in crate::engine) slots: [u64; 4],
    pub(in crate::engine) taken: u64,
    pub(in crate::engine) taken_at_ns: u64,
    pub(in crate::engine) waited_ns: u64,
}

impl Session {
    fn recorder(&self) -> Option<&Recorder> {
        self.stream.recorder.get().map(|recorder| &**recorder).filter(|recorder| recorder.is_on())
    }

    /// When a batch is opened that a recording may see published.
    pub(super) fn opened_at(&self) -> Option<Instant> {
        self.recorder().map(|_| Instant::now())
    }

    /// A batch is complete and about to be published. One that was opened before the recording begins with it.
    pub(super) fn record_batch(&self, batch: &OpenBatch) {
        let Some(recorder) = self.recorder() else {
            return;
        };
        let now = Instant::now();
        let opened_at = batch.opened_at.or(recorder.begun()).unwrap_or(now);
        let what = What {
            kind: Kind::Batch,
            session: self.number,
            batch: batch.order,
            place: batch.slot.0.into(),
            row: batch.planned.rows.len() as usize,
            detail: self.publish.published(),
        };
        recorder.span(Track::Engine, opened_at, now.saturating_duration_since(opened_at), what);
    }

    /// What its number stands for.
    pub(in crate::engine) fn names(&self) -> SessionNames {
        SessionNames { stream: self.stream_number, rank: self.rank, world_size: self.world_size }
    }

    /// How far the session is. The wait is read last: the client tells it after the batch that it waited for.
    pub(in crate::engine) fn pulse(&self) -> Pulse {
        let slots = self.slots_by_state();
        let (taken, taken_at_ns) =
            (self.returns.claimed_taken(), self.returns.claimed_taken_at_ns());
        Pulse { slots, taken, taken_at_ns, waited_ns: self.returns.claimed_waited_ns() }
    }
}
