//! The engine: all sessions, the gate and the pool, on one thread.

mod figures;
mod recorded;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::frames::{Attach, DaemonFrame, Fault, FaultKind, Leased, Revival};
use forebay_protocol::ids::Position;
use forebay_protocol::socket::Connection;
use forebay_protocol::sync::Ordering;
use tokio::io::Interest;
use tokio::sync::{Notify, mpsc};

use super::bell::Bell;
use super::fetch::{FetchJob, run_lane};
use super::gate::ByteGate;
use super::memory::{MemoryPlan, in_words};
use super::pool::{Pool, PoolOptions, Shared};
use super::quarantine::Quarantine;
use super::reading::{AbandonedCount, Reading};
use super::session::{Session, SessionEnd, SessionFault, SessionTerms, Takeover};
use super::stall::StallWatch;
use super::stream::Stream;
use super::upkeep::{self, SessionsSeen, Upkeep};
use super::watch::watch;
use super::work::SessionWork;
use crate::observe::{History, WaitLog};

/// The engine as its own thread's tasks share it.
pub(crate) type SharedEngine = Rc<RefCell<Engine>>;

/// What a client kept from the daemon before this one.
#[derive(Debug)]
pub(crate) struct Brought {
    /// One data segment, if it is honest.
    pub(crate) data: Vec<OwnedFd>,
    /// Its last seek.
    pub(crate) serial: u64,
    /// The slots that it says it holds.
    pub(crate) leased: Vec<Leased>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Engine {
    streams: Vec<Arc<Stream>>,
    fetch_notify: Vec<Rc<Notify>>,
    sessions: BTreeMap<u64, Session>,
    /// Of sessions that have ended, until their last row has: the rows that wait for work hold bytes of the gate.
    ending: Vec<Arc<SessionWork>>,
    next_session: u64,
    pub(crate) gate: Arc<ByteGate>,
    pool: Pool,
    bell: Arc<Bell>,
    upkeep: Upkeep,
    /// Whether the clock runs, and what starts it.
    clock_runs: bool,
    clock_wanted: Rc<Notify>,
    pub(crate) abandoned_reads: AbandonedCount,
    /// By stream and lane: what it reads now.
    readings: Vec<Vec<Option<Arc<Reading>>>>,
    stalls: RefCell<StallWatch>,
    /// Where figures are served over HTTP, by whoever does so.
    pub(crate) metrics_address: Option<SocketAddr>,
    history: History,
    wait_log: WaitLog,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.gate.close();
    }
}

impl Engine {
    /// Starts the work threads and the fetch lanes. Called inside the engine thread's `LocalSet`.
    pub(crate) fn start(
        streams: Vec<Arc<Stream>>,
        pool: PoolOptions,
        fetch_bytes: u64,
    ) -> io::Result<SharedEngine> {
        let bell = Arc::new(Bell::new()?);
        let lanes: Vec<u32> =
            streams.iter().map(|stream| stream.config.fetch.concurrency.get()).collect();
        let upkeep = Upkeep::new(streams.len(), pool.granted_cores, pool.limit_cores);
        let engine = Rc::new(RefCell::new(Self {
            fetch_notify: streams.iter().map(|_| Rc::new(Notify::new())).collect(),
            streams,
            sessions: BTreeMap::new(),
            ending: Vec::new(),
            next_session: 1,
            gate: Arc::new(ByteGate::new(fetch_bytes, Arc::clone(&bell))),
            pool: Pool::start(pool, Arc::clone(&bell))?,
            bell,
            upkeep,
            clock_runs: false,
            clock_wanted: Rc::default(),
            abandoned_reads: AbandonedCount::default(),
            readings: lanes.iter().map(|lanes| vec![None; *lanes as usize]).collect(),
            stalls: RefCell::default(),
            metrics_address: None,
            history: History::default(),
            wait_log: WaitLog::new(Instant::now()),
        }));
        engine.borrow_mut().keep_limit();
        engine.borrow().show_recorder();
        for (stream, lanes) in lanes.into_iter().enumerate() {
            for lane in 0..lanes as usize {
                tokio::task::spawn_local(run_lane(Rc::clone(&engine), stream, lane));
            }
        }
        Ok(engine)
    }

