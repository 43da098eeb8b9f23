//! Detects the death of the process at the other end, even if a child still has the socket.

use std::os::fd::{AsRawFd, OwnedFd};

use forebay_protocol::socket::Connection;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use forebay_engine::watch;
use forebay_host::sockets::credentials;

/// A descriptor that becomes readable when the peer dies: from the kernel (Linux 6.5), or else by its process id if
/// that is visible here.
pub(crate) fn pidfd(connection: &Connection) -> Option<OwnedFd> {
    if let Ok(descriptor) = getsockopt(connection, sockopt::PeerPidfd) {
        return Some(descriptor);
    }
    let pid = Pid::from_raw(credentials(connection).ok()?.pid())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a descriptor that a client sent is a pidfd: waiting for another kind would depend on the client.
pub(crate) fn is_pidfd(descriptor: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    // `anon_inode:[pidfd]`, since Linux 6.9 `pidfd:[inode]`.
    std::fs::read_link(link).is_ok_and(|name| {
        let name = name.to_string_lossy();
        name == "anon_inode:[pidfd]" || name.starts_with("pidfd:[")
    })
}

/// Returns when the descriptor's process has died; never, if that is unknown.
pub(crate) async fn death(pidfd: Option<OwnedFd>) {
    let watched = pidfd.and_then(|pidfd| watch(pidfd, Interest::READABLE).ok());
    match watched {
        Some(watched) => {
            let _ = watched.readable().await;
        }
        None => std::future::pending().await,
    }
}
