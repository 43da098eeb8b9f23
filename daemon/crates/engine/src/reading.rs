//! One lane's reads, shared by the thread that does them and the engine thread, which gives up those that hang.
//!
//! A thread in a read of a storage that does not answer cannot be ended. So nothing that others wait for is its own:
//! its rows, its bytes' permit and its session lie here, behind a mutex that is never held while it blocks. When a read
//! is overdue the engine thread abandons the [`Reading`] and takes the rows back; whenever the thread returns, it finds
//! that out and ends. Abandoned threads are counted until they are back ([`fetch_threads`](super::fetch_threads)).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_observe::Clock;
use forebay_protocol::ids::SampleId;
use forebay_source::storage::Retries;

use super::budgets::RowPermits;
use super::gate::{Age, BytePermit, Promise};
use super::stream::Stream;
use super::units::{Claim, Standing, Wanted};
use super::work::{FetchJob, SessionWork};

/// Threads of a stream that hang in reads that were given up.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbandonedCount(Arc<AtomicUsize>);

impl AbandonedCount {
    /// How many there are now.
    pub(crate) fn get(&self) -> usize {
        // Relaxed, here and below: a count, nothing is ordered by it.
        self.0.load(Ordering::Relaxed)
    }

    /// A thread has returned from such a read, and has closed what it had open.
    pub(super) fn thread_is_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
    permits: RowPermits,
    /// Units that the row is to read, or reads.
    claims: Vec<Claim<FetchJob>>,
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
    pub session: Arc<SessionWork>,
    pub id: SampleId,
    /// Attempts that have failed.
    pub failures: u32,
    pub doing: Doing,
}

/// How a row stands to the units that it needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// It holds all of them.
    HoldsUnits,
    /// It waits for another row's read; this reading has it no more.
    Waits,
    /// It has to read.
    LacksUnits,
}

impl State {
    /// Gives back what the first row has of bytes and units.
    fn give_up_row(&mut self) {
        self.permits = RowPermits::default();
        self.claims.clear();
        if let Some(job) = self.jobs.front_mut() {
            Wanted::let_go(&mut job.units);
        }
    }
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
        let (permits, claims) = (RowPermits::default(), Vec::new());
        let state = State { jobs, doing, promise, permits, claims, took, is_abandoned: false };
        Self { clock, state: Mutex::new(state), abandoned_threads }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the engine thread has given it up.
    fn own(&self) -> Result<MutexGuard<'_, State>, Abandoned> {
        let state = self.state();
        if state.is_abandoned { Err(Abandoned) } else { Ok(state) }
    }

    /// Whether it was given up.
    pub(super) fn is_abandoned(&self) -> bool {
        self.state().is_abandoned
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
        (state.doing, state.permits.fetch) = (Doing::Nothing, permit);
        (begun, self.clock.elapsed(begun))
    }

    /// Waits for bytes of the work budget beside those that the row has of it, and keeps them here. Gives how long.
    pub(super) fn wait_to_work(
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

    /// Takes the row that was read, to be handed on, with what it holds of the budgets.
    pub(super) fn finish(
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
        (self.clock.elapsed(since) >= limit).then(|| self.abandon(&mut state))
    }

    /// Gives up the call that it is in.
    #[cfg(test)]
    pub(super) fn abandon_now(&self) {
        self.abandon(&mut self.state());
    }

    fn abandon(&self, state: &mut State) -> VecDeque<FetchJob> {
        state.is_abandoned = true;
        state.give_up_row();
        state.promise = None;
        self.abandoned_threads.0.fetch_add(1, Ordering::Relaxed);
        std::mem::take(&mut state.jobs)
    }

    /// What the first row is doing. Engine thread.
    pub(crate) fn snapshot(&self) -> Option<ReadingSnapshot> {
        let state = self.state();
        let job = state.jobs.front()?;
        let (session, doing) = (Arc::clone(&job.session), state.doing);
        let failures = job.retries.as_ref().map_or(0, Retries::failures);
        Some(ReadingSnapshot { session, id: job.id, failures, doing })
    }
}

/// Rows whose samples share units; see [`units`](super::units).
impl Reading {
    /// Holds the row's units that are in memory, or lets it wait for those that others read.
    pub(super) fn look_at_units(&self) -> Result<Row, Abandoned> {
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
                    // Its state has just changed.
                    Err(job) => state.jobs.push_front(job),
                }
                continue;
            }
            state.jobs.push_front(job);
            let holds_all = standing == Standing::Held;
            return Ok(if holds_all { Row::HoldsUnits } else { Row::LacksUnits });
        }
    }

    /// With the bytes of all the row's units: claims those that nobody reads, holds those in memory, and gives the bytes of
    /// all but the claimed ones back. `bytes` has those of each unit; gives which are claimed.
    pub(super) fn claim_units(
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

    /// A claimed unit of the row is read. Gives the rows that have waited for it; they hold it.
    pub(super) fn complete_unit(
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
    fn a_thread_finds_out_that_it_was_given_up_and_is_counted_until_it_is_back() {
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
