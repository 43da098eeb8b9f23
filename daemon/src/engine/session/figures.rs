//! What a session tells of itself, and of its client by the client's word.

use std::time::Duration;

use forebay_protocol::ids::Position;
use forebay_protocol::lease::SlotState;
use nix::sys::socket::{getsockopt, sockopt};

use super::Session;

impl Session {
    /// Shows the client that the daemon lives and works.
    pub(crate) fn show_progress(&self, rows_finished: u64) {
        self.publish.show_progress(rows_finished);
    }

    /// Slots that are free, filling, ready (published, not taken) and leased.
    pub(crate) fn slots_by_state(&self) -> [u64; 4] {
        let published = self.slots.count(SlotState::Published) as u64;
        let ready =
            self.publish.published().saturating_sub(self.returns.claimed_taken()).min(published);
        [
            self.slots.count(SlotState::Free) as u64,
            self.slots.count(SlotState::Filling) as u64,
            ready,
            published - ready,
        ]
    }

    /// Batches published, and taken and waited for by the client's word.
    pub(crate) fn counts(&self) -> (u64, u64, Duration) {
        let waited = Duration::from_nanos(self.returns.claimed_waited_ns());
        (self.publish.published(), self.returns.claimed_taken(), waited)
    }

    /// The client's process as the kernel tells it; 0 where it cannot be seen from here.
    pub(crate) fn trainer(&self) -> u32 {
        let credentials = getsockopt(&*self.connection, sockopt::PeerCredentials);
        credentials.ok().and_then(|known| u32::try_from(known.pid()).ok()).unwrap_or(0)
    }

    /// Whether anything is under way for the client.
    pub(crate) fn is_working(&self) -> bool {
        !self.open.is_empty() || !self.cancelled.is_empty()
    }

    /// Whether fewer batches are ready than half the ring's slots.
    pub(crate) fn has_room(&self) -> bool {
        let [.., ready, _] = self.slots_by_state();
        ready < u64::from(self.stream.config.ring.slots) / 2
    }

    /// Whether the client sleeps over an empty ring.
    pub(crate) fn client_waits(&self) -> bool {
        self.returns.client_sleeps() && self.returns.claimed_taken() >= self.publish.published()
    }

    /// Where the next batch to be opened begins.
    pub(crate) fn position(&self) -> Position {
        self.next
    }
}
