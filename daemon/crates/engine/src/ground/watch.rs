//! Watches a descriptor with the runtime.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor that its owner keeps open as long as the watch lives.
///
/// # Errors
/// The kernel cannot poll it.
pub fn watch<T: AsFd + AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the unsafe successor asks that the descriptor stays open, which every `AsFd` owner here sees to"
    )]
    AsyncFd::with_interest(owner, interest)
}
