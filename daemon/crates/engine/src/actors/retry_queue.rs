//! Rows whose read failed, until they are read again.
//!
//! ```text
//!   Admitted ─a fetch lane takes it─► Reading ─read─► Ready(0)
//!      ▲                                │
//!      │                                └─failed, or abandoned: put off─► PutOff ─engine: no more tries─► Failed
//!      └────────── due: a fetch lane takes it ◄── waits in the queue ◄───────┘ engine: when it is due
//! ```
//! [`PutOff`] rows come from fetch threads, through the pool's shared state; the queue is used by the engine thread
//! only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ground::work::FetchJob;
use forebay_storage::{Retries, StorageError};

/// A row whose read failed.
#[derive(Debug)]
pub(crate) struct PutOff {
    /// The stream's number.
    pub(crate) stream: usize,
    pub(crate) job: FetchJob,
    pub(crate) error: StorageError,
}

/// A stream's rows that wait for their next attempt. The cost of handling an event does not grow with the number of
/// waiting rows; scans of all rows happen at ticks only.
#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    /// By due time.
    waiting: BTreeMap<(Instant, u64), FetchJob>,
    /// Due rows, by batch and row.
    due: BTreeMap<(u64, usize, u64), FetchJob>,
    /// A unique number per push, for the keys.
    pushed: u64,
    /// The stream's reads that had succeeded after a wait, at the last check.
    successes: u64,
}

fn take_if<K: Copy + Ord>(
    jobs: &mut BTreeMap<K, FetchJob>,
    is_taken: impl Fn(&FetchJob) -> bool,
) -> Vec<FetchJob> {
    let keys: Vec<K> = jobs.iter().filter(|(_, job)| is_taken(job)).map(|(key, _)| *key).collect();
    keys.into_iter().filter_map(|key| jobs.remove(&key)).collect()
}

impl RetryQueue {
    pub(crate) fn push(&mut self, job: FetchJob, now: Instant) {
        self.pushed += 1;
        let due = job.retries.as_ref().map_or(now, Retries::due);
        self.waiting.insert((due, self.pushed), job);
    }

    fn promote_until(&mut self, time: Option<Instant>) {
        while let Some(first) = self.waiting.first_entry()
            && time.is_none_or(|time| first.key().0 <= time)
        {
            let ((_, number), job) = first.remove_entry();
            self.due.insert((job.order, job.row, number), job);
        }
    }

    /// Removes due rows, at most `count`, rows of the oldest batches first.
    pub(crate) fn take_due(&mut self, now: Instant, count: usize) -> Vec<FetchJob> {
        self.promote_until(Some(now));
        std::iter::from_fn(|| self.due.pop_first()).map(|(_, job)| job).take(count).collect()
    }

    /// Time until a row is due; `None` without rows.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Duration> {
        if !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        self.waiting.keys().next().map(|(due, _)| due.saturating_duration_since(now))
    }

    /// Makes all rows due if a read has succeeded after a wait: the storage may be back.
    pub(crate) fn expedite(&mut self, successes: u64) {
        if std::mem::replace(&mut self.successes, successes) != successes {
            self.promote_until(None);
        }
    }

    fn take_if(&mut self, is_taken: impl Fn(&FetchJob) -> bool) -> Vec<FetchJob> {
        let mut taken = take_if(&mut self.waiting, &is_taken);
        taken.extend(take_if(&mut self.due, &is_taken));
        taken
    }

    /// Removes rows whose time has run out before a lane had room for another attempt; each with its error message. At
    /// ticks.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<(FetchJob, String)> {
        let overdue =
            |job: &FetchJob| job.retries.as_ref().and_then(|retries| retries.overdue(now));
        let taken = self.take_if(|job| overdue(job).is_some()).into_iter();
        taken.filter_map(|job| overdue(&job).map(|sentence| (job, sentence))).collect()
    }

    /// Removes rows of cancelled batches. At ticks.
    pub(crate) fn take_cancelled(&mut self) -> Vec<FetchJob> {
        self.take_if(|job| job.session.slots[job.slot].is_cancelled())
    }
}
