//! An outage of one stream's storage: when it began, how many calls wait for it, and the two lines of the log that say
//! so.
//!
//! ```text
//!   Quiet ──a call failed twice in this way, or hung: announce──► Announced ──the last call that waits is over──► Quiet
//!              (first line of the log)                            (second line; whether it is over or given up)
//! ```
//! Calls that wait hold a [`Waiting`]; its drop, on any thread, is what ends an outage. While one is announced its signs of
//! life count up at each [`tick`](Outages::tick), so that clients see that somebody waits for them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_observe::Clock;

use super::error::StorageError;

/// See the module's head. Shared by all who read for a stream.
#[derive(Debug)]
pub struct Outages {
    stream: String,
    clock: Clock,
    /// How long is waited, for the log.
    timeout: Duration,
    state: Mutex<State>,
    signs: AtomicU64,
    successes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that wait now.
    waiting: u64,
    /// Calls that have waited since nobody did.
    all: u64,
    /// Of these, one has succeeded.
    has_succeeded: bool,
    announced: Option<Announced>,
}

#[derive(Debug)]
struct Announced {
    since: Instant,
    path: PathBuf,
    error: String,
}

/// An outage that is announced.
#[derive(Debug, Clone, PartialEq)]
pub struct OutageSeen {
    /// For how long the storage has been away.
    pub lasts: Duration,
    /// The calls that have waited for it.
    pub reads: u64,
    /// The first file that could not be read.
    pub path: PathBuf,
    /// All of it, for a person.
    pub sentence: String,
}

/// One call that waits for the storage.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Outages>);

impl Outages {
    /// Of a stream's storage; none at first. `timeout` is `dataset.outage_timeout`.
    #[must_use]
    pub fn new(stream: &str, timeout: Duration, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            stream: stream.to_owned(),
            clock,
            timeout,
            state: Mutex::default(),
            signs: AtomicU64::new(0),
            successes: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock that outages are measured by.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long a call waits for a storage that is away.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A call begins to wait.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        let mut state = self.state();
        state.waiting += 1;
        state.all += 1;
        Waiting(Arc::clone(self))
    }

    /// Says that the storage is away, unless that is said already.
    pub(super) fn announce(&self, error: &StorageError, since: Instant) {
        let mut state = self.state();
        if state.announced.is_some() {
            return;
        }
        let announced =
            Announced { since, path: error.path().to_owned(), error: error.to_string() };
        tracing::warn!(
            stream = self.stream,
            "waiting for the storage: {}; it is tried again for up to {} (dataset.outage_timeout)",
            announced.error,
            in_words(self.timeout)
        );
        state.announced = Some(announced);
    }

    /// The outage that is announced.
    #[must_use]
    pub fn current(&self) -> Option<OutageSeen> {
        let state = self.state();
        let announced = state.announced.as_ref()?;
        let lasts = self.clock.elapsed(announced.since);
        let sentence = format!(
            "stream `{}` has waited for its storage for {}: {}; {} reads have waited, each for up to {} \
             (dataset.outage_timeout)",
            self.stream,
            in_words(lasts),
            announced.error,
            state.all,
            in_words(self.timeout)
        );
        Some(OutageSeen { lasts, reads: state.all, path: announced.path.clone(), sentence })
    }

    /// Counts a sign of life for each call of this while an outage is announced; gives the count, which never falls.
    pub fn tick(&self) -> u64 {
        if self.state().announced.is_some() {
            // Relaxed, here and below: a count, nothing is ordered by it.
            self.signs.fetch_add(1, Ordering::Relaxed);
        }
        self.signs.load(Ordering::Relaxed)
    }

    /// The signs of life so far.
    #[must_use]
    pub fn signs(&self) -> u64 {
        self.signs.load(Ordering::Relaxed)
    }

    /// The calls that succeeded after they had waited: once it grows, the others need not wait for their turn.
    #[must_use]
    pub fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }
}

impl Waiting {
    /// The call has succeeded.
    pub(super) fn succeed(&self) {
        self.0.state().has_succeeded = true;
        self.0.successes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let outages = &self.0;
        let mut state = outages.state();
        state.waiting -= 1;
        if state.waiting > 0 {
            return;
        }
        let ended = std::mem::take(&mut *state);
        let Some(announced) = ended.announced else { return };
        let (stream, reads) = (&outages.stream, ended.all);
        let lasted = in_words(outages.clock.elapsed(announced.since));
        if ended.has_succeeded {
            tracing::warn!(
                stream,
                reads,
                "the storage is back after {lasted}; {reads} reads waited for it"
            );
        } else {
            tracing::warn!(stream, reads, "nothing waits for the storage any more, after {lasted}");
        }
    }
}

/// A time for a person.
pub(super) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Absence;

    fn away() -> StorageError {
        StorageError::Away { path: "/d/c/f".into(), missing: "/d/c".into(), what: Absence::Folder }
    }

    #[test]
    fn an_outage_lasts_from_its_announcement_until_nobody_waits() {
        let clock = Clock::manual();
        let outages = Outages::new("train", Duration::from_secs(1800), clock.clone());
        let since = clock.now();
        let (first, second) = (outages.wait(), outages.wait());
        assert_eq!((outages.current(), outages.tick()), (None, 0));
        clock.advance(Duration::from_secs(90));
        outages.announce(&away(), since);
        let seen = outages.current().unwrap();
        assert_eq!((seen.lasts, seen.reads), (Duration::from_secs(90), 2));
        for part in ["`train`", "/d/c is not there", "90 s", "2 reads", "30 min"] {
            assert!(seen.sentence.contains(part), "{}", seen.sentence);
        }
        assert_eq!((outages.tick(), outages.tick()), (1, 2));
        first.succeed();
        drop(first);
        assert!(outages.current().is_some() && outages.successes() == 1);
        drop(second);
        assert_eq!((outages.current(), outages.tick()), (None, 2));
    }
}
