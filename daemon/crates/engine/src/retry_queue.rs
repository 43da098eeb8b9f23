//! Rows whose bytes could not be had, until they are read again.
//!
//! ```text
//!   Admitted ─a fetch lane takes it─► Reading ─read─► Ready(0)
//!      ▲                                │
//!      │                                └─failed, or given up: put off─► PutOff ─engine: no more tries─► Failed
//!      └────────── due: a fetch lane takes it ◄── waits in the queue ◄───────┘ engine: when it is due
//! ```
//! [`PutOff`] rows come from fetch threads, through the pool's shared part; everything else is the engine thread's.

use std::time::{Duration, Instant};

use super::work::FetchJob;
use forebay_source::storage::StorageError;

/// A row whose read failed.
#[derive(Debug)]
pub(crate) struct PutOff {
    /// The stream's number.
    pub(crate) stream: usize,
    pub(crate) job: FetchJob,
    pub(crate) error: StorageError,
}

/// One stream's rows that wait for their next try.
#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    jobs: Vec<FetchJob>,
    /// The stream's reads that had succeeded after a wait, at the last look.
    successes: u64,
}

fn due(job: &FetchJob) -> Option<Instant> {
    Some(job.retries.as_ref()?.due())
}

impl RetryQueue {
    pub(crate) fn push(&mut self, job: FetchJob) {
        self.jobs.push(job);
    }

    /// Takes rows that are due, at most `count`, those of the oldest batches first.
    pub(crate) fn take_due(&mut self, now: Instant, count: usize) -> Vec<FetchJob> {
        let is_due = |job: &FetchJob| due(job).is_none_or(|due| due <= now);
        if !self.jobs.iter().any(is_due) {
            return Vec::new();
        }
        self.jobs.sort_by_key(|job| (!is_due(job), job.order, job.row));
        let taken = self.jobs.iter().take_while(|job| is_due(job)).count().min(count);
        self.jobs.drain(..taken).collect()
    }

    /// In how long a row is due; `None` without rows.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Duration> {
        let due = self.jobs.iter().map(|job| due(job).unwrap_or(now)).min()?;
        Some(due.saturating_duration_since(now))
    }

    /// Makes all rows due if a read has succeeded after a wait: the storage is back, or it may be.
    pub(crate) fn expedite(&mut self, successes: u64, now: Instant) {
        if std::mem::replace(&mut self.successes, successes) != successes {
            let retries = self.jobs.iter_mut().filter_map(|job| job.retries.as_mut());
            retries.for_each(|retries| retries.expedite(now));
        }
    }

    /// Takes rows whose time is over though no lane had room for another try; what is to be said of each.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<(FetchJob, String)> {
        let overdue =
            |job: &FetchJob| job.retries.as_ref().and_then(|retries| retries.overdue(now));
        let taken = self.jobs.extract_if(.., |job| overdue(job).is_some());
        taken.filter_map(|job| overdue(&job).map(|sentence| (job, sentence))).collect()
    }

    /// Takes rows that nobody wants any more.
    pub(crate) fn take_cancelled(&mut self) -> Vec<FetchJob> {
        self.jobs.extract_if(.., |job| job.session.slots[job.slot].is_cancelled()).collect()
    }
}