    pub(crate) fn streams(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    pub(crate) fn pool_shared(&self) -> Arc<Shared> {
        Arc::clone(&self.pool.shared)
    }

    pub(crate) fn fetch_notify(&self, stream: usize) -> Rc<Notify> {
        Rc::clone(&self.fetch_notify[stream])
    }

    /// Opens a session for a client, which may bring the memory of a daemon before.
    pub(crate) fn attach(
        &mut self,
        request: &Attach,
        brought: Option<Brought>,
        revival: Revival,
        connection: Rc<Connection>,
        outbox: mpsc::Sender<DaemonFrame>,
    ) -> Result<(u64, SessionTerms), Fault> {
        let refuse = |kind, message: String| Err(Fault { kind, message });
        let names: Vec<&str> = self.streams.iter().map(|stream| stream.name()).collect();
        let found = match &request.stream {
            None => (!self.streams.is_empty()).then_some(0),
            Some(name) => names.iter().position(|known| known == name),
        };
        let Some(stream_number) = found else {
            let wanted = request.stream.as_deref().unwrap_or("");
            let message =
                format!("no stream `{wanted}` here; this daemon serves: {}", names.join(", "));
            return refuse(FaultKind::Config, message);
        };
        let stream = Arc::clone(&self.streams[stream_number]);
        let of_stream =
            || self.sessions.values().filter(|session| session.stream_number == stream_number);
        let same = of_stream().find(|session| {
            session.rank == request.rank && session.world_size == request.world_size
        });
        if let Some(session) = same {
            let message = format!(
                "stream `{}` is held by another client as rank {} of {} (session {}); end that one first",
                stream.name(),
                request.rank,
                request.world_size,
                session.number
            );
            return refuse(FaultKind::Taken, message);
        }
        let most = stream.config.listen.max_sessions;
        if of_stream().count() >= most as usize {
            let message = format!(
                "stream `{}` has {most} sessions already; raise listen.max_sessions",
                stream.name()
            );
            return refuse(FaultKind::Memory, message);
        }
        let plan = MemoryPlan::of(&stream, self.pool.options.threads);
        let rings: u64 = of_stream().map(|session| session.ring_bytes).sum();
        let needed = rings + plan.total_bytes();
        if needed > plan.ceiling_bytes {
            let message = format!(
                "another ring of {} beside rings of {}, {} for fetching and {} of scratch memory needs {}; ring.memory \
                 is {}: raise it, or lower ring.slots or batch.size",
                in_words(plan.ring_bytes),
                in_words(rings),
                in_words(plan.fetch_bytes),
                in_words(plan.scratch_bytes),
                in_words(needed),
                in_words(plan.ceiling_bytes)
            );
            return refuse(FaultKind::Memory, message);
        }
        // A ring that is brought along is there already.
        if brought.is_none()
            && let Err(error) = plan.check_attach(&stream)
        {
            return refuse(FaultKind::Memory, error.to_string());
        }
        let number = self.next_session;
        let takeover = brought
            .map(|Brought { data, serial, leased }| {
                Takeover::of_client(&stream, data, serial, &leased)
            })
            .transpose()?;
        let (session, terms) = Session::new(
            number,
            &stream,
            stream_number,
            request,
            takeover,
            revival,
            connection,
            outbox,
        )
        .map_err(|SessionFault(fault)| fault)?;
        self.next_session += 1;
        self.upkeep.meet(session.trainer(), &mut self.pool);
        tracing::info!(
            session = number,
            stream = stream.name(),
            rank = session.rank,
            world_size = session.world_size,
            "client attached"
        );
        self.sessions.insert(number, session);
        self.show_sessions_to_threads();
        self.note_moment();
        Ok((number, terms))
    }

    /// Advances one session, for example at its client's doorbell.
    pub(crate) fn advance(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let begun = self.pool.shared.recorder.is_on().then(Instant::now);
        let advanced = session.advance();
        if let Some(begun) = begun {
            self.pool.shared.recorder.advanced(number, begun);
        }
        let has_begun = session.has_just_begun();
        if std::mem::take(&mut session.wake_workers) {
            self.pool.shared.wake_one();
        }
        if !self.clock_runs && session.is_working() {
            self.clock_wanted.notify_one();
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

    /// Advances everything: a batch completed, a row failed, bytes came free, or time passed.
    pub(crate) fn advance_all(&mut self) {
        self.gate.grant();
        self.reap_ending();
        let rows_finished = self.pool.shared.rows_finished.load(Ordering::Relaxed);
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.advance(number);
            if let Some(session) = self.sessions.get(&number) {
                session.show_progress(rows_finished);
            }
        }
    }

    /// Moves a session's client to another position.
    pub(crate) fn seek(&mut self, number: u64, serial: u64, position: Position, substitutes: u64) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.seek(serial, position, substitutes);
        }
        self.advance(number);
    }

