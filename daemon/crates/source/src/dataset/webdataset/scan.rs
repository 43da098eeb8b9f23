//! From archives to samples: a few threads walk over the shards, each over one at a time, and group what they find.
//!
//! A thread owns what it finds until it hands the whole shard over under the lock; the calling thread reports progress and
//! waits. The first failure, a wish to stop, or enough samples for `dataset.limit` end the taking of further shards.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::index::{Extent, ScannedShard, ShardStamp};
use super::members::{Bytes, End, Members, StoredArchive, Window};
use super::names::{self, Name};
use crate::dataset::error::DatasetError;
use crate::dataset::progress::{ProgressCallback, ScanProgress};
use crate::storage::Storage;

/// How often progress is reported.
const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// Walking waits for the disk or the network more than it computes: at least 4 threads, at most 16.
const SCAN_THREADS: std::ops::RangeInclusive<usize> = 4..=16;

/// What a column takes of a sample.
#[derive(Debug)]
pub(super) struct Column {
    /// The extensions, of which the first that a sample has is used.
    pub(super) from: Vec<String>,
    /// Whether a sample without it leaves the dataset.
    pub(super) skips: bool,
}

/// What was left out, and what the user should know.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    /// Members whose names are no sample's.
    pub(super) nameless: u64,
    /// Hidden files, as macOS adds them.
    pub(super) hidden: u64,
    /// Samples without a column that they need.
    pub(super) skipped: u64,
    /// Samples without any column.
    pub(super) foreign: u64,
    /// Archives without an end mark, which may be cut off.
    pub(super) unmarked: u64,
    /// By column: samples that have none.
    pub(super) missing: Vec<u64>,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.nameless += other.nameless;
        self.hidden += other.hidden;
        self.skipped += other.skipped;
        self.foreign += other.foreign;
        self.unmarked += other.unmarked;
        self.missing.resize(other.missing.len().max(self.missing.len()), 0);
        self.missing.iter_mut().zip(&other.missing).for_each(|(sum, more)| *sum += more);
    }
}

struct Shared {
    next: usize,
    found: Vec<Option<(ScannedShard, Counts)>>,
    done: usize,
    /// Of the shards that are found, and those of the first ones without a gap.
    samples: u64,
    whole: (usize, u64),
    failure: Option<DatasetError>,
    working: usize,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Walks over all shards, or the first ones that have `limit` samples.
///
/// # Errors
/// A shard that is broken or cannot be read, or the callback's wish to stop.
pub(super) fn scan(
    storage: &dyn Storage,
    shards: &[Vec<u8>],
    columns: &[Column],
    limit: Option<u64>,
    progress: ProgressCallback<'_>,
) -> Result<(Vec<ScannedShard>, Counts), DatasetError> {
    let shared = Mutex::new(Shared {
        next: 0,
        found: shards.iter().map(|_| None).collect(),
        done: 0,
        samples: 0,
        whole: (0, 0),
        failure: None,
        working: 0,
    });
    let changed = Condvar::new();
    let threads = std::thread::available_parallelism().map_or(4, std::num::NonZeroUsize::get);
    let threads = threads.clamp(*SCAN_THREADS.start(), *SCAN_THREADS.end()).min(shards.len());
    let window = Window::for_storage(storage);
    let task = Task { storage, shards, columns, limit, window, shared: &shared, changed: &changed };
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
    let mut counts = Counts::default();
    let found = found.into_iter().map_while(|shard| {
        let (shard, more) = shard?;
        counts.add(&more);
        Some(shard)
    });
    Ok((found.collect(), counts))
}

struct Task<'a> {
    storage: &'a dyn Storage,
    shards: &'a [Vec<u8>],
    columns: &'a [Column],
    limit: Option<u64>,
    window: Window,
    shared: &'a Mutex<Shared>,
    changed: &'a Condvar,
}

/// A thread's end, whichever way.
struct Farewell<'a>(&'a Mutex<Shared>, &'a Condvar);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.0);
        state.working -= 1;
        if std::thread::panicking() {
            state.failure.get_or_insert(DatasetError::Cancelled);
        }
        self.1.notify_all();
    }
}

