//! Supervises the daemon that a loader is attached to: detects its death and provides the next daemon.
//!
//! The states of a client across a daemon's death and their transitions. The supervisor's thread owns the daemon's process
//! (or the path of its socket); the loader owns the rings, the position and the leases. They share [`Shared`] only.
//!
//! ```text
//!            daemon dies                   the loader's next call
//!   Live ─────────────────► Draining ─────────────────────────────┐
//!    ▲   (process or socket)   │  takes all complete batches out of the dead ring; they are handed over first
//!    │                         ▼
//!    │                     Restarting ──► supervisor: private: restarts the program from the saved plan and index;
//!    │                         │    ▲                 served: connects to the same socket until a daemon listens again
//!    │  supervisor: said hello │    │ supervisor: that daemon died too; the delay doubles
//!    │                         ▼    │
//!    │                     Reattaching ──► loader: sends its data segment, the slots that are held, and its position
//!    │                         │
//!    └──── loader: Attached ◄──┴──► Lost: supervisor: no batch over restarts of `timeout` in all, or no plan to start from
//!                 │                       loader: the daemon refuses for good, or the time-out passes
//!                 │ loader: refused for now (held by another client, memory, descriptors)
//!                 └────► Restarting, after a delay that doubles; a served daemon that refused is not waited for to die
//! ```
//!
//! Held batches stay valid in every state: the data segment is this process's own mapping, and the next daemon gets a list
//! of the slots that the user or the queue of drained batches holds and fills only the others. A batch that is dropped
//! while no daemon is attached frees its slot for the next one; a batch that is dropped after that list was sent is
//! returned as soon as there is a return ring.
//!
//! A private daemon may die any number of times as long as it publishes a batch between deaths. The supervisor also
//! forwards its log to this process's standard error (without blocking: what does not fit is dropped), reports the log's
//! last lines when it gives up, and reaps the process.

mod log;
mod private;
mod reserve;
mod restart_budget;
mod revival;
mod served;
mod start;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_protocol::publish::PublishReader;
use forebay_protocol::segment::Mapping;
use forebay_protocol::socket::Connection;

use crate::error::Error;
pub(crate) use log::write_to_stderr;
pub(crate) use private::LaunchSpec;
pub(crate) use served::Revival;
pub(crate) use start::greet;

/// The maximum time for which closing a loader waits for its private daemon's exit: without it, a program that exits at
/// once would lose the daemon's last log lines.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// The daemon's state as the supervisor knows it.
#[derive(Debug)]
enum Lifecycle {
    /// No loader has a session yet; the loader itself reports this daemon's end.
    Starting,
    /// The loader is attached.
    Live,
    /// The daemon died and the next one does not run yet.
    Restarting,
    /// The next daemon runs and was greeted; its connection waits for the loader.
    Ready(Arc<Connection>),
    /// The loader has the connection and requests its session.
    Reattaching,
    /// No daemon will come back.
    Lost,
    /// The loader is dropped.
    Closed,
}

#[derive(Debug)]
struct State {
    lifecycle: Lifecycle,
    /// How the last daemon ended, once it has.
    exit_reason: Option<String>,
    /// Why no daemon will come back.
    lost_reason: Option<String>,
    /// Why the daemon that came back does not accept the session yet.
    refusal: Option<String>,
    /// Whether the thread still has to process the refusal.
    is_refused: bool,
    /// The descriptors from which a private daemon is restarted.
    restart_state: Vec<OwnedFd>,
    /// The publish ring of the present session: a batch published there is progress.
    publish: Option<Arc<PublishReader<Mapping>>>,
    /// A private daemon has exited for good, and its log was forwarded completely.
    is_reaped: bool,
}

/// The state that the supervisor's thread and the loader share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the daemon is no longer live: read without the lock before each batch.
    is_down: AtomicBool,
    restarts: AtomicU64,
    process: AtomicU32,
    /// Written to wake the thread.
    waker: Connection,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next daemon runs and was greeted: a refusal by an earlier one is obsolete.
    fn offer(&self, connection: Arc<Connection>) {
        self.enter(|state| {
            state.exit_reason = None;
            state.is_refused = false;
            Lifecycle::Ready(connection)
        });
    }

    /// Changes the state, unless the loader is dropped. True: changed.
    fn enter(&self, change: impl FnOnce(&mut State) -> Lifecycle) -> bool {
        let mut state = self.lock();
        if matches!(state.lifecycle, Lifecycle::Closed) {
            return false;
        }
        state.lifecycle = change(&mut state);
        let is_up = matches!(state.lifecycle, Lifecycle::Starting | Lifecycle::Live);
        // Release: pairs with the acquire load of `Supervisor::is_down`; the rest is read under the lock anyway.
        self.is_down.store(!is_up, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        true
    }

    fn is_live(&self) -> bool {
        matches!(self.lock().lifecycle, Lifecycle::Live)
    }

    fn is_closed(&self) -> bool {
        matches!(self.lock().lifecycle, Lifecycle::Closed)
    }
}

