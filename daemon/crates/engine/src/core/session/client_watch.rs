//! Detects a session's first batch and measures its client's current wait: the client's own counter includes a wait
//! only after its end.

use std::time::{Duration, Instant};

use crate::core::session::ring::Ring;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct ClientWatch {
    has_taken: bool,
    /// The batch that the client waits for, and since when.
    waits: Option<(u64, Instant)>,
}

impl ClientWatch {
    /// Checks whether the client waits. Called at each tick.
    pub(super) fn update(&mut self, ring: &Ring) {
        let taken = ring.taken();
        let is_known = self.waits.is_some_and(|(batch, _)| batch == taken);
        if !ring.client_waits() {
            self.waits = None;
        } else if !is_known {
            self.waits = Some((taken, ring.clock.now()));
        }
    }

    /// Duration of the current wait.
    pub(super) fn current_wait(&self, ring: &Ring) -> Duration {
        let open = self.waits.filter(|(batch, _)| *batch == ring.taken());
        open.filter(|_| ring.client_waits())
            .map_or(Duration::ZERO, |(_, since)| ring.clock.elapsed(since))
    }

    /// True once: the client has taken its first batch.
    pub(super) fn has_just_started(&mut self, ring: &Ring) -> bool {
        ring.taken() > 0 && !std::mem::replace(&mut self.has_taken, true)
    }
}
