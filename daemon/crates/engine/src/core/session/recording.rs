//! A session's part of a recording: when its batches were made, and its client's counters.

use std::time::Instant;

use crate::core::session::Session;
use crate::core::session::batches::OpenBatch;
use forebay_observe::recorder::text::SessionNames;
use forebay_observe::recorder::{Kind, Recorder, Track, What};

/// A session's counters at one moment; all except the slots are reported by the client.
#[derive(Debug, Clone, Copy)]
pub struct ClientCounters {
    /// Numbers of slots: free, filling, ready and leased.
    pub slots: [u64; 4],
    pub taken: u64,
    pub taken_at_ns: u64,
    pub waited_ns: u64,
}

impl Session {
    fn recorder(&self) -> Option<&Recorder> {
        self.stream.recorder.get().map(|recorder| &**recorder).filter(|recorder| recorder.is_on())
    }

    /// The current time if a recording is active, which needs it when the batch that is being opened is published.
    pub(super) fn opened_at(&self) -> Option<Instant> {
        self.recorder().map(|_| self.stream.clock.now())
    }

    /// Records a batch that is about to be published. If it was opened before the recording, it starts with the
    /// recording.
    pub(super) fn record_batch(&self, batch: &OpenBatch) {
        let Some(recorder) = self.recorder() else {
            return;
        };
        let now = self.stream.clock.now();
        let opened_at = batch.opened_at.or(recorder.begun()).unwrap_or(now);
        let what = What {
            kind: Kind::Batch,
            session: self.number,
            batch: batch.order,
            place: batch.slot.0.into(),
            row: batch.planned.rows.len() as usize,
            detail: self.ring.published(),
        };
        recorder.span(Track::Engine, opened_at, now.saturating_duration_since(opened_at), what);
    }

    /// The names for the session's number.
    pub fn names(&self) -> SessionNames {
        SessionNames { stream: self.stream_number, rank: self.rank, world_size: self.world_size }
    }

    /// Reads the counters. The wait is read last: the client writes it after the batch that it waited for.
    pub fn counters(&self) -> ClientCounters {
        let ring = &self.ring;
        let (slots, taken, taken_at_ns) = (ring.slots_by_state(), ring.taken(), ring.taken_at_ns());
        ClientCounters { slots, taken, taken_at_ns, waited_ns: ring.waited_ns() }
    }
}
