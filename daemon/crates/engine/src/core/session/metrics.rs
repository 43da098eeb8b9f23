//! A session's metrics: its client's progress, waits and position.

use std::time::Duration;

use forebay_protocol::ids::Position;
use forebay_protocol::observing::SessionSteps;

use crate::core::session::Session;
use forebay_observe::ProgressReport;

impl Session {
    /// Checks whether the client waits. Called at each tick.
    pub fn observe_client(&mut self) {
        self.client_watch.update(&self.ring);
    }

    /// True once: the client has taken its first batch.
    pub fn has_just_started(&mut self) -> bool {
        self.client_watch.has_just_started(&self.ring)
    }

    /// Batches published, batches taken, and the time waited for them; the last two as reported by the client.
    pub fn counts(&self) -> (u64, u64, Duration) {
        let ring = &self.ring;
        let waited = Duration::from_nanos(ring.waited_ns()) + self.client_watch.current_wait(ring);
        (ring.published(), ring.taken(), waited)
    }

    /// The client's progress, for measurements of its steps.
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

    /// The client's progress by the batches that it took. Exact except for a run that was resumed at another world
    /// size, where only the end of the current epoch is exact.
    pub fn progress(&self) -> ProgressReport {
        let schedule = self.order.schedule();
        let published = self.order.published_until();
        let (left, per_epoch) = self.order.batches_left();
        let not_taken = self.ring.published().saturating_sub(self.ring.taken());
        let is_finished = schedule.finished(published);
        // The ring may contain batches of the previous epoch.
        let is_behind = is_finished || left + not_taken > per_epoch;
        let epoch = published.epoch.saturating_sub(is_behind.into());
        let left = if is_behind && !is_finished {
            left + not_taken - per_epoch
        } else {
            (left + not_taken).min(per_epoch)
        };
        let config = &self.stream.config;
        let global_batch = u64::from(self.shape.size) * u64::from(self.world_size);
        let left_out = match schedule.pools() {
            None => schedule.samples_left_out_per_epoch(),
            // Fewer than ranks, if any.
            Some(_) => 0,
        };
        let samples_per_epoch = schedule.samples() - left_out;
        let epochs = config.order.epochs;
        ProgressReport {
            epoch,
            epochs,
            samples: match schedule.pools() {
                None => (per_epoch.saturating_sub(left) * global_batch).min(samples_per_epoch),
                Some(_) => part_of(samples_per_epoch, per_epoch.saturating_sub(left), per_epoch),
            },
            samples_per_epoch,
            batches_left_of_epoch: left,
            batches_left: epochs.map(|epochs| epochs.saturating_sub(epoch + 1) * per_epoch + left),
            ..ProgressReport::default()
        }
    }

    /// Whether work for the client is in progress.
    pub fn is_working(&self) -> bool {
        !self.batches.is_idle() || self.replay.is_working()
    }

    /// The position of the next batch to open.
    pub fn position(&self) -> Position {
        self.order.next()
    }
}

/// `whole` × `share` / `of`.
fn part_of(whole: u64, share: u64, of: u64) -> u64 {
    let part = u128::from(whole) * u128::from(share) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(whole)
}
