//! The process that starts workers: not confined, single-threaded, and able to start nothing else.
//!
//! A confined daemon cannot start programs, so this process is started before the daemon gives up that right. It is told
//! once, before that, what it may start: an interpreter and what its workers are told. From then on the daemon can only
//! ask for another worker of these, and for the end of one.
//!
//! It inherits the daemon's environment and standard error. A worker gets three descriptors from it: its socket (0), its
//! arena (1) and standard error (2).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::interpreter::command;

/// The hidden command of this program.
const COMMAND: &str = "spawn-workers";
/// How long the spawner may take to answer: it only forks, kills and reaps.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How long a killed worker may take to end: one in an uninterruptible call takes as long as that.
const END_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// First and once: what may be started.
    Setup { interpreter: PathBuf, spec: String },
    /// A worker with the socket and the arena that are sent along.
    Start,
    /// Kills a worker and its process group.
    End { process: u32 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started { process: u32 },
    NotStarted { reason: String },
    Ended { signal: Option<i32>, code: Option<i32> },
}

/// The spawners of this process, which ends without dropping what its threads hold.
static STARTED: Mutex<Vec<Weak<Spawner>>> = Mutex::new(Vec::new());

/// Ends all workers of this process and what starts them; no worker can be started afterwards. Called before the process
/// ends.
pub fn end_workers() {
    let started = std::mem::take(&mut *STARTED.lock().unwrap_or_else(PoisonError::into_inner));
    started.iter().filter_map(Weak::upgrade).for_each(|spawner| spawner.end());
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Signal(i32),
    Code(i32),
    /// It has not, though it was killed.
    Unknown,
    /// The spawner was ended, and the worker with it.
    WithSpawner,
}

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct Spawner {
    /// One request at a time. Only work threads, the opening thread and the pool's end take it.
    state: Mutex<Option<(Connection, Child)>>,
}

impl Spawner {
    /// Starts the process. Called before the daemon is confined.
    pub(crate) fn start(
        interpreter: PathBuf,
        spec: String,
        is_silent: bool,
    ) -> io::Result<Arc<Self>> {
        let (own, theirs) = Connection::pair().map_err(io::Error::other)?;
        own.send(&Request::Setup { interpreter, spec }, &[]).map_err(io::Error::other)?;
        let child = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::from(theirs.into_descriptor()))
            .stdout(Stdio::null())
            .stderr(if is_silent { Stdio::null() } else { Stdio::inherit() })
            // A signal of the terminal is for the trainer or for `serve`.
            .process_group(0)
            .spawn()?;
        let spawner = Arc::new(Self { state: Mutex::new(Some((own, child))) });
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.push(Arc::downgrade(&spawner));
        Ok(spawner)
    }

    /// Starts a worker; its process id.
    pub(crate) fn start_worker(&self, socket: OwnedFd, arena: OwnedFd) -> Result<u32, String> {
        match self.ask(&Request::Start, &[socket, arena])? {
            Answer::Started { process } => Ok(process),
            Answer::NotStarted { reason } => Err(reason),
            Answer::Ended { .. } => Err("the spawner gave another answer".to_owned()),
        }
    }

    /// Kills a worker, unless it has ended; how it ended.
    pub(crate) fn end_worker(&self, process: u32) -> End {
        match self.ask(&Request::End { process }, &[]) {
            Ok(Answer::Ended { signal: Some(signal), .. }) => End::Signal(signal),
            Ok(Answer::Ended { code: Some(code), .. }) => End::Code(code),
            Ok(_) => End::Unknown,
            Err(_) if self.is_ended() => End::WithSpawner,
            Err(_) => End::Unknown,
        }
    }

    fn ask(&self, request: &Request, descriptors: &[OwnedFd]) -> Result<Answer, String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((connection, _)) = state.as_ref() else {
            return Err("the process that starts workers is gone".to_owned());
        };
        let lost = |error: SocketError| format!("the process that starts workers is gone: {error}");
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        connection.send(request, &descriptors).map_err(lost)?;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Incoming::Frame(answer, _) = connection.receive::<Answer>().map_err(lost)? {
                return Ok(answer);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the process that starts workers does not answer".to_owned());
            }
            wait(connection, Some(left));
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Spawner {
    fn is_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn end(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((connection, mut child)) = state {
            // It kills its workers and ends.
            drop(connection);
            let _ = child.wait();
        }
    }
}

