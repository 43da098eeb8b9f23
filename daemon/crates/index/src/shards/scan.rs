//! Scans shards on a few threads, each one shard at a time.
//!
//! A thread owns its results until it publishes the whole shard under the lock; the calling thread waits and reports
//! progress. The first failure, a stop request, or enough samples for `dataset.limit` end the scan of further shards.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::index::ScannedShard;
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::{FilesRead, ProgressCallback, ScanProgress};

/// The interval of progress reports.
const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// Scanning waits for the disk or the network more than it computes: at least 4 threads, at most 16.
const SCAN_THREADS: std::ops::RangeInclusive<usize> = 4..=16;

/// A whole file, in millionths.
const WHOLE: u64 = 1_000_000;

/// Progress of the scan of one file.
pub trait Pace {
    /// Reports the position in the file, of `bytes` in all, and returns whether the scan was stopped.
    fn is_stopped_at(&self, byte: u64, bytes: u64) -> bool;
}

/// The result of scanning one file.
pub trait Scanned: Send {
    /// The number of samples.
    fn samples(&self) -> usize;
}

impl Scanned for ScannedShard {
    fn samples(&self) -> usize {
        Self::samples(self)
    }
}

/// A result with additional counts.
impl<S: Scanned, C: Send> Scanned for (S, C) {
    fn samples(&self) -> usize {
        self.0.samples()
    }
}

struct Shared<S> {
    next: usize,
    found: Vec<Option<S>>,
    done: usize,
    /// The bytes of all scanned shards.
    bytes: u64,
    /// Per shard in progress: its index, its position, and its length.
    under_way: Vec<(usize, u64, u64)>,
    /// The samples of all scanned shards; then the number of shards without a gap from the first one, and their
    /// samples.
    samples: u64,
    whole: (usize, u64),
    failure: Option<DatasetError>,
    working: usize,
}

impl<S> Shared<S> {
    fn files(&self, shards: usize, limit: Option<u64>) -> FilesRead {
        // In millionths, which limits a file to 2⁴⁴ bytes.
        let share = |done: u64, of: u64| done.min(of).saturating_mul(WHOLE) / of.max(1);
        let walked = self.under_way.iter().map(|(_, byte, bytes)| share(*byte, *bytes));
        let shares = self.done as u64 * WHOLE + walked.sum::<u64>();
        // The first shards may have enough samples for the limit.
        let counted = limit.map_or(0, |limit| share(self.samples, limit));
        let millionths = (shares / (shards as u64).max(1)).max(counted).min(WHOLE);
        FilesRead {
            done: self.done as u64,
            all: shards as u64,
            bytes: self.bytes + self.under_way.iter().map(|(_, byte, _)| byte).sum::<u64>(),
            millionths: u32::try_from(millionths).unwrap_or(u32::MAX),
        }
    }
}

fn lock<S>(shared: &Mutex<Shared<S>>) -> MutexGuard<'_, Shared<S>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scans the shard at an index, and calls [`Pace::is_stopped_at`] periodically.
type Scan<'a, S> = &'a (dyn Fn(usize, &dyn Pace) -> Result<S, DatasetError> + Sync);

/// Scans all shards, or the first ones that have `limit` samples.
///
/// # Errors
/// A shard that is broken or cannot be read, or the callback requested a stop.
pub fn scan<S: Scanned>(
    shards: usize,
    limit: Option<u64>,
    progress: ProgressCallback<'_>,
    scan_shard: Scan<'_, S>,
) -> Result<Vec<S>, DatasetError> {
    let shared = Mutex::new(Shared {
        next: 0,
        found: (0..shards).map(|_| None).collect(),
        done: 0,
        bytes: 0,
        under_way: Vec::new(),
        samples: 0,
        whole: (0, 0),
        failure: None,
        working: 0,
    });
    let changed = Condvar::new();
    let threads = std::thread::available_parallelism().map_or(4, std::num::NonZeroUsize::get);
    let threads = threads.clamp(*SCAN_THREADS.start(), *SCAN_THREADS.end()).min(shards);
    let task = Task { shards, limit, scan_shard, shared: &shared, changed: &changed };
    lock(&shared).working = threads;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| task.run());
        }
        let mut state = lock(&shared);
        loop {
            let is_over = state.working == 0;
            let seen = ScanProgress {
                directories: state.done as u64,
                samples: state.samples,
                files: Some(state.files(shards, limit)),
                ..ScanProgress::default()
            };
            drop(state);
            let wish = progress(seen);
            state = lock(&shared);
            if is_over {
                break;
            }
            if wish.is_break() {
                state.failure.get_or_insert(DatasetError::Cancelled);
            }
            if state.working > 0 {
                let waited = changed.wait_timeout(state, REPORT_PERIOD);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    });
    let Shared { found, failure, .. } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(found.into_iter().map_while(|shard| shard).collect())
}

