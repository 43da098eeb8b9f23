//! What a session tells of itself, and of its client by the client's word.

use std::time::{Duration, Instant};

use forebay_protocol::ids::Position;
use forebay_protocol::lease::SlotState;
use forebay_protocol::observing::SessionSteps;
use nix::sys::socket::{getsockopt, sockopt};

use super::Session;
use crate::observe::QueueReport;

/// What is remembered of the client's waiting.
#[derive(Debug, Default)]
pub(super) struct ClientWatch {
    /// Whether it was seen to have taken a batch.
    has_begun: bool,
    /// Since when it is seen to wait for the batch of this number. A wait is in the client's own count only when it is over.
    waits: Option<(u64, Instant)>,
}

impl Session {
    /// Looks whether the client waits. Done by the clock.
    pub(in crate::engine) fn look_at_client(&mut self) {
        let taken = self.returns.claimed_taken();
        let is_known = self.client_watch.waits.is_some_and(|(batch, _)| batch == taken);
        if !self.client_waits() {
            self.client_watch.waits = None;
        } else if !is_known {
            self.client_watch.waits = Some((taken, Instant::now()));
        }
    }

    /// How long the client has been seen to wait until now.
    fn open_wait(&self) -> Duration {
        let taken = self.returns.claimed_taken();
        let open = self.client_watch.waits.filter(|(batch, _)| *batch == taken);
        open.filter(|_| self.client_waits()).map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// True once: the client has taken its first batch.
    pub(in crate::engine) fn has_just_begun(&mut self) -> bool {
        let has_taken = self.returns.claimed_taken() > 0;
        has_taken && !std::mem::replace(&mut self.client_watch.has_begun, true)
    }

    /// How long batches have waited for a free slot with nothing else under way, in all.
    pub(in crate::engine) fn put_wait(&self) -> Duration {
        let open = self.starved_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.figures.put_wait() + open
    }

    /// The ring as a queue.
    pub(in crate::engine) fn ring_report(&self) -> QueueReport {
        self.figures.report(self.started.elapsed(), self.ring_empty_for())
    }

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
        let waited = Duration::from_nanos(self.returns.claimed_waited_ns()) + self.open_wait();
        (self.publish.published(), self.returns.claimed_taken(), waited)
    }

    /// How far the client is.
    pub(crate) fn steps(&self) -> SessionSteps {
        let config = &self.stream.config;
        SessionSteps {
            session: self.number,
            stream: self.stream.name().to_owned(),
            rank: self.rank,
            world_size: self.world_size,
            published: self.publish.published(),
            taken: self.returns.claimed_taken(),
            taken_at_ns: self.returns.claimed_taken_at_ns(),
            waited_ns: self.returns.claimed_waited_ns(),
            position: self.published_until,
            batches_left: self.schedule.batches_left(self.published_until),
            batches_per_epoch: self.schedule.batches_per_epoch(),
            epochs: config.order.epochs,
            slots: config.ring.slots,
            hold: config.ring.hold,
            replay: self.replay.state(),
        }
    }

    /// The client's process as the kernel tells it; 0 where it cannot be seen from here.
    pub(crate) fn trainer(&self) -> u32 {
        let credentials = getsockopt(&*self.connection, sockopt::PeerCredentials);
        credentials.ok().and_then(|known| u32::try_from(known.pid()).ok()).unwrap_or(0)
    }

    /// Whether anything is under way for the client.
    pub(crate) fn is_working(&self) -> bool {
        !self.open.is_empty() || !self.cancelled.is_empty() || self.replay.is_working()
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
