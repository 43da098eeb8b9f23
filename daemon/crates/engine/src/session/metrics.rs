//! What a session reports: its client's progress, waits and position.

use std::time::Duration;

use forebay_protocol::ids::Position;
use forebay_protocol::observing::SessionSteps;

use super::Session;

impl Session {
    /// Notes whether the client waits. Called at each tick.
    pub fn observe_client(&mut self) {
        self.client_watch.update(&self.ring);
    }

    /// True once: the client has taken its first batch.
    pub fn has_just_started(&mut self) -> bool {
        self.client_watch.has_just_started(&self.ring)
    }

    /// Batches published, taken, and the time waited for them; the last two by the client's report.
    pub fn counts(&self) -> (u64, u64, Duration) {
        let ring = &self.ring;
        let waited = Duration::from_nanos(ring.waited_ns()) + self.client_watch.current_wait(ring);
        (ring.published(), ring.taken(), waited)
    }

    /// The client's progress, for those that measure its steps.
    pub fn steps(&self) -> SessionSteps {
        let config = &self.stream.config;
        let (batches_left, batches_per_epoch) = self.order.batches_left();
        SessionSteps {
            session: self.number,
            stream: self.stream.name().to_owned(),
            rank: self.rank,
            world_size: self.world_size,
            published: self.ring.published(),
            taken: self.ring.taken(),
            taken_at_ns: self.ring.taken_at_ns(),
            waited_ns: self.ring.waited_ns(),
            position: self.order.published_until(),
            batches_left,
            batches_per_epoch,
            epochs: config.order.epochs,
            slots: config.ring.slots,
            hold: config.ring.hold,
            replay: self.replay.state(),
        }
    }

    /// Whether work is under way for the client.
    pub fn is_working(&self) -> bool {
        !self.batches.is_idle() || self.replay.is_working()
    }

    /// Where the next batch to be opened begins.
    pub fn position(&self) -> Position {
        self.order.next()
    }
}
