//! When a failed call is retried, and when it is given up: the policy that reading, opening and scanning share.
//!
//! A call's failures are its [`Retries`]. Pauses double from 0.1 to 5 seconds and vary by a quarter between calls, so
//! that calls that failed together are not retried together. Retries end after [`FILE_TIMEOUT`] if only the file is
//! missing or changing, and after `dataset.outage_timeout` if the storage is unreachable.
//!
//! Both times are counted separately: the time from one failure to the next counts for the kind of the former, and a
//! failure of the other kind does not reset it. So a call whose errors alternate ends, too, and an outage does not
//! count against a file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{RetryClass, StorageError};
use super::outage::{Outages, Waiting, in_words};

/// How long a single missing or changing file is retried.
const FILE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Parameters of a call's retries besides its errors.
#[derive(Debug, Clone, Copy)]
pub struct RetryTerms<'a> {
    /// Receives the outage; has the clock and the time-out.
    pub outages: &'a Arc<Outages>,
    /// Distinguishes this call from others, for the pauses.
    pub key: u64,
}

/// The failures of one call so far.
#[derive(Debug, Clone)]
pub struct Retries {
    failures: u32,
    class: RetryClass,
    /// The time of the last failure.
    failed_at: Instant,
    /// The time spent in failures of a single file, and in outages.
    as_file: Duration,
    by_outage: Duration,
    due: Instant,
    /// The time of the final try.
    end: Instant,
    /// The last failure.
    error: String,
    /// Present once the call has failed by an outage.
    waiting: Option<Arc<Waiting>>,
}

impl Retries {
    /// The retries after another failure of the call.
    ///
    /// # Errors
    /// The call is given up; the message.
    pub fn after(
        before: Option<Self>,
        error: &StorageError,
        terms: RetryTerms<'_>,
    ) -> Result<Self, String> {
        let RetryTerms { outages, key } = terms;
        let now = outages.clock().now();
        let class = error.class();
        // A call that hung has been failing since it was made.
        let lasted = match error {
            StorageError::TimedOut { limit: lasted, .. }
            | StorageError::Hangs { lasts: lasted, .. } => *lasted,
            _ => Duration::ZERO,
        };
        let mut accounts = [Duration::ZERO; 2];
        let mut charge = |class, time| match class {
            RetryClass::Never => {}
            RetryClass::File => accounts[0] += time,
            RetryClass::Outage => accounts[1] += time,
        };
        let mut hung = lasted;
        if let Some(before) = &before {
            charge(RetryClass::File, before.as_file);
            charge(RetryClass::Outage, before.by_outage);
            let between = now.saturating_duration_since(before.failed_at);
            hung = lasted.min(between);
            charge(before.class, between - hung);
        }
        charge(class, hung);
        let [as_file, by_outage] = accounts;
        let failures = before.as_ref().map_or(0, |before| before.failures).saturating_add(1);
        let (limit, spent) = match class {
            RetryClass::Never => return Err(error.to_string()),
            RetryClass::File => (FILE_TIMEOUT.min(outages.timeout()), as_file),
            RetryClass::Outage => (outages.timeout(), by_outage),
        };
        let mut waiting = before.and_then(|before| before.waiting);
        if class == RetryClass::Outage {
            waiting.get_or_insert_with(|| Arc::new(outages.wait()));
            // A single failure that passes at once is not an outage.
            if failures > 1 || lasted > Duration::ZERO {
                outages.announce(error, now.checked_sub(spent).unwrap_or(now));
            }
        }
        if spent >= limit {
            let key = if class == RetryClass::Outage { " (dataset.outage_timeout)" } else { "" };
            return Err(format!(
                "{error}; it was tried {failures} times over {}, the limit is {}{key}",
                in_words(spent),
                in_words(limit)
            ));
        }
        // The final try happens when the time is over.
        let end = now + (limit - spent);
        let pause = pause(failures, key).max(error.retry_after().unwrap_or_default());
        let due = (now + pause).min(end);
        let (failed_at, error) = (now, error.to_string());
        Ok(Self { failures, class, failed_at, as_file, by_outage, due, end, error, waiting })
    }

    /// The number of failures.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The time of the next try.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The message for a call whose final try was due long ago and could not be made.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Option<String> {
        let late = now.saturating_duration_since(self.end);
        (late > 2 * LONGEST_PAUSE).then(|| {
            format!(
                "{}; it was tried {} times over {}, and other calls hang (dataset.outage_timeout)",
                self.error,
                self.failures,
                in_words(
                    self.as_file + self.by_outage + now.saturating_duration_since(self.failed_at)
                )
            )
        })
    }

    /// The call has succeeded.
    pub fn succeed(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.succeed();
        }
    }
}

