//! Histograms of durations, with four buckets per octave, and the statistics of a client's waits.
//!
//! A batch that was ready counts as a wait of zero, without reading the clock.

use std::time::Duration;

const STEPS_PER_OCTAVE: u32 = 4;
const BUCKETS: usize = 64 * STEPS_PER_OCTAVE as usize;

/// The waits of one client.
#[derive(Debug, Clone, Default)]
pub struct WaitStatistics {
    batches: u64,
    /// The waits for batches that were not ready.
    waits: DurationHistogram,
    /// The wait for the first batch: start-up time, not a bottleneck.
    start_up: Duration,
    payload_bytes: u64,
}

/// The bucket of a duration: the octave and the two bits below its leading one.
fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(4);
    let octave = value.ilog2();
    let step = (value >> (octave - 2)) & 3;
    // An octave is below 64 and a step below 4.
    (octave * STEPS_PER_OCTAVE) as usize + usize::try_from(step).unwrap_or(0)
}

/// The upper end of a bucket, in nanoseconds.
fn upper_end(bucket: usize) -> u64 {
    let octave = bucket / STEPS_PER_OCTAVE as usize;
    let step = bucket as u64 % u64::from(STEPS_PER_OCTAVE);
    u64::try_from((u128::from(step + 5) << octave) >> 2).unwrap_or(u64::MAX)
}

impl WaitStatistics {
    /// Records a batch that is handed over; `wait` is `None` when it was ready.
    pub(crate) fn record(&mut self, wait: Option<Duration>, payload_bytes: u64) {
        self.batches += 1;
        self.payload_bytes += payload_bytes;
        if let Some(wait) = wait {
            self.waits.record(wait);
            if self.batches == 1 {
                self.start_up = wait;
            }
        }
    }

    /// The number of batches handed over.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The number of batches that were not ready when requested.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.waits.count()
    }

    /// The total wait, except for the first batch, whose wait is start-up time.
    #[must_use]
    pub fn after_start(&self) -> Duration {
        self.waits.total() - self.start_up
    }

    /// The total wait, including the first batch's.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.waits.total()
    }

    /// The total payload of the batches handed over.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The quantile `share` (0 to 1) of the waits for all batches, too large by at most a quarter; ready batches count as
    /// zero.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        self.waits.quantile_among(self.batches, share)
    }
}

/// A histogram of durations, with their count, total and maximum.
#[derive(Debug, Clone)]
pub struct DurationHistogram {
    count: u64,
    total: Duration,
    longest: Duration,
    buckets: Box<[u64; BUCKETS]>,
}

impl Default for DurationHistogram {
    fn default() -> Self {
        let (count, total, longest) = (0, Duration::ZERO, Duration::ZERO);
        Self { count, total, longest, buckets: Box::new([0; BUCKETS]) }
    }
}

impl DurationHistogram {
    /// Adds a duration.
    pub fn record(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
        self.buckets[bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The maximum.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The quantile `share` (0 to 1), too large by at most a quarter.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        self.quantile_among(self.count, share)
    }

    /// The quantile among `all` durations; durations that were not recorded count as zero.
    fn quantile_among(&self, all: u64, share: f64) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank among counts that stay far below 2^53"
        )]
        let wanted = (share.clamp(0.0, 1.0) * all as f64).ceil() as u64;
        let mut seen = all.saturating_sub(self.count);
        if seen > 0 && seen >= wanted {
            return Duration::ZERO;
        }
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Duration::from_nanos(upper_end(index)).min(self.longest);
            }
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_bound_the_recorded_durations() {
        let mut waits = WaitStatistics::default();
        for _ in 0..90 {
            waits.record(None, 10);
        }
        for _ in 0..9 {
            waits.record(Some(Duration::from_millis(3)), 10);
        }
        waits.record(Some(Duration::from_secs(1)), 10);
        assert_eq!((waits.batches(), waits.waited()), (100, 10));
        assert_eq!(waits.payload_bytes(), 1000);
        assert_eq!(waits.quantile(0.5), Duration::ZERO);
        let p99 = waits.quantile(0.99);
        assert!(p99 >= Duration::from_millis(3) && p99 <= Duration::from_micros(3750));
        let top = waits.quantile(1.0);
        assert!(top >= Duration::from_secs(1) && top <= Duration::from_millis(1250));
    }

    #[test]
    fn times_are_counted_and_bounded() {
        let mut times = DurationHistogram::default();
        assert_eq!((times.quantile(0.99), times.longest()), (Duration::ZERO, Duration::ZERO));
        for _ in 0..98 {
            times.record(Duration::from_micros(3));
        }
        times.record(Duration::from_millis(5));
        times.record(Duration::from_millis(6));
        assert_eq!((times.count(), times.longest()), (100, Duration::from_millis(6)));
        assert_eq!(times.total(), Duration::from_micros(98 * 3 + 11_000));
        let half = times.quantile(0.5);
        assert!(half >= Duration::from_micros(3) && half < Duration::from_micros(4), "{half:?}");
        let p99 = times.quantile(0.99);
        assert!(p99 >= Duration::from_millis(5) && p99 <= Duration::from_millis(6), "{p99:?}");
        assert_eq!(times.quantile(1.0), Duration::from_millis(6));
    }

    #[test]
    fn every_duration_has_a_bucket_that_ends_above_it() {
        for nanoseconds in [0, 1, 7, 8, 1000, 1 << 40, u64::MAX] {
            let index = bucket(nanoseconds);
            assert!(upper_end(index) >= nanoseconds, "{nanoseconds}");
        }
    }
}
