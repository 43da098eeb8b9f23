//! Log lines to stderr from a separate thread: bounded, and lossy rather than blocking.

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

/// The target of the line with the address of `listen.metrics`.
pub(super) const METRICS: &str = "forebay::metrics";

/// The target of errors that are also sent to a client, which raises them: a private daemon's log is its trainer's.
pub(super) const SENT: &str = forebay_engine::SENT_TO_CLIENT;

/// The maximum number of buffered lines; further lines are dropped and counted.
const BUFFERED_LINES: usize = 4096;

/// Keeps logging active. Dropping it flushes the buffer and writes the number of dropped lines.
pub(super) struct Logging {
    guard: Option<WorkerGuard>,
    lost: tracing_appender::non_blocking::ErrorCounter,
    uncounted: Arc<AtomicU64>,
}

/// Starts logging. `FOREBAY_LOG` filters (`debug`, `warn,forebay_engine=trace`). Without it, or if it is invalid, which
/// is reported, `default` applies.
pub(super) fn start(default: &str) -> Logging {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(BUFFERED_LINES)
        .thread_name("forebay-log")
        .finish(std::io::stderr());
    let lost = writer.error_counter();
    let given = std::env::var("FOREBAY_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = given.as_deref().map_or_else(|| Ok(EnvFilter::new(default)), EnvFilter::try_new);
    let filter = filter.unwrap_or_else(|error| {
        if stderr_has_room() {
            let given = given.unwrap_or_default();
            eprintln!(
                "forebay: FOREBAY_LOG = {given:?}: {error}; it is a level such as debug, or levels of parts such as \
                 warn,forebay_engine=trace"
            );
        }
        EnvFilter::new(default)
    });
    let uncounted = Arc::new(AtomicU64::new(0));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .event_format(WithoutRepeats::new(format().with_target(false), Arc::clone(&uncounted)))
        .finish();
    // Only the first logger of a process is used.
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

/// Whether a line can be written without blocking: a daemon whose trainer has ended must not wait forever for a reader
/// of its stderr.
fn stderr_has_room() -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let stderr = std::io::stderr();
    let mut watched = [PollFd::new(std::os::fd::AsFd::as_fd(&stderr), PollFlags::POLLOUT)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
