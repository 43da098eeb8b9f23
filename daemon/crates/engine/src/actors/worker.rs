//! A work thread: claims rows, runs their stages, passes them on, and sleeps if no row is claimable.
//!
//! A row of a Python stage is processed together with further rows of its batch ([`bundle`]).
//!
//! A thread's states are in [`crate::ground::work_parking`]. In addition, it sleeps for the CPU budget before it
//! claims; it then holds no row and no place in a stage, and is not marked as a sleeper, so that no thread waits for
//! it.

mod bundle;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::ids::SampleId;
use forebay_protocol::sync::Ordering;

use crate::actors::followers::{fail_followers, finish_followers};
use crate::actors::pool::Shared;
use crate::ground::budgets::RowPermits;
use crate::ground::meter::Meter;
use crate::ground::row_cells::{RowCell, RowFailure};
use crate::ground::slot_row::SlotRow;
use crate::ground::stream::Stream;
use crate::ground::work::{Claim, RowClaim, SessionWork, SlotWork};
use crate::ground::work_page::{WorkKey, WorkPage};
use forebay_observe::recorder::{Kind, Track, What, worker_place};
use forebay_transform::batch::BatchCaller;
use forebay_transform::{RowTime, WorkerScratch};

/// A row's state after a stage.
#[derive(Debug, Clone, Copy)]
enum HandedOn {
    Finished { has_failed: bool },
    ToNextStage,
}

/// A claim, its session, and its expected duration.
struct Found {
    session: Arc<SessionWork>,
    claim: Claim,
    expected: Duration,
}

