//! Opening a dataset from a storage that is unreachable or does not respond: calls are retried and watched.
//!
//! The threads that open a dataset make their calls through [`Patience`]; another thread [checks](Patience::look) them
//! several times a second. A call that fails temporarily is retried ([`Retries`]). A call that does not return cannot
//! be aborted: after [`HANGS_AFTER`] it is announced as an outage, and when it has lasted as long as an outage may, the
//! checking thread abandons the opening and its thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::version::FileStatus;
use forebay_observe::Clock;

use super::error::{Absence, RetryClass, StorageError};
use super::listing::{DirectoryStamp, EntryKind};
use super::outage::{Outages, Waiting};
use super::retries::{Retries, RetryTerms};
use super::{Layer, Opened, Storage};
use crate::location::{FileId, FileTable, Location};

/// A call that takes longer is announced.
const HANGS_AFTER: Duration = Duration::from_secs(3);
/// A call that takes longer is given up, if nothing is retried.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// Entries of a listing that count as progress.
const ENTRIES_PER_STEP: u64 = 4096;
/// The longest sleep between two looks at the clock.
const SLICE: Duration = Duration::from_millis(50);

/// What an opening waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Nothing: `forebay check`.
    Never,
    /// Failures, except a root that was never seen.
    FirstStart,
    /// The root, too.
    Restart,
}

/// Retries and watches the calls of the threads that open one dataset.
#[derive(Debug)]
pub struct Patience {
    waits: Waits,
    outages: Arc<Outages>,
    calls: Mutex<Calls>,
    /// Calls that returned, and other progress.
    done: AtomicU64,
    /// A wait has reached its time-out.
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    running: BTreeMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    action: &'static str,
    path: PathBuf,
    since: Instant,
    /// Present once it hangs.
    waiting: Option<Waiting>,
}

