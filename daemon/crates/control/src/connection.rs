//! One client's connection, from its `Hello` to its end.
//!
//! States: Greeting ─Hello─► Ready ─Attach, Reattach─► Attached ─Goodbye, hang-up, death or fault─► over. `Start` or
//! `Restart` is allowed once, in Ready, and only of the loader that started the daemon; `Stats` in Ready and Attached. Anything else
//! ends the connection with a fault.

mod cut;
mod names;
mod sending;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_protocol::frames::{
    Attach, ClientFrame, DaemonFrame, Fault, FaultKind, PROTOCOL_VERSION, RestartPolicy,
};
use forebay_protocol::ids::Position;
use forebay_protocol::observing::ReplayRequest;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use self::cut::Cut;
use self::sending::{Shared, in_parts, send};
use super::fair_share::{Meter, Peer, RECORDING_COST, ROW_COST, metered, peer_of};
use super::host::{Host, Opening};
use super::namespaces::is_own_process;
use super::peer;
use forebay_config::DatasetObject;
use forebay_engine::{
    ReattachState, Recorded, SENT_TO_CLIENT, Seek, SessionEnd, SessionKind, SessionMemory,
    SessionTerms, begin_recording, watch,
};

/// Limit of frames that wait to be sent to one client.
const OUTBOX_FRAMES: usize = 64;
/// Limit of connections over all streams, including connections of `stats`; each needs two descriptors.
const MAX_CONNECTIONS: usize = 256;
/// Messages that are read from one client before the other clients have their turn.
const MESSAGES_PER_TURN: usize = 64;

/// Limit of seeks that are executed together; their answers wait in the outbox.
const MAX_SEEKS: usize = OUTBOX_FRAMES / 2;
/// How often a paused client is checked for having hung up.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// How often a daemon that is opening its streams reports progress.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// Serves one client until it disconnects.
pub async fn serve_connection(connection: Connection, host: Rc<Host>) {
    let meter = Rc::new(Meter::default());
    if let Err(error) = metered(&meter, converse(connection, host, Rc::clone(&meter))).await {
        tracing::warn!(%error, "a connection ended");
    }
}

async fn converse(connection: Connection, host: Rc<Host>, meter: Rc<Meter>) -> Result<(), Cut> {
    if host.connections.get() >= MAX_CONNECTIONS {
        tracing::warn!(connections = MAX_CONNECTIONS, "refused a connection: too many connections");
        let message =
            format!("{MAX_CONNECTIONS} connections are open, the maximum; end unused clients");
        // Best effort: the client may not read it.
        let _ =
            connection.send(&DaemonFrame::Fault(Fault { kind: FaultKind::Memory, message }), &[]);
        return Ok(());
    }
    host.connections.set(host.connections.get() + 1);
    let pidfd = peer::pidfd(&connection);
    let peer = peer_of(&connection);
    let (outbox, frames) = mpsc::channel(OUTBOX_FRAMES);
    let (recorded, recordings) = mpsc::channel(1);
    let mut client = Client {
        connection: Rc::new(connection),
        host: Rc::clone(&host),
        outbox,
        greeted: false,
        is_loader: false,
        session: None,
        terms: None,
        pidfd: None,
        number: host.next_number(),
        replay_requests: BTreeSet::new(),
        recorded,
        seeks: Vec::new(),
        most_seeks: MAX_SEEKS,
        peer,
        meter,
    };
    let ended = client.run(frames, recordings, pidfd).await;
    client.detach();
    client.settle_share();
    client.count_as_loader(false);
    host.connections.set(host.connections.get() - 1);
    ended
}

struct Client {
    connection: Rc<Connection>,
    host: Rc<Host>,
    outbox: mpsc::Sender<DaemonFrame>,
    greeted: bool,
    /// Whether it counts among the loaders.
    is_loader: bool,
    session: Option<u64>,
    /// Keeps the names of named segments.
    terms: Option<SessionTerms>,
    /// Received with the Hello. Watched in addition to the kernel's pidfd of the peer, which older kernels lack.
    pidfd: Option<OwnedFd>,
    /// This connection's number in the daemon.
    number: u64,
    /// Sessions for which the client requested a replay.
    replay_requests: BTreeSet<u64>,
    /// Receives the recording, which ends when the receiver is dropped.
    recorded: mpsc::Sender<Recorded>,
    /// Read and not executed yet.
    seeks: Vec<Seek>,
    /// How many of them are read together.
    most_seeks: usize,
    /// The process whose share of the thread it uses.
    peer: Peer,
    meter: Rc<Meter>,
}

