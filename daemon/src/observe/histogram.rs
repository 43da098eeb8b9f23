//! Times counted in buckets that any thread may add to without a lock.
//!
//! Sixteen buckets a power of two, so a percentile is at most 6 % above the truth. Why not an existing histogram: the
//! ones at hand need a lock or a channel between the recording thread and the reader, and lowered work threads may
//! share neither with a normal one.

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};

const SUB_BITS: u32 = 4;
const SUB_BUCKETS: u64 = 1 << SUB_BITS;
/// Covers 1 ns to 2⁴⁴ ns (4.9 hours); what is longer counts as that.
const BUCKETS: usize = ((44 - SUB_BITS as usize) + 1) << SUB_BITS;

/// Counts of times. Read while being written: figures, not a ledger.
#[derive(Debug)]
pub struct TimeHistogram {
    buckets: Box<[AtomicU64]>,
    count: AtomicU64,
    total_ns: AtomicU64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
        }
    }
}

fn bucket(ns: u64) -> usize {
    let index = if ns < SUB_BUCKETS {
        ns
    } else {
        let shift = 63 - ns.leading_zeros() - SUB_BITS;
        u64::from(shift + 1) * SUB_BUCKETS + ((ns >> shift) - SUB_BUCKETS)
    };
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The largest time that falls into a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (row, column) = (bucket as u64 >> SUB_BITS, bucket as u64 & (SUB_BUCKETS - 1));
    if row == 0 { column } else { ((SUB_BUCKETS + column + 1) << (row - 1)) - 1 }
}

impl TimeHistogram {
    /// Adds one time.
    pub fn record(&self, time: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed, all three: figures.
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many times were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The sum of all times.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns.load(Ordering::Relaxed))
    }

    /// The buckets that are not empty: the longest time that falls into each, in seconds, and how many did.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub fn counts(&self) -> Vec<(f64, u64)> {
        let counted =
            self.buckets.iter().enumerate().map(|(index, bucket)| {
                (upper_ns(index) as f64 / 1e9, bucket.load(Ordering::Relaxed))
            });
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// The mean in seconds; 0 without times.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
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
    reason = "a figure"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket_within_six_percent() {
        let mut ns = 1u64;
        while ns < 1 << 44 {
            let upper = upper_ns(bucket(ns));
            assert!(upper >= ns && upper - ns <= ns / 16, "{ns} in a bucket up to {upper}");
            ns += ns / 7 + 1;
        }
        for index in 1..BUCKETS {
            assert_eq!(bucket(upper_ns(index - 1) + 1), index);
        }
    }

    #[test]
    fn percentiles_and_mean_of_known_times() {
        let histogram = TimeHistogram::default();
        for ms in 1..=100 {
            histogram.record(Duration::from_millis(ms));
        }
        assert!((histogram.mean_seconds() - 0.0505).abs() < 1e-9);
        assert!((histogram.percentile_seconds(0.9) / 0.090 - 1.0).abs() < 0.07);
        assert!((histogram.percentile_seconds(0.99) / 0.099 - 1.0).abs() < 0.07);
        assert!(TimeHistogram::default().percentile_seconds(0.5) == 0.0);
    }
}
