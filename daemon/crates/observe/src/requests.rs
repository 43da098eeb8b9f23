//! The metrics of a storage that serves requests: counts, latency, bytes.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::histogram::{TimeHistogram, counts_since, percentile_of};
use super::units::format_bytes;

// All orderings are relaxed: these are metrics.

/// Updated by the threads that make the requests.
#[derive(Debug)]
pub struct RequestMetrics {
    opened: Instant,
    begun: AtomicU64,
    ended: AtomicU64,
    failures: AtomicU64,
    refused: AtomicU64,
    hedges: AtomicU64,
    bytes: AtomicU64,
    first_byte: TimeHistogram,
    /// The times of requests that received all their bytes.
    whole: TimeHistogram,
}

/// A request in flight; dropping it ends it.
#[derive(Debug)]
pub struct RequestUnderWay {
    metrics: Arc<RequestMetrics>,
    begun: Instant,
}

/// The metrics in reports; times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The time that the metrics cover.
    pub elapsed: f64,
    /// Requests that were started.
    pub num_requests: u64,
    /// Failed requests, including ones that were retried.
    pub num_failures: u64,
    /// Failed requests that an overloaded server refused: status 429 or 503.
    pub num_refused: u64,
    /// Second requests, sent because the response to the first had not begun for long.
    #[serde(default)]
    pub num_hedges: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of samples received.
    pub bytes: u64,
    /// The sum of the times from a request to the first byte of its response.
    pub first_byte_seconds: f64,
    /// The median of these times.
    pub p50_first_byte: f64,
    /// The 99th percentile of these times.
    pub p99_first_byte: f64,
    /// The upper bound of each bucket, and the number of responses in it.
    pub first_bytes: Vec<(f64, u64)>,
    /// Requests that received all their bytes.
    pub num_whole: u64,
    /// The total time from these requests to their last bytes.
    pub whole_seconds: f64,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            hedges: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            first_byte: TimeHistogram::default(),
            whole: TimeHistogram::default(),
        }
    }
}

impl RequestMetrics {
    /// Counts the start of a request.
    pub fn begin(self: &Arc<Self>) -> RequestUnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        RequestUnderWay { metrics: Arc::clone(self), begun: Instant::now() }
    }

    /// Counts a second request for a response that has not begun; together they count as one request.
    pub fn hedge(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// The metrics so far.
    #[must_use]
    pub fn report(&self) -> RequestReport {
        let first_bytes = self.first_byte.counts();
        let ended = self.ended.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        RequestReport {
            elapsed: self.opened.elapsed().as_secs_f64(),
            num_requests: begun,
            num_failures: self.failures.load(Ordering::Relaxed),
            num_refused: self.refused.load(Ordering::Relaxed),
            num_hedges: self.hedges.load(Ordering::Relaxed),
            in_flight: begun.saturating_sub(ended),
            bytes: self.bytes.load(Ordering::Relaxed),
            first_byte_seconds: self.first_byte.total().as_secs_f64(),
            p50_first_byte: percentile_of(&first_bytes, 0.5),
            p99_first_byte: percentile_of(&first_bytes, 0.99),
            first_bytes,
            num_whole: self.whole.count(),
            whole_seconds: self.whole.total().as_secs_f64(),
        }
    }
}

impl RequestUnderWay {
    /// Records the first byte of the response.
    pub fn answered(&self) {
        self.metrics.first_byte.record(self.begun.elapsed());
    }

    /// Records that all bytes were received.
    pub fn succeed(self, bytes: u64) {
        self.metrics.whole.record(self.begun.elapsed());
        self.metrics.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records a failure; `is_refused`: the server was overloaded.
    pub fn fail(self, is_refused: bool) {
        self.metrics.failures.fetch_add(1, Ordering::Relaxed);
        self.metrics.refused.fetch_add(is_refused.into(), Ordering::Relaxed);
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.metrics.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics")]
impl RequestReport {
    /// The difference of this report and an earlier one of the same storage.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.elapsed < earlier.elapsed {
            return self.clone();
        }
        let first_bytes = counts_since(&self.first_bytes, &earlier.first_bytes);
        Self {
            elapsed: self.elapsed - earlier.elapsed,
            num_requests: self.num_requests.saturating_sub(earlier.num_requests),
            num_failures: self.num_failures.saturating_sub(earlier.num_failures),
            num_refused: self.num_refused.saturating_sub(earlier.num_refused),
            num_hedges: self.num_hedges.saturating_sub(earlier.num_hedges),
            in_flight: self.in_flight,
            bytes: self.bytes.saturating_sub(earlier.bytes),
            first_byte_seconds: (self.first_byte_seconds - earlier.first_byte_seconds).max(0.0),
            p50_first_byte: percentile_of(&first_bytes, 0.5),
            p99_first_byte: percentile_of(&first_bytes, 0.99),
            first_bytes,
            num_whole: self.num_whole.saturating_sub(earlier.num_whole),
            whole_seconds: (self.whole_seconds - earlier.whole_seconds).max(0.0),
        }
    }

    /// The mean time to the first byte; 0 without answers.
    #[must_use]
    pub fn mean_first_byte(&self) -> f64 {
        let answers: u64 = self.first_bytes.iter().map(|(_, count)| count).sum();
        self.first_byte_seconds / answers.max(1) as f64
    }

    /// The mean time to the last byte; 0 without any.
    #[must_use]
    pub fn mean_whole(&self) -> f64 {
        self.whole_seconds / self.num_whole.max(1) as f64
    }

    /// The share of requests that an overloaded server refused.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.num_refused as f64 / self.num_requests.max(1) as f64
    }

    /// Bytes per second.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a metric")]
    pub fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.elapsed.max(1e-9)) as u64
    }

    /// All metrics as one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:.0} requests/s, {}/s, {} in flight, {:.1} ms to the first byte (p99 {:.1} ms), {} failed, {} of them with \
             429 or 503, {} asked for twice",
            self.num_requests as f64 / self.elapsed.max(1e-9),
            format_bytes(self.bytes_per_second()),
            self.in_flight,
            self.p50_first_byte * 1e3,
            self.p99_first_byte * 1e3,
            self.num_failures,
            self.num_refused,
            self.num_hedges,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_in_flight_until_it_ends_and_is_counted_by_outcome() {
        let metrics = Arc::new(RequestMetrics::default());
        let (whole, refused, given_up) = (metrics.begin(), metrics.begin(), metrics.begin());
        whole.answered();
        assert_eq!(metrics.report().in_flight, 3);
        whole.succeed(100);
        refused.fail(true);
        drop(given_up);
        let before = metrics.report();
        assert_eq!((before.num_requests, before.num_failures, before.num_refused), (3, 1, 1));
        assert_eq!((before.in_flight, before.bytes, before.num_whole), (0, 100, 1));
        let second = metrics.begin();
        second.answered();
        second.fail(false);
        let window = metrics.report().since(&before);
        assert_eq!((window.num_requests, window.num_failures, window.num_refused), (1, 1, 0));
        assert_eq!((window.bytes, window.num_whole), (0, 0));
        assert_eq!(window.first_bytes.iter().map(|(_, count)| count).sum::<u64>(), 1);
    }
}