impl Task<'_> {
    fn run(&self) {
        let _farewell = Farewell(self.shared, self.changed);
        loop {
            let place = {
                let mut state = lock(self.shared);
                let is_enough = self.limit.is_some_and(|limit| state.whole.1 >= limit);
                if state.failure.is_some() || is_enough || state.next == self.shards.len() {
                    return;
                }
                state.next += 1;
                state.next - 1
            };
            let outcome = scan_shard(self, place);
            let mut state = lock(self.shared);
            match outcome {
                Ok(found) => {
                    state.done += 1;
                    state.samples += found.0.samples() as u64;
                    state.found[place] = Some(found);
                    while let Some(Some((shard, _))) = state.found.get(state.whole.0) {
                        state.whole = (state.whole.0 + 1, state.whole.1 + shard.samples() as u64);
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

/// Members after which a thread asks whether the scan was stopped.
const MEMBERS_PER_ASK: u64 = 4096;

fn scan_shard(task: &Task<'_>, place: usize) -> Result<(ScannedShard, Counts), DatasetError> {
    let archive = StoredArchive::new(task.storage, &task.shards[place])?;
    let mut grouping = Grouping::new(task.columns);
    let mut members = Members::new(&archive, archive.stamp.bytes, task.window);
    let mut walked = 0;
    while let Some(member) = members.next()? {
        let extent = Extent { offset: member.offset, bytes: member.size };
        grouping.add(member.name, extent).map_err(|reason| archive.fault(reason))?;
        walked += 1;
        if walked % MEMBERS_PER_ASK == 0 && task.is_cancelled() {
            return Err(DatasetError::Cancelled);
        }
    }
    grouping.counts.unmarked = u64::from(members.end() == Some(End::Unmarked));
    let path = task.shards[place].clone();
    grouping.finish(path, archive.stamp).map_err(|reason| archive.fault(reason))
}

/// The samples of one shard while its members come.
struct Grouping<'a> {
    columns: &'a [Column],
    key: Vec<u8>,
    /// Of the sample that is open: by column the member, and the place of its extension among the column's.
    row: Vec<Option<(Extent, usize)>>,
    is_open: bool,
    shard: ScannedShard,
    counts: Counts,
}

impl<'a> Grouping<'a> {
    fn new(columns: &'a [Column]) -> Self {
        let counts = Counts { missing: vec![0; columns.len()], ..Counts::default() };
        let row = vec![None; columns.len()];
        let shard = ScannedShard::default();
        Self { columns, key: Vec::new(), row, is_open: false, shard, counts }
    }

    fn add(&mut self, name: &[u8], extent: Extent) -> Result<(), String> {
        let (key, field) = match names::split(name) {
            Name::Field { key, field } => (key, field),
            Name::None => {
                self.counts.nameless += 1;
                return Ok(());
            }
            Name::Hidden => {
                self.counts.hidden += 1;
                return Ok(());
            }
        };
        if !self.is_open || key != self.key {
            self.close()?;
            self.key.clear();
            self.key.extend_from_slice(key);
            self.is_open = true;
        }
        for (column, found) in self.columns.iter().zip(&mut self.row) {
            let is_named = |from: &String| from.as_bytes().eq_ignore_ascii_case(field);
            let Some(rank) = column.from.iter().position(is_named) else { continue };
            match found {
                Some((_, other)) if *other == rank => {
                    return Err(format!(
                        "the sample {:?} has two members {:?}; webdataset refuses such a sample, too: give each member a \
                         key or an extension of its own",
                        String::from_utf8_lossy(key),
                        column.from[rank]
                    ));
                }
                Some((_, other)) if *other < rank => {}
                _ => *found = Some((extent, rank)),
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        let is_foreign = self.row.iter().all(Option::is_none);
        let mut pairs = self.columns.iter().zip(&self.row);
        if is_foreign {
            self.counts.foreign += 1;
        } else if pairs.any(|(column, found)| column.skips && found.is_none()) {
            self.counts.skipped += 1;
        } else {
            for (found, missing) in self.row.iter().zip(&mut self.counts.missing) {
                *missing += u64::from(found.is_none());
            }
            self.shard.members.extend(self.row.iter().map(|found| found.map(|(extent, _)| extent)));
            self.shard.names.extend_from_slice(&self.key);
            let end = u32::try_from(self.shard.names.len());
            let end =
                end.map_err(|_| "its samples' keys have more than 4 GiB; split it".to_owned())?;
            self.shard.name_ends.push(end);
        }
        self.row.fill(None);
        Ok(())
    }

    fn finish(
        mut self,
        path: Vec<u8>,
        stamp: ShardStamp,
    ) -> Result<(ScannedShard, Counts), String> {
        self.close()?;
        Ok((ScannedShard { path, stamp, ..self.shard }, self.counts))
    }
}