    pub(crate) fn has_session(&self, number: u64) -> bool {
        self.sessions.contains_key(&number)
    }

    /// Ends a session; its memory goes when the last running row has ended.
    pub(crate) fn detach(&mut self, number: u64, end: &SessionEnd) {
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        session.end();
        if self.sessions.is_empty() {
            self.upkeep.be_alone();
        }
        self.ending.push(Arc::clone(&session.work));
        match end {
            SessionEnd::ClientLeft => tracing::info!(session = number, "client left"),
            SessionEnd::Violation(reason) => {
                tracing::warn!(session = number, reason, "client cut off");
                session.tell(DaemonFrame::Fault(Fault {
                    kind: FaultKind::Protocol,
                    message: reason.clone(),
                }));
            }
        }
        self.show_sessions_to_threads();
        // A clock that stands would not see the memory let go: nothing else rings for a session that is gone.
        self.clock_wanted.notify_one();
    }

    /// Waits, not for long, until all bad samples are listed: the process is about to end.
    pub(crate) fn finish_lists(&self) {
        self.streams
            .iter()
            .filter_map(|stream| stream.quarantine.get())
            .for_each(Quarantine::finish);
    }

    /// Tells every client that the daemon ends in good order.
    pub(crate) fn say_goodbye(&mut self) {
        for session in self.sessions.values() {
            session.tell(DaemonFrame::Goodbye);
        }
    }

