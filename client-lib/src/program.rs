//! The private daemon's process: found, started with one end of a socket pair as its standard input, and reaped.
//!
//! The daemon ends by itself when the connection closes or its trainer dies (it holds a pidfd of it); signals are the
//! last resort. Nothing runs between fork and exec in this process, and the daemon gets a process group of its own, so
//! that a Ctrl-C at the terminal reaches the trainer alone.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::error::Error;

/// The environment variable that names the program.
pub const PROGRAM_VARIABLE: &str = "FOREBAY_PROGRAM";

const PATIENCE: Duration = Duration::from_secs(5);

/// Finds the `forebay` program: FOREBAY_PROGRAM, `beside` (what a package carries), beside this process's executable,
/// then PATH.
///
/// # Errors
/// [`Error::Config`] with the places that were looked at.
pub fn find_program(beside: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE).filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(named)
        } else {
            Err(Error::Config(format!(
                "{PROGRAM_VARIABLE} names `{}`, which is not a file",
                named.display()
            )))
        };
    }
    let mut places: Vec<PathBuf> = beside.map(Path::to_path_buf).into_iter().collect();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(folder.join("forebay"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("forebay"));
    if let Some(found) = places.iter().cloned().chain(on_path).find(|place| is_program(place)) {
        return Ok(found);
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(Error::Config(format!(
        "the `forebay` program was not found at {} nor on PATH; install it, or name it in {PROGRAM_VARIABLE}",
        looked.join(", ")
    )))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A pidfd of this process, for the daemon to watch. `None` on a kernel that gives none.
pub(crate) fn own_pidfd() -> Option<OwnedFd> {
    pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok()
}

/// A daemon that serves this process alone.
#[derive(Debug)]
pub(crate) struct PrivateDaemon {
    child: Child,
}

impl PrivateDaemon {
    /// Starts `PROGRAM private` with its end of the connection as standard input.
    pub(crate) fn spawn(program: &Path, connection: OwnedFd) -> Result<Self, Error> {
        Command::new(program)
            .arg("private")
            .stdin(Stdio::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map(|child| Self { child })
            .map_err(|error| {
                Error::Config(format!(
                    "the program `{}` could not be started: {error}",
                    program.display()
                ))
            })
    }

    /// The process's number.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, once its connection is closed; waits for it a moment.
    pub(crate) fn exit_words(&mut self) -> String {
        match wait_for(&mut self.child, Duration::from_secs(1)) {
            Some(Ok(status)) => describe(status),
            Some(Err(_)) => {
                "it ended, and its exit status went to another part of this program".into()
            }
            None => "it closed the connection and still runs".into(),
        }
    }

    /// Sees the process out on a thread of its own, so that no zombie stays: 5 s for it to end by itself, then SIGTERM,
    /// 5 s more, then SIGKILL.
    pub(crate) fn reap(self) {
        let mut child = self.child;
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        let see_out = move || {
            for signal in [Signal::TERM, Signal::KILL] {
                if wait_for(&mut child, PATIENCE).is_some() {
                    return;
                }
                let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                if let Some(id) = id {
                    // The process is our unreaped child, so the number is still its own.
                    let _ = kill_process(id, signal);
                }
            }
            let _ = child.wait();
        };
        // Without a thread the daemon still ends by itself; only its zombie stays until this process ends.
        let _ = std::thread::Builder::new().name("forebay-reap".into()).spawn(see_out);
    }
}

/// Waits for a child up to a limit, without a signal handler: on its pidfd, else by looking again.
fn wait_for(child: &mut Child, limit: Duration) -> Option<std::io::Result<ExitStatus>> {
    let end = Instant::now() + limit;
    let pidfd = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(Ok(status)),
            Err(error) => return Some(Err(error)),
            Ok(None) => {}
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        match &pidfd {
            Some(pidfd) => {
                let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                let _ = poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout);
            }
            None => std::thread::sleep(left.min(Duration::from_millis(20))),
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("its process ended with status {code}"),
        (None, Some(signal)) => format!("its process was ended by signal {signal}"),
        (None, None) => format!("its process ended: {status}"),
    }
}
