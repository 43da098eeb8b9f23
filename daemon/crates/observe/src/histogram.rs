//! Lock-free histograms of times, in the buckets of the crate `histogram` (decision 0022). Count and total are exact.

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};
use histogram::AtomicHistogram;

/// 16 buckets per power of two: a percentile is at most 6.25 % too high.
const GROUPING_POWER: u8 = 4;
/// Up to 2^44 ns (4.9 hours); longer times count as this.
const MAX_POWER: u8 = 44;

/// A histogram of times. Any thread adds; a concurrent report may miss times that are being added.
#[derive(Debug)]
pub struct TimeHistogram {
    buckets: AtomicHistogram,
    count: AtomicU64,
    total_ns: AtomicU64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self {
            buckets: AtomicHistogram::new(GROUPING_POWER, MAX_POWER).expect("valid powers"),
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
        }
    }
}

impl TimeHistogram {
    /// Adds one time.
    #[inline]
    pub fn record(&self, time: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // In range because of `min`. The crate uses relaxed ordering, as here: metrics.
        let _ = self.buckets.increment(ns.min((1 << MAX_POWER) - 1));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The sum of all times.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns.load(Ordering::Relaxed))
    }

    /// The upper bounds of the non-empty buckets in seconds, and their counts.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    pub fn counts(&self) -> Vec<(f64, u64)> {
        let snapshot = self.buckets.load();
        let counted = snapshot.iter().filter(|bucket| bucket.count() > 0);
        counted.map(|bucket| (bucket.end() as f64 / 1e9, bucket.count())).collect()
    }

    /// The mean in seconds; 0 without times.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    pub fn mean_seconds(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.total().as_secs_f64() / count as f64,
        }
    }

    /// The time in seconds that a share (0 to 1) of the times does not exceed; 0 without times.
    #[must_use]
    pub fn percentile_seconds(&self, share: f64) -> f64 {
        percentile_of(&self.counts(), share)
    }
}

/// The time in seconds that a share (0 to 1) of counted times does not exceed; 0 without times.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a metric"
)]
pub fn percentile_of(counts: &[(f64, u64)], share: f64) -> f64 {
    let count: u64 = counts.iter().map(|(_, count)| count).sum();
    let wanted = ((count as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    for (seconds, count) in counts {
        seen += count;
        if seen >= wanted {
            return *seconds;
        }
    }
    0.0
}

/// The difference of two snapshots of counts.
pub(super) fn counts_since(now: &[(f64, u64)], earlier: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let before = |seconds: f64| {
        let same = earlier.iter().find(|(upper, _)| *upper == seconds);
        same.map_or(0, |(_, count)| *count)
    };
    now.iter()
        .map(|(seconds, count)| (*seconds, count.saturating_sub(before(*seconds))))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_exact_or_up_to_one_sixteenth_too_high() {
        let mut ns = 1_u64;
        while ns < 1 << MAX_POWER {
            let histogram = TimeHistogram::default();
            histogram.record(Duration::from_nanos(ns));
            let bound = histogram.percentile_seconds(0.5) * 1e9;
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let ratio = bound / ns as f64;
            assert!(
                (1.0 - 1e-9..=1.0 + 1.0 / 16.0).contains(&ratio),
                "{ns} in a bucket up to {bound}"
            );
            ns += ns / 7 + 1;
        }
    }

    #[test]
    fn percentiles_and_mean_match_known_times() {
        let histogram = TimeHistogram::default();
        for ms in 1..=100 {
            histogram.record(Duration::from_millis(ms));
        }
        assert!((histogram.mean_seconds() - 0.0505).abs() < 1e-9);
        assert!((histogram.percentile_seconds(0.9) / 0.090 - 1.0).abs() < 0.07);
        assert!((histogram.percentile_seconds(0.99) / 0.099 - 1.0).abs() < 0.07);
        assert!(TimeHistogram::default().percentile_seconds(0.5) == 0.0);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.counts().last().unwrap().1, 1, "counted as the longest");
    }
}
