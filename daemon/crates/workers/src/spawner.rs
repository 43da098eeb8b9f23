//! The process that starts workers: not confined, single-threaded, and unable to start anything else.
//!
//! A confined daemon cannot start programs, so this process is started before the daemon gives up that right. Its first
//! request, once, sets what it may start: an interpreter or this program as a decoder, and the workers' specification, in
//! sealed memory that each inherits and closes. From then on the daemon can only request another such worker, and the end of one.
//!
//! It inherits the daemon's environment and standard error. A worker inherits three descriptors from it: its socket
//! (0), its arena (1) and standard error (2). If its stage calls a Dataset object of the trainer's, it also inherits
//! the object's memory, whose descriptor's number is in an environment variable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use crate::children::{Started, Workers, wait_until};
use crate::interpreter::{NORMAL_IMPORT_VARIABLE, OBJECT_VARIABLE, Program};
use crate::process::Process;
use crate::worker::Link;

/// The hidden command of this program.
const COMMAND: &str = "spawn-workers";
/// Maximum time for the spawner to answer: it only forks, kills and reaps.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time for an ending spawner to kill its workers, before it is killed itself.
const END_LIMIT: Duration = Duration::from_secs(4);
/// Maximum time for workers at a normal end to log lines that they have begun. Others are not waited for.
const LINES_LIMIT: Duration = Duration::from_millis(500);
/// Polling period for that.
const LINES_PERIOD: Duration = Duration::from_millis(2);
/// Period in which a waiting thread checks whether to continue.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// The first request, sent once: sets what may be started. The workers' specification is in the attached memory; a
    /// Dataset object is in a second one.
    Setup { program: Program },
    /// Starts a worker with the attached socket and arena; whether it imports in the spawner's class.
    Start { imports_in_normal_class: bool },
    /// Kills a worker and its descendants.
    End { process: u32 },
    /// Asks for the memory of a worker and its descendants, precise if it exceeds the limit.
    Memory { process: u32, arena_bytes: u64, limit_bytes: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// With the open files of the process, if they can be opened.
    Started {
        process: u32,
    },
    NotStarted {
        reason: String,
    },
    /// Without signal and code: it has not ended, though it was killed.
    Ended {
        signal: Option<i32>,
        code: Option<i32>,
    },
    Memory {
        bytes: Option<u64>,
    },
}

/// The spawners of this process, which ends without dropping the values of its threads.
static STARTED: Mutex<Vec<Weak<Spawner>>> = Mutex::new(Vec::new());

/// Ends all workers of this process and their spawners; no worker can be started afterwards. Called before the process
/// ends. It takes a few seconds at most: a process that hangs in the kernel ends when it can.
pub fn end_workers() {
    let started = std::mem::take(&mut *STARTED.lock().unwrap_or_else(PoisonError::into_inner));
    let spawners: Vec<_> = started.iter().filter_map(Weak::upgrade).collect();
    let closed: Vec<_> = spawners.iter().filter_map(|spawner| spawner.close()).collect();
    end_lines(spawners.iter().flat_map(|spawner| spawner.links()).collect(), LINES_LIMIT);
    let children: Vec<_> = closed.into_iter().map(|(_, child)| child).collect();
    let end = Instant::now() + END_LIMIT;
    children.into_iter().for_each(|child| end_child(child, end));
}

/// Lets workers log the lines that they have begun, for at most `limit`. A worker reports such a line, so that no other
/// is waited for.
fn end_lines(mut links: Vec<Arc<Link>>, limit: Duration) {
    links.retain(|link| link.arena().has_begun_line());
    links.iter().for_each(|link| link.close_calls());
    let end = Instant::now() + limit;
    while links.iter().any(|link| link.arena().has_begun_line()) && Instant::now() < end {
        std::thread::sleep(LINES_PERIOD);
    }
}

type Handler = Box<dyn Fn() + Send + Sync>;

