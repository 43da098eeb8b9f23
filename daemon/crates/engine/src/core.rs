//! The core of the engine, owned by one thread: all sessions, the byte gate and the pool of work threads.

mod attach;
pub(crate) mod capture;
pub(crate) mod feeding;
mod lane;
pub(crate) mod memory;
mod metrics;
mod recording;
mod retrying;
pub(crate) mod session;
mod sharing;
pub(crate) mod stall;
mod start;
mod supplying;
pub(crate) mod tick;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind};
use forebay_protocol::sync::Ordering;
use tokio::sync::Notify;

pub use self::attach::{ReattachState, SessionKind, SessionMemory};
pub use self::start::run_on_wake;
use crate::actors::fetch_threads::FetchThreads;
use crate::actors::pool::Pool;
#[cfg(test)]
use crate::actors::pool::Shared;
use crate::actors::reading::Reading;
use crate::actors::retry_queue::RetryQueue;
use crate::actors::supply::Supply;
use crate::core::session::{PreparationTurns, Seek, Session, SessionEnd};
use crate::core::stall::StallWatch;
use crate::core::tick::{SessionsSeen, Tick};
use crate::ground::budgets::Gates;
use crate::ground::quarantine::Quarantine;
use crate::ground::shared_rows::SharedRows;
use crate::ground::stream::Stream;
use crate::ground::units::{Units, Wanted};
use crate::ground::waker::Waker;
use crate::ground::work::{FetchJob, SessionWork};
use forebay_observe::{Clock, History, RateHistory, WaitLog};
use forebay_storage::Retries;

/// The engine, shared by the tasks of its thread.
pub type SharedEngine = Rc<RefCell<Engine>>;

/// See the module's head.
#[derive(Debug)]
pub struct Engine {
    streams: Vec<Arc<Stream>>,
    fetch_notify: Vec<Rc<Notify>>,
    /// Wakes lanes when a stream may have more concurrent reads.
    more_lanes: Rc<Notify>,
    sessions: BTreeMap<u64, Session>,
    /// Ended sessions until their last row is finished: waiting rows hold bytes of the gate.
    ending: Vec<Arc<SessionWork>>,
    next_session: u64,
    preparation_turns: PreparationTurns,
    /// How often all sessions were advanced.
    advances: u64,
    /// Rows published so far by all sessions.
    rows_published: Rc<Cell<u64>>,
    /// By stream: the blocks shared by its samples, if any.
    units: Vec<Option<Arc<Units<FetchJob>>>>,
    /// By stream: the rows that its trainers share.
    shared_rows: Vec<Arc<SharedRows<FetchJob>>>,
    /// By stream: who else makes its rows.
    supplies: Vec<Option<Arc<Supply>>>,
    /// By stream: the outage of all feeders, if only they make its rows.
    feeder_outages: Vec<Option<Retries>>,
    /// By stream: whether its trainers have begun (`share.start_together`).
    has_begun: Vec<Cell<bool>>,
    pub(crate) gates: Gates,
    pool: Pool,
    waker: Arc<Waker>,
    tick: Tick,
    /// Whether ticks are on, and the notification that turns them on.
    ticks: bool,
    ticks_wanted: Rc<Notify>,
    /// By stream.
    fetch_threads: Vec<FetchThreads>,
    /// By stream and lane: the rows being read.
    readings: Vec<Vec<Option<Arc<Reading>>>>,
    /// By stream: rows whose reads failed.
    retries: Vec<RetryQueue>,
    /// Notified when a row is put off.
    retries_wanted: Rc<Notify>,
    stalls: RefCell<StallWatch>,
    /// Address at which metrics are served over HTTP.
    pub metrics_address: Option<SocketAddr>,
    started: Instant,
    history: History,
    /// By stream.
    rates: Vec<RateHistory>,
    wait_log: WaitLog,
    pub(crate) clock: Clock,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.gates.close();
    }
}

