//! The private daemon's process: its program is looked up, and started with one end of a socket pair as its standard
//! input.
//!
//! The daemon exits by itself when the connection closes or its trainer dies (it holds a pidfd of it); the supervisor
//! watches and reaps it. Nothing runs between fork and exec in this process, and the daemon gets a separate process
//! group, so that Ctrl-C at the terminal reaches the trainer only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::error::Error;

/// The environment variable that names the program.
pub const PROGRAM_VARIABLE: &str = "FOREBAY_PROGRAM";

/// Finds the `forebay` program: FOREBAY_PROGRAM, then `packaged` (a package's own copy), the folder of this process's
/// executable, and PATH.
///
/// # Errors
/// [`Error::Config`] if FOREBAY_PROGRAM does not name a file, or no program is found.
pub fn find_program(packaged: Option<&Path>) -> Result<PathBuf, Error> {
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
    let mut candidates: Vec<PathBuf> = packaged.map(Path::to_path_buf).into_iter().collect();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        candidates.push(folder.join("forebay"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("forebay"));
    if let Some(found) = candidates.iter().cloned().chain(on_path).find(|path| is_program(path)) {
        return Ok(found);
    }
    let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    Err(Error::Config(format!(
        "the `forebay` program was not found at {} nor on PATH; install it, or name it in {PROGRAM_VARIABLE}",
        tried.join(", ")
    )))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A pidfd of this process, for the daemon to watch. `None` on a kernel without pidfds.
pub(crate) fn own_pidfd() -> Option<OwnedFd> {
    pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok()
}

/// A pidfd of another process. `None` on a kernel without pidfds, or if the process does not exist.
pub(crate) fn open_pidfd(process: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()
}

/// How a daemon ended.
#[derive(Debug, Clone)]
pub(crate) struct Exit {
    /// A human-readable description.
    pub(crate) how: String,
    /// The signal that ended it.
    pub(crate) signal: Option<u32>,
}

/// A daemon that serves only this process.
#[derive(Debug)]
pub(crate) struct PrivateDaemon {
    child: Child,
    /// `None` on a kernel without pidfds.
    pidfd: Option<OwnedFd>,
}

impl PrivateDaemon {
    /// Starts `PROGRAM private` with its end of the connection as standard input.
    pub(crate) fn spawn(program: &Path, connection: OwnedFd) -> Result<Self, Error> {
        let child = Command::new(program)
            .arg("private")
            .stdin(Stdio::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Error::Config(format!(
                    "the program `{}` could not be started: {error}",
                    program.display()
                ))
            })?;
        // The process is an unreaped child, so its id cannot be reused.
        let pidfd = i32::try_from(child.id()).ok().and_then(open_pidfd);
        Ok(Self { child, pidfd })
    }

    /// The process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Readable when the process has ended.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Takes its standard error; `None` after the first call.
    pub(crate) fn take_log(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// How the process ended, if it has; this reaps it.
    pub(crate) fn ended(&mut self) -> Option<Exit> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Exit {
                how: describe(status),
                signal: status.signal().and_then(|signal| u32::try_from(signal).ok()),
            }),
            Err(_) => Some(Exit {
                how: "it ended, and another part of this program reaped it".into(),
                signal: None,
            }),
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // As above: the id is not reused before the child is reaped.
            let _ = kill_process(id, signal);
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