/// Whether the connection continues.
enum Next {
    Continue,
    Over,
}

impl Client {
    async fn run(
        &mut self,
        mut frames: mpsc::Receiver<DaemonFrame>,
        mut recordings: mpsc::Receiver<Recorded>,
        pidfd: Option<OwnedFd>,
    ) -> Result<(), Cut> {
        let connection = Rc::clone(&self.connection);
        let io_failed = |source: std::io::Error| SocketError::Call { call: "epoll", source };
        let patience = self.host.patience;
        let shared = Shared { connection: Rc::clone(&connection), patience: patience.sending };
        let socket = watch(shared, Interest::READABLE).map_err(io_failed)?;
        let death = peer::death(pidfd);
        tokio::pin!(death);
        let announced_death = peer::death(None);
        tokio::pin!(announced_death);
        let greeting = tokio::time::sleep(patience.greeting);
        tokio::pin!(greeting);
        loop {
            let pause = self.settle_share();
            tokio::select! {
                biased;
                () = &mut death => return Ok(()),
                () = &mut announced_death => return Ok(()),
                () = tokio::time::sleep(pause.unwrap_or_default().min(LOOK_PERIOD)), if pause.is_some() => {
                    if has_hung_up(&connection) {
                        return Ok(());
                    }
                    // Its pending frames are still to be read.
                    greeting.as_mut().reset(tokio::time::Instant::now() + patience.greeting);
                }
                () = &mut greeting, if !self.greeted => return Err(Cut::SaysNothing(patience.greeting)),
                frame = frames.recv() => {
                    if let Some(frame) = frame {
                        send(&socket, &frame, &[]).await?;
                    }
                }
                recorded = recordings.recv() => match recorded {
                    Some(Ok(text)) => send(&socket, &DaemonFrame::Recorded, &[text.as_fd()]).await?,
                    Some(Err(fault)) => send(&socket, &DaemonFrame::Fault(fault), &[]).await?,
                    None => {}
                },
                guard = socket.readable(), if pause.is_none() => {
                    let mut guard = guard.map_err(io_failed)?;
                    let mut is_drained = false;
                    let mut rang = false;
                    for _ in 0..MESSAGES_PER_TURN {
                        match connection.receive::<ClientFrame>() {
                            Ok(Incoming::Frame(ClientFrame::Seek { serial, position, substitutes, cuts }, _))
                                if self.session.is_some() =>
                            {
                                self.seeks.push(Seek { serial, position, substitutes, cuts });
                                if self.seeks.len() >= self.most_seeks {
                                    break;
                                }
                            }
                            Ok(Incoming::Frame(frame, descriptors)) => {
                                self.carry_out_seeks().await;
                                // A request may take long, such as the scan of a dataset; it ends with the client.
                                let next = tokio::select! {
                                    biased;
                                    () = &mut death => return Ok(()),
                                    () = &mut announced_death => return Ok(()),
                                    next = self.handle(frame, descriptors, &socket) => next?,
                                };
                                if let Some(pidfd) = self.pidfd.take() {
                                    announced_death.set(peer::death(Some(pidfd)));
                                }
                                match next {
                                    Next::Continue => break,
                                    Next::Over => {
                                        while let Ok(frame) = frames.try_recv() {
                                            send(&socket, &frame, &[]).await?;
                                        }
                                        return Ok(());
                                    }
                                }
                            }
                            Ok(Incoming::Doorbell) => rang = true,
                            Ok(Incoming::Empty) => {
                                is_drained = true;
                                break;
                            }
                            Err(SocketError::Closed) => return Ok(()),
                            Err(error) => {
                                let fault = Fault { kind: FaultKind::Protocol, message: error.to_string() };
                                send(&socket, &DaemonFrame::Fault(fault), &[]).await?;
                                return Err(error.into());
                            }
                        }
                    }
                    self.carry_out_seeks().await;
                    if rang {
                        self.doorbell();
                    }
                    if is_drained {
                        guard.clear_ready();
                    } else {
                        // More frames are waiting; a client that never stops must not block the others.
                        drop(guard);
                        tokio::task::yield_now().await;
                    }
                }
            }
            if self.session.is_some_and(|number| !self.session_lives(number)) {
                // The engine has disconnected the client; its last frames are still sent.
                while let Ok(frame) = frames.try_recv() {
                    send(&socket, &frame, &[]).await?;
                }
                return Ok(());
            }
        }
    }

