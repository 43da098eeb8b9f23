//! Log lines to stderr, off the threads that matter: bounded, and lossy rather than blocking.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// The target of the line about an opened dataset.
pub(super) const DATASET: &str = "forebay::dataset";

/// Lines that may be buffered; further lines are dropped and counted.
const BUFFERED_LINES: usize = 4096;

/// Keeps logging active. Dropping it writes what is buffered and the number of lost lines.
pub(super) struct Logging {
    guard: Option<WorkerGuard>,
    lost: tracing_appender::non_blocking::ErrorCounter,
}

/// Starts logging. `FOREBAY_LOG` filters (`debug`, `warn,forebay_engine=trace`); else `default` holds.
pub(super) fn start(default: &str) -> Logging {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(BUFFERED_LINES)
        .thread_name("forebay-log")
        .finish(std::io::stderr());
    let lost = writer.error_counter();
    let filter = std::env::var("FOREBAY_LOG")
        .ok()
        .filter(|filter| !filter.is_empty())
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new(default));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter)
        .finish();
    // Only the first logger of a process counts.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Logging { guard: Some(guard), lost }
}

impl Drop for Logging {
    fn drop(&mut self) {
        drop(self.guard.take());
        let lost = self.lost.dropped_lines();
        if lost > 0 && stderr_has_room() {
            eprintln!("forebay: {lost} log lines were dropped because stderr was slow");
        }
    }
}

/// Whether a line can be written without blocking: a daemon whose trainer is gone must not wait for ever for a reader of
/// its stderr.
fn stderr_has_room() -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let stderr = std::io::stderr();
    let mut watched = [PollFd::new(std::os::fd::AsFd::as_fd(&stderr), PollFlags::POLLOUT)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
