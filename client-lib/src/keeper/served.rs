//! The keeper of a connection to a daemon that somebody else watches over: it finds the way back to the socket.
//!
//! The memory of a session is given to the next daemon only when the one before is known to be dead, so that two never
//! write into it. Where the kernel does not tell (another PID namespace before Linux 6.5) the lock beside the socket,
//! which one daemon at a time holds, has to do.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_protocol::socket::Connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::start::greet;
use super::{Keeper, Life, Shared, hear, spawn, wait_for_any};
use crate::error::Error;

/// How often a socket is tried that nobody listens at.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Where the daemon listens.
#[derive(Debug)]
pub(crate) struct ServedPlace {
    /// Absolute: the working folder may change.
    pub(crate) path: PathBuf,
}

impl Keeper {
    /// Starts the thread that watches a connection and makes the next one.
    pub(crate) fn served(place: ServedPlace, connection: &Arc<Connection>) -> Result<Self, Error> {
        let (shared, heard) = Self::begin(Life::Young)?;
        let threads = Thread { shared: Arc::clone(&shared), heard, place };
        let connection = Arc::clone(connection);
        spawn("forebay-keeper", move || threads.run(connection))?;
        Ok(Self { shared, own_process: std::process::id(), is_private: false })
    }
}

struct Thread {
    shared: Arc<Shared>,
    heard: Connection,
    place: ServedPlace,
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
                state.ended.get_or_insert_with(|| "it closed the connection".to_owned());
                state.publish = None;
                Life::Restarting
            });
            if !entered || !self.wait_for_death(daemon.as_ref()) {
                return;
            }
            let Some(next) = self.connect() else { return };
            connection = Arc::clone(&next);
            // Relaxed: a count.
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            self.shared.enter(|state| {
                state.ended = None;
                Life::Ready(next)
            });
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.shared.lock().life, Life::Closed)
    }

    /// Waits for the connection's end, or until the loader gives it up. False: the loader is gone.
    fn watch(&self, connection: &Connection, daemon: Option<&OwnedFd>) -> bool {
        loop {
            {
                let state = self.shared.lock();
                match state.life {
                    Life::Closed | Life::Lost => return false,
                    Life::Restarting => return true,
                    _ => {}
                }
            }
            // No event is asked for: a hang-up is told anyway, and frames are the loader's.
            let mut watched = vec![
                PollFd::new(connection.as_fd(), PollFlags::empty()),
                PollFd::new(self.heard.as_fd(), PollFlags::POLLIN),
            ];
            watched.extend(daemon.map(|daemon| PollFd::new(daemon.as_fd(), PollFlags::POLLIN)));
            let _ = poll(&mut watched, PollTimeout::NONE);
            let happened =
                |place: usize| watched.get(place).is_some_and(|one| one.any().unwrap_or(false));
            if happened(0) || happened(2) {
                return !self.is_closed();
            }
            hear(&self.heard);
        }
    }

    /// False: the loader is gone.
    fn wait_for_death(&self, daemon: Option<&OwnedFd>) -> bool {
        let Some(daemon) = daemon else {
            return !self.is_closed();
        };
        loop {
            if self.is_closed() {
                return false;
            }
            let mut looked = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
            if poll(&mut looked, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return true;
            }
            wait_for_any(&[daemon.as_fd(), self.heard.as_fd()], None);
            hear(&self.heard);
        }
    }

    /// Tries the socket until somebody answers. `None`: the loader is gone.
    fn connect(&self) -> Option<Arc<Connection>> {
        loop {
            if self.is_closed() {
                return None;
            }
            if let Ok(connection) = Connection::connect(&self.place.path)
                && greet(&connection).is_ok()
            {
                return Some(Arc::new(connection));
            }
            wait_for_any(&[self.heard.as_fd()], Some(TRY_AGAIN));
            hear(&self.heard);
        }
    }
}

/// The daemon's process, as far as the kernel tells of it.
fn pidfd_of(connection: &Connection) -> Option<OwnedFd> {
    if let Ok(descriptor) = getsockopt(connection, sockopt::PeerPidfd) {
        return Some(descriptor);
    }
    let peer = getsockopt(connection, sockopt::PeerCredentials).ok()?;
    pidfd_open(Pid::from_raw(peer.pid())?, PidfdFlags::empty()).ok()
}
