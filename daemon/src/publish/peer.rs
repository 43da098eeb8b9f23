//! Knowing that the process at the other end has died, even when a child of it still holds the socket.

use std::os::fd::OwnedFd;

use forebay_protocol::socket::Connection;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use crate::engine::watch;

/// The kernel's word on who connected.
pub(crate) fn credentials(connection: &Connection) -> nix::Result<UnixCredentials> {
    getsockopt(connection, sockopt::PeerCredentials)
}

/// A descriptor that becomes readable when the peer dies: the kernel's own (Linux 6.5), else by its process id where
/// that can be seen from here.
pub(crate) fn pidfd(connection: &Connection) -> Option<OwnedFd> {
    if let Ok(descriptor) = getsockopt(connection, sockopt::PeerPidfd) {
        return Some(descriptor);
    }
    let pid = Pid::from_raw(credentials(connection).ok()?.pid())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns when the process behind the descriptor has died; never, when that cannot be known.
pub(crate) async fn death(pidfd: Option<OwnedFd>) {
    let watched = pidfd.and_then(|pidfd| watch(pidfd, Interest::READABLE).ok());
    match watched {
        Some(watched) => {
            let _ = watched.readable().await;
        }
        None => std::future::pending().await,
    }
}
