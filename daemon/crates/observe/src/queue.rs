//! The metrics of a queue: how full it is and how long its two sides wait. The ring of a session is one, whose taking side
//! is another process.

use std::time::{Duration, Instant};

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::histogram::{TimeHistogram, percentile_of};

/// Counted by both sides. The occupancy is exact up to races of nanoseconds between the two.
#[derive(Debug)]
pub struct QueueMetrics {
    clock: Clock,
    start: Instant,
    put: TimeHistogram,
    get: TimeHistogram,
    length: AtomicU64,
    empty_since_ns: AtomicU64,
    empty_ns: AtomicU64,
}

/// The metrics of a session's ring, counted by the engine thread. The client says when it took its last batch, on the
/// clock that both share.
#[derive(Debug, Default)]
pub struct RingMetrics {
    put: TimeHistogram,
    get: TimeHistogram,
    empty: Duration,
}

/// A queue's metrics in reports; times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueReport {
    /// The time that the metrics cover.
    #[serde(default)]
    pub elapsed: f64,
    /// Items that went in.
    pub num_items: u64,
    /// Items per second.
    pub qps: f64,
    /// The mean time that the producer was blocked.
    pub ave_put_time: f64,
    /// The 90th percentile.
    pub p90_put_time: f64,
    /// The 99th percentile.
    pub p99_put_time: f64,
    /// The mean time that the consumer waited.
    pub ave_get_time: f64,
    /// The 90th percentile.
    pub p90_get_time: f64,
    /// The 99th percentile.
    pub p99_get_time: f64,
    /// The share of the time in which the queue was not empty; an empty period that is still open counts.
    pub occupancy_rate: f64,
}

impl QueueReport {
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn new(put: &TimeHistogram, get: &TimeHistogram, elapsed: Duration, empty: Duration) -> Self {
        let elapsed = elapsed.as_secs_f64().max(1e-9);
        let (put_times, get_times) = (put.counts(), get.counts());
        Self {
            elapsed,
            num_items: put.count(),
            qps: put.count() as f64 / elapsed,
            ave_put_time: put.mean_seconds(),
            p90_put_time: percentile_of(&put_times, 0.9),
            p99_put_time: percentile_of(&put_times, 0.99),
            ave_get_time: get.mean_seconds(),
            p90_get_time: percentile_of(&get_times, 0.9),
            p99_get_time: percentile_of(&get_times, 0.99),
            occupancy_rate: 1.0 - empty.as_secs_f64().min(elapsed) / elapsed,
        }
    }
}

const NOT_EMPTY: u64 = u64::MAX;

impl QueueMetrics {
    /// An empty queue.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            start: clock.now(),
            clock,
            put: TimeHistogram::default(),
            get: TimeHistogram::default(),
            length: AtomicU64::new(0),
            empty_since_ns: AtomicU64::new(0),
            empty_ns: AtomicU64::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed(self.start).as_nanos()).unwrap_or(NOT_EMPTY - 1)
    }

    /// An item went in after the producer had been blocked for `waited`.
    pub fn put(&self, waited: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        self.put.record(waited);
        // Relaxed, here and below: metrics.
        if self.length.fetch_add(1, Ordering::Relaxed) == 0 {
            let since = self.empty_since_ns.swap(NOT_EMPTY, Ordering::Relaxed);
            if since != NOT_EMPTY {
                self.empty_ns.fetch_add(self.now_ns().saturating_sub(since), Ordering::Relaxed);
            }
        }
    }

    /// An item came out after the consumer had waited for `waited`.
    pub fn get(&self, waited: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        self.get.record(waited);
        if self.length.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.empty_since_ns.store(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// How long it has been empty in total; a period that is still open counts.
    #[must_use]
    pub fn empty_time(&self) -> Duration {
        let now_ns = self.now_ns();
        let since = self.empty_since_ns.load(Ordering::Relaxed);
        let open = if since == NOT_EMPTY { 0 } else { now_ns.saturating_sub(since) };
        Duration::from_nanos((self.empty_ns.load(Ordering::Relaxed) + open).min(now_ns))
    }

    /// The metrics so far.
    #[must_use]
    pub fn report(&self) -> QueueReport {
        let empty = self.empty_time();
        QueueReport::new(&self.put, &self.get, self.clock.elapsed(self.start), empty)
    }
}

impl RingMetrics {
    /// A batch was published. `held_up`: how long it had waited for a free slot; `empty_for`: how long the ring had been
    /// empty.
    pub fn published(&mut self, held_up: Duration, empty_for: Duration) {
        self.put.record(held_up);
        self.get.record(empty_for);
        self.empty += empty_for;
    }

    /// How long batches have waited in total for a free slot while nothing else was in flight.
    #[must_use]
    pub fn put_wait(&self) -> Duration {
        self.put.total()
    }

    /// The metrics after `elapsed`; `empty_for`: how long the ring has been empty until now.
    #[must_use]
    pub fn report(&self, elapsed: Duration, empty_for: Duration) -> QueueReport {
        QueueReport::new(&self.put, &self.get, elapsed, self.empty + empty_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_period_that_is_still_open_counts() {
        let clock = Clock::manual();
        let queue = QueueMetrics::new(clock.clone());
        let after = |seconds| {
            clock.advance(Duration::from_secs(seconds));
            (queue.report().occupancy_rate, queue.empty_time().as_secs())
        };
        assert_eq!(after(5), (0.0, 5));
        queue.put(Duration::ZERO);
        assert_eq!(after(15), (0.75, 5));
        queue.get(Duration::from_secs(3));
        assert_eq!(after(60), (0.1875, 65));
        let report = queue.report();
        assert_eq!((report.num_items, report.elapsed, report.qps), (1, 80.0, 1.0 / 80.0));
        assert_eq!((report.ave_put_time, report.ave_get_time), (0.0, 3.0));
    }

    #[test]
    fn a_ring_is_a_queue_whose_consumer_is_the_client() {
        let mut ring = RingMetrics::default();
        ring.published(Duration::from_secs(1), Duration::from_secs(2));
        ring.published(Duration::from_secs(3), Duration::ZERO);
        assert_eq!(ring.put_wait(), Duration::from_secs(4));
        let report = ring.report(Duration::from_secs(10), Duration::from_secs(3));
        assert_eq!((report.num_items, report.qps, report.occupancy_rate), (2, 0.2, 0.5));
        assert_eq!((report.ave_put_time, report.ave_get_time), (2.0, 1.0));
    }
}
