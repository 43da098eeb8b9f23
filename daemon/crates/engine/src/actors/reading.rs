//! A lane's reads, shared by the reading thread and the engine thread, which abandons hung reads.
//!
//! A thread that reads from a storage that does not answer cannot be ended, so it owns nothing that others wait for:
//! the rows, their byte permits and their session are here, behind a mutex that is never held during a blocking call.
//! If a read is overdue, the engine thread abandons the [`Reading`] and takes the rows back; when the thread returns,
//! it sees this and ends. Abandoned threads are counted until they return
//! ([`fetch_threads`](crate::actors::fetch_threads)).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_observe::Clock;
use forebay_protocol::ids::SampleId;
use forebay_storage::Retries;

use crate::ground::budgets::RowPermits;
use crate::ground::gate::{Age, BytePermit, Promise};
use crate::ground::stream::Stream;
use crate::ground::units::{Claim, Standing, Wanted};
use crate::ground::work::{FetchJob, SessionWork, Sharing};

/// Number of a stream's threads that hang in abandoned reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbandonedCount(Arc<AtomicUsize>);

impl AbandonedCount {
    /// The current number.
    pub(crate) fn get(&self) -> usize {
        // Relaxed, here and below: a count, nothing is ordered by it.
        self.0.load(Ordering::Relaxed)
    }

    /// Called by a thread that has returned from such a read and has closed its files.
    pub(crate) fn thread_is_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a lane's thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Between two calls, or not yet running.
    Nothing,
    /// In a call to the storage: the action, and its start.
    Call(&'static str, Instant),
    /// Waits for bytes of the budget, since this time.
    Waiting(Instant),
}

/// The rows that a lane is reading.
#[derive(Debug)]
pub(crate) struct Reading {
    clock: Clock,
    state: Mutex<State>,
    abandoned_threads: AbandonedCount,
}

#[derive(Debug)]
struct State {
    /// The first row is being read.
    jobs: VecDeque<FetchJob>,
    doing: Doing,
    /// Held until the thread waits for bytes.
    promise: Option<Promise>,
    permits: RowPermits,
    /// Units that the row has claimed for reading.
    claims: Vec<Claim<FetchJob>>,
    /// Sum of the finished rows' read times, without waiting for bytes.
    took: Duration,
    is_abandoned: bool,
}

/// The engine thread has abandoned this reading; the thread stops.
#[derive(Debug)]
pub(crate) struct Abandoned;

/// The parts of a row that its thread needs.
pub(crate) struct RowToRead {
    pub(crate) stream: Arc<Stream>,
    pub(crate) id: SampleId,
    /// What its dataset draws by.
    pub(crate) draw: u64,
    pub(crate) age: Age,
    /// Whether it is a copy of a kept row.
    pub(crate) is_copied: bool,
}

/// The first row of a reading and its action, for the watchdog.
#[derive(Debug)]
pub(crate) struct ReadingSnapshot {
    pub session: Arc<SessionWork>,
    pub id: SampleId,
    /// Number of failed attempts.
    pub failures: u32,
    pub doing: Doing,
}

/// A row's relation to the units that it needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// It holds all of them.
    HoldsUnits,
    /// It waits for another row's read and has left this reading.
    Waits,
    /// It has to read at least one.
    LacksUnits,
}

impl State {
    /// Releases the first row's bytes and units.
    fn give_up_row(&mut self) {
        self.permits = RowPermits::default();
        self.claims.clear();
        if let Some(job) = self.jobs.front_mut() {
            Wanted::let_go(&mut job.units);
        }
    }
}

impl Reading {
    /// A reading of these rows; none has begun.
    pub(crate) fn new(
        jobs: VecDeque<FetchJob>,
        promise: Option<Promise>,
        abandoned_threads: AbandonedCount,
        clock: Clock,
    ) -> Self {
        let (doing, took) = (Doing::Nothing, Duration::ZERO);
        let (permits, claims) = (RowPermits::default(), Vec::new());
        let state = State { jobs, doing, promise, permits, claims, took, is_abandoned: false };
        Self { clock, state: Mutex::new(state), abandoned_threads }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the engine thread has abandoned the reading.
    fn own(&self) -> Result<MutexGuard<'_, State>, Abandoned> {
        let state = self.state();
        if state.is_abandoned { Err(Abandoned) } else { Ok(state) }
    }