impl Patience {
    fn new(waits: Waits, stream: &str, timeout: Duration, clock: Clock) -> Self {
        let outages = Outages::new(stream, timeout, clock);
        Self {
            waits,
            outages,
            calls: Mutex::default(),
            done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Waits up to `timeout` (`dataset.outage_timeout`) for an unreachable storage, but not for a root that is absent
    /// while no index was saved.
    #[must_use]
    pub fn at_first_start(stream: &str, timeout: Duration, clock: Clock) -> Self {
        Self::new(Waits::FirstStart, stream, timeout, clock)
    }

    /// As [`at_first_start`](Self::at_first_start), for the daemon that replaces a dead one: waits for the root, too.
    #[must_use]
    pub fn at_restart(stream: &str, timeout: Duration, clock: Clock) -> Self {
        Self::new(Waits::Restart, stream, timeout, clock)
    }

    /// Does not wait.
    #[must_use]
    pub fn none(stream: &str, clock: Clock) -> Self {
        Self::new(Waits::Never, stream, GIVEN_UP_AFTER, clock)
    }

    /// Whether nothing is waited for: `forebay check`.
    #[must_use]
    pub fn is_check(&self) -> bool {
        self.waits == Waits::Never
    }

    /// Whether an absent root may come back though no index was saved.
    pub fn is_restart(&self) -> bool {
        self.waits == Waits::Restart
    }

    /// Whether a wait has reached its time-out.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_exhausted(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that may never return, watched by the checking thread.
    pub fn call<T>(
        &self,
        action: &'static str,
        path: impl FnOnce() -> PathBuf,
        call: impl FnOnce() -> T,
    ) -> T {
        self.call_in_steps(action, path, |_| call())
    }

    /// As [`call`](Self::call), for a function that calls the storage many times: it must report progress from time to
    /// time, or it counts as hanging.
    fn call_in_steps<T>(
        &self,
        action: &'static str,
        path: impl FnOnce() -> PathBuf,
        call: impl FnOnce(&dyn Fn()) -> T,
    ) -> T {
        let number = {
            let mut calls = self.calls();
            calls.next += 1;
            let number = calls.next;
            let since = self.outages.clock().now();
            calls.running.insert(number, Call { action, path: path(), since, waiting: None });
            number
        };
        let gets_on = || {
            if let Some(call) = self.calls().running.get_mut(&number) {
                call.since = self.outages.clock().now();
            }
            self.note_progress();
        };
        let result = call(&gets_on);
        let ended = self.calls().running.remove(&number);
        if let Some(waiting) = ended.and_then(|call| call.waiting) {
            waiting.succeed();
        }
        self.note_progress();
        result
    }

    /// Records progress, which clients see.
    pub fn note_progress(&self) {
        // Relaxed, here and below: a count, nothing is ordered by it.
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes as long as there is progress, or while an outage is announced.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.done.load(Ordering::Relaxed).wrapping_add(self.outages.signs())
    }

    /// Whether an outage is announced.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.outages.current().is_some()
    }

    /// Checks the running calls; to be called several times a second by a thread that makes none.
    ///
    /// # Errors
    /// A call has hung for too long: the opening must be given up.
    pub fn look(&self) -> Result<(), StorageError> {
        let now = self.outages.clock().now();
        for call in self.calls().running.values_mut() {
            let lasts = now.saturating_duration_since(call.since);
            if lasts < HANGS_AFTER {
                if let Some(waiting) = call.waiting.take() {
                    waiting.succeed();
                }
                continue;
            }
            let (path, action) = (call.path.clone(), call.action);
            let error = StorageError::Hangs { path, action, lasts };
            call.waiting.get_or_insert_with(|| self.outages.wait());
            self.outages.announce(&error, call.since);
            if lasts >= self.outages.timeout() {
                return Err(error);
            }
        }
        self.outages.tick();
        Ok(())
    }

    /// After a failed call: waits until it is to be retried. False: it is not.
    pub fn wait_after(&self, retries: &mut Option<Retries>, error: &StorageError) -> bool {
        let waits = self.waits != Waits::Never && error.class() != RetryClass::Never;
        // A retry after a time-out would wait for another one.
        if !waits || self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        let terms = RetryTerms { outages: &self.outages, key: std::process::id().into() };
        let again = match Retries::after(retries.take(), error, terms) {
            Ok(again) => again,
            Err(sentence) => {
                tracing::error!("{sentence}");
                // A file that stays away says nothing about the others.
                if error.class() == RetryClass::Outage {
                    self.is_over.store(true, Ordering::Relaxed);
                }
                return false;
            }
        };
        let due = again.due();
        *retries = Some(again);
        loop {
            let left = due.saturating_duration_since(self.outages.clock().now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Notes the answer that ended a call and its retries, if any.
    fn note_end<T>(&self, result: &Result<T, StorageError>, retries: Option<Retries>) {
        if result.is_ok() {
            self.outages.note_answer();
            if let Some(retries) = retries {
                retries.succeed();
            }
        }
    }

    /// Makes a call until it succeeds or is given up.
    fn retry<T>(
        &self,
        action: &'static str,
        path: impl Fn() -> PathBuf,
        mut call: impl FnMut() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut retries = None;
        loop {
            match self.call(action, &path, &mut call) {
                Err(error) if self.wait_after(&mut retries, &error) => {}
                result => {
                    self.note_end(&result, retries);
                    return result;
                }
            }
        }
    }
}

/// A storage whose calls are retried and watched.
#[derive(Debug)]
pub struct PatientStorage<'a> {
    /// The inner storage.
    pub storage: &'a dyn Storage,
    /// Its retries.
    pub patience: &'a Patience,
}

impl<'a> Layer for PatientStorage<'a> {
    type Inner = dyn Storage + 'a;

    fn inner(&self) -> &Self::Inner {
        self.storage
    }

    /// A listing that fails after its first entry is not restarted: the caller has the entries already.
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        let path = || self.full_path(directory);
        let mut retries = None;
        loop {
            let mut entries = 0_u64;
            let listed = self.patience.call_in_steps("listing", path, |gets_on| {
                let mut visit = |name: &[u8], kind| {
                    entries += 1;
                    if entries.is_multiple_of(ENTRIES_PER_STEP) {
                        gets_on();
                    }
                    visit(name, kind);
                };
                self.storage.list_in_steps(directory, &mut visit, gets_on)
            });
            match listed {
                Err(error) if entries == 0 && self.patience.wait_after(&mut retries, &error) => {}
                listed => {
                    self.patience.note_end(&listed, retries);
                    return listed;
                }
            }
        }
    }

    /// A missing directory below a reachable root is not waited for, nor are directories in it: the index is out of
    /// date then.
    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        let path = || self.full_path(directory);
        let stamp = || match self.storage.stamp(directory) {
            Err(StorageError::Away { path, missing, what: what @ Absence::Folder }) => {
                Ok(Err(StorageError::Away { path, missing, what }))
            }
            Err(error) if error.class() == RetryClass::Outage => Err(error),
            stamp => Ok(stamp),
        };
        self.patience.retry("asking the status of", path, stamp)?
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        let path = || self.full_path(&files.path(file));
        self.patience.retry("asking the size of", path, || self.storage.status(files, file))
    }

    fn status_if_there(
        &self,
        files: &dyn FileTable,
        file: FileId,
    ) -> Result<Option<FileStatus>, StorageError> {
        let path = || self.full_path(&files.path(file));
        let ask = || self.storage.status_if_there(files, file);
        self.patience.retry("asking the size of", path, ask)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = || self.full_path(&files.path(location.file));
        self.patience.retry("opening", path, || self.storage.open(files, location))
    }

    /// A read that fails is restarted: for a URL, reading sends the request. The file may be shorter than at first: a
    /// server may have announced more than it sent, and the planned memory suffices.
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let location = opened.location;
        let path = || self.full_path(&files.path(location.file));
        let (before, expected_bytes) = (buffer.len(), opened.length_bytes);
        let mut first = Some(opened);
        self.patience.retry("reading", path, || {
            buffer.truncate(before);
            let opened = match first.take() {
                Some(opened) => opened,
                None => self.storage.open(files, location)?,
            };
            if opened.length_bytes > expected_bytes {
                let found = "more";
                return Err(StorageError::Changed { path: path(), expected_bytes, found });
            }
            self.storage.read_opened(files, opened, buffer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    const TIMEOUT: Duration = Duration::from_secs(600);

    fn failing(errno: Errno) -> StorageError {
        StorageError::from_errno("/data".into(), "listing", errno)
    }

    #[test]
    fn call_is_retried_until_it_succeeds_but_not_for_a_check() {
        let clock = Clock::manual();
        let patience = Patience::at_first_start("train", TIMEOUT, clock.clone());
        let mut tries = 0;
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Time passes while the call waits for its next try.
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    clock.advance(Duration::from_millis(100));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let path = || "/data".into();
            let answer = patience.retry("listing", path, || {
                tries += 1;
                if tries < 5 { Err(failing(Errno::STALE)) } else { Ok(tries) }
            });
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(answer, Ok(5));
        });
        let check = Patience::none("train", Clock::system());
        let answer: Result<(), _> =
            check.retry("listing", || "/data".into(), || Err(failing(Errno::STALE)));
        assert_eq!(answer, Err(failing(Errno::STALE)));
        let answer: Result<(), _> =
            patience.retry("listing", || "/data".into(), || Err(failing(Errno::ACCESS)));
        assert!(matches!(answer, Err(StorageError::Permission { .. })));
    }

    #[test]
    fn a_file_that_stays_away_does_not_end_the_patience_with_others() {
        let clock = Clock::manual();
        let patience = Patience::at_first_start("train", TIMEOUT, clock.clone());
        let is_waited_for = |retries: &mut Option<Retries>, error: &StorageError| {
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| patience.wait_after(retries, error));
                while !waits.is_finished() {
                    clock.advance(Duration::from_millis(100));
                    std::thread::sleep(Duration::from_millis(1));
                }
                waits.join().unwrap()
            })
        };
        let (mut retries, mut tries) = (None, 0);
        let vanished = StorageError::Vanished { path: "/data/a".into() };
        while is_waited_for(&mut retries, &vanished) {
            tries += 1;
        }
        assert!(tries > 0 && !patience.is_exhausted());
        assert!(is_waited_for(&mut None, &failing(Errno::STALE)));
    }

    #[test]
    fn hanging_call_is_announced_and_then_given_up() {
        let clock = Clock::manual();
        let patience = Patience::at_restart("train", TIMEOUT, clock.clone());
        patience.call(
            "asking the status of",
            || "/data".into(),
            || {
                let before = patience.progress();
                clock.advance(HANGS_AFTER - Duration::from_millis(1));
                patience.look().unwrap();
                assert_eq!(patience.progress(), before, "no progress is reported");
                clock.advance(Duration::from_millis(1));
                patience.look().unwrap();
                assert!(patience.progress() > before, "announced");
                let seen = patience.outages.current().unwrap();
                assert!(
                    seen.sentence.contains("asking the status of /data has not returned for 3 s")
                );
                clock.advance(TIMEOUT - HANGS_AFTER - Duration::from_millis(1));
                patience.look().unwrap();
                clock.advance(Duration::from_millis(1));
                assert!(patience.look().unwrap_err().to_string().contains("for 600 s"));
            },
        );
        assert!(patience.outages.current().is_none());
        patience.look().unwrap();
    }

    #[test]
    fn long_listing_with_progress_does_not_hang() {
        let clock = Clock::manual();
        let patience = Patience::at_first_start("train", TIMEOUT, clock.clone());
        patience.call_in_steps(
            "listing",
            || "/data".into(),
            |gets_on| {
                for _ in 0..20 {
                    let before = patience.progress();
                    clock.advance(HANGS_AFTER - Duration::from_millis(1));
                    patience.look().unwrap();
                    gets_on();
                    assert!(patience.progress() > before && patience.outages.current().is_none());
                }
                clock.advance(HANGS_AFTER);
                patience.look().unwrap();
                assert!(patience.outages.current().is_some());
                gets_on();
                patience.look().unwrap();
                assert!(patience.outages.current().is_none(), "it was only slow");
            },
        );
    }
}