static ON_LOST_SPAWNER: OnceLock<Handler> = OnceLock::new();

/// Sets the handler for a spawner that has ended unexpectedly: a confined daemon cannot start another one. The handler
/// must end the daemon, to be restarted; until then, calls of the function wait. Without a handler they fail.
pub fn on_lost_spawner(handler: impl Fn() + Send + Sync + 'static) {
    // The first handler stays.
    let _ = ON_LOST_SPAWNER.set(Box::new(handler));
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Signal(i32),
    Code(i32),
    /// It has not ended, though it was killed.
    Unknown,
    /// The spawner has ended, and the worker with it.
    WithSpawner,
}

#[derive(Debug)]
enum State {
    Runs(Connection, Child),
    /// It was ended deliberately.
    Ended,
    /// It ended unexpectedly; how.
    Lost(String),
}

/// Why a request has no answer.
enum Gone {
    Ended,
    Lost(String),
}

/// The daemon's side of a spawner.
#[derive(Debug)]
pub(crate) struct Spawner {
    /// One request at a time. Only work threads, the opening thread and the pool's end lock it.
    state: Mutex<State>,
    /// Whether threads that wait for an answer must give up.
    is_ending: AtomicBool,
    /// Of the started workers, for the lines that they have begun.
    links: Mutex<Vec<Weak<Link>>>,
}

impl Spawner {
    /// Starts the process. Called before the daemon is confined.
    pub(crate) fn start(
        program: Program,
        spec: &OwnedFd,
        object: Option<&OwnedFd>,
        is_silent: bool,
        withheld: &[&str],
    ) -> io::Result<Arc<Self>> {
        let (own, theirs) = Connection::pair().map_err(io::Error::other)?;
        let files: Vec<_> = [Some(spec), object].into_iter().flatten().map(AsFd::as_fd).collect();
        own.send(&Request::Setup { program }, &files).map_err(io::Error::other)?;
        let mut command = crate::own_program::command();
        for name in withheld {
            command.env_remove(name);
        }
        let child = command
            .arg(COMMAND)
            .stdin(Stdio::from(theirs.into_descriptor()))
            .stdout(Stdio::null())
            .stderr(if is_silent { Stdio::null() } else { Stdio::inherit() })
            // Signals of the terminal are meant for the trainer or for `serve`.
            .process_group(0)
            .spawn()?;
        let state = Mutex::new(State::Runs(own, child));
        let spawner =
            Arc::new(Self { state, is_ending: AtomicBool::new(false), links: Mutex::default() });
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.push(Arc::downgrade(&spawner));
        Ok(spawner)
    }

    /// Starts a worker.
    pub(crate) fn start_worker(
        &self,
        socket: OwnedFd,
        arena: OwnedFd,
        imports_in_normal_class: bool,
    ) -> Result<Process, String> {
        match self.ask(&Request::Start { imports_in_normal_class }, &[socket, arena]) {
            Ok((Answer::Started { process }, files)) => Ok(Process::new(process, files)),
            Ok((Answer::NotStarted { reason }, _)) | Err(Gone::Lost(reason)) => Err(reason),
            Ok(_) => Err("the process that starts workers gave another answer".to_owned()),
            Err(Gone::Ended) => Err("the process that starts workers has ended".to_owned()),
        }
    }

