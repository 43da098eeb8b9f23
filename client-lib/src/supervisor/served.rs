//! The supervisor of a connection to a daemon that a service manager restarts: reconnects to its socket.
//!
//! The memory of a session goes to the next daemon only when the previous one is known to be dead, so that two daemons
//! never write to it. Where the kernel gives no pidfd of the daemon (another PID namespace before Linux 6.5), the lock file
//! beside the socket, which one daemon at a time holds, ensures that.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_protocol::socket::Connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::start::greet;
use super::{Lifecycle, Shared, Supervisor, drain_wakeups, spawn, wait_for_any};
use crate::error::Error;
use crate::program::open_pidfd;

/// The interval between attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl Supervisor {
    /// Starts the thread that watches a connection and makes the next one. `socket` is absolute: the working directory may
    /// change.
    pub(crate) fn served(socket: PathBuf, connection: &Arc<Connection>) -> Result<Self, Error> {
        let (shared, wakeups) = Self::new_shared()?;
        let thread = Thread { shared: Arc::clone(&shared), wakeups, socket };
        let connection = Arc::clone(connection);
        spawn("forebay-monitor", move || thread.run(connection))?;
        Ok(Self { shared, own_process: std::process::id(), is_private: false })
    }
}

struct Thread {
    shared: Arc<Shared>,
    wakeups: Connection,
    socket: PathBuf,
}

impl Thread {
    fn run(self, first: Arc<Connection>) {
        let mut connection = first;
        loop {
            let daemon = pidfd_of(&connection);
            if !self.watch(&connection, daemon.as_ref()) {
                return;
            }
            drop(connection);
            let entered = self.shared.enter(|state| {
                state.exit_reason.get_or_insert_with(|| "it closed the connection".to_owned());
                state.publish = None;
                Lifecycle::Restarting
            });
            if !entered || !self.wait_for_exit(daemon.as_ref()) {
                return;
            }
            let Some(next) = self.connect() else { return };
            connection = Arc::clone(&next);
            // Relaxed: a count.
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            self.shared.enter(|state| {
                state.exit_reason = None;
                Lifecycle::Ready(next)
            });
        }
    }

    /// Waits until the connection ends or the loader abandons it. False: the loader is dropped.
    fn watch(&self, connection: &Connection, daemon: Option<&OwnedFd>) -> bool {
        loop {
            match self.shared.lock().lifecycle {
                Lifecycle::Closed | Lifecycle::Lost => return false,
                Lifecycle::Restarting => return true,
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

    /// Waits for the daemon's exit. False: the loader is dropped.
    fn wait_for_exit(&self, daemon: Option<&OwnedFd>) -> bool {
        let Some(daemon) = daemon else {
            return !self.shared.is_closed();
        };
        loop {
            if self.shared.is_closed() {
                return false;
            }
            let mut polled = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return true;
            }
            wait_for_any(&[daemon.as_fd(), self.wakeups.as_fd()], None);
            drain_wakeups(&self.wakeups);
        }
    }

    /// Connects to the socket once a daemon listens there. `None`: the loader is dropped.
    fn connect(&self) -> Option<Arc<Connection>> {
        loop {
            if self.shared.is_closed() {
                return None;
            }
            if let Ok(connection) = Connection::connect(&self.socket)
                && greet(&connection).is_ok()
            {
                return Some(Arc::new(connection));
            }
            wait_for_any(&[self.wakeups.as_fd()], Some(RETRY_INTERVAL));
            drain_wakeups(&self.wakeups);
        }
    }
}

/// A pidfd of the daemon, where the kernel gives one.
fn pidfd_of(connection: &Connection) -> Option<OwnedFd> {
    if let Ok(descriptor) = getsockopt(connection, sockopt::PeerPidfd) {
        return Some(descriptor);
    }
    open_pidfd(getsockopt(connection, sockopt::PeerCredentials).ok()?.pid())
}
