//! A worker in the foreground: its standard input, output and error are those of this process, for a person who debugs.
//!
//! It is a child of this process, not of the spawner, and shares its process group: it may read from the terminal.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::interpreter::command;
use crate::spawner::End;
use crate::spec::PoolSpec;

/// Whether a worker in the foreground imports or calls now, and when one did last.
static STATE: Mutex<State> = Mutex::new(State { is_busy: false, ended: None });

/// An interrupt that came while the user's code ran is seen so much later at most.
const SEEN_LATE: Duration = Duration::from_secs(1);

struct State {
    is_busy: bool,
    ended: Option<Instant>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an interrupt of the terminal that is seen now is for the user's code in the foreground: it runs, or did until
/// a moment ago.
pub fn is_foreground_interrupted() -> bool {
    let State { is_busy, ended } = *state();
    is_busy || ended.is_some_and(|ended| ended.elapsed() < SEEN_LATE)
}

/// The user's code may run in the foreground while it lives.
pub(crate) struct Busy;

impl Busy {
    pub(crate) fn begin() -> Self {
        state().is_busy = true;
        Self
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *state() = State { is_busy: false, ended: Some(Instant::now()) };
    }
}

/// The process. It ends with the thread that started it at the latest.
#[derive(Debug)]
pub(crate) struct ForegroundProcess(Child);

impl ForegroundProcess {
    /// Starts it with a socket and an arena.
    pub(crate) fn start(spec: &PoolSpec, descriptors: [OwnedFd; 2]) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!("the interpreter `{}` cannot be started: {error}", spec.interpreter.display())
        };
        // The child finds them under the numbers that they have here. Both are closed here when this returns.
        for descriptor in &descriptors {
            fcntl_setfd(descriptor, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        }
        let numbers = descriptors.each_ref().map(AsRawFd::as_raw_fd);
        let child = command(&spec.interpreter, &spec.to_json(Some(numbers))).spawn();
        child.map(Self).map_err(failed)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.id()
    }

    /// Kills it, unless it has ended; how it ended.
    pub(crate) fn end(&mut self) -> End {
        // One that has ended cannot be killed.
        let _ = self.0.kill();
        match self.0.wait() {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => End::Signal(signal),
                (None, Some(code)) => End::Code(code),
                (None, None) => End::Unknown,
            },
            Err(_) => End::Unknown,
        }
    }
}

impl Drop for ForegroundProcess {
    fn drop(&mut self) {
        self.end();
    }
}
