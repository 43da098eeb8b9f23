//! Descriptors that are held in reserve, so that a process at its limit of open files can still replace its daemon.
//!
//! They are closed before the next daemon is started or connected to, which uses the freed entries of the process's
//! table, and are opened again after the loader is attached. Another thread may take an entry in between: then the
//! start is retried.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// The maximum number of descriptors for a start besides the ones that the dead daemon has freed: the socket pair, a
/// pidfd of this process, the child's standard streams, the pipe for its start, its pidfd, and the descriptors that
/// come with `Kept` and `Attached`.
const HELD: usize = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<OwnedFd>);

impl Reserve {
    /// Opens descriptors up to the intended number; fewer at the limit.
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
