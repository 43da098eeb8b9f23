//! Helpers that the end-to-end tests share.
//!
//! The tests start the built `forebay` program as its users do, in folders of their own, and look at it from outside:
//! through clients, its output, its exit status and what the kernel says of its process. Nothing here asserts how long
//! something may take; every wait has a generous deadline ([`DEADLINE`]) past which it says what it waited for.
//!
//! - [`test_dir`]: a folder with data, configurations, sockets and caches of its own; [`data`] fills it.
//! - [`program`]: finds the program, builds it where it is missing or old, and runs it.
//! - [`daemon`]: a running `forebay serve`, its figures and its process.
//! - [`corpus`]: broken files of every format.
//! - [`raw`]: a client that sends any frame.
//! - [`hostile`]: clients that break every rule.
//! - [`feeding`]: feeders, peers that ask and read as they like, and feeders that lie.
//! - [`flood`]: a client that sends one frame without end.
//! - [`soak`]: a daemon at work for long.
//! - [`taken`]: what a batch held, for comparison.
//! - [`kills`]: kills processes at random instants and compares what arrives (`forebay-test-kills`).
//! - `forebay-test-trainer` (`src/bin`): a program that plays the trainer in a process of its own.
//! - `forebay-test-server` (`src/bin`): a bucket in bad weather, in a process of its own.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "a helper panics where the test that calls it fails"
)]

pub mod corpus;
pub mod daemon;
pub mod data;
pub mod feeding;
pub mod flood;
pub mod hostile;
pub mod kills;
pub mod program;
pub mod raw;
pub mod soak;
pub mod taken;
pub mod test_dir;

pub use daemon::Daemon;
pub use raw::Raw;
pub use taken::Taken;
pub use test_dir::TestDir;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take before a test gives up: long enough for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Looks every few milliseconds until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "waited {} s until {what}", DEADLINE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says that the calling test cannot run here, and why: past the test runner, which shows nothing of a test that passes.
/// `scripts/test` counts these lines.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// The names in a folder; none where there is no folder.
pub fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What a process has open.
pub fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names.map(|name| name.display().to_string()).collect()
}

/// Sends a signal to a process; false: it is gone.
pub fn signal(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid.cast_signed()), signal).is_ok()
}

/// Whether a process runs. A zombie has ended.
pub fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name stands in parentheses and may hold any character; the state follows.
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