    /// Adds a worker's link.
    pub(crate) fn add_link(&self, link: &Arc<Link>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// The links of its workers.
    fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Kills a worker, unless it has ended, and its descendants; returns how it ended.
    pub(crate) fn end_worker(&self, process: u32) -> End {
        match self.ask(&Request::End { process }, &[]) {
            Ok((Answer::Ended { signal: Some(signal), .. }, _)) => End::Signal(signal),
            Ok((Answer::Ended { code: Some(code), .. }, _)) => End::Code(code),
            Err(Gone::Ended) => End::WithSpawner,
            Ok(_) | Err(Gone::Lost(_)) => End::Unknown,
        }
    }

    /// Bytes held by a worker and its descendants; `None` if unknown, or if the spawner is busy.
    pub(crate) fn memory_of(&self, process: u32, arena_bytes: u64, limit: u64) -> Option<u64> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
        };
        let request = Request::Memory { process, arena_bytes, limit_bytes: limit };
        match self.ask_in(&mut state, &request, &[]) {
            Ok((Answer::Memory { bytes }, _)) => bytes,
            _ => None,
        }
    }

    /// Whether the daemon ends because this spawner was lost.
    pub(crate) fn ends_daemon(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*state, State::Lost(_)) && ON_LOST_SPAWNER.get().is_some()
    }

    fn ask(
        &self,
        request: &Request,
        descriptors: &[OwnedFd],
    ) -> Result<(Answer, Vec<OwnedFd>), Gone> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.ask_in(&mut state, request, descriptors)
    }

    fn ask_in(
        &self,
        state: &mut State,
        request: &Request,
        descriptors: &[OwnedFd],
    ) -> Result<(Answer, Vec<OwnedFd>), Gone> {
        let connection = match state {
            State::Runs(connection, _) => connection,
            State::Ended => return Err(Gone::Ended),
            State::Lost(reason) => return Err(Gone::Lost(reason.clone())),
        };
        let answer = self.answer(connection, request, descriptors);
        answer.map_err(|why| match why {
            None => Gone::Ended,
            Some(why) => Gone::Lost(lose(state, &why)),
        })
    }

    /// Waits for the answer to a request. Error: the reason, or `None` if the wait was cancelled.
    fn answer(
        &self,
        connection: &Connection,
        request: &Request,
        descriptors: &[OwnedFd],
    ) -> Result<(Answer, Vec<OwnedFd>), Option<String>> {
        let lost = |error: SocketError| Some(error.to_string());
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        connection.send(request, &descriptors).map_err(lost)?;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Incoming::Frame(answer, files) = connection.receive().map_err(lost)? {
                return Ok((answer, files));
            }
            // Relaxed: a flag; the state is under the lock.
            if self.is_ending.load(Ordering::Relaxed) {
                return Err(None);
            }
            if Instant::now() > end {
                // A later answer would be mistaken for that of the next request.
                return Err(Some(format!("it gave no answer for {} s", ANSWER_LIMIT.as_secs())));
            }
            wait(connection, Some(LOOK_PERIOD));
        }
    }

    /// Ends the workers, at a normal end after their last lines, and the spawner.
    pub(crate) fn end(&self) {
        if let Some((connection, child)) = self.close() {
            end_lines(self.links(), LINES_LIMIT);
            drop(connection);
            end_child(child, Instant::now() + END_LIMIT);
        }
    }

    /// Ends all requests. The spawner kills its workers and ends when the connection is dropped.
    fn close(&self) -> Option<(Connection, Child)> {
        self.is_ending.store(true, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Ended) {
            State::Runs(connection, child) => Some((connection, child)),
            State::Ended | State::Lost(_) => None,
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Handles a spawner that is gone or unusable; returns the reason.
fn lose(state: &mut State, why: &str) -> String {
    let State::Runs(connection, mut child) = std::mem::replace(state, State::Ended) else {
        return why.to_owned();
    };
    drop(connection);
    let end = Instant::now() + LOOK_PERIOD;
    let how = match wait_until(&mut child, end) {
        Some(status) => status.to_string(),
        None => why.to_owned(),
    };
    end_child(child, end);
    let reason = format!("the process that starts workers (`forebay {COMMAND}`) is gone: {how}");
    tracing::error!("{reason}");
    *state = State::Lost(reason.clone());
    if let Some(handler) = ON_LOST_SPAWNER.get() {
        handler();
    }
    reason
}

/// Waits for a child that ends by itself; kills it at `end`.
fn end_child(mut child: Child, end: Instant) {
    if wait_until(&mut child, end).is_none() {
        let _ = child.kill();
        // A process that hangs in the kernel is abandoned.
        wait_until(&mut child, Instant::now() + LOOK_PERIOD);
    }
}

/// Waits until the connection is readable or closed.
fn wait(connection: &Connection, limit: Option<Duration>) {
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    let mut polled = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    // If the wait is interrupted, the caller checks again.
    let _ = poll(&mut polled, timeout);
}

/// Runs the spawner's process, whose standard input is the daemon's socket.
pub fn serve_spawner() -> io::Result<ExitCode> {
    crate::own_program::take_name();
    let descriptor = io::stdin().as_fd().try_clone_to_owned()?;
    let connection = Connection::from_descriptor(descriptor).map_err(io::Error::other)?;
    // Only the copy is used; the workers' standard input is another socket.
    let mut setup = None;
    let mut workers = Workers::new();
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
        let mut files = Vec::new();
        let answer = match (request, &setup) {
            (Request::Setup { program }, None) => {
                let mut files = descriptors.into_iter();
                let (Some(spec), object, None) = (files.next(), files.next(), files.next()) else {
                    return Ok(ExitCode::FAILURE);
                };
                for file in [Some(&spec), object.as_ref()].into_iter().flatten() {
                    // This process starts only workers of one stage, which inherit it.
                    fcntl_setfd(file, FdFlags::empty())?;
                }
                setup = Some((program, spec, object));
                continue;
            }
            // A daemon that requests another program was taken over.
            (Request::Setup { .. }, Some(_)) => return Ok(ExitCode::FAILURE),
            (Request::Start { imports_in_normal_class }, Some((program, spec, object))) => {
                let mut command = program.command(spec.as_fd());
                if let Some(object) = object {
                    command.env(OBJECT_VARIABLE, object.as_raw_fd().to_string());
                }
                if imports_in_normal_class {
                    command.env(NORMAL_IMPORT_VARIABLE, "1");
                }
                match workers.start(command, descriptors) {
                    Ok(Started { process, files: opened }) => {
                        files = opened;
                        Answer::Started { process }
                    }
                    Err(reason) => Answer::NotStarted { reason },
                }
            }
            (Request::Start { .. }, None) => return Ok(ExitCode::FAILURE),
            (Request::End { process }, _) => {
                let (signal, code) = workers.end(process).unwrap_or_default();
                Answer::Ended { signal, code }
            }
            (Request::Memory { process, arena_bytes, limit_bytes }, _) => {
                Answer::Memory { bytes: workers.memory(process, arena_bytes, limit_bytes) }
            }
        };
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        if connection.send(&answer, &files).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn normal_end_waits_for_workers_with_a_begun_line_and_for_no_other() {
        let (own, mut begun) = UnixStream::pair().unwrap();
        let with_line = Link::of(own);
        let (own, mut other) = UnixStream::pair().unwrap();
        let without = Link::of(own);
        with_line.arena().write(&1_u64.to_le_bytes(), 8).unwrap();
        let shared = Arc::clone(&with_line);
        let worker = std::thread::spawn(move || {
            assert_eq!(begun.read(&mut [0; 8]).unwrap(), 0, "there are no more calls");
            std::thread::sleep(Duration::from_millis(20));
            shared.arena().write(&[0; 8], 8).unwrap();
        });
        end_lines(vec![Arc::clone(&with_line), Arc::clone(&without)], Duration::from_secs(60));
        assert!(!with_line.arena().has_begun_line());
        worker.join().unwrap();
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // A worker that hangs is not waited for without end.
        without.arena().write(&1_u64.to_le_bytes(), 8).unwrap();
        let begun = Instant::now();
        end_lines(vec![without], LINES_LIMIT);
        assert!((LINES_LIMIT..LINES_LIMIT * 20).contains(&begun.elapsed()));
    }
}
