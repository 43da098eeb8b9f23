//! Whether the process at the other end of a socket belongs to the daemon's user and is in its user and PID namespaces,
//! and so in its container.
//!
//! Reading `/proc/PID/ns` requires the right to trace the process, which Landlock removes from a running daemon.
//! Everyone may read `/proc/PID/status`, where `NSpid` has a number for each PID namespace from that of /proc down to
//! the process's, and `/proc/PID/uid_map`, which reveals a namespace with other users. Two user namespaces with the
//! same map in one PID namespace are not distinguished: there, a process of the same user can also send signals to the
//! daemon.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use forebay_host::hidden::is_hidden;
use forebay_host::sockets::credentials;
use forebay_protocol::socket::Connection;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Uid;

/// Whether the peer belongs to the daemon's user and is in its user and PID namespaces. False if unknown.
pub(crate) fn is_own_process(connection: &Connection) -> bool {
    let Ok(peer) = credentials(connection) else { return false };
    peer.uid() == Uid::effective().as_raw()
        && shares_namespaces(peer.pid())
        // Checked last: as long as the process exists, its id is not reused.
        && still_exists(getsockopt(connection, sockopt::PeerPidfd))
}

/// Whether /proc hides the peer's process from this one, so that nothing can be known about it.
pub(crate) fn is_hidden_process(connection: &Connection) -> bool {
    credentials(connection).is_ok_and(|peer| u32::try_from(peer.pid()).is_ok_and(is_hidden))
}

/// Distinguishes the namespaces of processes.
#[derive(Debug, PartialEq, Eq)]
struct Namespaces {
    uid_map: String,
    gid_map: String,
}

impl Namespaces {
    /// The namespaces of the process with this number here. `None`: it is in another PID namespace, or cannot be read.
    fn of(process: &str, number: u32) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
        let status = read("status")?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        // A second number comes from a nested namespace; a different number means that /proc belongs to an outer
        // namespace.
        let is_here = numbers.split_whitespace().eq([number.to_string()]);
        is_here.then_some(Self { uid_map: read("uid_map")?, gid_map: read("gid_map")? })
    }
}

/// Whether the process with this number, as the kernel reports it for a socket's peer, is in this process's namespaces.
fn shares_namespaces(process: i32) -> bool {
    // 0 means a process that is not visible from this PID namespace.
    let Some(number) = u32::try_from(process).ok().filter(|number| *number > 0) else {
        return false;
    };
    let own = Namespaces::of("self", std::process::id());
    own.is_some() && own == Namespaces::of(&number.to_string(), number)
}

/// Whether the process of a pidfd is alive. Before Linux 6.5 a peer has no pidfd, and it counts as alive.
fn still_exists(pidfd: nix::Result<OwnedFd>) -> bool {
    match pidfd {
        Ok(pidfd) => {
            let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
            poll(&mut ended, PollTimeout::ZERO) == Ok(0)
        }
        Err(error) => error == Errno::ENOPROTOOPT,
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn child_is_in_its_parents_namespaces_and_an_invalid_number_is_not() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let open = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (alive, ended) = (open(), open());
        assert!(shares_namespaces(number) && still_exists(Ok(alive)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shares_namespaces(number) && !still_exists(Ok(ended)));
        assert!(!shares_namespaces(0) && !shares_namespaces(-1));
        assert!(still_exists(Err(Errno::ENOPROTOOPT)) && !still_exists(Err(Errno::ESRCH)));
    }

    #[test]
    fn peer_in_this_process_is_an_own_process() {
        let (daemon, _client) = Connection::pair().unwrap();
        assert!(is_own_process(&daemon));
    }
}