    fn session_lives(&self, number: u64) -> bool {
        self.host.engine().is_some_and(|engine| engine.borrow().has_session(number))
    }

    fn doorbell(&self) {
        if let (Some(engine), Some(session)) = (self.host.engine(), self.session) {
            let begun = Instant::now();
            // The work for its batches does not count for the share.
            if engine.borrow_mut().on_doorbell(session) {
                self.meter.skip(begun.elapsed());
            }
        }
    }

    /// Answers a frame, or refuses it and ends the connection.
    async fn handle(
        &mut self,
        frame: ClientFrame,
        descriptors: Vec<OwnedFd>,
        socket: &AsyncFd<Shared>,
    ) -> Result<Next, Cut> {
        let fault = match self.answer(frame, descriptors, socket).await {
            Err(Cut::Refused(fault)) => fault,
            other => return other,
        };
        tracing::warn!(target: SENT_TO_CLIENT, kind = ?fault.kind, "refused: {}", fault.message);
        send(socket, &DaemonFrame::Fault(fault), &[]).await?;
        Ok(Next::Over)
    }

    async fn answer(
        &mut self,
        frame: ClientFrame,
        mut descriptors: Vec<OwnedFd>,
        socket: &AsyncFd<Shared>,
    ) -> Result<Next, Cut> {
        if self.session.is_none() && is_of_no_loader(&frame) {
            self.count_as_loader(false);
        }
        match (frame, self.greeted) {
            (ClientFrame::Hello { protocol, release }, false) => {
                self.greeted = true;
                self.count_as_loader(true);
                self.pidfd = descriptors.pop().filter(peer::is_pidfd);
                if protocol != PROTOCOL_VERSION {
                    return Err(version_fault(protocol, &release).into());
                }
                let streams = self.host.engine().map_or_else(Vec::new, |engine| {
                    engine.borrow().streams().iter().map(|one| one.name().to_owned()).collect()
                });
                let release = env!("CARGO_PKG_VERSION").to_owned();
                let welcome = DaemonFrame::Welcome { protocol: PROTOCOL_VERSION, release, streams };
                send(socket, &welcome, &[]).await?;
            }
            (_, false) => return Err(refusal("the first frame must be Hello")),
            (ClientFrame::Hello { .. }, true) => return Err(refusal("a second Hello")),
            (ClientFrame::Start(start), true) => {
                let object = descriptors.pop().map(DatasetObject::new).transpose();
                let object = object.map_err(|error| refusal(&error.to_string()))?;
                self.open(Opening::Start(start, object), socket).await?;
            }
            (ClientFrame::Restart(restart), true) => {
                self.open(Opening::Restart(restart, descriptors), socket).await?;
            }
            (ClientFrame::Attach(request), true) => {
                self.attach(&request, SessionKind::Order, SessionMemory::Sealed, socket).await?;
            }
            (ClientFrame::AttachRows { stream }, true) => {
                let request = Attach {
                    stream,
                    rank: 0,
                    world_size: 1,
                    position: Position::default(),
                    substitutes: 0,
                    trainer: String::new(),
                    batch_size: None,
                    cuts: Vec::new(),
                };
                self.attach(&request, SessionKind::Rows, SessionMemory::Sealed, socket).await?;
            }
            (ClientFrame::Ask(asked), true) => {
                let (Some(engine), Some(session)) = (self.host.engine(), self.session) else {
                    return Err(refusal("Ask before AttachRows"));
                };
                let begun = Instant::now();
                let taken = engine.borrow_mut().ask(session, &asked);
                // The work for its rows does not count for the share; the ring bounds it.
                self.meter.skip(begun.elapsed());
                taken.map_err(|reason| refusal(&reason))?;
            }
            (ClientFrame::AttachNamed(request), true) => {
                self.attach(&request, SessionKind::Order, SessionMemory::Named, socket).await?;
            }
            (ClientFrame::Reattach(request), true) => {
                let (serial, leased) = (request.serial, request.leased);
                let state = ReattachState { data: descriptors, serial, leased };
                let memory = SessionMemory::Reattached(state);
                self.attach(&request.attach, SessionKind::Order, memory, socket).await?;
            }
            (ClientFrame::Seek { .. }, true) => return Err(refusal("Seek before Attach")),
            (ClientFrame::Stats, true) => {
                let report = self.host.engine().map(|engine| {
                    let mut engine = engine.borrow_mut();
                    // A client signals only every half ring of returned slots: count the slots that it has returned by
                    // now.
                    engine.advance_all();
                    engine.report()
                });
                let text = serde_json::to_string(&report).unwrap_or_default();
                for part in in_parts(&text) {
                    send(socket, &part, &[]).await?;
                }
            }
            (ClientFrame::Steps, true) => {
                let steps = self.host.engine().map(|engine| engine.borrow().steps());
                send(socket, &DaemonFrame::Steps(steps.unwrap_or_default()), &[]).await?;
            }
            (ClientFrame::Replay(request), true) => self.replay(&request, socket).await?,
            (ClientFrame::Record(wanted), true) => {
                let engine = self.host.engine().ok_or_else(|| refusal("Record before Start"))?;
                self.host.shares.charge(self.peer, Instant::now(), RECORDING_COST);
                begin_recording(&engine, wanted, self.recorded.clone())?;
            }
            (ClientFrame::Names(request), true) => {
                let engine = self.host.engine();
                let stream = self.session.and_then(|one| engine?.borrow().stream_of(one));
                send(socket, &names::answer(stream.as_deref(), request)?, &[]).await?;
            }
            (ClientFrame::Goodbye, true) => return Ok(Next::Over),
        }
        Ok(Next::Continue)
    }

