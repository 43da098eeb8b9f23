//! The CPU time that the daemon may use: `cpu.limit`, and the unused part of a shared quota.
//!
//! The budget is a rate in CPU seconds per second. A work thread reports the time that it used. If the total exceeds
//! the rate, the thread sleeps before its next row. The engine reports the time of the engine thread and of the fetch
//! threads. No thread waits for another: the state is one number, the time until which the total use is paid for at the
//! rate (the generic cell rate algorithm of ITU-T I.371). Unused time expires after [`BURST`], so the limit holds over
//! windows of about a tenth of a second.

use std::time::{Duration, Instant};

use forebay_observe::Clock;
use forebay_protocol::sync::{AtomicU64, Ordering};

/// Time that may be used at once after a pause.
const BURST: Duration = Duration::from_millis(20);
/// Time for which a thread may run on after it has slept for the budget, so that it does not sleep after each row.
const CREDIT_AFTER_SLEEP: Duration = Duration::from_millis(5);
/// Maximal sleep; the rate may be raised meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// No limit.
const UNLIMITED: u64 = 0;

/// See the module's head.
#[derive(Debug)]
pub struct CpuBudget {
    clock: Clock,
    start: Instant,
    /// The rate in thousandths of a core, or `UNLIMITED`.
    millicores: AtomicU64,
    /// Nanoseconds since the start.
    paid_until_ns: AtomicU64,
    /// CPU time that the work threads have reported, in nanoseconds.
    used_ns: AtomicU64,
    /// Total time for which work threads have slept for the budget, in nanoseconds.
    held_back_ns: AtomicU64,
}

impl CpuBudget {
    /// Without a limit.
    pub fn new(clock: Clock) -> Self {
        Self {
            start: clock.now(),
            clock,
            millicores: AtomicU64::new(UNLIMITED),
            paid_until_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            held_back_ns: AtomicU64::new(0),
        }
    }

    /// Sets the rate in cores; `None`: without a limit. Engine only.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small positive number"
    )]
    pub fn set_cores(&self, cores: Option<f64>) {
        let millicores = cores.map_or(UNLIMITED, |cores| ((cores * 1000.0).round() as u64).max(1));
        // Relaxed, here and below: numbers; no other data is published with them.
        self.millicores.store(millicores, Ordering::Relaxed);
    }

    /// The rate in cores, if there is a limit.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub fn cores(&self) -> Option<f64> {
        let millicores = self.millicores.load(Ordering::Relaxed);
        (millicores != UNLIMITED).then(|| millicores as f64 / 1000.0)
    }

    /// Adds a work thread's use.
    pub fn use_up(&self, time: Duration) {
        self.used_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
        self.charge(time);
    }

    /// Adds the use of threads other than work threads.
    pub fn charge(&self, time: Duration) {
        let millicores = self.millicores.load(Ordering::Relaxed);
        if millicores == UNLIMITED {
            return;
        }
        let pays_ns = nanoseconds(time).saturating_mul(1000) / millicores;
        let earliest_ns = self.now_ns().saturating_sub(nanoseconds(BURST));
        // The closure always has a value.
        let _ = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
            Some(paid.max(earliest_ns).saturating_add(pays_ns))
        });
    }

    /// How long a thread must sleep before its next row; `None`: not at all.
    pub fn must_sleep(&self) -> Option<Duration> {
        if self.millicores.load(Ordering::Relaxed) == UNLIMITED {
            return None;
        }
        let ahead_ns = self.paid_until_ns.load(Ordering::Relaxed).checked_sub(self.now_ns())?;
        (ahead_ns > 0)
            .then(|| (Duration::from_nanos(ahead_ns) + CREDIT_AFTER_SLEEP).min(LONGEST_SLEEP))
    }

    /// Adds the time for which a work thread has slept for the budget.
    pub fn held_back(&self, time: Duration) {
        self.held_back_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// CPU time used by the work threads so far.
    pub fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// Total time for which work threads have slept for the budget.
    pub fn held_back_in_all(&self) -> Duration {
        Duration::from_nanos(self.held_back_ns.load(Ordering::Relaxed))
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.clock.elapsed(self.start))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn used_time_is_paid_for_at_the_rate() {
        let clock = Clock::manual();
        let budget = CpuBudget::new(clock.clone());
        budget.use_up(Duration::from_secs(5));
        assert_eq!(budget.must_sleep(), None, "no limit");
        budget.set_cores(Some(0.5));
        assert_eq!(budget.cores(), Some(0.5));
        budget.charge(200 * MS);
        // 400 ms at half a core, limited to the maximal sleep.
        assert_eq!(budget.must_sleep(), Some(LONGEST_SLEEP));
        clock.advance(390 * MS);
        assert_eq!(budget.must_sleep(), Some(10 * MS + CREDIT_AFTER_SLEEP));
        clock.advance(10 * MS);
        assert_eq!(budget.must_sleep(), None, "all of it is paid for");
        assert_eq!(budget.used(), Duration::from_secs(5));
        budget.charge(200 * MS);
        budget.set_cores(None);
        assert_eq!(budget.must_sleep(), None);
    }

    #[test]
    fn unused_time_expires() {
        let clock = Clock::manual();
        let budget = CpuBudget::new(clock.clone());
        budget.set_cores(Some(1.0));
        clock.advance(BURST * 4);
        budget.charge(BURST);
        assert_eq!(budget.must_sleep(), None, "a burst after a pause");
        budget.charge(BURST * 2);
        assert_eq!(budget.must_sleep(), Some(BURST * 2 + CREDIT_AFTER_SLEEP), "no more than that");
    }
}