struct Task<'a, S> {
    shards: usize,
    limit: Option<u64>,
    scan_shard: Scan<'a, S>,
    shared: &'a Mutex<Shared<S>>,
    changed: &'a Condvar,
}

/// Ends a thread, also after a panic.
struct ThreadEnd<'a, S>(&'a Mutex<Shared<S>>, &'a Condvar);

impl<S> Drop for ThreadEnd<'_, S> {
    fn drop(&mut self) {
        let mut state = lock(self.0);
        state.working -= 1;
        if std::thread::panicking() {
            state.failure.get_or_insert(DatasetError::Cancelled);
        }
        self.1.notify_all();
    }
}

impl<S: Scanned> Task<'_, S> {
    fn run(&self) {
        let _end = ThreadEnd(self.shared, self.changed);
        loop {
            let place = {
                let mut state = lock(self.shared);
                let is_enough = self.limit.is_some_and(|limit| state.whole.1 >= limit);
                if state.failure.is_some() || is_enough || state.next == self.shards {
                    return;
                }
                state.next += 1;
                let place = state.next - 1;
                state.under_way.push((place, 0, 0));
                place
            };
            let outcome = (self.scan_shard)(place, &OnePace(self, place));
            let mut state = lock(self.shared);
            let under_way = state.under_way.iter().position(|(walked, ..)| *walked == place);
            let (_, byte, bytes) =
                under_way.map(|at| state.under_way.swap_remove(at)).unwrap_or_default();
            match outcome {
                Ok(found) => {
                    state.done += 1;
                    state.bytes += byte.max(bytes);
                    state.samples += found.samples() as u64;
                    state.found[place] = Some(found);
                    while let Some(Some(shard)) = state.found.get(state.whole.0) {
                        let samples = shard.samples() as u64;
                        state.whole = (state.whole.0 + 1, state.whole.1 + samples);
                    }
                }
                Err(error) => {
                    state.failure.get_or_insert(error);
                }
            }
        }
    }
}

/// The progress of the shard at an index.
struct OnePace<'t, 's, S>(&'t Task<'s, S>, usize);

impl<S> Pace for OnePace<'_, '_, S> {
    fn is_stopped_at(&self, byte: u64, bytes: u64) -> bool {
        let mut state = lock(self.0.shared);
        if let Some(walked) = state.under_way.iter_mut().find(|(place, ..)| *place == self.1) {
            (walked.1, walked.2) = (byte.min(bytes), bytes);
        }
        state.failure.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::ops::ControlFlow;

    struct Found(usize);

    impl Scanned for Found {
        fn samples(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn progress_includes_the_files_in_progress() {
        let seen = RefCell::new(Vec::new());
        let progress = |found: ScanProgress| {
            seen.borrow_mut().push(found.files.unwrap());
            ControlFlow::Continue(())
        };
        // The second shard waits half-way until its progress has been reported.
        let is_reported = Mutex::new(false);
        let walk = |place: usize, walk: &dyn Pace| {
            assert!(!walk.is_stopped_at(if place == 1 { 50 } else { 100 }, 100));
            while place == 1 && !*is_reported.lock().unwrap() {
                std::thread::yield_now();
            }
            Ok(Found(10))
        };
        let told = |found: ScanProgress| {
            let files = found.files.unwrap();
            *is_reported.lock().unwrap() |= files.done == 3 && files.millionths == 875_000;
            progress(found)
        };
        assert_eq!(scan(4, None, &told, &walk).unwrap().len(), 4);
        let seen = seen.into_inner();
        assert!(seen.contains(&FilesRead { done: 3, all: 4, bytes: 350, millionths: 875_000 }));
        let last = FilesRead { done: 4, all: 4, bytes: 400, millionths: 1_000_000 };
        assert_eq!(seen.last(), Some(&last));
    }
}
