//! Whether the process at the other end of a socket is one of the daemon's own: of its user, and in its user and PID
//! namespaces, so in its container.
//!
//! `/proc/PID/ns` needs the right to trace the process, which Landlock takes from a daemon at work. Everybody may read
//! `/proc/PID/status`, where `NSpid` has a number for each PID namespace from that of /proc down to the process's, and
//! `/proc/PID/uid_map`, which shows a namespace that has other users. Two user namespaces with the same map in one PID
//! namespace are not told apart: there, a process of the same user can also send the daemon signals.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use forebay_host::sockets::credentials;
use forebay_protocol::socket::Connection;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Uid;

/// Whether the peer is of the daemon's user, in its user and PID namespaces. False where that cannot be known.
pub(crate) fn is_own_process(connection: &Connection) -> bool {
    let Ok(peer) = credentials(connection) else { return false };
    peer.uid() == Uid::effective().as_raw()
        && shares_namespaces(peer.pid())
        // Afterwards: as long as the process exists, its number is no other's.
        && still_exists(getsockopt(connection, sockopt::PeerPidfd))
}

/// What tells the namespaces of a process from others.
#[derive(Debug, PartialEq, Eq)]
struct Namespaces {
    uid_map: String,
    gid_map: String,
}

impl Namespaces {
    /// Of the process with this number here. `None`: it is in another PID namespace, or nothing can be read of it.
    fn of(process: &str, number: u32) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
        let status = read("status")?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        // A second number is that in a namespace below; another one means that /proc is that of a namespace above.
        let is_here = numbers.split_whitespace().eq([number.to_string()]);
        is_here.then_some(Self { uid_map: read("uid_map")?, gid_map: read("gid_map")? })
    }
}

/// Whether the process with this number, as the kernel gives it for a socket's peer, is in this process's namespaces.
fn shares_namespaces(process: i32) -> bool {
    // 0 stands for a process that is not visible from this PID namespace.
    let Some(number) = u32::try_from(process).ok().filter(|number| *number > 0) else {
        return false;
    };
    let own = Namespaces::of("self", std::process::id());
    own.is_some() && own == Namespaces::of(&number.to_string(), number)
}

/// Whether the process of a pidfd has not ended. Kernels before Linux 6.5 give none for a peer: they cannot tell.
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
    fn a_child_is_in_its_parents_namespaces_and_nobody_is_in_those_of_a_number_that_is_none() {
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
    fn a_peer_in_this_process_is_its_own() {
        let (daemon, _client) = Connection::pair().unwrap();
        assert!(is_own_process(&daemon));
    }
}
