//! One worker process, as the thread that holds it sees it. The states are in the crate's head.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arena::{Arena, side_start};
use crate::call::{CallBuffer, INPUTS_AT};
use crate::foreground::ForegroundProcess;
use crate::process::{look, resident_bytes};
use crate::reply::MAX_REPLY_BYTES;
use crate::spawner::{End, Spawner};
use crate::spec::PoolSpec;

/// How often a thread that waits for a worker looks at its process.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What one look counts at most: the thread itself may have been suspended.
const MAX_LOOK: Duration = Duration::from_millis(400);
/// How often its memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_millis(500);
const REPLY_ALIGNMENT: u64 = 64;
/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The worker is lost: why, and the row under call by its place in the bundle.
    Lost { reason: String, row: Option<usize>, was_killed: bool },
    /// The caller ends.
    Ending,
}

/// What started a process and ends it.
#[derive(Debug)]
enum Parent {
    Spawner(Arc<Spawner>),
    /// This process itself.
    Foreground(ForegroundProcess),
}

impl Parent {
    fn end(&mut self, process: u32) -> End {
        match self {
            Self::Spawner(spawner) => spawner.end_worker(process),
            Self::Foreground(process) => process.end(),
        }
    }
}

/// What calls reach a worker by.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UnixStream,
    arena: Arc<Arena>,
    calls: AtomicU64,
}

impl Link {
    /// Tells the worker of a call; its number. The worker takes calls in the order that they are sent in.
    pub(crate) fn send(&self, prepared: &Prepared) -> io::Result<u64> {
        // Relaxed: calls are sent by one thread at a time.
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let Prepared { side, header_at, header_bytes, reply_at, .. } = *prepared;
        let words = [call, side_start(side), header_at, header_bytes, reply_at];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (&self.socket).write_all(&message).map(|()| call)
    }

    /// The memory that the worker shares with this process.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    #[cfg(test)]
    pub(crate) fn of(socket: UnixStream) -> Arc<Self> {
        let arena = Arc::new(Arena::create().unwrap());
        Arc::new(Self { socket, arena, calls: AtomicU64::new(0) })
    }
}

/// See the module's head. Dropping it does not end the process: [`end`](Self::end) does, or the spawner's end.
#[derive(Debug)]
pub(crate) struct Worker {
    process: u32,
    link: Arc<Link>,
    parent: Parent,
    memory_seen: Instant,
    is_ready: bool,
}

impl Worker {
    /// Asks for a process. It is not ready: [`hello`](Self::hello) waits for that.
    pub(crate) fn start(spawner: Arc<Spawner>) -> Result<Self, String> {
        Self::start_by(|socket, arena| {
            let process = spawner.start_worker(socket, arena)?;
            Ok((process, Parent::Spawner(spawner)))
        })
    }

    /// Starts a process with this process's own standard input, output and error.
    pub(crate) fn start_in_foreground(spec: &PoolSpec) -> Result<Self, String> {
        Self::start_by(|socket, arena| {
            let process = ForegroundProcess::start(spec, [socket, arena])?;
            Ok((process.number(), Parent::Foreground(process)))
        })
    }

    fn start_by(
        start: impl FnOnce(OwnedFd, OwnedFd) -> Result<(u32, Parent), String>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a worker's socket or memory: {error}");
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        socket.set_read_timeout(Some(LOOK_INTERVAL)).map_err(failed)?;
        socket.set_write_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        let arena = Arena::create().map_err(failed)?;
        let copy = arena.descriptor().map_err(failed)?;
        let (process, parent) = start(theirs.into(), copy)?;
        let memory_seen = Instant::now();
        let link = Link { socket, arena: Arc::new(arena), calls: AtomicU64::new(0) };
        Ok(Self { process, link: Arc::new(link), parent, memory_seen, is_ready: false })
    }

    /// Its process's number.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Waits for its first message: what it says of itself.
    pub(crate) fn hello(
        &mut self,
        limit: Duration,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let bytes = self.wait_for(0, limit, is_ending)?;
        self.is_ready = true;
        self.read_reply(INPUTS_AT, bytes)
    }

    /// One call; the reply's bytes.
    pub(crate) fn call(
        &mut self,
        prepared: &Prepared,
        limit: Duration,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        match self.link.send(prepared) {
            Ok(call) => self.answer(prepared, call, limit, is_ending),
            Err(_) => Err(self.lost("")),
        }
    }

    /// The reply's bytes to a call that was sent.
    pub(crate) fn answer(
        &mut self,
        prepared: &Prepared,
        call: u64,
        limit: Duration,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let bytes = self.wait_for(call, limit, is_ending)?;
        self.read_reply(side_start(prepared.side) + prepared.reply_at, bytes)
    }

