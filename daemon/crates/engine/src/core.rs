//! The engine: all sessions, the byte gate and the pool of work threads, owned by one thread.

mod attach;
mod lane;
mod metrics;
mod recording;
mod retrying;
mod start;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind};
use forebay_protocol::sync::Ordering;
use tokio::sync::Notify;

pub use self::attach::{ReattachState, SessionMemory};
pub use self::start::run_on_wake;
use super::budgets::Gates;
use super::fetch_threads::FetchThreads;
use super::pool::Pool;
#[cfg(test)]
use super::pool::Shared;
use super::quarantine::Quarantine;
use super::reading::Reading;
use super::retry_queue::RetryQueue;
use super::session::{Seek, Session, SessionEnd};
use super::stall::StallWatch;
use super::stream::Stream;
use super::tick::{SessionsSeen, Tick};
use super::units::{Units, Wanted};
use super::waker::Waker;
use super::work::{FetchJob, SessionWork};
use forebay_observe::{Clock, History, RateHistory, WaitLog};

/// The engine, shared by the tasks of its thread.
pub type SharedEngine = Rc<RefCell<Engine>>;

/// See the module's head.
#[derive(Debug)]
pub struct Engine {
    streams: Vec<Arc<Stream>>,
    fetch_notify: Vec<Rc<Notify>>,
    /// A stream may have more reads under way.
    more_lanes: Rc<Notify>,
    sessions: BTreeMap<u64, Session>,
    /// The work of ended sessions until their last row is finished: rows that wait hold bytes of the gate.
    ending: Vec<Arc<SessionWork>>,
    next_session: u64,
    /// Rows published so far, of all sessions.
    rows_published: Rc<Cell<u64>>,
    /// By stream: the blocks that its samples share, if they do.
    units: Vec<Option<Arc<Units<FetchJob>>>>,
    pub(crate) gates: Gates,
    pool: Pool,
    waker: Arc<Waker>,
    tick: Tick,
    /// Whether ticks are on, and what turns them on.
    ticks: bool,
    ticks_wanted: Rc<Notify>,
    /// By stream.
    fetch_threads: Vec<FetchThreads>,
    /// By stream and lane: the rows being read.
    readings: Vec<Vec<Option<Arc<Reading>>>>,
    /// By stream: rows whose reads failed.
    retries: Vec<RetryQueue>,
    /// Rows wait for their next try.
    retries_wanted: Rc<Notify>,
    stalls: RefCell<StallWatch>,
    /// Where metrics are served over HTTP.
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
    /// Every stream, in the order of the configurations.
    pub fn streams(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    #[cfg(test)]
    pub(crate) fn pool_shared(&self) -> Arc<Shared> {
        Arc::clone(&self.pool.shared)
    }

    /// Advances one session on its client's doorbell. False: the client has returned nothing since the last look.
    pub fn on_doorbell(&mut self, number: u64) -> bool {
        let returned = |engine: &Self| engine.sessions.get(&number).map(|one| one.ring.returned());
        let before = returned(self);
        self.advance(number);
        returned(self) != before
    }

    /// Advances one session.
    pub fn advance(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let begun = self.pool.shared.recorder.is_on().then(|| self.clock.now());
        let advanced = session.advance();
        if let Some(begun) = begun {
            self.pool.shared.recorder.advanced(number, begun, self.clock.elapsed(begun));
        }
        let has_begun = session.has_just_started();
        if std::mem::take(&mut session.wake_workers) {
            self.pool.shared.wake_one();
        }
        if !self.ticks && session.is_working() {
            self.ticks_wanted.notify_one();
        }
        match advanced {
            Ok(true) => self.fetch_notify[session.stream_number].notify_waiters(),
            Ok(false) => {}
            Err(end) => return self.detach(number, &end),
        }
        if has_begun {
            self.note_moment();
        }
    }

    /// Advances all sessions: a batch completed, a row failed, bytes were freed, or time passed.
    pub fn advance_all(&mut self) {
        self.gates.grant();
        self.handle_put_off();
        self.tend_units();
        self.reap_ending();
        let rows_finished = self.pool.shared.rows_finished.load(Ordering::Relaxed);
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.advance(number);
            if let Some(session) = self.sessions.get(&number) {
                // An outage that is announced counts as progress: the client need not give up before this side does.
                let signs = session.stream.outages.signs();
                session.ring.show_progress(rows_finished.wrapping_add(signs));
            }
        }
    }

