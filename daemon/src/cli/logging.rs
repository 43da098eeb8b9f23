//! Log lines to stderr, off the threads that matter: bounded, and lossy rather than blocking.

mod repeats;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format;

use self::repeats::WithoutRepeats;

/// The target of the line about an opened dataset.
pub(super) const DATASET: &str = "forebay::dataset";

/// The target of errors that a client is sent, and raises: a private daemon's log is its trainer's.
pub(super) const SENT: &str = forebay_engine::SENT_TO_CLIENT;

/// Lines that may be buffered; further lines are dropped and counted.
const BUFFERED_LINES: usize = 4096;

/// Keeps logging active. Dropping it writes what is buffered and how many lines are missing.
pub(super) struct Logging {
    guard: Option<WorkerGuard>,
    lost: tracing_appender::non_blocking::ErrorCounter,
    uncounted: Arc<AtomicU64>,
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
    let uncounted = Arc::new(AtomicU64::new(0));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .event_format(WithoutRepeats::new(format().with_target(false), Arc::clone(&uncounted)))
        .finish();
    // Only the first logger of a process counts.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Logging { guard: Some(guard), lost, uncounted }
}

impl Drop for Logging {
    fn drop(&mut self) {
        drop(self.guard.take());
        let lost = self.lost.dropped_lines();
        if lost > 0 && stderr_has_room() {
            eprintln!("forebay: {lost} log lines were dropped because stderr was slow");
        }
        let left_out = self.uncounted.load(Ordering::Relaxed);
        if left_out > 0 && stderr_has_room() {
            eprintln!("forebay: {left_out} more warnings of the kinds above were left out");
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