    /// Ends every session with a reason.
    pub(crate) fn end_all(&mut self, reason: &str) {
        for session in self.sessions.values() {
            session.tell(DaemonFrame::Fault(Fault {
                kind: FaultKind::Internal,
                message: reason.to_owned(),
            }));
        }
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.detach(number, &SessionEnd::ClientLeft);
        }
    }

    /// Names what does not move.
    fn watch_stalls(&self) {
        let readings = self.readings.iter().flatten().flatten();
        let mut stalls = self.stalls.borrow_mut();
        stalls.look(&self.sessions, readings, self.pool.shared.places());
    }

    /// When to look at trainers that have all batches: nothing else moves then, and no clock runs.
    fn next_look_at_trainers(&self) -> Option<Instant> {
        self.stalls.borrow().next_look_at_trainers(&self.sessions)
    }

    /// Whether anything is under way. Without it no clock is needed: a client that runs out of batches rings.
    fn needs_clock(&self) -> bool {
        !self.ending.is_empty() || self.sessions.values().any(Session::is_working)
    }

    /// Does what is done by the clock.
    fn keep_up(&mut self) {
        let seen = SessionsSeen {
            client_waits: self.sessions.values().any(Session::client_waits),
            rings_have_room: self.sessions.values().any(Session::has_room),
        };
        self.upkeep.look(&mut self.pool, &self.streams, seen);
        self.watch_waits();
    }

    /// The limit holds from the first row on.
    fn keep_limit(&mut self) {
        self.pool.shared.budget.set_cores(self.pool.options.limit_cores);
    }

    /// Stops the clock, or lets it go on.
    fn set_clock(&mut self) -> bool {
        let runs = self.needs_clock();
        if runs && !self.clock_runs {
            self.upkeep.resume(&self.streams);
            if self.history.is_due(Instant::now()) {
                self.note_moment();
            }
        }
        self.clock_runs = runs;
        runs
    }

    fn show_sessions_to_threads(&self) {
        let sessions = self.sessions.values().map(|session| &session.work);
        let shown = sessions.chain(&self.ending).map(Arc::clone).collect();
        self.pool.shared.sessions.store(Arc::new(shown));
    }

    /// Lets the memory of ended sessions go whose rows are all finished.
    fn reap_ending(&mut self) {
        let before = self.ending.len();
        self.ending.retain(|work| !work.is_finished());
        if self.ending.len() < before {
            self.show_sessions_to_threads();
        }
    }

    /// Whether there are rows for a lane of a stream.
    pub(crate) fn has_fetch_jobs(&self, stream: usize) -> bool {
        let mut sessions = self.sessions.values();
        sessions
            .any(|session| session.stream_number == stream && session.admission_urgency().is_some())
    }

    /// The next rows that a lane of a stream fetches: from the session whose next row is most urgent.
    pub(crate) fn take_fetch_jobs(&mut self, stream: usize, count: usize) -> Vec<FetchJob> {
        self.sessions
            .values_mut()
            .filter(|session| session.stream_number == stream)
            .filter_map(|session| session.admission_urgency().map(|urgency| (urgency, session)))
            .min_by_key(|(urgency, _)| *urgency)
            .map(|(_, session)| session.take_admissions(count))
            .unwrap_or_default()
    }

    /// Shows what a lane reads to the watchdog.
    pub(super) fn show_reading(
        &mut self,
        stream: usize,
        lane: usize,
        reading: Option<Arc<Reading>>,
    ) {
        self.readings[stream][lane] = reading;
    }
}

/// Listens to the bell, and to a clock besides while there is work: for the upkeep, and so that a client that waits sees a
/// sign of life four times a second.
pub(crate) async fn run_bell(engine: SharedEngine) -> io::Result<()> {
    let bell = Arc::clone(&engine.borrow().bell);
    let readable = watch(BellDescriptor(Arc::clone(&bell)), Interest::READABLE)?;
    let wanted = Rc::clone(&engine.borrow().clock_wanted);
    let mut clock = tokio::time::interval(upkeep::PERIOD);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ran = false;
    loop {
        let runs = engine.borrow_mut().set_clock();
        if runs && !ran {
            clock.reset();
        }
        ran = runs;
        if !runs {
            // What stands still is seen before the clock stops.
            engine.borrow().watch_stalls();
        }
        let next_look = engine.borrow().next_look_at_trainers().filter(|_| !runs);
        let look = tokio::time::sleep_until(next_look.unwrap_or_else(Instant::now).into());
        tokio::select! {
            guard = readable.readable() => {
                bell.hear();
                guard?.clear_ready();
            }
            () = wanted.notified(), if !runs => continue,
            _ = clock.tick(), if runs => {
                engine.borrow_mut().keep_up();
                engine.borrow().watch_stalls();
            }
            // What was given back without a doorbell is no stall.
            () = look, if next_look.is_some() => {}
        }
        engine.borrow_mut().advance_all();
    }
}

struct BellDescriptor(Arc<Bell>);

impl std::os::fd::AsRawFd for BellDescriptor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(&self.0).as_raw_fd()
    }
}

impl std::os::fd::AsFd for BellDescriptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
