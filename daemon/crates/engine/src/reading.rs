//! One lane's reads, shared by the thread that does them and the engine thread, which gives up those that hang.
//!
//! A thread in a read of a storage that does not answer cannot be ended. So nothing that others wait for is its own:
//! its rows, its bytes' permit and its session lie here, behind a mutex that is never held while it blocks. When a read
//! is overdue the engine thread abandons the [`Reading`] and takes the rows back; whenever the thread returns, it finds
//! that out and ends. Abandoned threads are counted: while many hang, few others are started (`core/lane.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_observe::Clock;
use forebay_protocol::ids::SampleId;

use super::gate::{Age, BytePermit, Promise};
use super::stream::Stream;
use super::work::FetchJob;

/// Threads that hang in reads that were given up.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbandonedCount(Arc<AtomicUsize>);

impl AbandonedCount {
    /// How many there are now.
    pub(crate) fn get(&self) -> usize {
        // Relaxed, here and below: a count, nothing is ordered by it.
        self.0.load(Ordering::Relaxed)
    }
}

/// What a lane's thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Between two calls, or not yet running.
    Nothing,
    /// In a call to the storage: the action, and since when.
    Call(&'static str, Instant),
    /// Waits for bytes of the budget.
    Waiting(Instant),
}

/// The rows that a lane reads now.
#[derive(Debug)]
pub(crate) struct Reading {
    clock: Clock,
    state: Mutex<State>,
    abandoned_threads: AbandonedCount,
}

#[derive(Debug)]
struct State {
    /// The first is being read.
    jobs: VecDeque<FetchJob>,
    doing: Doing,
    /// Until bytes are asked for.
    promise: Option<Promise>,
    permit: Option<BytePermit>,
    /// What the rows that are done took, without waiting for bytes.
    took: Duration,
    is_abandoned: bool,
}

/// The engine thread has given this reading up; the thread has nothing to do any more.
#[derive(Debug)]
pub(super) struct Abandoned;

/// What a thread needs of the row that it reads.
pub(super) struct RowToRead {
    pub(super) stream: Arc<Stream>,
    pub(super) id: SampleId,
    pub(super) age: Age,
}

/// What the first row of a reading is doing, for the watchdog.
#[derive(Debug)]
pub(crate) struct ReadingSnapshot {
    pub job: FetchJob,
    pub doing: Doing,
}

impl Reading {
    /// These rows, none of them begun.
    pub(super) fn new(
        jobs: VecDeque<FetchJob>,
        promise: Option<Promise>,
        abandoned_threads: AbandonedCount,
        clock: Clock,
    ) -> Self {
        let (doing, took) = (Doing::Nothing, Duration::ZERO);
        let state = State { jobs, doing, promise, permit: None, took, is_abandoned: false };
        Self { clock, state: Mutex::new(state), abandoned_threads }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the engine thread has given it up. The thread that hears so is no longer among the abandoned.
    fn own(&self) -> Result<MutexGuard<'_, State>, Abandoned> {
        let state = self.state();
        if state.is_abandoned {
            self.abandoned_threads.0.fetch_sub(1, Ordering::Relaxed);
            return Err(Abandoned);
        }
        Ok(state)
    }

    /// The row to read now, or nothing when all are done.
    pub(super) fn current(&self) -> Result<Option<RowToRead>, Abandoned> {
        let state = self.own()?;
        Ok(state.jobs.front().map(|job| RowToRead {
            stream: Arc::clone(&job.session.stream),
            id: job.id,
            age: Age {
                next_to_publish: Arc::clone(&job.session.next_to_publish),
                order: job.order,
                row: job.row,
            },
        }))
    }

