//! Spreads requests over time: `storage.requests_per_second`, for all readers of this process together.
//!
//! Each request takes the next turn of its server and sleeps until then. Turns that nobody took are not saved up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest interval between two requests.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// The next turn of each server, shared by its storages.
static TURNS: Mutex<BTreeMap<String, Arc<Mutex<Option<Instant>>>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pace of one storage.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    next: Arc<Mutex<Option<Instant>>>,
}

impl Pace {
    /// The pace of a storage of this server.
    pub(super) fn of(server: &str, requests_per_second: f64) -> Arc<Self> {
        let interval = Duration::try_from_secs_f64(requests_per_second.recip());
        let interval = interval.unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL);
        let next = Arc::clone(lock(&TURNS).entry(server.to_owned()).or_default());
        Arc::new(Self { interval, next })
    }

    /// Waits for the next turn.
    pub(super) async fn turn(&self) {
        let at = self.take(Instant::now());
        tokio::time::sleep_until(at.into()).await;
    }

    /// Whether another storage takes the same turns.
    #[cfg(test)]
    pub(super) fn shares_turns_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.next, &other.next)
    }

    /// Takes the next turn.
    fn take(&self, now: Instant) -> Instant {
        let mut next = lock(&self.next);
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + self.interval);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storages_of_a_server_share_its_turns() {
        let now = Instant::now();
        let (one, two) = (Pace::of("pace-a", 10.0), Pace::of("pace-a", 2.0));
        let after = |pace: &Pace, now: Instant, start: Instant| pace.take(now) - start;
        assert_eq!(after(&one, now, now), Duration::ZERO);
        assert_eq!(after(&two, now, now), Duration::from_millis(100));
        assert_eq!(after(&one, now, now), Duration::from_millis(600));
        assert_eq!(Pace::of("pace-b", 1.0).take(now), now);
        // Turns are not saved up.
        let later = now + Duration::from_secs(60);
        assert_eq!(after(&one, later, later), Duration::ZERO);
        assert_eq!(after(&one, later, later), Duration::from_millis(100));
        assert_eq!(Pace::of("pace-c", 1e-300).interval, MAX_INTERVAL);
    }
}