    /// Whether the reading was abandoned.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state().is_abandoned
    }

    /// The row to read now; `None` after the last.
    pub(crate) fn current(&self) -> Result<Option<RowToRead>, Abandoned> {
        let state = self.own()?;
        Ok(state.jobs.front().map(|job| RowToRead {
            stream: Arc::clone(&job.session.stream),
            id: job.id,
            draw: job.draw(),
            age: Age {
                next_to_publish: Arc::clone(&job.session.next_to_publish),
                order: job.order,
                row: job.row,
            },
            is_copied: matches!(job.sharing, Sharing::Copies(_)),
        }))
    }

    /// Whether the row's batch was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state().jobs.front().is_none_or(|job| job.session.slots[job.slot].is_cancelled())
    }

    /// Makes a call that may never return.
    pub(crate) fn call<R>(
        &self,
        action: &'static str,
        call: impl FnOnce() -> R,
    ) -> Result<R, Abandoned> {
        self.state().doing = Doing::Call(action, self.clock.now());
        let result = call();
        self.own()?.doing = Doing::Nothing;
        Ok(result)
    }

    /// Runs `work`, which must not block, on the row; the reading cannot be abandoned meanwhile. False: no row is left.
    pub(crate) fn without_waiting(
        &self,
        work: impl FnOnce(&FetchJob) -> bool,
    ) -> Result<bool, Abandoned> {
        let state = self.own()?;
        Ok(state.jobs.front().is_some_and(work))
    }

    /// Waits for bytes of the budget and stores the permit here, so that an abandoned reading returns its bytes.
    /// Returns when the wait began and how long it took.
    pub(crate) fn wait_for_bytes(
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
        (state.doing, state.permits.fetch) = (Doing::Nothing, permit);
        (begun, self.clock.elapsed(begun))
    }

    /// Waits for bytes of the work budget in addition to the row's, and stores them here. Returns how long it took.
    pub(crate) fn wait_to_work(
        &self,
        wait: impl FnOnce(Option<&BytePermit>) -> Option<BytePermit>,
    ) -> Duration {
        let begun = self.clock.now();
        let mut held = {
            let mut state = self.state();
            state.doing = Doing::Waiting(begun);
            state.permits.work.take()
        };
        let more = wait(held.as_ref());
        match (&mut held, more) {
            (Some(held), Some(more)) => held.merge(more),
            (None, more) => held = more,
            (Some(_), None) => {}
        }
        let mut state = self.state();
        (state.doing, state.permits.work) = (Doing::Nothing, held);
        self.clock.elapsed(begun)
    }

    /// Removes the finished row, with its permits.
    pub(crate) fn finish(
        &self,
        took: Duration,
    ) -> Result<Option<(FetchJob, RowPermits)>, Abandoned> {
        let mut state = self.own()?;
        state.doing = Doing::Nothing;
        state.took += took;
        let permits = std::mem::take(&mut state.permits);
        state.claims.clear();
        Ok(state.jobs.pop_front().map(|job| (job, permits)))
    }

    /// Sum of the finished rows' read times, without waiting for bytes.
    pub(crate) fn took(&self) -> Duration {
        self.state().took
    }

    /// Abandons a call that is overdue and returns the rows; the first is the row of the call. Engine thread.
    pub(crate) fn abandon_overdue(&self, limit: Duration) -> Option<VecDeque<FetchJob>> {
        let mut state = self.state();
        let Doing::Call(_, since) = state.doing else {
            return None;
        };
        (self.clock.elapsed(since) >= limit).then(|| self.abandon(&mut state))
    }

    /// Abandons the current call.
    #[cfg(test)]
    pub(crate) fn abandon_now(&self) {
        self.abandon(&mut self.state());
    }

    fn abandon(&self, state: &mut State) -> VecDeque<FetchJob> {
        state.is_abandoned = true;
        state.give_up_row();
        state.promise = None;
        self.abandoned_threads.0.fetch_add(1, Ordering::Relaxed);
        std::mem::take(&mut state.jobs)
    }

    /// The first row and its action. Engine thread.
    pub(crate) fn snapshot(&self) -> Option<ReadingSnapshot> {
        let state = self.state();
        let job = state.jobs.front()?;
        let (session, doing) = (Arc::clone(&job.session), state.doing);
        let failures = job.retries.as_ref().map_or(0, Retries::failures);
        Some(ReadingSnapshot { session, id: job.id, failures, doing })
    }
}

