//! One worker process, as seen by the thread that holds it. The states are in the crate's head.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::arena::{Arena, side_start};
use crate::call::{CallBuffer, INPUTS_AT};
use crate::foreground::ForegroundProcess;
use crate::process::{Life, Process};
use crate::reply::MAX_REPLY_BYTES;
use crate::spawner::{End, Spawner};
use crate::spec::PoolSpec;

/// Period in which a waiting thread checks the worker's process.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time counted per check: the thread itself may have been suspended.
const MAX_LOOK: Duration = Duration::from_millis(400);
/// Period in which the worker's memory is checked.
const MEMORY_INTERVAL: Duration = Duration::from_millis(500);
const REPLY_ALIGNMENT: u64 = 64;
/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The worker is lost: the reason, and the index in the bundle of the row being called.
    Lost { reason: String, row: Option<usize>, how: Loss },
    /// The caller ends.
    Ending,
}

/// How a worker was lost, which determines how often its call is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A call exceeded the timeout.
    Late,
    /// By SIGKILL, which this process did not send.
    Killed,
    /// In any other way.
    Other,
}

/// The most time for which a worker is waited for. Time for which it waits for a core does not count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// Of each row, for the user's code. Time for which the worker is stopped, as by a debugger, does not count.
    Row(Duration),
    /// Of the whole call, for foreign decoders: hostile data may control what they do.
    Call(Duration),
}

impl Limit {
    const fn duration(self) -> Duration {
        let (Self::Row(limit) | Self::Call(limit)) = self;
        limit
    }

    const fn is_of_rows(self) -> bool {
        matches!(self, Self::Row(_))
    }
}

/// The process that started the worker and ends it.
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

    /// Bytes held by the worker and its descendants; `None` if unknown or not limited.
    fn memory_of(&self, process: u32, arena_bytes: u64, limit: u64) -> Option<u64> {
        match self {
            Self::Spawner(spawner) => spawner.memory_of(process, arena_bytes, limit),
            Self::Foreground(_) => None,
        }
    }
}

/// The socket and the arena through which a worker is called.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UnixStream,
    arena: Arc<Arena>,
    calls: AtomicU64,
}

impl Link {
    /// Sends a call to the worker; returns its number. The worker processes calls in the order in which they are sent.
    pub(crate) fn send(&self, prepared: &Prepared) -> io::Result<u64> {
        // Relaxed: calls are sent by one thread at a time.
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let Prepared { side, header_at, header_bytes, reply_at, .. } = *prepared;
        let words = [call, side_start(side), header_at, header_bytes, reply_at];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (&self.socket).write_all(&message).map(|()| call)
    }

    /// Ends the worker's wait for calls: after the calls that were sent, it logs the line that it has begun, and exits.
    pub(crate) fn close_calls(&self) {
        // An error: the worker has ended.
        let _ = self.socket.shutdown(Shutdown::Write);
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
    process: Arc<Process>,
    link: Arc<Link>,
    parent: Parent,
    memory_seen: Instant,
    /// When it was requested, by the monotonic clock.
    begun_ns: u64,
    is_ready: bool,
    /// The cores of its main thread, as far as this process has set them.
    cores: Option<CpuSet>,
}

impl Worker {
    /// Requests a process. It is not ready: [`hello`](Self::hello) waits for that.
    pub(crate) fn start(
        spawner: Arc<Spawner>,
        imports_in_normal_class: bool,
    ) -> Result<Self, String> {
        let worker = Self::start_by(|socket, arena| {
            let process = spawner.start_worker(socket, arena, imports_in_normal_class)?;
            Ok((process, Parent::Spawner(Arc::clone(&spawner))))
        })?;
        spawner.add_link(&worker.link);
        Ok(worker)
    }

    /// Starts a process with this process's own standard input, output and error.
    pub(crate) fn start_in_foreground(spec: &PoolSpec) -> Result<Self, String> {
        Self::start_by(|socket, arena| {
            let process = ForegroundProcess::start(spec, [socket, arena])?;
            Ok((process.process(), Parent::Foreground(process)))
        })
    }

