//! What waiting for batches cost, and other times: count, total and a histogram with four buckets an octave.
//!
//! A batch that was ready counts as a wait of zero, without a look at the clock.

use std::time::Duration;

const STEPS_PER_OCTAVE: u32 = 4;
const BUCKETS: usize = 64 * STEPS_PER_OCTAVE as usize;

/// Waits of one client.
#[derive(Debug, Clone, Default)]
pub struct WaitStatistics {
    batches: u64,
    /// Of batches that were not ready.
    waits: Times,
    /// The wait for the first batch: a start, not a limit.
    start_up: Duration,
    payload_bytes: u64,
}

/// The bucket of a time: the octave and the two bits below its leading one.
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
    /// A batch was handed over; `wait` is `None` when it was ready.
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

    /// The batches handed over.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The batches that were not ready when they were asked for.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.waits.count()
    }

    /// The time waited for all batches but the first, whose wait is the start-up.
    #[must_use]
    pub fn after_start(&self) -> Duration {
        self.waits.total() - self.start_up
    }

    /// The time waited in all.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.waits.total()
    }

    /// The bytes of the batches handed over.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The wait that a share of all batches stayed within, too large by at most a quarter; ready batches waited zero.
    /// `share` is between 0 and 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        self.waits.quantile_among(self.batches, share)
    }
}

/// Times of anything: how many, together, the longest, and how they are spread.
#[derive(Debug, Clone)]
pub struct Times {
    count: u64,
    total: Duration,
    longest: Duration,
    buckets: Box<[u64; BUCKETS]>,
}

impl Default for Times {
    fn default() -> Self {
        let (count, total, longest) = (0, Duration::ZERO, Duration::ZERO);
        Self { count, total, longest, buckets: Box::new([0; BUCKETS]) }
    }
}

impl Times {
    /// One more.
    pub fn record(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
        self.buckets[bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The longest.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The time that a share of them stayed within, too large by at most a quarter. `share` is between 0 and 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        self.quantile_among(self.count, share)
    }

    /// The same among `all`, of which those that were not recorded took no time.
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
    fn quantiles_bound_what_was_recorded() {
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
        let mut times = Times::default();
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
    fn every_time_has_a_bucket_that_ends_above_it() {
        for nanoseconds in [0, 1, 7, 8, 1000, 1 << 40, u64::MAX] {
            let index = bucket(nanoseconds);
            assert!(upper_end(index) >= nanoseconds, "{nanoseconds}");
        }
    }
}
