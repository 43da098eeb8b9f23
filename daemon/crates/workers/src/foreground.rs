//! A worker in the foreground: it has this process's standard input, output and error, for debugging.
//!
//! It is a child of this process, not of the spawner, and in its process group, so that it may read from the terminal.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::children::wait_until;
use crate::interpreter::command;
use crate::process::{Process, open_files};
use crate::spawner::End;
use crate::spec::PoolSpec;

/// Whether a worker in the foreground is importing or calling, and when one last ended doing so.
static STATE: Mutex<State> = Mutex::new(State { is_busy: false, ended: None });

/// Maximum delay between an interrupt during the user's code and its detection.
const SEEN_LATE: Duration = Duration::from_secs(1);

/// Maximum time for the killed process to end; a process that hangs in the kernel is abandoned.
const END_LIMIT: Duration = Duration::from_secs(5);

struct State {
    is_busy: bool,
    ended: Option<Instant>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an interrupt of the terminal that is detected now is meant for the user's code in the foreground: it runs,
/// or did until a moment ago.
pub fn is_foreground_interrupted() -> bool {
    let State { is_busy, ended } = *state();
    is_busy || ended.is_some_and(|ended| ended.elapsed() < SEEN_LATE)
}

/// While it exists, the user's code may run in the foreground.
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
    /// Starts the process with a socket and an arena.
    pub(crate) fn start(spec: &PoolSpec, descriptors: [OwnedFd; 2]) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!("the interpreter `{}` cannot be started: {error}", spec.interpreter.display())
        };
        // The child inherits them under their numbers in this process, which closes both on return.
        for descriptor in &descriptors {
            fcntl_setfd(descriptor, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        }
        let numbers = descriptors.each_ref().map(AsRawFd::as_raw_fd);
        let spec_memory = spec.to_memory(Some(numbers)).map_err(failed)?;
        fcntl_setfd(&spec_memory, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        let mut command = command(&spec.interpreter, spec_memory.as_fd());
        for name in spec.withheld {
            command.env_remove(name);
        }
        let child = command.spawn();
        child.map(Self).map_err(failed)
    }

    #[cfg(test)]
    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn process(&self) -> Process {
        Process::new(self.0.id(), open_files(self.0.id()))
    }

    /// Kills the process, unless it has ended; returns how it ended.
    pub(crate) fn end(&mut self) -> End {
        // Fails if the process has ended.
        let _ = self.0.kill();
        let status = wait_until(&mut self.0, Instant::now() + END_LIMIT);
        match status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => End::Signal(signal),
            Some((None, Some(code))) => End::Code(code),
            Some((None, None)) | None => End::Unknown,
        }
    }
}

impl Drop for ForegroundProcess {
    fn drop(&mut self) {
        self.end();
    }
}
