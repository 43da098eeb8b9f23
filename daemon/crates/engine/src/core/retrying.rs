//! The engine thread's part of retries: [`crate::actors::retry_queue`] has the states.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use super::{Engine, SharedEngine};
use crate::actors::fetch::fail;
use crate::actors::retry_queue::PutOff;
use crate::ground::row_cells::RowFailure;
use crate::ground::work::FetchJob;
use forebay_storage::{Retries, RetryClass, RetryTerms};

/// Maximal sleep between checks for due rows: the clock may be a test's.
const SLICE: Duration = Duration::from_millis(100);

impl Engine {
    /// Handles rows that fetch threads have put off.
    pub(super) fn handle_put_off(&mut self) {
        for put_off in self.pool.shared.take_put_off() {
            self.put_off(put_off);
        }
        for (stream, queue) in self.streams.iter().zip(&mut self.retries) {
            queue.expedite(stream.outages.successes());
        }
        if self.next_retry().is_some() {
            self.retries_wanted.notify_one();
        }
    }

    /// Ends waiting rows of cancelled batches, and rows whose time has run out. At each tick.
    pub(super) fn reap_retries(&mut self) {
        let now = self.clock.now();
        let (mut cancelled, mut overdue) = (Vec::new(), Vec::new());
        for queue in &mut self.retries {
            cancelled.extend(queue.take_cancelled());
            overdue.extend(queue.take_overdue(now));
        }
        for job in cancelled {
            job.session.slots[job.slot].finish_row(job.row, false);
        }
        for (mut job, sentence) in overdue {
            fail(&mut job, RowFailure::Storage(sentence), &self.pool.shared);
        }
    }

    /// Handles a failed or abandoned read: the row waits for a retry, or fails for good.
    pub(super) fn put_off(&mut self, put_off: PutOff) {
        let PutOff { stream, mut job, error } = put_off;
        let shared = &self.pool.shared;
        let slot = &job.session.slots[job.slot];
        if slot.is_cancelled() {
            slot.finish_row(job.row, false);
            return;
        }
        if error.is_bad_sample() {
            return fail(&mut job, RowFailure::Defect(error.to_string()), shared);
        }
        let terms = RetryTerms { outages: &self.streams[stream].outages, key: job.id.0 };
        match Retries::after(job.retries.take(), &error, terms) {
            Ok(retries) => {
                // An outage is logged separately.
                if error.class() == RetryClass::File && retries.failures() == 1 {
                    tracing::warn!(%error, "reading a sample failed; it is tried again for a while");
                }
                job.retries = Some(retries);
                self.retries[stream].push(job, self.clock.now());
                self.retries_wanted.notify_one();
            }
            Err(sentence) if error.class() == RetryClass::Outage => {
                fail(&mut job, RowFailure::Storage(sentence), shared);
            }
            Err(sentence) => fail(&mut job, RowFailure::Unreadable(sentence), shared),
        }
    }

    /// Whether rows are due.
    pub(super) fn has_due_retries(&self, stream: usize) -> bool {
        let next = self.retries[stream].next_due(self.clock.now());
        next.is_some_and(|left| left.is_zero())
    }

    /// Fails a lane's rows whose time has run out before a read could begin.
    pub(super) fn fail_overdue(&self, jobs: &mut VecDeque<FetchJob>) {
        let now = self.clock.now();
        jobs.retain_mut(|job| {
            let sentence = job.retries.as_ref().and_then(|retries| retries.overdue(now));
            let is_overdue = sentence.is_some();
            if let Some(sentence) = sentence {
                fail(job, RowFailure::Storage(sentence), &self.pool.shared);
            }
            !is_overdue
        });
    }

    /// Removes rows that are due, for a lane of a stream.
    pub(super) fn take_due_retries(&mut self, stream: usize, count: usize) -> Vec<FetchJob> {
        self.retries[stream].take_due(self.clock.now(), count)
    }

    /// Time until a row is due; `None` without waiting rows.
    fn next_retry(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.retries.iter().filter_map(|queue| queue.next_due(now)).min()
    }

    /// Wakes the lanes of streams that have rows due.
    fn wake_due(&self) {
        let now = self.clock.now();
        for (queue, lanes) in self.retries.iter().zip(&self.fetch_notify) {
            if queue.next_due(now).is_some_and(|left| left.is_zero()) {
                lanes.notify_waiters();
            }
        }
    }
}

/// Wakes lanes when rows are due, until the engine ends.
pub(super) async fn run_retries(engine: SharedEngine) {
    let wanted = Rc::clone(&engine.borrow().retries_wanted);
    loop {
        let next = engine.borrow().next_retry();
        match next {
            None => wanted.notified().await,
            Some(left) => {
                if left.is_zero() {
                    engine.borrow().wake_due();
                }
                // Due rows for which no lane has room are checked again after a while.
                let pause = if left.is_zero() { SLICE } else { left.min(SLICE) };
                let _ = tokio::time::timeout(pause, wanted.notified()).await;
            }
        }
    }
}