    fn start_by(
        start: impl FnOnce(OwnedFd, OwnedFd) -> Result<(Process, Parent), String>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a worker's socket or memory: {error}");
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        socket.set_read_timeout(Some(LOOK_INTERVAL)).map_err(failed)?;
        socket.set_write_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        let arena = Arena::create().map_err(failed)?;
        let copy = arena.descriptor().map_err(failed)?;
        let begun_ns = monotonic_ns();
        let (process, parent) = start(theirs.into(), copy)?;
        let memory_seen = Instant::now();
        let link = Link { socket, arena: Arc::new(arena), calls: AtomicU64::new(0) };
        Ok(Self {
            process: Arc::new(process),
            link: Arc::new(link),
            parent,
            memory_seen,
            begun_ns,
            is_ready: false,
            cores: None,
        })
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// When it was requested, by the monotonic clock.
    pub(crate) fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Waits for the worker's first message.
    pub(crate) fn hello(
        &mut self,
        limit: Limit,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let bytes = self.wait_for(0, limit, is_ending)?;
        self.is_ready = true;
        self.read_reply(INPUTS_AT, bytes)
    }

    /// Makes one call; returns the reply's bytes.
    pub(crate) fn call(
        &mut self,
        prepared: &Prepared,
        limit: Limit,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        match self.link.send(prepared) {
            Ok(call) => self.answer(prepared, call, limit, is_ending),
            Err(_) => Err(self.lost("")),
        }
    }

    /// Waits for the reply to a call that was sent; returns its bytes.
    pub(crate) fn answer(
        &mut self,
        prepared: &Prepared,
        call: u64,
        limit: Limit,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let bytes = self.wait_for(call, limit, is_ending)?;
        self.read_reply(side_start(prepared.side) + prepared.reply_at, bytes)
    }

    /// The link for calls.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Waits for the answer to a call; returns the bytes of its reply.
    fn wait_for(
        &mut self,
        call: u64,
        limit: Limit,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        let mut message = [0; 16];
        let mut filled = 0;
        let mut ran = Duration::ZERO;
        let mut row = self.link.arena.row_under_call();
        let mut before = (Instant::now(), self.process.look());
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
                    let now = (Instant::now(), self.process.look());
                    if now.1.life == Life::HasEnded {
                        return Err(self.lost(""));
                    }
                    let under_call = self.link.arena.row_under_call();
                    if limit.is_of_rows() && under_call != row {
                        (row, ran) = (under_call, Duration::ZERO);
                    } else if !(limit.is_of_rows() && now.1.life == Life::IsStopped) {
                        let waited =
                            now.1.waited_for_cores.saturating_sub(before.1.waited_for_cores);
                        ran += (now.0 - before.0).min(MAX_LOOK).saturating_sub(waited);
                    }
                    before = now;
                    if ran > limit.duration() {
                        let seconds = limit.duration().as_secs_f64();
                        let why = format!("it has run for more than {seconds} s");
                        return Err(self.lost_by(&why, Loss::Late));
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
            return Err(self.malformed());
        }
        Ok(bytes)
    }

    fn read_reply(&mut self, at: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let mut reply = vec![0; usize::try_from(bytes).unwrap_or(0)];
        match self.link.arena.read(&mut reply, at) {
            Ok(()) => Ok(reply),
            Err(_) => Err(self.malformed()),
        }
    }

    /// Ends the worker because its answer is malformed.
    pub(crate) fn malformed(&mut self) -> Failure {
        self.lost("its answer is none")
    }

    /// Ends the worker because a call cannot be written.
    pub(crate) fn unwritten(&mut self, error: &io::Error) -> Failure {
        self.lost(&format!("its inputs cannot be written: {error}"))
    }

    /// Ends the process. `why` is empty if it ended by itself.
    pub(crate) fn lost(&mut self, why: &str) -> Failure {
        self.lost_by(why, Loss::Other)
    }

    fn lost_by(&mut self, why: &str, how_lost: Loss) -> Failure {
        let row = self.link.arena.row_under_call();
        let end = self.parent.end(self.process.number());
        let was_killed = why.is_empty() && end == End::Signal(9);
        let how_lost = if was_killed { Loss::Killed } else { how_lost };
        let how = match end {
            End::Signal(signal) => format!("crashes the worker (signal {signal})"),
            End::Code(code) => format!("ends the worker (exit status {code})"),
            End::Unknown => "loses the worker".to_owned(),
            End::WithSpawner => return Failure::Ending,
        };
        let reason = if why.is_empty() { how } else { format!("is not worked on: {why}") };
        Failure::Lost { reason, row, how: how_lost }
    }

    /// Kills the worker.
    pub(crate) fn end(mut self) {
        self.parent.end(self.process.number());
    }

    /// Bytes of the worker's memory, arena and descendants included, if they exceed the limit; checked periodically.
    pub(crate) fn is_beyond(&mut self, memory_bytes: u64) -> Option<u64> {
        if self.memory_seen.elapsed() < MEMORY_INTERVAL {
            return None;
        }
        self.memory_seen = Instant::now();
        let arena_bytes = self.link.arena.resident_bytes();
        let bytes = self.parent.memory_of(self.process.number(), arena_bytes, memory_bytes)?;
        Some(bytes).filter(|bytes| *bytes > memory_bytes)
    }

    /// Moves the worker to the calling thread's cores, if it has others.
    pub(crate) fn take_own_cores(&mut self) {
        if let Ok(cores) = sched_getaffinity(None) {
            self.take_cores(cores);
        }
    }

    /// Moves the worker to these cores.
    pub(crate) fn take_cores(&mut self, cores: CpuSet) {
        let process = i32::try_from(self.process.number()).ok().and_then(Pid::from_raw);
        if let Some(process) = process
            && self.cores != Some(cores)
        {
            // If this fails, it runs where the daemon may run.
            let _ = sched_setaffinity(Some(process), &cores);
            self.cores = Some(cores);
        }
    }
}

/// A call that is written into an arena.
#[derive(Debug)]
pub(crate) struct Prepared {
    link: Arc<Link>,
    side: usize,
    /// Offsets from the side's start, as all offsets that the worker gets.
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
        Self::write_parts(link, side, buffer.inputs(), header)
    }

