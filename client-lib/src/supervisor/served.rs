//! The supervisor of a connection to a daemon at a socket: connects to the next one there, which a service manager
//! starts, or one of the clients that share the daemon ([`Revival`]).
//!
//! The memory of a session goes to the next daemon only after the previous one is known to be dead, so that two daemons
//! never write to it. If the kernel gives no pidfd of the daemon (another PID namespace before Linux 6.5), the lock
//! file next to the socket ensures this: only one daemon at a time holds it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_protocol::socket::Connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::reserve::Reserve;
pub(crate) use super::revival::Revival;
use super::revival::Reviver;
use super::start::greet;
use super::{Lifecycle, Shared, Supervisor, drain_wakeups, spawn, wait_for_any};
use crate::error::Error;
use crate::program::open_pidfd;

/// The interval between attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The longest delay between requests to a daemon that refuses the session.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Starts the thread that watches a connection and creates the next one. `socket` is absolute: the working
    /// directory may change. `revival`: how this client starts the next daemon; otherwise others do.
    pub(crate) fn served(
        socket: PathBuf,
        connection: &Arc<Connection>,
        revival: Option<Revival>,
    ) -> Result<Self, Error> {
        let (shared, wakeups) = Self::new_shared()?;
        let reserve = Reserve::default();
        let reviver = revival.map(Reviver::new);
        let thread = Thread { shared: Arc::clone(&shared), wakeups, socket, reserve, reviver };
        let connection = Arc::clone(connection);
        spawn("forebay-monitor", move || thread.run(connection))?;
        Ok(Self { shared, own_process: std::process::id(), is_private: false })
    }
}

struct Thread {
    shared: Arc<Shared>,
    wakeups: Connection,
    socket: PathBuf,
    reserve: Reserve,
    reviver: Option<Reviver>,
}

/// The reason why a connection is no longer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// The daemon is dead, or it is unknown whether it is.
    Dead,
    /// The daemon lives and does not accept the session for now.
    Refused,
}

impl Thread {
    fn run(mut self, first: Arc<Connection>) {
        let mut connection = first;
        let mut refusals = 0;
        loop {
            let daemon = pidfd_of(&connection);
            if !self.watch(&connection, daemon.as_ref()) {
                return;
            }
            drop(connection);
            let mut has_progressed = false;
            let entered = self.shared.enter(|state| {
                state.exit_reason.get_or_insert_with(|| "it closed the connection".to_owned());
                has_progressed = state.publish.take().is_some_and(|ring| ring.published() > 0);
                Lifecycle::Restarting
            });
            if !entered {
                return;
            }
            match self.wait_for_exit(daemon.as_ref()) {
                None => return,
                Some(Gone::Dead) => {
                    refusals = 0;
                    if let Some(reviver) = &mut self.reviver {
                        reviver.on_death(&self.shared, has_progressed);
                    }
                }
                Some(Gone::Refused) => {
                    refusals += 1;
                    if !self.back_off(refusals) {
                        return;
                    }
                }
            }
            self.reserve.release();
            let Some(next) = self.connect() else { return };
            connection = Arc::clone(&next);
            if refusals == 0 {
                // Relaxed: a count.
                self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            }
            self.shared.offer(next);
        }
    }

    /// Waits until the connection ends or the loader abandons it. False: the loader is dropped.
    fn watch(&mut self, connection: &Connection, daemon: Option<&OwnedFd>) -> bool {
        loop {
            match self.shared.lock().lifecycle {
                Lifecycle::Closed | Lifecycle::Lost => return false,
                Lifecycle::Restarting => return true,
                Lifecycle::Live => self.reserve.fill(),
                _ => {}
            }
            // No event is requested: POLLHUP is always reported, and the loader reads the frames.
            let mut watched = vec![
                PollFd::new(connection.as_fd(), PollFlags::empty()),
                PollFd::new(self.wakeups.as_fd(), PollFlags::POLLIN),
            ];
            watched.extend(daemon.map(|daemon| PollFd::new(daemon.as_fd(), PollFlags::POLLIN)));
            let _ = poll(&mut watched, PollTimeout::NONE);
            let has_event =
                |index: usize| watched.get(index).is_some_and(|one| one.any().unwrap_or(false));
            if has_event(0) || has_event(2) {
                return !self.shared.is_closed();
            }
            drain_wakeups(&self.wakeups);
        }
    }

    /// Waits for the daemon's exit, or for the loader's message that the daemon has refused the session: such a daemon
    /// never had the session's memory. `None`: the loader is dropped.
    fn wait_for_exit(&self, daemon: Option<&OwnedFd>) -> Option<Gone> {
        loop {
            let mut state = self.shared.lock();
            if matches!(state.lifecycle, Lifecycle::Closed) {
                return None;
            }
            if std::mem::take(&mut state.is_refused) {
                return Some(Gone::Refused);
            }
            drop(state);
            let Some(daemon) = daemon else { return Some(Gone::Dead) };
            let mut polled = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return Some(Gone::Dead);
            }
            wait_for_any(&[daemon.as_fd(), self.wakeups.as_fd()], None);
            drain_wakeups(&self.wakeups);
        }
    }

    /// Waits before the next request after `refusals` refusals. False: the loader is dropped.
    fn back_off(&self, refusals: u32) -> bool {
        let delay = RETRY_INTERVAL.saturating_mul(1 << refusals.min(16)).min(MAX_BACKOFF);
        let end = Instant::now() + delay;
        while !self.shared.is_closed() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            wait_for_any(&[self.wakeups.as_fd()], Some(left));
            drain_wakeups(&self.wakeups);
        }
        false
    }

    /// Connects to the socket once a daemon listens there. `None`: the loader is dropped, or no daemon will come back.
    fn connect(&mut self) -> Option<Arc<Connection>> {
        loop {
            if self.shared.is_closed() {
                return None;
            }
            if let Some(connection) = self.try_connect() {
                return Some(Arc::new(connection));
            }
            if let Some(reviver) = &mut self.reviver
                && let Err(reason) = reviver.revive(&self.shared)
            {
                self.shared.enter(|state| {
                    state.lost_reason = Some(reason);
                    Lifecycle::Lost
                });
                return None;
            }
            wait_for_any(&[self.wakeups.as_fd()], Some(RETRY_INTERVAL));
            drain_wakeups(&self.wakeups);
        }
    }
}

impl Thread {
    /// Connects and sends `Hello`, if a daemon listens.
    fn try_connect(&self) -> Option<Connection> {
        match &self.reviver {
            // The session's memory goes to a daemon of this user alone.
            Some(reviver) => reviver.connect(),
            None => {
                let connection = Connection::connect(&self.socket).ok()?;
                greet(&connection).ok().map(|()| connection)
            }
        }
    }
}

/// A pidfd of the daemon, if the kernel provides one.
fn pidfd_of(connection: &Connection) -> Option<OwnedFd> {
    if let Ok(descriptor) = getsockopt(connection, sockopt::PeerPidfd) {
        return Some(descriptor);
    }
    open_pidfd(getsockopt(connection, sockopt::PeerCredentials).ok()?.pid())
}