    /// Counts this connection among the loaders, or no longer.
    fn count_as_loader(&mut self, is_loader: bool) {
        let loaders = &self.host.loaders;
        match (std::mem::replace(&mut self.is_loader, is_loader), is_loader) {
            (false, true) => loaders.set(loaders.get() + 1),
            (true, false) => loaders.set(loaders.get() - 1),
            _ => {}
        }
    }

    /// Opens the streams. While that makes progress, as in a long scan, or waits for a storage during an announced
    /// outage, it rings the doorbell from time to time: a client without a signal gives up after its time-out.
    async fn open(&self, opening: Opening, socket: &AsyncFd<Shared>) -> Result<(), Cut> {
        let opener = match &self.host.opener {
            Some(opener) if self.host.engine().is_none() => opener,
            _ => {
                return Err(refusal(
                    "Start and Restart are for a daemon that a loader starts, once",
                ));
            }
        };
        let progress = Arc::new(AtomicU64::new(0));
        let mut opening = opener(opening, Arc::clone(&progress));
        let mut shown = 0;
        let (engine, restart_state) = loop {
            tokio::select! {
                opened = &mut opening => break opened?,
                () = tokio::time::sleep(SIGN_OF_LIFE) => {
                    if has_hung_up(&self.connection) {
                        return Err(SocketError::Closed.into());
                    }
                    // Relaxed: a count, nothing is ordered by it.
                    let now = progress.load(Ordering::Relaxed);
                    if std::mem::replace(&mut shown, now) != now {
                        self.connection.ring()?;
                    }
                }
            }
        };
        *self.host.engine.borrow_mut() = Some(engine);
        if let Some(restart_state) = restart_state.map(Rc::new) {
            if self.host.restart_policy == RestartPolicy::ByClients {
                *self.host.restart_state.borrow_mut() = Some(Rc::clone(&restart_state));
            }
            send(socket, &DaemonFrame::Kept, &restart_state.descriptors()).await?;
        }
        Ok(())
    }

    /// Opens the session.
    async fn attach(
        &mut self,
        request: &Attach,
        kind: SessionKind,
        memory: SessionMemory,
        socket: &AsyncFd<Shared>,
    ) -> Result<(), Cut> {
        if self.session.is_some() {
            return Err(refusal("a second Attach on one connection"));
        }
        let engine = self.host.engine().ok_or_else(|| refusal("Attach before Start"))?;
        if !self.host.takes_clients {
            let message =
                "this daemon is private to its loader; use `forebay serve` for several clients";
            return Err(Fault { kind: FaultKind::Config, message: message.to_owned() }.into());
        }
        self.wait_for_attach().await?;
        // A client of named segments receives no descriptors.
        let takes_descriptors = !matches!(memory, SessionMemory::Named);
        let asked = Instant::now();
        let preparation = engine.borrow().preparation_of_attach(request, kind);
        if let Some(preparation) = preparation {
            preparation.run().await;
        }
        let begun = Instant::now();
        let attached = engine.borrow_mut().attach(
            request,
            kind,
            memory,
            self.host.restart_policy,
            Rc::clone(&self.connection),
            self.outbox.clone(),
        );
        self.meter.skip(begun.elapsed());
        self.host.shares.charge_attach(self.peer, Instant::now(), asked.elapsed());
        let (number, terms) = attached?;
        self.session = Some(number);
        // With batches by length each seek may plan a pool: other clients have their turn in between.
        self.most_seeks = if terms.has_pools() { 1 } else { MAX_SEEKS };
        self.host.shares.on_attach(self.peer);
        let restart_state = self.host.restart_state.borrow().clone();
        if let Some(restart_state) = restart_state.filter(|_| takes_descriptors) {
            send(socket, &DaemonFrame::Kept, &restart_state.descriptors()).await?;
        }
        send(socket, &terms.frame, &terms.descriptors()).await?;
        // Names exist until the client has opened them.
        self.terms = terms.has_names().then_some(terms);
        engine.borrow_mut().advance(number);
        Ok(())
    }