/// See the module's head.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    group: usize,
    number: usize,
    scratch: WorkerScratch,
    meter: Meter,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, group: usize, number: usize) -> Self {
        let meter = Meter::start(shared.clock.now());
        let mut scratch = WorkerScratch::default();
        let of_pool = Arc::clone(&shared);
        scratch.set_ending(Arc::new(move || of_pool.is_ending()));
        Self { shared, group, number, scratch, meter }
    }

    /// Runs until the pool ends.
    pub(crate) fn run(mut self) {
        let mut idle_since = self.shared.clock.now();
        while !self.shared.is_ending() {
            self.sleep_for_the_budget();
            match self.find() {
                Some(Found { session, claim, expected }) => {
                    let start = self.shared.clock.now();
                    match claim {
                        Claim::Row(claim) if session.stream.plan.is_python(claim.stage) => {
                            self.call(&session, claim, start, start - idle_since);
                        }
                        Claim::Row(claim) => self.work(&session, claim, start, start - idle_since),
                        Claim::Batch { slot } => self.finish(&session, slot, start),
                    }
                    idle_since = self.shared.clock.now();
                    // Whoever takes the core from a row does not use up the session's share.
                    let without_core = self.meter.take_without_core();
                    session.turn.end(expected, (idle_since - start).saturating_sub(without_core));
                }
                None => self.sleep(),
            }
        }
    }

    fn sleep_for_the_budget(&mut self) {
        let Some(length) = self.shared.budget.must_sleep() else {
            return;
        };
        let begun = self.shared.clock.now();
        // Only the end of the pool unparks the thread here.
        thread::park_timeout(length);
        let slept = self.shared.clock.elapsed(begun);
        if self.shared.recorder.is_on() {
            self.record(begun, slept, What::of(Kind::HeldBack));
        }
        if self.shared.sessions.load().iter().any(|session| session.has_ready_rows()) {
            self.shared.budget.held_back(slept);
        }
        self.meter.skip();
    }

    /// The first ready row in the order of all sessions ([`turns`](crate::ground::turns)).
    fn find(&self) -> Option<Found> {
        let shared = &self.shared;
        if !shared.is_active(self.group) {
            return None;
        }
        let sessions = shared.sessions.load();
        let claim = |session: &Arc<SessionWork>| {
            let claim = session.claim(self.group)?;
            let expected = session.expected_time(&claim);
            shared.turns.begin(&session.turn, expected);
            Some(Found { session: Arc::clone(session), claim, expected })
        };
        if let [session] = sessions.as_slice() {
            return claim(session);
        }
        let now_ns = monotonic_ns();
        let place = |session: &Arc<SessionWork>| session.place(&shared.turns, now_ns);
        let mut by_place: Vec<_> = sessions
            .iter()
            .filter_map(|session| place(session).map(|place| (place, session)))
            .collect();
        by_place.sort_by_key(|(place, _)| *place);
        by_place.into_iter().find_map(|(_, session)| claim(session))
    }

    /// Sleeps until a row may be claimable.
    fn sleep(&mut self) {
        if !self.shared.is_active(self.group) {
            // The other group is active: releases memory that is planned for one group only.
            self.scratch = WorkerScratch::default();
        }
        let shared = &self.shared;
        let something = || {
            shared.is_ending() || (shared.is_active(self.group) && shared.has_claimable(self.group))
        };
        let picked = shared.sleep_unless(self.group, self.number, something);
        if picked && !shared.is_active(self.group) {
            // The wake-up was for a row that this group may no longer take.
            shared.wake_one();
        }
        self.meter.skip();
    }

    /// Runs one stage on one row and passes the row on.
    fn work(&mut self, session: &SessionWork, claim: RowClaim, start: Instant, waited: Duration) {
        let stream = &session.stream;
        let stage = &stream.stages[claim.stage];
        let slot = &session.slots[claim.slot];
        stage.input.get(waited);
        self.meter.enter(stage, start, &self.shared.budget);
        let mut cell = slot.cell(claim.row);
        let is_cancelled = slot.is_cancelled();
        let failure = if is_cancelled {
            None
        } else {
            let place = self.shared.place(self.group, self.number);
            place.enter(session, claim, cell.task.id, self.shared.ns_of(start));
            let failure = self.run_noted(stream, claim.stage, &mut cell).err();
            self.shared.place(self.group, self.number).leave();
            let took = self.shared.clock.elapsed(start);
            match &failure {
                None => {
                    stage.figures.record(took);
                    Self::count_row(stream, slot, claim, cell.task.id);
                }
                Some(_) => stage.figures.record_failure(),
            }
            if self.shared.recorder.is_on() {
                let kind = if failure.is_some() { Kind::FailedStage } else { Kind::Stage };
                let (session, batch) = (session.number, slot.order());
                let RowClaim { stage: place, row, .. } = claim;
                let detail = cell.task.id.0;
                self.record(start, took, What { kind, session, batch, place, row, detail });
            }
            failure
        };
        let finished = self.hand_on(session, claim, cell, failure, is_cancelled);
        self.meter.leave(stage, (start, self.shared.clock.now()), &self.shared.budget);
        stage.gate.leave(self.group);
        self.announce(session, claim, finished);
    }

    /// Finishes a complete batch. The calls of the user's functions are counted like the calls of stages.
    fn finish(&mut self, session: &SessionWork, slot: usize, start: Instant) {
        let (shared, stream) = (&self.shared, &session.stream);
        let _beside = shared.work_page.get().map(WorkPage::beside_suspects);
        let batch = session.slots[slot].order();
        let what = What { session: session.number, batch, ..What::of(Kind::Compaction) };
        let place = shared.place(self.group, self.number);
        place.enter_batch(session, batch, shared.ns_of(start));
        let called = |function: usize, time: Option<RowTime>| {
            let figures = &stream.function_figures[function];
            let Some(time) = time else { return figures.record_failure() };
            figures.record(time.length());
            if shared.recorder.is_on() {
                let track = Track::Work(self.group, self.number);
                let place = worker_place(stream.stages.len() + function, time.worker);
                let what = What { kind: Kind::PythonBatch, place, ..what };
                shared.recorder.span_ns(track, time.begin_ns, time.end_ns, what);
            }
        };
        let is_ending = || shared.is_ending();
        let thread = self.number;
        let caller = BatchCaller { thread, is_ending: &is_ending, called: &called };
        session.slots[slot].finish(stream, &caller);
        // This time is the batch's; the next row is measured separately.
        self.meter.skip();
        place.leave();
        shared.wake_engine();
        if shared.recorder.is_on() {
            self.record(start, shared.clock.elapsed(start), What { place: slot, ..what });
        }
    }

    /// Ends a row's stage and releases its cell. Returns what `announce` needs. `is_skipped`: the stage was not run.
    fn hand_on(
        &self,
        session: &SessionWork,
        claim: RowClaim,
        mut cell: MutexGuard<'_, RowCell>,
        failure: Option<RowFailure>,
        is_skipped: bool,
    ) -> HandedOn {
        let has_failed = failure.is_some();
        let is_last = claim.stage + 1 == session.stream.stages.len();
        if !(is_last || has_failed || session.slots[claim.slot].is_cancelled()) {
            return HandedOn::ToNextStage;
        }
        // Before the row is finished: its client may write into it once its batch is published.
        match (cell.lead.take(), &failure) {
            (Some(lead), Some(failure)) => fail_followers(lead, failure, &self.shared),
            (Some(lead), None) if is_last && !is_skipped => {
                finish_followers(lead, &mut cell, &self.shared);
            }
            _ => {}
        }
        if let Some(check) = cell.check.take().filter(|_| is_last && !has_failed && !is_skipped) {
            let sample = cell.task.id.0;
            check.compare(&mut cell, sample);
        }
        cell.failure = failure;
        self.shared.spare_buffers.give(cell.task.take_bytes());
        cell.permits = RowPermits::default();
        HandedOn::Finished { has_failed }
    }

    /// Wakes the next stage's thread or the engine.
    fn announce(&self, session: &SessionWork, claim: RowClaim, handed_on: HandedOn) {
        let slot = &session.slots[claim.slot];
        match handed_on {
            HandedOn::Finished { has_failed } => {
                // Relaxed: a progress indicator.
                self.shared.rows_finished.fetch_add(1, Ordering::Relaxed);
                if slot.finish_row(claim.row, has_failed) || session.stream.is_woken_by_rows() {
                    self.shared.wake_engine();
                }
            }
            HandedOn::ToNextStage => {
                let next = &session.stream.stages[claim.stage + 1];
                next.input.put(Duration::ZERO);
                slot.mark_ready(claim.stage + 1, claim.row);
                self.shared.wake_for(next);
            }
        }
    }

    fn record(&self, start: Instant, took: Duration, what: What) {
        self.shared.recorder.span(Track::Work(self.group, self.number), start, took, what);
    }

    /// Runs a stage with its sample recorded as under work, unless it is listed as a bad sample.
    fn run_noted(
        &mut self,
        stream: &Stream,
        stage: usize,
        cell: &mut RowCell,
    ) -> Result<(), RowFailure> {
        let Some(page) = self.shared.work_page.get() else {
            return Self::run_stage(&mut self.scratch, stream, stage, cell);
        };
        let (epoch, sample) = (cell.task.key.epoch, cell.task.id.0);
        let key = WorkKey { stream: stream.work_key(), epoch, sample };
        let work = page.begin((self.group, self.number), key).map_err(RowFailure::Defect)?;
        let outcome = Self::run_stage(&mut self.scratch, stream, stage, cell);
        if outcome.is_err() || stage + 1 == stream.stages.len() {
            work.finish();
        }
        outcome
    }

    /// Runs the operations; after the last stage the row also gets its id. A panic in a decoder ends the row, not the
    /// thread: it becomes an error of the stream that names the sample.
    fn run_stage(
        scratch: &mut WorkerScratch,
        stream: &Stream,
        stage: usize,
        cell: &mut RowCell,
    ) -> Result<(), RowFailure> {
        let run = catch_unwind(AssertUnwindSafe(|| {
            let RowCell { writer, beside, task, .. } = cell;
            let mut row = SlotRow::new(writer, beside, &stream.plan);
            stream.plan.run(stage, task, stream.dataset.as_ref(), &mut row, scratch)
        }));
        match run {
            Ok(Ok(())) => {}
            Ok(Err(defect)) => {
                return Err(match scratch.take_no_helpers() {
                    Some(reason) => RowFailure::NoWorkers(reason),
                    None => RowFailure::Defect(defect.0),
                });
            }
            Err(_) => {
                scratch.renew();
                return Err(RowFailure::Panic);
            }
        }
        if stage + 1 == stream.stages.len() {
            stream.write_id(cell);
        }
        Ok(())
    }

    /// Counts the row after the last stage, if there are several datasets.
    fn count_row(stream: &Stream, slot: &SlotWork, claim: RowClaim, id: SampleId) {
        if claim.stage + 1 == stream.stages.len()
            && let Some(dataset) = stream.dataset_of(id)
        {
            slot.count_row(dataset);
        }
    }
}
