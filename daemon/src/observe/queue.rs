//! The figures of one queue: how full it is and how long its two sides wait.

use std::time::{Duration, Instant};

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::histogram::TimeHistogram;

/// Counted by both sides. The occupancy is exact up to races of nanoseconds between the two.
#[derive(Debug)]
pub struct QueueFigures {
    start: Instant,
    put: TimeHistogram,
    get: TimeHistogram,
    items: AtomicU64,
    length: AtomicU64,
    empty_since_ns: AtomicU64,
    empty_ns: AtomicU64,
}

/// A queue's figures as reports carry them; times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueReport {
    /// What the figures cover, in seconds.
    #[serde(default)]
    pub elapsed: f64,
    /// Items that went in.
    pub num_items: u64,
    /// Items a second since the start.
    pub qps: f64,
    /// The mean time that the putting side was held up.
    pub ave_put_time: f64,
    /// Nine in ten waited at most this.
    pub p90_put_time: f64,
    /// 99 in a hundred waited at most this.
    pub p99_put_time: f64,
    /// The mean time that the taking side waited.
    pub ave_get_time: f64,
    /// Nine in ten waited at most this.
    pub p90_get_time: f64,
    /// 99 in a hundred waited at most this.
    pub p99_get_time: f64,
    /// The share of the time in which there was something to take; an empty period that is still open counts.
    pub occupancy_rate: f64,
}

impl Default for QueueFigures {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            put: TimeHistogram::default(),
            get: TimeHistogram::default(),
            items: AtomicU64::new(0),
            length: AtomicU64::new(0),
            empty_since_ns: AtomicU64::new(0),
            empty_ns: AtomicU64::new(0),
        }
    }
}

const NOT_EMPTY: u64 = u64::MAX;

impl QueueFigures {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(NOT_EMPTY - 1)
    }

    /// An item went in after the putting side had been held up for `waited`.
    pub fn put(&self, waited: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        self.put.record(waited);
        // Relaxed, here and below: figures.
        self.items.fetch_add(1, Ordering::Relaxed);
        if self.length.fetch_add(1, Ordering::Relaxed) == 0 {
            let since = self.empty_since_ns.swap(NOT_EMPTY, Ordering::Relaxed);
            if since != NOT_EMPTY {
                self.empty_ns.fetch_add(self.now_ns().saturating_sub(since), Ordering::Relaxed);
            }
        }
    }

    /// An item came out after the taking side had waited for `waited`.
    pub fn get(&self, waited: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        self.get.record(waited);
        if self.length.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.empty_since_ns.store(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// How long it has been empty in all; a period that is still open counts.
    #[must_use]
    pub fn empty_time(&self) -> Duration {
        Duration::from_nanos(self.empty_ns_at(self.now_ns()))
    }

    fn empty_ns_at(&self, now_ns: u64) -> u64 {
        let since = self.empty_since_ns.load(Ordering::Relaxed);
        let open = if since == NOT_EMPTY { 0 } else { now_ns.saturating_sub(since) };
        (self.empty_ns.load(Ordering::Relaxed) + open).min(now_ns)
    }

    /// The figures so far.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    pub fn report(&self) -> QueueReport {
        let elapsed_ns = self.now_ns().max(1);
        let empty_ns = self.empty_ns_at(elapsed_ns);
        let items = self.items.load(Ordering::Relaxed);
        QueueReport {
            elapsed: elapsed_ns as f64 / 1e9,
            num_items: items,
            qps: items as f64 * 1e9 / elapsed_ns as f64,
            ave_put_time: self.put.mean_seconds(),
            p90_put_time: self.put.percentile_seconds(0.9),
            p99_put_time: self.put.percentile_seconds(0.99),
            ave_get_time: self.get.mean_seconds(),
            p90_get_time: self.get.percentile_seconds(0.9),
            p99_get_time: self.get.percentile_seconds(0.99),
            occupancy_rate: 1.0 - empty_ns as f64 / elapsed_ns as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn an_empty_period_that_is_still_open_counts() {
        let queue = QueueFigures::default();
        sleep(Duration::from_millis(5));
        assert!(queue.report().occupancy_rate < 0.01);
        queue.put(Duration::ZERO);
        sleep(Duration::from_millis(15));
        assert!(queue.report().occupancy_rate > 0.5);
        queue.get(Duration::ZERO);
        sleep(Duration::from_millis(60));
        assert!(queue.report().occupancy_rate < 0.5);
        assert_eq!(queue.report().num_items, 1);
    }
}