/// The loader's handle. Dropping it ends the private daemon and lets the thread reap it.
#[derive(Debug)]
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    /// The process of the thread: a forked child has none.
    own_process: u32,
    is_private: bool,
}

/// The state of the next daemon.
#[derive(Debug)]
pub(crate) enum NextDaemon {
    /// It does not run yet.
    Pending,
    /// It runs and was greeted.
    Ready(Arc<Connection>),
    /// None will come back, for this reason.
    Lost(Error),
}

impl Supervisor {
    /// The shared state, and the thread's end of the waker.
    fn new_shared() -> Result<(Arc<Shared>, Connection), Error> {
        let (waker, wakeups) = Connection::pair()
            .map_err(|error| Error::Memory(format!("creating a socket pair failed: {error}")))?;
        let state = State {
            lifecycle: Lifecycle::Starting,
            exit_reason: None,
            lost_reason: None,
            refusal: None,
            is_refused: false,
            restart_state: Vec::new(),
            publish: None,
            is_reaped: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_down: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            process: AtomicU32::new(0),
            waker,
        };
        Ok((Arc::new(shared), wakeups))
    }

    /// Whether the daemon of the present session died. Costs no system call and no lock.
    pub(crate) fn is_down(&self) -> bool {
        // Acquire: pairs with `Shared::enter`.
        self.shared.is_down.load(Ordering::Acquire)
    }

    /// How often a daemon was replaced.
    pub(crate) fn restarts(&self) -> u64 {
        // Relaxed: a count.
        self.shared.restarts.load(Ordering::Relaxed)
    }

    /// The private daemon's process; `None` for a served daemon.
    pub(crate) fn process_id(&self) -> Option<u32> {
        // Relaxed: a process id; it may change at any moment anyway.
        Some(self.shared.process.load(Ordering::Relaxed)).filter(|process| *process != 0)
    }

    /// Saves the descriptors from which the daemon is restarted.
    pub(crate) fn save_restart_state(&self, descriptors: Vec<OwnedFd>) {
        self.shared.lock().restart_state = descriptors;
    }

    /// The loader is attached: from now on the supervisor replaces a dead daemon.
    pub(crate) fn on_attached(&self, publish: Arc<PublishReader<Mapping>>) {
        self.shared.enter(|state| match state.lifecycle {
            Lifecycle::Starting | Lifecycle::Reattaching => {
                state.publish = Some(publish);
                state.refusal = None;
                Lifecycle::Live
            }
            // It died meanwhile, and the thread is replacing it.
            _ => std::mem::replace(&mut state.lifecycle, Lifecycle::Restarting),
        });
        // Wakes the thread, which fills its reserve.
        let _ = self.shared.waker.ring();
    }

    /// Ends supervision: the loader's session has failed for good.
    pub(crate) fn stop(&self) {
        self.shared.enter(|state| {
            state.lost_reason.get_or_insert_with(|| "the daemon is gone".to_owned());
            Lifecycle::Lost
        });
        let _ = self.shared.waker.ring();
    }

    /// The loader has found that the daemon is gone, and how; the thread may not know yet.
    pub(crate) fn report_loss(&self, how: Option<&str>) {
        if let (Some(how), None) = (how, self.process_id()) {
            self.shared.lock().exit_reason = Some(how.to_owned());
        }
        let _ = self.shared.waker.ring();
    }

    /// Takes the next daemon's connection if it is ready.
    pub(crate) fn next_daemon(&self) -> NextDaemon {
        let mut state = self.shared.lock();
        if let Lifecycle::Ready(connection) = &state.lifecycle {
            let connection = Arc::clone(connection);
            state.lifecycle = Lifecycle::Reattaching;
            return NextDaemon::Ready(connection);
        }
        match (&state.lifecycle, &state.lost_reason) {
            (Lifecycle::Lost, Some(reason)) => NextDaemon::Lost(Error::DaemonLost(reason.clone())),
            _ => NextDaemon::Pending,
        }
    }