/// Waits until the connection is readable or closed.
fn wait(connection: &Connection, limit: Option<Duration>) {
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    let mut polled = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    // An interrupted wait is followed by a look.
    let _ = poll(&mut polled, timeout);
}

/// The spawner's process, whose standard input is the daemon's socket.
pub fn serve_spawner() -> io::Result<ExitCode> {
    let descriptor = io::stdin().as_fd().try_clone_to_owned()?;
    let connection = Connection::from_descriptor(descriptor).map_err(io::Error::other)?;
    // The copy is what is used; the workers' standard input is another socket.
    let mut setup = None;
    let mut workers = Workers::default();
    loop {
        let (request, descriptors) = match connection.receive::<Request>() {
            Ok(Incoming::Frame(request, descriptors)) => (request, descriptors),
            Ok(_) => {
                wait(&connection, None);
                continue;
            }
            // The daemon is gone: the workers end with this process.
            Err(_) => return Ok(ExitCode::SUCCESS),
        };
        let answer = match (request, &setup) {
            (Request::Setup { interpreter, spec }, None) => {
                setup = Some((interpreter, spec));
                continue;
            }
            // A daemon that asks for another program was taken over.
            (Request::Setup { .. }, Some(_)) => return Ok(ExitCode::FAILURE),
            (Request::Start, Some((interpreter, spec))) => {
                workers.start(command(interpreter, spec), descriptors)
            }
            (Request::Start, None) => return Ok(ExitCode::FAILURE),
            (Request::End { process }, _) => workers.end(process),
        };
        if connection.send(&answer, &[]).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The children. Dropped, they are killed and reaped.
#[derive(Default)]
struct Workers(HashMap<u32, Child>);

impl Workers {
    fn start(&mut self, mut command: Command, descriptors: Vec<OwnedFd>) -> Answer {
        let Ok([socket, arena]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Answer::NotStarted { reason: "two descriptors are needed".to_owned() };
        };
        command.stdin(Stdio::from(socket)).stdout(Stdio::from(arena)).process_group(0);
        match command.spawn() {
            Ok(child) => {
                let process = child.id();
                self.0.insert(process, child);
                Answer::Started { process }
            }
            Err(error) => Answer::NotStarted {
                reason: format!(
                    "the interpreter `{}` cannot be started: {error}",
                    command.get_program().display()
                ),
            },
        }
    }

    fn end(&mut self, process: u32) -> Answer {
        let unknown = Answer::Ended { signal: None, code: None };
        let Some(mut child) = self.0.remove(&process) else { return unknown };
        let begun = Instant::now();
        // It may have ended by itself: then that is how it ended. What it has started goes with it in any case.
        let mut status = child.try_wait().ok().flatten();
        kill_group(process);
        while status.is_none() && begun.elapsed() < END_LIMIT {
            status = child.try_wait().ok().flatten();
            if status.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        match status {
            Some(status) => Answer::Ended { signal: status.signal(), code: status.code() },
            None => {
                self.0.insert(process, child);
                unknown
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.keys().for_each(|process| kill_group(*process));
        for child in self.0.values_mut() {
            let _ = child.wait();
        }
    }
}

/// A worker is the leader of its group. Until it is reaped, no other process has its number.
fn kill_group(process: u32) {
    if let Ok(process) = i32::try_from(process) {
        let _ = killpg(Pid::from_raw(process), Signal::SIGKILL);
    }
}