impl Engine {
    /// All streams, in the order of the configurations.
    pub fn streams(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    /// Sets how fast reads of the first stream are.
    #[cfg(test)]
    pub(crate) fn set_chunk(&mut self, chunk: crate::actors::fetch_chunk::Chunk) {
        self.fetch_threads[0].chunk = chunk;
    }

    #[cfg(test)]
    pub(crate) fn pool_shared(&self) -> Arc<Shared> {
        Arc::clone(&self.pool.shared)
    }

    /// Advances one session on its client's doorbell. False: the client has returned nothing since the last doorbell.
    pub fn on_doorbell(&mut self, number: u64) -> bool {
        let returned = |engine: &Self| engine.sessions.get(&number).map(|one| one.ring.returned());
        let before = returned(self);
        self.advance(number);
        returned(self) != before
    }

    /// Advances one session, and those that wait for it.
    pub fn advance(&mut self, number: u64) {
        let stream = self.sessions.get(&number).map(|session| session.stream_number);
        self.advance_alone(number);
        let waiting = |(other, session): (&u64, &Session)| {
            let waits = Some(session.stream_number) == stream && session.waits_for_others();
            (waits && *other != number).then_some(*other)
        };
        let waiting: Vec<u64> = self.sessions.iter().filter_map(waiting).collect();
        for number in waiting {
            self.advance_alone(number);
        }
    }

    fn advance_alone(&mut self, number: u64) {
        let Some(session) = self.sessions.get(&number) else {
            return;
        };
        let limit = self.limit_of(session);
        let beside = (self.chunk_of(session.stream_number), self.pool.threads());
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.set_limit(limit);
        let begun = self.pool.shared.recorder.is_on().then(|| self.clock.now());
        let advanced = session.advance(beside);
        if let Some(begun) = begun {
            self.pool.shared.recorder.advanced(number, begun, self.clock.elapsed(begun));
        }
        let has_begun = session.has_just_started();
        if std::mem::take(&mut session.wake_workers) {
            self.pool.shared.wake_one();
        }
        if !self.ticks && (session.is_working() || session.waits_for_others()) {
            self.ticks_wanted.notify_one();
        }
        match advanced {
            Ok(true) => {
                let stream = session.stream_number;
                self.ask_supplier(stream);
                if self.has_fetch_jobs(stream) {
                    self.fetch_notify[stream].notify_waiters();
                }
            }
            Ok(false) => {}
            Err(end) => return self.detach(number, &end),
        }
        if has_begun {
            self.add_to_history();
        }
    }

    /// Advances all sessions, after a completed batch, a failed row, freed bytes, or a tick.
    pub fn advance_all(&mut self) {
        self.advances += 1;
        self.gates.grant();
        self.handle_put_off();
        self.tend_units();
        self.admit_former_followers();
        self.ask_suppliers();
        self.reap_ending();
        let rows_finished = self.pool.shared.rows_finished.load(Ordering::Relaxed);
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.advance(number);
            if let Some(session) = self.sessions.get(&number) {
                // An announced outage counts as progress: the client must not time out before the daemon does.
                let signs = session.stream.outages.signs();
                // So does a wait for other trainers, which has an end.
                let waits = if session.waits_for_others() { self.advances } else { 0 };
                let progress = rows_finished.wrapping_add(signs).wrapping_add(waits);
                session.ring.show_progress(progress);
            }
        }
    }

    /// Admits rows again whose unit was not read, and evicts kept units while a row waits for their bytes.
    fn tend_units(&mut self) {
        let mut returned = Vec::new();
        for units in self.units.iter().flatten() {
            returned.extend(units.take_returned());
        }
        for mut job in returned {
            // The row waits again: it holds no unit, and no other row waits for it.
            Wanted::let_go(&mut job.units);
            drop(job.take_lead());
            self.admit_again_or_end(job);
        }
        let units = || self.units.iter().flatten();
        // Lanes of streams without units pause while bytes are kept; they are not counted as waiters.
        let idle_bytes = || units().map(|units| units.idle_bytes()).sum();
        while (self.gates.fetch.is_awaited() || self.gates.fetch.is_paused_for(idle_bytes))
            && units().any(|units| units.evict())
        {
            self.gates.fetch.grant();
        }
    }

    /// Admits a row again, or ends it if its batch was cancelled.
    fn admit_again_or_end(&mut self, job: FetchJob) {
        let slot = &job.session.slots[job.slot];
        match self.sessions.get_mut(&job.session.number) {
            Some(session) if !slot.is_cancelled() => session.admit_again(job),
            _ => {
                slot.finish_row(job.row, false);
            }
        }
    }

    /// Answers a client's seeks and moves the session to the last position. Returns the number of rows discarded.
    pub fn seek(&mut self, number: u64, seeks: &[Seek]) -> u64 {
        let session = self.sessions.get_mut(&number);
        let thrown_away = session.map_or(0, |session| session.seek(seeks));
        self.advance(number);
        thrown_away
    }

    /// Whether a session of this number is attached.
    pub fn has_session(&self, number: u64) -> bool {
        self.sessions.contains_key(&number)
    }

    /// Whether any session is attached.
    #[must_use]
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The stream of a session.
    #[must_use]
    pub fn stream_of(&self, number: u64) -> Option<Arc<Stream>> {
        self.sessions.get(&number).map(|session| Arc::clone(&session.stream))
    }