    /// Whether nobody wants the row any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.state().jobs.front().is_none_or(|job| job.session.slots[job.slot].is_cancelled())
    }

    /// Does something that may never end.
    pub(super) fn call<R>(
        &self,
        action: &'static str,
        call: impl FnOnce() -> R,
    ) -> Result<R, Abandoned> {
        self.state().doing = Doing::Call(action, self.clock.now());
        let result = call();
        self.own()?.doing = Doing::Nothing;
        Ok(result)
    }

    /// Does something with the row that never waits: it cannot be given up meanwhile. False where there is no row.
    pub(super) fn without_waiting(
        &self,
        work: impl FnOnce(&FetchJob) -> bool,
    ) -> Result<bool, Abandoned> {
        let state = self.own()?;
        Ok(state.jobs.front().is_some_and(work))
    }

    /// Waits for bytes of the budget, and keeps their permit here: what is given up gives its bytes back. Gives since when
    /// and for how long it waited.
    pub(super) fn wait_for_bytes(
        &self,
        wait: impl FnOnce() -> Option<BytePermit>,
    ) -> (Instant, Duration) {
        let begun = self.clock.now();
        {
            let mut state = self.state();
            (state.doing, state.promise) = (Doing::Waiting(begun), None);
        }
        let permit = wait();
        let mut state = self.state();
        (state.doing, state.permit) = (Doing::Nothing, permit);
        (begun, self.clock.elapsed(begun))
    }

    /// Takes the row that was read, to be handed on, with its bytes' permit.
    pub(super) fn finish(
        &self,
        took: Duration,
    ) -> Result<Option<(FetchJob, Option<BytePermit>)>, Abandoned> {
        let mut state = self.own()?;
        state.doing = Doing::Nothing;
        state.took += took;
        let permit = state.permit.take();
        Ok(state.jobs.pop_front().map(|job| (job, permit)))
    }

    /// What the rows that are done took, without waiting for bytes.
    pub(super) fn took(&self) -> Duration {
        self.state().took
    }

    /// Gives up a call that has lasted too long: its rows, the first of which it was for. Engine thread.
    pub(super) fn abandon_overdue(&self, limit: Duration) -> Option<VecDeque<FetchJob>> {
        let mut state = self.state();
        let Doing::Call(_, since) = state.doing else {
            return None;
        };
        if self.clock.elapsed(since) < limit {
            return None;
        }
        state.is_abandoned = true;
        (state.permit, state.promise) = (None, None);
        self.abandoned_threads.0.fetch_add(1, Ordering::Relaxed);
        Some(std::mem::take(&mut state.jobs))
    }

    /// What the first row is doing. Engine thread.
    pub(crate) fn snapshot(&self) -> Option<ReadingSnapshot> {
        let state = self.state();
        let job = state.jobs.front()?.clone();
        Some(ReadingSnapshot { job, doing: state.doing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn reading() -> (Reading, AbandonedCount, Clock) {
        let (count, clock) = (AbandonedCount::default(), Clock::manual());
        (Reading::new(VecDeque::new(), None, count.clone(), clock.clone()), count, clock)
    }

    #[test]
    fn a_call_that_returns_in_time_is_not_given_up() {
        let (reading, count, clock) = reading();
        clock.advance(LIMIT);
        assert!(reading.abandon_overdue(LIMIT).is_none(), "it does nothing");
        assert_eq!(reading.call("opening", || 7).unwrap(), 7);
        clock.advance(LIMIT);
        assert!(reading.abandon_overdue(LIMIT).is_none());
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn a_thread_finds_out_that_it_was_given_up_and_is_counted_until_then() {
        let (reading, count, clock) = reading();
        let outcome = reading.call("reading", || {
            clock.advance(LIMIT - Duration::from_nanos(1));
            assert!(reading.abandon_overdue(LIMIT).is_none());
            clock.advance(Duration::from_nanos(1));
            assert!(reading.abandon_overdue(LIMIT).is_some());
            assert_eq!(count.get(), 1);
        });
        assert!(outcome.is_err());
        assert_eq!(count.get(), 0);
    }
}
