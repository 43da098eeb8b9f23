//! The metrics of a storage that answers requests: how many, how soon, how much.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::histogram::{TimeHistogram, counts_since, percentile_of};
use super::units::format_bytes;

// Relaxed, all of them: metrics.

/// Counted by the threads that make the requests.
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
    /// Of requests that brought all their bytes.
    whole: TimeHistogram,
}

/// A request under way; it ends when this is dropped.
#[derive(Debug)]
pub struct RequestUnderWay {
    metrics: Arc<RequestMetrics>,
    begun: Instant,
}

/// The metrics in reports; times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The time that they cover.
    pub elapsed: f64,
    /// Requests that began.
    pub num_requests: u64,
    /// Requests that failed; what may pass is asked for again.
    pub num_failures: u64,
    /// Of these, those that the server had no room for: status 429 or 503.
    pub num_refused: u64,
    /// Second requests, for what a first one had not begun to bring for long.
    #[serde(default)]
    pub num_hedges: u64,
    /// Requests under way now.
    pub in_flight: u64,
    /// Bytes of samples that came.
    pub bytes: u64,
    /// From the request to the first byte of its answer: the sum, the median and the 99th percentile.
    pub first_byte_seconds: f64,
    /// See above.
    pub p50_first_byte: f64,
    /// See above.
    pub p99_first_byte: f64,
    /// The upper bound of each bucket, and the answers in it.
    pub first_bytes: Vec<(f64, u64)>,
    /// Requests that brought all their bytes.
    pub num_whole: u64,
    /// From the request to its last byte: the sum over these.
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
    /// A request is made.
    pub fn begin(self: &Arc<Self>) -> RequestUnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        RequestUnderWay { metrics: Arc::clone(self), begun: Instant::now() }
    }

    /// The same is asked for a second time, since no answer has begun; the request stays one.
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
    /// Its answer has begun.
    pub fn answered(&self) {
        self.metrics.first_byte.record(self.begun.elapsed());
    }

    /// All its bytes have come.
    pub fn succeed(self, bytes: u64) {
        self.metrics.whole.record(self.begun.elapsed());
        self.metrics.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It failed; `is_refused`: for want of room at the server.
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
    /// These metrics minus those of an earlier report of the same storage.
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

    /// The share of requests that were refused for want of room.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.num_refused as f64 / self.num_requests.max(1) as f64
    }

    /// Bytes a second.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a metric")]
    pub fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.elapsed.max(1e-9)) as u64
    }

    /// All of it in a line.
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
    fn a_request_is_in_flight_until_it_ends_and_counts_as_what_became_of_it() {
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
