//! An outage of one stream's storage: its beginning, the number of waiting calls, and the two log messages about it.
//!
//! ```text
//! Quiet ──a call failed twice in this way, or hung: announce──► Announced ──the last waiting call ends──► Quiet
//! (first message)                                      (second message: ended or given up)
//! ```
//! Waiting calls hold a [`Waiting`]; dropping the last one, on any thread, ends the outage. During an announced outage
//! the progress count grows at each [`tick`](Outages::tick), so that clients see that the daemon is waiting.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_observe::Clock;

use super::error::StorageError;

/// The outages of a stream's storage. Shared by all readers of the stream.
#[derive(Debug)]
pub struct Outages {
    stream: String,
    clock: Clock,
    /// The time-out, for the log.
    timeout: Duration,
    state: Mutex<State>,
    signs: AtomicU64,
    successes: AtomicU64,
    /// Whether the storage has ever been reachable.
    has_answered: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that wait now.
    waiting: u64,
    /// Calls that have waited since there was none.
    all: u64,
    /// Whether any of these calls has succeeded.
    has_succeeded: bool,
    announced: Option<Announced>,
}

#[derive(Debug)]
struct Announced {
    since: Instant,
    path: PathBuf,
    error: String,
    /// What a success means: "is back", or "answers" if the storage was never reachable before.
    end: &'static str,
}

/// An announced outage.
#[derive(Debug, Clone, PartialEq)]
pub struct OutageSeen {
    /// How long the storage has been unreachable.
    pub lasts: Duration,
    /// The number of calls that have waited for it.
    pub reads: u64,
    /// The first file that could not be read.
    pub path: PathBuf,
    /// A message for users.
    pub sentence: String,
}

/// One call that waits for the storage.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Outages>);

impl Outages {
    /// The outages of a stream's storage; none at first. `timeout` is `dataset.outage_timeout`.
    #[must_use]
    pub fn new(stream: &str, timeout: Duration, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            stream: stream.to_owned(),
            clock,
            timeout,
            state: Mutex::default(),
            signs: AtomicU64::new(0),
            successes: AtomicU64::new(0),
            has_answered: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock for outages.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long a call waits for an unreachable storage.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A call has succeeded: the storage has been reachable.
    pub fn note_answer(&self) {
        // Relaxed: only a word of a message depends on it.
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Registers a waiting call.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        let mut state = self.state();
        state.waiting += 1;
        state.all += 1;
        Waiting(Arc::clone(self))
    }

    /// Logs that the storage is unreachable, unless that was logged already.
    pub(super) fn announce(&self, error: &StorageError, since: Instant) {
        let mut state = self.state();
        if state.announced.is_some() {
            return;
        }
        let has_answered = self.has_answered.load(Ordering::Relaxed);
        let end = if has_answered { "is back" } else { "answers" };
        let announced =
            Announced { since, path: error.path().to_owned(), error: error.to_string(), end };
        tracing::warn!(
            stream = self.stream,
            "waiting for the storage: {}; it is tried again for up to {} (dataset.outage_timeout)",
            announced.error,
            in_words(self.timeout)
        );
        state.announced = Some(announced);
    }

    /// The announced outage.
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

    /// Increments the progress count if an outage is announced, and returns the count, which never decreases.
    pub fn tick(&self) -> u64 {
        if self.state().announced.is_some() {
            // Relaxed, here and below: a count, nothing is ordered by it.
            self.signs.fetch_add(1, Ordering::Relaxed);
        }
        self.signs.load(Ordering::Relaxed)
    }

    /// The progress count.
    #[must_use]
    pub fn signs(&self) -> u64 {
        self.signs.load(Ordering::Relaxed)
    }

    /// The number of calls that succeeded after waiting: once it grows, the others may retry at once.
    #[must_use]
    pub fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }
}

impl Waiting {
    /// The call has succeeded.
    pub(super) fn succeed(&self) {
        self.0.state().has_succeeded = true;
        self.0.note_answer();
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
                "the storage {} after {lasted}; {reads} reads waited for it",
                announced.end
            );
        } else {
            tracing::warn!(stream, reads, "no call waits for the storage any more, after {lasted}");
        }
    }
}

/// A duration in words.
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
    use crate::Absence;

    fn away() -> StorageError {
        StorageError::Away { path: "/d/c/f".into(), missing: "/d/c".into(), what: Absence::Folder }
    }

    #[test]
    fn outage_lasts_from_its_announcement_until_no_call_waits() {
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

    #[test]
    fn storage_is_back_only_if_it_was_reachable_before() {
        let clock = Clock::manual();
        let outages = Outages::new("train", Duration::from_secs(60), clock.clone());
        for expected in ["answers", "is back"] {
            let waiting = outages.wait();
            outages.announce(&away(), clock.now());
            assert_eq!(outages.state().announced.as_ref().unwrap().end, expected);
            waiting.succeed();
        }
    }
}