    /// Writes inputs and header that are bytes already.
    pub(crate) fn write_parts(
        link: &Arc<Link>,
        side: usize,
        inputs: &[u8],
        header: &[u8],
    ) -> io::Result<Self> {
        let header_at = (INPUTS_AT + inputs.len() as u64).next_multiple_of(8);
        let header_bytes = header.len() as u64;
        let reply_at = (header_at + header_bytes).next_multiple_of(REPLY_ALIGNMENT);
        link.arena.write(inputs, side_start(side) + INPUTS_AT)?;
        link.arena.write(header, side_start(side) + header_at)?;
        Ok(Self { link: Arc::clone(link), side, header_at, header_bytes, reply_at })
    }

    /// Where the reply is, from the side's start.
    pub(crate) fn reply_at(&self) -> u64 {
        self.reply_at
    }

    /// Whether it is in the arena and the side of the given link.
    pub(crate) fn is_for(&self, link: &Arc<Link>, side: usize) -> bool {
        Arc::ptr_eq(&self.link, link) && self.side == side
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::AtomicBool;

    use rustix::process::{Signal, kill_process};

    use super::*;

    const SHORT: Duration = Duration::from_millis(700);

    /// A worker that says nothing; its side of the socket.
    fn silent() -> (Worker, OwnedFd) {
        let mut kept = None;
        let worker = Worker::start_by(|socket, _| {
            kept = Some(socket);
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let process = ForegroundProcess::of(child);
            Ok((process.process(), Parent::Foreground(process)))
        });
        (worker.unwrap(), kept.unwrap())
    }

    fn stop(worker: &Worker) {
        let process = Pid::from_raw(worker.process.number().cast_signed()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        while worker.process.look().life != Life::IsStopped {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_late(end: &Result<Vec<u8>, Failure>) -> bool {
        matches!(end, Err(Failure::Lost { how: Loss::Late, .. }))
    }

    /// An end that comes long after the limit.
    fn ending() -> impl Fn() -> bool {
        let begun = Instant::now();
        move || begun.elapsed() > 5 * SHORT
    }

    #[test]
    fn stopped_decoder_is_not_waited_for_without_end() {
        let (mut worker, _theirs) = silent();
        stop(&worker);
        assert!(is_late(&worker.hello(Limit::Call(SHORT), &|| false)));
        assert_eq!(worker.process.look().life, Life::HasEnded);
        // The user's own code may be in a debugger.
        let (mut worker, _theirs) = silent();
        stop(&worker);
        assert!(matches!(worker.hello(Limit::Row(SHORT), &ending()), Err(Failure::Ending)));
    }

    #[test]
    fn decoder_that_writes_row_after_row_is_not_waited_for_without_end() {
        let is_done = AtomicBool::new(false);
        for (limit, is_bounded) in [(Limit::Call(SHORT), true), (Limit::Row(SHORT), false)] {
            let (mut worker, _theirs) = silent();
            let link = Arc::clone(worker.link());
            is_done.store(false, Ordering::Relaxed);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for row in 0_u64.. {
                        link.arena.write(&row.to_le_bytes(), 0).unwrap();
                        std::thread::sleep(Duration::from_millis(5));
                        if is_done.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                let end = worker.hello(limit, &ending());
                is_done.store(true, Ordering::Relaxed);
                assert_eq!(is_late(&end), is_bounded, "{end:?}");
            });
        }
    }
}