    /// Ends a session; its memory is freed after its last running row.
    pub fn detach(&mut self, number: u64, end: &SessionEnd) {
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        session.end();
        if self.sessions.is_empty() {
            self.tick.on_last_detach();
        }
        self.ending.push(Arc::clone(&session.work));
        match end {
            SessionEnd::ClientLeft => tracing::info!(session = number, "client left"),
            SessionEnd::Violation(reason) => {
                tracing::warn!(session = number, reason, "client cut off");
                session.send(DaemonFrame::Fault(Fault {
                    kind: FaultKind::Protocol,
                    message: reason.clone(),
                }));
            }
        }
        self.share_sessions();
        self.end_sharing(session.stream_number);
        // Ticks free the ended session's memory: nothing else wakes the engine for it.
        self.ticks_wanted.notify_one();
    }

    /// Waits, with a time limit, until all bad samples are listed and the JPEG index is saved. Called before the
    /// process ends.
    pub fn finish_lists(&self) {
        for stream in &self.streams {
            stream.jpeg_index.finish();
            stream.quarantine.get().into_iter().for_each(Quarantine::finish);
        }
    }

    /// Notifies every client that the daemon shuts down.
    pub fn say_goodbye(&mut self) {
        for session in self.sessions.values() {
            session.send(DaemonFrame::Goodbye);
        }
    }

    /// Ends every session with a reason.
    pub fn end_all(&mut self, reason: &str) {
        for session in self.sessions.values() {
            session.send(DaemonFrame::Fault(Fault {
                kind: FaultKind::Internal,
                message: reason.to_owned(),
            }));
        }
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.detach(number, &SessionEnd::ClientLeft);
        }
    }

    /// Updates the list of stalls.
    fn watch_stalls(&self) {
        let readings = self.readings.iter().flatten().flatten();
        let mut stalls = self.stalls.borrow_mut();
        let (now, shared) = (self.clock.now(), &self.pool.shared);
        stalls.check(&self.sessions, readings, shared.places(), (now, shared.ns_of(now)));
    }

    /// Time until the next check of trainers that hold all batches: without progress there are no ticks.
    fn next_trainer_check(&self) -> Option<Duration> {
        let now = self.clock.now();
        let next = self.stalls.borrow().next_trainer_check(&self.sessions, now)?;
        Some(next.saturating_duration_since(now))
    }

    /// Number of threads that hang in abandoned reads.
    #[cfg(test)]
    pub(crate) fn hung_threads(&self) -> usize {
        self.fetch_threads.iter().map(|threads| threads.hung().get()).sum()
    }

    /// Samples whose reads are in a call to the storage.
    #[cfg(test)]
    pub(crate) fn samples_in_a_call(&self) -> Vec<forebay_protocol::ids::SampleId> {
        let reads = self.readings.iter().flatten().flatten().filter_map(|read| read.snapshot());
        let calls =
            reads.filter(|read| matches!(read.doing, crate::actors::reading::Doing::Call(..)));
        calls.map(|read| read.id).collect()
    }

    /// Whether work is in progress. Otherwise ticks are not needed: a client that runs out of batches rings the
    /// doorbell.
    fn needs_ticks(&self) -> bool {
        let works = |session: &Session| session.is_working() || session.waits_for_others();
        !self.ending.is_empty() || self.sessions.values().any(works)
    }

    /// The periodic work.
    fn on_tick(&mut self) {
        let seen = SessionsSeen {
            client_waits: self.sessions.values().any(|session| session.ring.client_waits()),
            // A ring of rows that are asked for is empty most of the time, and one that waits for other trainers by
            // choice.
            rings_have_room: self.sessions.values().any(|session| {
                (session.is_feeding() && session.is_working())
                    || !session.is_on_request()
                        && !session.waits_for_others()
                        && session.ring.has_room()
            }),
        };
        let (pool, threads) = (&mut self.pool, &mut self.fetch_threads);
        if self.tick.run(pool, threads, &self.streams, seen, self.clock.now()) {
            self.more_lanes.notify_waiters();
        }
        for stream in &self.streams {
            stream.outages.tick();
        }
        self.reap_retries();
        self.watch_feeders();
        self.watch_waits();
    }

    /// Turns ticks on or off and returns the new state.
    fn set_ticks(&mut self) -> bool {
        let runs = self.needs_ticks();
        if runs && !self.ticks {
            let now = self.clock.now();
            self.tick.resume(&self.streams, now);
            if self.history.is_due(now) {
                self.add_to_history();
            }
        }
        if runs != self.ticks {
            self.observe_rates();
        }
        self.ticks = runs;
        runs
    }

    fn share_sessions(&self) {
        let sessions = self.sessions.values().map(|session| &session.work);
        let shown: Vec<_> = sessions.chain(&self.ending).map(Arc::clone).collect();
        self.pool.shared.turns.set_sessions(self.sessions.len());
        self.pool.shared.sessions.store(Arc::new(shown));
    }

    /// Frees the memory of ended sessions whose rows are all finished.
    fn reap_ending(&mut self) {
        let before = self.ending.len();
        self.ending.retain(|work| !work.is_finished());
        if self.ending.len() < before {
            self.share_sessions();
        }
    }
}