/// The pause after this many failures of a call, a quarter longer or shorter by chance but the same for the same call.
fn pause(failures: u32, key: u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let base = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
    // The finalizer of splitmix64 (Steele, Lea and Flood 2014).
    let mut bits = key.wrapping_add(u64::from(failures).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = u32::try_from((bits ^ (bits >> 31)) % 1024).unwrap_or(0);
    base * 3 / 4 + base / 2 * share / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_observe::Clock;
    use rustix::io::Errno;

    fn failing(errno: Errno) -> StorageError {
        StorageError::from_errno("/data/file".into(), "reading", errno)
    }

    /// Calls until it is given up: how long that took, the number of tries, and the message.
    fn give_up(error: &StorageError, timeout: Duration) -> (Duration, u32, String) {
        let clock = Clock::manual();
        let outages = Outages::new("train", timeout, clock.clone());
        let terms = RetryTerms { outages: &outages, key: 7 };
        let begun = clock.now();
        let mut retries = None;
        let mut tries = 0;
        loop {
            tries += 1;
            match Retries::after(retries.take(), error, terms) {
                Ok(again) => {
                    clock.advance(again.due().saturating_duration_since(clock.now()));
                    retries = Some(again);
                }
                Err(said) => return (clock.elapsed(begun), tries, said),
            }
        }
    }

    #[test]
    fn unreachable_storage_is_waited_for_but_not_a_missing_file() {
        const HALF_AN_HOUR: Duration = Duration::from_secs(1800);
        let gone = StorageError::Vanished { path: "/data/file".into() };
        let (took, tries, said) = give_up(&gone, HALF_AN_HOUR);
        assert_eq!(took, FILE_TIMEOUT);
        assert!((5..20).contains(&tries) && said.contains("vanished"), "{tries}: {said}");
        assert_eq!(give_up(&gone, Duration::from_secs(2)).0, Duration::from_secs(2));
        for errno in [
            Errno::IO,
            Errno::STALE,
            Errno::TIMEDOUT,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::NOTCONN,
            Errno::AGAIN,
            Errno::NODEV,
            Errno::SHUTDOWN,
            Errno::REMOTEIO,
            Errno::CONNRESET,
            Errno::NETDOWN,
            Errno::NFILE,
            Errno::NXIO,
        ] {
            let (took, tries, said) = give_up(&failing(errno), HALF_AN_HOUR);
            assert_eq!(took, HALF_AN_HOUR, "{errno}");
            assert!((300..600).contains(&tries), "{tries}");
            assert!(said.contains("30 min (dataset.outage_timeout)"), "{said}");
        }
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ISDIR, Errno::NAMETOOLONG, Errno::LOOP] {
            assert_eq!(give_up(&failing(errno), HALF_AN_HOUR).1, 1, "{errno}");
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_differ_between_calls() {
        let mut before = Duration::ZERO;
        for failures in 1..=5 {
            let now = pause(failures, 3);
            assert!(now > before, "{now:?} after {before:?}");
            before = now;
        }
        for key in 0..100 {
            let last = pause(30, key);
            assert!(last >= LONGEST_PAUSE * 3 / 4 && last <= LONGEST_PAUSE * 5 / 4, "{last:?}");
            assert_ne!(pause(30, key), pause(30, key + 1));
        }
    }

    #[test]
    fn outage_time_does_not_count_against_a_missing_file() {
        let clock = Clock::manual();
        let outages = Outages::new("train", Duration::from_secs(600), clock.clone());
        let terms = RetryTerms { outages: &outages, key: 1 };
        let away = Retries::after(None, &failing(Errno::IO), terms).unwrap();
        clock.advance(Duration::from_secs(60));
        let away = Retries::after(Some(away), &failing(Errno::STALE), terms).unwrap();
        assert!(outages.current().is_some());
        let gone = StorageError::Vanished { path: "/data/file".into() };
        let again = Retries::after(Some(away), &gone, terms).unwrap();
        clock.advance(Duration::from_secs(9));
        let again = Retries::after(Some(again), &gone, terms).unwrap();
        assert_eq!(again.failures(), 4);
        assert_eq!(again.overdue(clock.now() + Duration::from_secs(5)), None);
        assert!(again.overdue(clock.now() + Duration::from_secs(60)).unwrap().contains("vanished"));
        clock.advance(Duration::from_secs(1));
        assert!(Retries::after(Some(again), &gone, terms).is_err());
        assert!(outages.current().is_none(), "no call waits any more");
    }

    #[test]
    fn alternating_errors_end_when_one_kind_has_lasted_too_long() {
        let clock = Clock::manual();
        let timeout = Duration::from_secs(600);
        let outages = Outages::new("train", timeout, clock.clone());
        let terms = RetryTerms { outages: &outages, key: 1 };
        let gone = StorageError::Vanished { path: "/data/file".into() };
        let alternate = |outage: Duration, file: Duration| {
            let (begun, mut retries) = (clock.now(), None);
            loop {
                for (error, lasts) in [(failing(Errno::IO), outage), (gone.clone(), file)] {
                    match Retries::after(retries.take(), &error, terms) {
                        Ok(again) => retries = Some(again),
                        Err(said) => return (clock.elapsed(begun), said),
                    }
                    clock.advance(lasts);
                }
            }
        };
        let [long, short] = [100, 2].map(Duration::from_secs);
        let (took, said) = alternate(short, short);
        assert!(said.contains("vanished") && took == FILE_TIMEOUT * 2 + short, "{took:?}: {said}");
        let (took, said) = alternate(long, Duration::ZERO);
        assert!(said.contains("outage_timeout") && took == timeout, "{took:?}: {said}");
    }

    #[test]
    fn single_failure_is_not_an_outage_but_a_hanging_read_is() {
        let outages = Outages::new("train", Duration::from_secs(600), Clock::manual());
        let terms = RetryTerms { outages: &outages, key: 1 };
        let once = Retries::after(None, &failing(Errno::IO), terms).unwrap();
        assert!(outages.current().is_none());
        once.succeed();
        drop(once);
        let limit = Duration::from_secs(60);
        let hung = StorageError::TimedOut { path: "/data/file".into(), limit, abandoned: 1 };
        let _hung = Retries::after(None, &hung, terms).unwrap();
        assert_eq!(outages.current().unwrap().lasts, limit);
    }
}
