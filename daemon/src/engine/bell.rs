//! Wakes the engine thread from any thread without a lock: an eventfd that only this process has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Any number of rings before the engine looks count as one.
///
/// Each ring is a system call, though a flag could spare those that come while it rings already: a lowered thread that
/// is put aside between setting such a flag and its call would keep every other thread's ring from being heard.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// Rings. What was done before the ring is seen by whoever hears it: the kernel's counter orders both.
    pub(crate) fn ring(&self) {
        // A full counter means that it rings already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Stops the ringing. What is looked at after it includes all that was done before the rings.
    pub(crate) fn hear(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_after_hearing_is_heard_again() {
        let bell = Bell::new().unwrap();
        let readable = |bell: &Bell| rustix::io::read(&bell.descriptor, &mut [0u8; 8]).is_ok();
        bell.ring();
        bell.ring();
        bell.hear();
        assert!(!readable(&bell));
        bell.ring();
        assert!(readable(&bell));
    }
}
