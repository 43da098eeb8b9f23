//! The metrics of a queue: how full it is and how long its producer and its consumer wait. The ring of a session is a
//! queue with its consumer in another process.

use std::time::{Duration, Instant};

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::histogram::{TimeHistogram, percentile_of};

/// Updated by both sides. The occupancy is exact except for races of nanoseconds between the two.
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

/// The metrics of a session's ring, updated by the engine thread. The client reports when it took its last batch, on a
/// clock shared by both.
#[derive(Debug, Default)]
pub struct RingMetrics {
    put: TimeHistogram,
    get: TimeHistogram,
    empty: Duration,
}

/// A queue's metrics in reports; times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueReport {
    /// The time that the metrics cover, in seconds.
    #[serde(default)]
    pub elapsed: f64,
    /// Items put into the queue.
    pub num_items: u64,
    /// Items per second.
    pub qps: f64,
    /// The mean time for which the producer was blocked.
    pub ave_put_time: f64,
    /// The 90th percentile.
    pub p90_put_time: f64,
    /// The 99th percentile.
    pub p99_put_time: f64,
    /// The mean time for which the consumer waited.
    pub ave_get_time: f64,
    /// The 90th percentile.
    pub p90_get_time: f64,
    /// The 99th percentile.
    pub p99_get_time: f64,
    /// The share of the time in which the queue was not empty; a current empty period counts.
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

    /// Counts an item that was put in after the producer was blocked for `waited`.
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

    /// Counts an item that was taken after the consumer waited for `waited`.
    pub fn get(&self, waited: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        self.get.record(waited);
        if self.length.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.empty_since_ns.store(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// The total time for which the queue was empty; a current empty period counts.
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
    /// Counts a published batch. `held_up`: the time it waited for a free slot; `empty_for`: the time the ring was
    /// empty.
    pub fn published(&mut self, held_up: Duration, empty_for: Duration) {
        self.put.record(held_up);
        self.get.record(empty_for);
        self.empty += empty_for;
    }

    /// The total time for which batches waited for a free slot with nothing else in flight.
    #[must_use]
    pub fn put_wait(&self) -> Duration {
        self.put.total()
    }

    /// The metrics after `elapsed`; `empty_for`: the length of the current empty period.
    #[must_use]
    pub fn report(&self, elapsed: Duration, empty_for: Duration) -> QueueReport {
        QueueReport::new(&self.put, &self.get, elapsed, self.empty + empty_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_empty_period_counts() {
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
    fn ring_is_a_queue_with_the_client_as_consumer() {
        let mut ring = RingMetrics::default();
        ring.published(Duration::from_secs(1), Duration::from_secs(2));
        ring.published(Duration::from_secs(3), Duration::ZERO);
        assert_eq!(ring.put_wait(), Duration::from_secs(4));
        let report = ring.report(Duration::from_secs(10), Duration::from_secs(3));
        assert_eq!((report.num_items, report.qps, report.occupancy_rate), (2, 0.2, 0.5));
        assert_eq!((report.ave_put_time, report.ave_get_time), (2.0, 1.0));
    }
}
