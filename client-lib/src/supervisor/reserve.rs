//! Descriptors that are held in advance, so that a process at its limit of open files still replaces its daemon.
//!
//! They are closed before the next daemon is started or connected to, which takes their places in the process's table, and
//! opened again once the loader is attached. Another thread may take a place in between: then the start is tried again.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// What a start takes at most beside what the dead daemon has left: the socket pair, a pidfd of this process, the child's
/// standard streams, the pipe by which its start is awaited, its pidfd, and the descriptors that come with `Kept` and
/// `Attached`.
const HELD: usize = 16;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<OwnedFd>);

impl Reserve {
    /// Opens as many as there are to be; fewer at the limit.
    pub(super) fn fill(&mut self) {
        while self.0.len() < HELD {
            let Ok(descriptor) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
            self.0.push(descriptor);
        }
    }

    /// Closes them.
    pub(super) fn release(&mut self) {
        self.0.clear();
    }
}