    /// What calls reach it by.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Waits for the answer to a call; the bytes of its reply.
    fn wait_for(
        &mut self,
        call: u64,
        limit: Duration,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        let mut message = [0; 16];
        let mut filled = 0;
        let mut ran = Duration::ZERO;
        let mut row = self.link.arena.row_under_call();
        let mut before = (Instant::now(), look(self.process));
        loop {
            match (&self.link.socket).read(&mut message[filled..]) {
                Ok(0) => return Err(self.lost("")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if is_ending() {
                        return Err(Failure::Ending);
                    }
                    let now = (Instant::now(), look(self.process));
                    if !now.1.is_alive {
                        return Err(self.lost(""));
                    }
                    let under_call = self.link.arena.row_under_call();
                    if under_call != row {
                        (row, ran) = (under_call, Duration::ZERO);
                    } else if !now.1.is_stopped {
                        let waited =
                            now.1.waited_for_cores.saturating_sub(before.1.waited_for_cores);
                        ran += (now.0 - before.0).min(MAX_LOOK).saturating_sub(waited);
                    }
                    before = now;
                    if ran > limit {
                        let seconds = limit.as_secs_f64();
                        return Err(self.lost(&format!("it has run for more than {seconds} s")));
                    }
                }
                Err(_) => return Err(self.lost("")),
            }
            if filled == message.len() {
                break;
            }
        }
        let (number, bytes) = message.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (number, bytes) = (word(number), word(bytes));
        if number != call || bytes > MAX_REPLY_BYTES {
            return Err(self.rubbish());
        }
        Ok(bytes)
    }

    fn read_reply(&mut self, at: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let mut reply = vec![0; usize::try_from(bytes).unwrap_or(0)];
        match self.link.arena.read(&mut reply, at) {
            Ok(()) => Ok(reply),
            Err(_) => Err(self.rubbish()),
        }
    }

    /// Its answer cannot be one.
    pub(crate) fn rubbish(&mut self) -> Failure {
        self.lost("its answer is none")
    }

    /// A call cannot be written.
    pub(crate) fn unwritten(&mut self, error: &io::Error) -> Failure {
        self.lost(&format!("its inputs cannot be written: {error}"))
    }

    /// Ends the process. `why` is empty where it ended by itself.
    pub(crate) fn lost(&mut self, why: &str) -> Failure {
        let row = self.link.arena.row_under_call();
        let end = self.parent.end(self.process);
        let was_killed = why.is_empty() && end == End::Signal(9);
        let how = match end {
            End::Signal(signal) => format!("crashes the worker (signal {signal})"),
            End::Code(code) => format!("ends the worker (exit status {code})"),
            End::Unknown => "loses the worker".to_owned(),
            End::WithSpawner => return Failure::Ending,
        };
        let reason = if why.is_empty() { how } else { format!("is not worked on: {why}") };
        Failure::Lost { reason, row, was_killed }
    }

    /// Kills it.
    pub(crate) fn end(mut self) {
        self.parent.end(self.process);
    }

    /// Whether it holds more than it may, its arena included; looked at from time to time.
    pub(crate) fn is_beyond(&mut self, memory_bytes: u64) -> Option<u64> {
        if self.memory_seen.elapsed() < MEMORY_INTERVAL {
            return None;
        }
        self.memory_seen = Instant::now();
        let bytes = resident_bytes(self.process)?.saturating_add(self.link.arena.resident_bytes());
        Some(bytes).filter(|bytes| *bytes > memory_bytes)
    }

    /// Gives it the cores of the calling thread.
    pub(crate) fn take_own_cores(&self) {
        let process = i32::try_from(self.process).ok().and_then(rustix::process::Pid::from_raw);
        if let (Some(process), Ok(cores)) = (process, rustix::thread::sched_getaffinity(None)) {
            // It then runs where the daemon may run.
            let _ = rustix::thread::sched_setaffinity(Some(process), &cores);
        }
    }
}

/// A call as it is written into an arena.
#[derive(Debug)]
pub(crate) struct Prepared {
    link: Arc<Link>,
    side: usize,
    /// From the side's start on, as all that the worker is told.
    header_at: u64,
    header_bytes: u64,
    reply_at: u64,
}

impl Prepared {
    /// Writes inputs and header.
    pub(crate) fn write(
        link: &Arc<Link>,
        side: usize,
        (buffer, header): (&CallBuffer, &[u8]),
    ) -> io::Result<Self> {
        let inputs = buffer.inputs();
        let header_at = (INPUTS_AT + inputs.len() as u64).next_multiple_of(8);
        let header_bytes = header.len() as u64;
        let reply_at = (header_at + header_bytes).next_multiple_of(REPLY_ALIGNMENT);
        link.arena.write(inputs, side_start(side) + INPUTS_AT)?;
        link.arena.write(header, side_start(side) + header_at)?;
        Ok(Self { link: Arc::clone(link), side, header_at, header_bytes, reply_at })
    }

    /// Whether it lies where a worker is called from.
    pub(crate) fn is_for(&self, link: &Arc<Link>, side: usize) -> bool {
        Arc::ptr_eq(&self.link, link) && self.side == side
    }
}
