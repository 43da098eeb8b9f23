//! The figures of a session's ring: a queue whose taking side is another process.

use std::time::Duration;

use super::histogram::TimeHistogram;
use super::queue::QueueReport;

/// Counted by the engine thread. When the client took its last batch is the client's word, on the clock both share.
#[derive(Debug, Default)]
pub struct RingFigures {
    put: TimeHistogram,
    get: TimeHistogram,
    empty: Duration,
}

impl RingFigures {
    /// A batch was published. `held_up`: how long it had waited for a free slot; `empty_for`: how long the ring had had
    /// nothing to take.
    pub fn published(&mut self, held_up: Duration, empty_for: Duration) {
        self.put.record(held_up);
        self.get.record(empty_for);
        self.empty += empty_for;
    }

    /// How long batches have waited for a free slot with nothing else under way, all together.
    #[must_use]
    pub fn put_wait(&self) -> Duration {
        self.put.total()
    }

    /// The figures after `elapsed`; `empty_for`: how long the ring has had nothing to take until now.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    pub fn report(&self, elapsed: Duration, empty_for: Duration) -> QueueReport {
        let elapsed_seconds = elapsed.as_secs_f64().max(1e-9);
        let empty_seconds = (self.empty + empty_for).as_secs_f64().min(elapsed_seconds);
        QueueReport {
            elapsed: elapsed_seconds,
            num_items: self.put.count(),
            qps: self.put.count() as f64 / elapsed_seconds,
            ave_put_time: self.put.mean_seconds(),
            p90_put_time: self.put.percentile_seconds(0.9),
            p99_put_time: self.put.percentile_seconds(0.99),
            ave_get_time: self.get.mean_seconds(),
            p90_get_time: self.get.percentile_seconds(0.9),
            p99_get_time: self.get.percentile_seconds(0.99),
            occupancy_rate: 1.0 - empty_seconds / elapsed_seconds,
        }
    }
}
