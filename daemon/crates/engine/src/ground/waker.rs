//! Wakes the engine thread from any thread without a lock, through an eventfd private to this process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wake-ups before the engine drains the descriptor count as one.
///
/// Each wake-up is a system call. A flag could save the calls made while one is pending, but a lowered thread that is
/// preempted between setting the flag and its call would suppress the wake-ups of all other threads.
#[derive(Debug)]
pub(crate) struct Waker {
    descriptor: OwnedFd,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// Wakes the engine thread. Writes before this call are visible after the next [`drain`](Self::drain): the kernel's
    /// counter orders both.
    pub(crate) fn wake(&self) {
        // A full counter means that a wake-up is pending.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Clears pending wake-ups. Reads after this call see all writes made before the cleared calls of
    /// [`wake`](Self::wake).
    pub(crate) fn drain(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::ground::waker::*;

    #[test]
    fn wake_after_drain_wakes_again() {
        let waker = Waker::new().unwrap();
        let readable = |waker: &Waker| rustix::io::read(&waker.descriptor, &mut [0u8; 8]).is_ok();
        waker.wake();
        waker.wake();
        waker.drain();
        assert!(!readable(&waker));
        waker.wake();
        assert!(readable(&waker));
    }
}