    /// Admits rows again whose unit was not read, and gives bytes back that are kept for rows to come where a row waits.
    fn tend_units(&mut self) {
        for units in self.units.iter().flatten() {
            for mut job in units.take_returned() {
                // It waits once more, and a row that waits holds no unit.
                Wanted::let_go(&mut job.units);
                let slot = &job.session.slots[job.slot];
                match self.sessions.get_mut(&job.session.number) {
                    Some(session) if !slot.is_cancelled() => session.admit_again(job),
                    _ => {
                        slot.finish_row(job.row, false);
                    }
                }
            }
        }
        let units = || self.units.iter().flatten();
        // Lanes of streams without units are paused while bytes are kept; they are no waiters.
        let idle_bytes = || units().map(|units| units.idle_bytes()).sum();
        while (self.gates.fetch.is_awaited() || self.gates.fetch.is_paused_for(idle_bytes))
            && units().any(|units| units.evict())
        {
            self.gates.fetch.grant();
        }
    }

    /// Answers a client's seeks and moves it to the position of the last one. Gives the rows that were taken and thrown away.
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

    /// The stream of a session.
    #[must_use]
    pub fn stream_of(&self, number: u64) -> Option<Arc<Stream>> {
        self.sessions.get(&number).map(|session| Arc::clone(&session.stream))
    }

    /// Ends a session; its memory is freed when its last running row has ended.
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
        // Ticks free the ended session's memory: nothing else wakes the engine for it.
        self.ticks_wanted.notify_one();
    }

    /// Waits for a bounded time until all bad samples are listed and all that was learned of JPEG files is kept: the process is about to end.
    pub fn finish_lists(&self) {
        for stream in &self.streams {
            stream.jpeg_index.finish();
            stream.quarantine.get().into_iter().for_each(Quarantine::finish);
        }
    }

    /// Tells every client that the daemon shuts down.
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

    /// Reports what has stalled.
    fn watch_stalls(&self) {
        let readings = self.readings.iter().flatten().flatten();
        let mut stalls = self.stalls.borrow_mut();
        let (now, shared) = (self.clock.now(), &self.pool.shared);
        stalls.check(&self.sessions, readings, shared.places(), (now, shared.ns_of(now)));
    }

    /// In how long to check trainers that hold all batches: without progress there are no ticks.
    fn next_trainer_check(&self) -> Option<Duration> {
        let now = self.clock.now();
        let next = self.stalls.borrow().next_trainer_check(&self.sessions, now)?;
        Some(next.saturating_duration_since(now))
    }

    /// The threads that hang in reads that were given up.
    #[cfg(test)]
    pub(crate) fn hung_threads(&self) -> usize {
        self.fetch_threads.iter().map(|threads| threads.hung().get()).sum()
    }

    /// The samples whose reads are in a call to the storage.
    #[cfg(test)]
    pub(crate) fn samples_in_a_call(&self) -> Vec<forebay_protocol::ids::SampleId> {
        let reads = self.readings.iter().flatten().flatten().filter_map(|read| read.snapshot());
        let calls = reads.filter(|read| matches!(read.doing, super::reading::Doing::Call(..)));
        calls.map(|read| read.id).collect()
    }

    /// Whether work is under way. Otherwise no ticks are needed: a client that runs out of batches rings.
    fn needs_ticks(&self) -> bool {
        !self.ending.is_empty() || self.sessions.values().any(Session::is_working)
    }

    /// The periodic work.
    fn on_tick(&mut self) {
        let seen = SessionsSeen {
            client_waits: self.sessions.values().any(|session| session.ring.client_waits()),
            rings_have_room: self.sessions.values().any(|session| session.ring.has_room()),
        };
        let (pool, threads) = (&mut self.pool, &mut self.fetch_threads);
        if self.tick.run(pool, threads, &self.streams, seen, self.clock.now()) {
            self.more_lanes.notify_waiters();
        }
        for stream in &self.streams {
            stream.outages.tick();
        }
        self.reap_retries();
        self.watch_waits();
    }

    /// Turns ticks on or off; gives whether they are on.
    fn set_ticks(&mut self) -> bool {
        let runs = self.needs_ticks();
        if runs && !self.ticks {
            let now = self.clock.now();
            self.tick.resume(&self.streams, now);
            if self.history.is_due(now) {
                self.note_moment();
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
        let shown = sessions.chain(&self.ending).map(Arc::clone).collect();
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