    /// The next daemon does not accept the session yet: retries after a while.
    pub(crate) fn retry(&self, reason: String) {
        self.shared.enter(|state| {
            state.refusal = Some(reason.clone());
            // In the state `Ready`, the thread has already started another daemon, and that one has refused nothing.
            state.is_refused =
                matches!(state.lifecycle, Lifecycle::Reattaching | Lifecycle::Restarting);
            state.exit_reason = Some(reason);
            // In any other state the thread continues from there.
            match state.lifecycle {
                Lifecycle::Reattaching => Lifecycle::Restarting,
                _ => std::mem::replace(&mut state.lifecycle, Lifecycle::Restarting),
            }
        });
        let _ = self.shared.waker.ring();
    }

    /// Waits for a change of state, up to a limit.
    pub(crate) fn wait(&self, limit: Duration) {
        let state = self.shared.lock();
        let may_change = matches!(
            state.lifecycle,
            Lifecycle::Restarting | Lifecycle::Live | Lifecycle::Reattaching
        );
        if may_change {
            let _ = self.shared.changed.wait_timeout(state, limit);
        }
    }

    /// Why the daemon that came back does not accept the session.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.shared.lock().refusal.clone()
    }

    /// How the last daemon ended, as far as it is known.
    pub(crate) fn exit_reason(&self) -> String {
        let state = self.shared.lock();
        state.exit_reason.clone().unwrap_or_else(|| "the previous one had ended too".to_owned())
    }

    /// As [`exit_reason`](Self::exit_reason), for a connection that closed before the attach; waits up to a second for it.
    pub(crate) fn wait_for_exit_reason(&self) -> String {
        let end = Instant::now() + Duration::from_secs(1);
        let mut state = self.shared.lock();
        loop {
            if let Some(reason) = &state.exit_reason {
                return reason.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return "it closed the connection and still runs".to_owned();
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.enter(|_| Lifecycle::Closed);
        let _ = self.shared.waker.ring();
        if self.is_private && self.own_process == std::process::id() {
            let state = self.shared.lock();
            let result = self
                .shared
                .changed
                .wait_timeout_while(state, CLOSE_TIMEOUT, |state| !state.is_reaped);
            drop(result);
        }
    }
}

/// Consumes all pending wake-ups.
fn drain_wakeups(wakeups: &Connection) {
    use forebay_protocol::frames::ClientFrame;
    use forebay_protocol::socket::Incoming;
    while let Ok(Incoming::Doorbell) = wakeups.receive::<ClientFrame>() {}
}

/// Waits until one of the descriptors is readable or hung up, or the limit passes.
fn wait_for_any(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut watched: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
        .collect();
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        // Rounded up: a wait that ends early would spin.
        let limit = limit + Duration::from_millis(1);
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    let _ = poll(&mut watched, timeout);
}

/// Starts a thread of this library with all signals blocked: the program's own threads handle them.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let masked = move || {
        let _ = nix::sys::signal::SigSet::all().thread_block();
        work();
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(masked)
        .map_err(|error| Error::Memory(format!("starting thread `{name}` failed: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(lifecycle: Lifecycle) -> (Supervisor, Connection) {
        let (shared, wakeups) = Supervisor::new_shared().unwrap();
        shared.lock().lifecycle = lifecycle;
        (Supervisor { shared, own_process: std::process::id(), is_private: false }, wakeups)
    }

    /// Otherwise the loss of the next daemon, which has the session's memory, would be taken for its refusal, and its
    /// death would not be awaited.
    #[test]
    fn refusal_applies_only_to_the_daemon_that_refused() {
        for lifecycle in [Lifecycle::Reattaching, Lifecycle::Restarting] {
            let (supervisor, _wakeups) = shared(lifecycle);
            supervisor.retry("taken".to_owned());
            assert!(supervisor.shared.lock().is_refused);
            supervisor.shared.offer(Arc::new(Connection::pair().unwrap().0));
            assert!(!supervisor.shared.lock().is_refused, "before the next one is greeted");
        }
        let (supervisor, _wakeups) = shared(Lifecycle::Starting);
        supervisor.shared.offer(Arc::new(Connection::pair().unwrap().0));
        supervisor.retry("taken".to_owned());
        assert!(!supervisor.shared.lock().is_refused, "after it");
    }
}