/// Rows whose samples share units; see [`units`](crate::ground::units).
impl Reading {
    /// Holds the row's units that are in memory, or lets the row wait for units that other rows read.
    pub(crate) fn look_at_units(&self) -> Result<Row, Abandoned> {
        let mut state = self.own()?;
        loop {
            let Some(mut job) = state.jobs.pop_front() else {
                return Ok(Row::Waits);
            };
            let standing = Wanted::look(&mut job.units);
            if let Standing::Reading(place) = standing {
                let unit = Arc::clone(job.units[place].unit());
                match unit.wait(job) {
                    Ok(()) => return Ok(Row::Waits),
                    // The unit's state has just changed.
                    Err(job) => state.jobs.push_front(job),
                }
                continue;
            }
            state.jobs.push_front(job);
            let holds_all = standing == Standing::Held;
            return Ok(if holds_all { Row::HoldsUnits } else { Row::LacksUnits });
        }
    }

    /// Called once the bytes for all of the row's units are granted: claims the units that no row reads, holds the
    /// units in memory, and returns the bytes of all but the claimed ones. `bytes`: the size of each unit. Returns for
    /// each unit whether it is claimed.
    pub(crate) fn claim_units(
        &self,
        bytes: impl Iterator<Item = u64>,
    ) -> Result<Vec<bool>, Abandoned> {
        let mut state = self.own()?;
        let State { jobs, permits, claims, .. } = &mut *state;
        let mut permit = permits.fetch.take();
        let Some(job) = jobs.front_mut() else {
            return Ok(Vec::new());
        };
        let Some(units) = &job.session.units else {
            return Ok(Vec::new());
        };
        let claim = |(wanted, bytes): (&mut Wanted<FetchJob>, u64)| {
            let claim = wanted.claim(units, permit.as_mut(), bytes);
            let is_claimed = claim.is_some();
            claims.extend(claim);
            is_claimed
        };
        Ok(job.units.iter_mut().zip(bytes).map(claim).collect())
    }

    /// Completes a claimed unit of the row. Returns the rows that have waited for it; they hold it.
    pub(crate) fn complete_unit(
        &self,
        place: usize,
        bytes: Vec<u8>,
    ) -> Result<Vec<FetchJob>, Abandoned> {
        let mut state = self.own()?;
        let State { jobs, claims, .. } = &mut *state;
        let Some(job) = jobs.front_mut() else {
            return Ok(Vec::new());
        };
        let Some(claim) = claims.iter().position(|claim| claim.is_on(&job.units[place])) else {
            return Ok(Vec::new());
        };
        let (own, waiting) = claims.swap_remove(claim).complete(bytes);
        Wanted::give(&mut job.units, own);
        let with_hold = |(mut job, hold): (FetchJob, _)| {
            Wanted::give(&mut job.units, hold);
            job
        };
        Ok(waiting.into_iter().map(with_hold).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::actors::reading::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn reading() -> (Reading, AbandonedCount, Clock) {
        let (count, clock) = (AbandonedCount::default(), Clock::manual());
        (Reading::new(VecDeque::new(), None, count.clone(), clock.clone()), count, clock)
    }

    #[test]
    fn call_that_returns_in_time_is_not_abandoned() {
        let (reading, count, clock) = reading();
        clock.advance(LIMIT);
        assert!(reading.abandon_overdue(LIMIT).is_none(), "it does nothing");
        assert_eq!(reading.call("opening", || 7).unwrap(), 7);
        clock.advance(LIMIT);
        assert!(reading.abandon_overdue(LIMIT).is_none());
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn abandoned_thread_notices_and_is_counted_until_it_returns() {
        let (reading, count, clock) = reading();
        let outcome = reading.call("reading", || {
            clock.advance(LIMIT - Duration::from_nanos(1));
            assert!(reading.abandon_overdue(LIMIT).is_none());
            clock.advance(Duration::from_nanos(1));
            assert!(reading.abandon_overdue(LIMIT).is_some());
            assert_eq!(count.get(), 1);
        });
        assert!(outcome.is_err() && reading.is_abandoned());
        assert_eq!(count.get(), 1, "it may hang again while it closes what it has open");
        count.thread_is_back();
        assert_eq!(count.get(), 0);
    }
}