    /// Executes a request for a replay.
    async fn replay(
        &mut self,
        request: &ReplayRequest,
        socket: &AsyncFd<Shared>,
    ) -> Result<(), Cut> {
        let engine = self.host.engine().ok_or_else(|| refusal("Replay before Start"))?;
        let is_own = is_own_process(&self.connection);
        let asked = engine.borrow_mut().request_replay(request, self.number, is_own);
        asked.map_err(|message| Fault { kind: FaultKind::Config, message })?;
        if let ReplayRequest::Check { session, .. } | ReplayRequest::Arm { session, .. } = *request
        {
            self.replay_requests.insert(session);
        }
        let steps = engine.borrow().steps();
        send(socket, &DaemonFrame::Steps(steps), &[]).await
    }

    /// Executes the seeks that were read together.
    async fn carry_out_seeks(&mut self) {
        if let (Some(engine), Some(number), false) =
            (self.host.engine(), self.session, self.seeks.is_empty())
        {
            let preparation = engine.borrow().preparation_of_seeks(number, &self.seeks);
            if let Some(preparation) = preparation {
                preparation.run().await;
            }
            let thrown_away = engine.borrow_mut().seek(number, &self.seeks);
            let rows = u32::try_from(thrown_away).unwrap_or(u32::MAX);
            self.host.shares.charge(self.peer, Instant::now(), ROW_COST.saturating_mul(rows));
        }
        self.seeks.clear();
    }

    /// Charges this connection's use; returns how long to pause reading from it.
    fn settle_share(&self) -> Option<Duration> {
        let now = Instant::now();
        self.host.shares.charge(self.peer, now, self.meter.take(now));
        self.host.shares.pause(self.peer, now)
    }

    /// Waits until this process may attach again.
    async fn wait_for_attach(&self) -> Result<(), SocketError> {
        while let Some(pause) = self.host.shares.attach_pause(self.peer, Instant::now()) {
            tokio::time::sleep(pause.min(LOOK_PERIOD)).await;
            if has_hung_up(&self.connection) {
                return Err(SocketError::Closed);
            }
        }
        Ok(())
    }

    fn detach(&mut self) {
        let Some(engine) = self.host.engine() else { return };
        for session in std::mem::take(&mut self.replay_requests) {
            engine.borrow_mut().on_replay_disconnect(session, self.number);
        }
        if let Some(number) = self.session.take() {
            self.host.shares.on_detach(self.peer);
            engine.borrow_mut().detach(number, &SessionEnd::ClientLeft);
        }
    }
}

/// Whether the client has closed its end. Checked while its frames are not read.
fn has_hung_up(connection: &Connection) -> bool {
    let mut watched = [PollFd::new(connection.as_fd(), PollFlags::empty())];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Whether an observer, or the loader that starts the daemon, sends it before any attach.
const fn is_of_no_loader(frame: &ClientFrame) -> bool {
    use ClientFrame::{Record, Replay, Restart, Start, Stats, Steps};
    matches!(frame, Start(_) | Restart(_) | Stats | Steps | Replay(_) | Record(_))
}

fn refusal(message: &str) -> Cut {
    Cut::Refused(Fault { kind: FaultKind::Protocol, message: message.to_owned() })
}

fn version_fault(theirs: u32, release: &str) -> Fault {
    let message = format!(
        "the client (release {release}) speaks protocol {theirs}, this daemon (release {}) speaks {PROTOCOL_VERSION}; \
         install the same release on both sides",
        env!("CARGO_PKG_VERSION")
    );
    Fault { kind: FaultKind::Version, message }
}

#[cfg(test)]
mod tests;
