//! A few threads walk over the shards, each over one at a time.
//!
//! A thread owns what it finds until it hands the whole shard over under the lock; the calling thread reports progress and
//! waits. The first failure, a wish to stop, or enough samples for `dataset.limit` end the taking of further shards.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::index::ScannedShard;
use crate::dataset::error::DatasetError;
use crate::dataset::progress::{ProgressCallback, ScanProgress};

/// How often progress is reported.
const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// Walking waits for the disk or the network more than it computes: at least 4 threads, at most 16.
const SCAN_THREADS: std::ops::RangeInclusive<usize> = 4..=16;

/// What is found in one file.
pub(in crate::dataset) trait Scanned: Send {
    /// How many samples.
    fn samples(&self) -> usize;
}

impl Scanned for ScannedShard {
    fn samples(&self) -> usize {
        Self::samples(self)
    }
}

/// And what a walk counts beside its samples.
impl<S: Scanned, C: Send> Scanned for (S, C) {
    fn samples(&self) -> usize {
        self.0.samples()
    }
}

struct Shared<S> {
    next: usize,
    found: Vec<Option<S>>,
    done: usize,
    /// Of the shards that are found, and those of the first ones without a gap.
    samples: u64,
    whole: (usize, u64),
    failure: Option<DatasetError>,
    working: usize,
}

fn lock<S>(shared: &Mutex<Shared<S>>) -> MutexGuard<'_, Shared<S>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What walks over one shard: its place; whether the scan was stopped is asked now and then.
pub(in crate::dataset) type Scan<'a, S> =
    &'a (dyn Fn(usize, &dyn Fn() -> bool) -> Result<S, DatasetError> + Sync);

/// Walks over all shards, or the first ones that have `limit` samples.
///
/// # Errors
/// A shard that is broken or cannot be read, or the callback's wish to stop.
pub(in crate::dataset) fn scan<S: Scanned>(
    shards: usize,
    limit: Option<u64>,
    progress: ProgressCallback<'_>,
    scan_shard: Scan<'_, S>,
) -> Result<Vec<S>, DatasetError> {
    let shared = Mutex::new(Shared {
        next: 0,
        found: (0..shards).map(|_| None).collect(),
        done: 0,
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
                waiting_for_another: false,
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

/// A thread's end, whichever way.
struct Farewell<'a, S>(&'a Mutex<Shared<S>>, &'a Condvar);

impl<S> Drop for Farewell<'_, S> {
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
        let _farewell = Farewell(self.shared, self.changed);
        loop {
            let place = {
                let mut state = lock(self.shared);
                let is_enough = self.limit.is_some_and(|limit| state.whole.1 >= limit);
                if state.failure.is_some() || is_enough || state.next == self.shards {
                    return;
                }
                state.next += 1;
                state.next - 1
            };
            let outcome = (self.scan_shard)(place, &|| self.is_cancelled());
            let mut state = lock(self.shared);
            match outcome {
                Ok(found) => {
                    state.done += 1;
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

    fn is_cancelled(&self) -> bool {
        lock(self.shared).failure.is_some()
    }
}
