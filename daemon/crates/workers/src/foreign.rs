//! Foreign decoders in helper processes: the daemon's side.
//!
//! A helper is this program, started again by a spawner with a hidden command. It gets a request in its arena, decodes
//! with libraries that are not the daemon's, and writes its results into the arena. [`crate::helper`] is its own side.
//!
//! States of a helper: those of a worker in the crate's head. States of a request; the daemon owns its bytes all the
//! time, the helper has a copy:
//! ```text
//!   Asked ──a free place──► Written ──sent──► Under work ──reply──► Done, Refused (a defect of the sample),
//!     ▲                                          │      or Cannot (by no helper of this host: the run ends)
//!     │                                          │ the helper is lost, or has too little memory left
//!     └────── fewer losses than allowed ◄────────┴── the last one allowed ──► Crashes (a defect of the sample)
//! ```
//! A request depends on its bytes only, so that a repeated one has the same result: a helper that is killed costs time,
//! and no sample. A helper is asked by one thread at a time, which then reads its results; another helper starts in its
//! place when it is lost. All that a helper says is untrusted: numbers are checked here, pixels by whoever reads them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::{Arena, side_start};
use crate::cpu_times::CpuTimes;
use crate::interpreter::Program;
use crate::places::{Places, Turn};
use crate::pool::{Lost, max_losses};
use crate::spawner::Spawner;
use crate::spec::WorkerClass;
use crate::worker::{Failure, Limit, Loss, Prepared, Worker};

/// The numbers of 8 bytes with which a request begins: bytes of memory, most bytes of the result, bytes of the data, kind.
/// Its head follows.
pub(crate) const REQUEST_WORDS: usize = 4;
/// The numbers of 8 bytes with which a reply begins: status, bytes of the result. Its head follows.
pub(crate) const REPLY_WORDS: usize = 2;
/// The bytes from the beginning of a reply to its result: the most that its numbers and its head may have together.
pub(crate) const RESULT_AFTER: u64 = 1 << 20;
pub(crate) const STATUS_DONE: u64 = 0;
pub(crate) const STATUS_REFUSED: u64 = 1;
pub(crate) const STATUS_NO_MEMORY: u64 = 2;
pub(crate) const STATUS_CANNOT: u64 = 3;

/// The most time for a helper to start and open its libraries.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Period in which a thread that waits for the daemon's end looks for it.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Failed starts in a row after which no helper can be had; `MAX_KILLED_STARTS` if each was killed, by a person or by the
/// kernel when it is short of memory: both may pass.
const MAX_STARTS: u32 = 3;
const MAX_KILLED_STARTS: u32 = 100;
/// Pause after a killed start.
const KILLED_PAUSE: Duration = Duration::from_millis(50);

/// The settings of helpers.
#[derive(Debug, Clone)]
pub struct ForeignSpec {
    /// What they work for, in messages: the path of an operation, or a field's name.
    pub place: String,
    /// The most processes.
    pub helpers: u32,
    /// The most time that a request may run, even if the helper is stopped. Time for which it waits for a core does not count.
    pub timeout: Duration,
    /// The most private memory of a helper beyond what it has after its start, in bytes.
    pub memory_bytes: u64,
    /// Their scheduling class.
    pub class: WorkerClass,
    /// Variables of this process's environment that helpers do not get, since they are secrets.
    pub withheld: &'static [&'static str],
}

/// What is asked of a helper.
#[derive(Debug, Clone, Copy)]
pub struct ForeignRequest<'r> {
    /// Which decoder is meant; the program's hidden command knows the numbers.
    pub kind: u32,
    /// What is asked.
    pub head: &'r [u8],
    /// Encoded bytes.
    pub data: &'r [u8],
    /// The private memory that decoding may take, in bytes.
    pub memory_bytes: u64,
    /// The most bytes of the result.
    pub max_result_bytes: u64,
}

/// A helper's reply. The result is in its arena until the reader returns.
#[derive(Debug)]
pub struct ForeignReply<'p> {
    /// What the result is.
    pub head: &'p [u8],
    /// The number of bytes of the result.
    pub bytes: u64,
    at: u64,
    arena: &'p Arena,
}

impl ForeignReply<'_> {
    /// Copies bytes of the result, which may contain anything.
    ///
    /// # Errors
    /// They are not within the result.
    pub fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let end = at.checked_add(to.len() as u64).filter(|end| *end <= self.bytes);
        let Some(at) = end.and_then(|_| self.at.checked_add(at)) else {
            return Err(io::Error::other("outside of the helper's result"));
        };
        self.arena.read(to, at)
    }
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ForeignOutcome<T> {
    /// What the reader returned.
    Done(T),
    /// A defect of the sample: in the decoder's words, or how each attempt ended.
    Refused(String),
}

/// The helpers of one plan.
#[derive(Debug)]
pub struct ForeignPool {
    spec: ForeignSpec,
    spawner: Arc<Spawner>,
    places: Places,
    cpu_times: CpuTimes,
}

impl ForeignPool {
    /// Starts the spawner; a helper starts when it is first needed. Called before the daemon is confined.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(spec: ForeignSpec) -> io::Result<Self> {
        let memory = crate::spec::sealed_memory(&spec.to_json())?;
        let spawner = Spawner::start(Program::Decoder, &memory, None, false, spec.withheld)?;
        let places = Places::new(spec.helpers.max(1), 1);
        Ok(Self { spec, spawner, places, cpu_times: CpuTimes::default() })
    }

    /// The settings that it was started with.
    #[must_use]
    pub fn spec(&self) -> &ForeignSpec {
        &self.spec
    }

    /// The CPU time of all helpers so far.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.cpu_times.total()
    }

    /// What a helper says of itself when it starts, as JSON; starts one.
    ///
    /// # Errors
    /// None can be started.
    pub fn introduction(&self) -> Result<String, String> {
        let mut side = self.places.side(0);
        let (mut turn, _) = self.places.turn(&mut side, None);
        if let Some(worker) = turn.worker.take() {
            worker.end();
        }
        let hello = self.ready(&mut turn, &|| false).map_err(|lost| match lost {
            Lost::NoWorkers(reason) => reason,
            Lost::Ending => "it ends".to_owned(),
        })?;
        Ok(String::from_utf8_lossy(&hello).into_owned())
    }

    /// Makes a request of an idle helper, and reads its result with `read`.
    ///
    /// # Errors
    /// No helper can be started, none of this host can decode such data, or the caller ends.
    pub fn ask<T>(
        &self,
        request: ForeignRequest<'_>,
        is_ending: &dyn Fn() -> bool,
        read: &mut dyn FnMut(ForeignReply<'_>) -> Result<T, String>,
    ) -> Result<ForeignOutcome<T>, Lost> {
        let asked = self.ask_helpers(request, is_ending, read);
        asked.map_err(|lost| self.unless_the_daemon_ends(lost, is_ending))
    }

    /// If the daemon ends because no helper can be started any more, waits for that end: the sample is not at fault.
    fn unless_the_daemon_ends(&self, lost: Lost, is_ending: &dyn Fn() -> bool) -> Lost {
        if !self.spawner.ends_daemon() {
            return lost;
        }
        while !is_ending() {
            std::thread::sleep(LOOK_PERIOD);
        }
        Lost::Ending
    }

    fn ask_helpers<T>(
        &self,
        request: ForeignRequest<'_>,
        is_ending: &dyn Fn() -> bool,
        read: &mut dyn FnMut(ForeignReply<'_>) -> Result<T, String>,
    ) -> Result<ForeignOutcome<T>, Lost> {
        let mut side = self.places.side(0);
        let mut losses = 0;
        loop {
            let (mut turn, _) = self.places.turn(&mut side, None);
            self.ready(&mut turn, is_ending)?;
            let Some(helper) = &mut turn.worker else {
                return Err(Lost::NoWorkers("no helper was started".to_owned()));
            };
            helper.take_own_cores();
            let (why, how) = match self.call(helper, request, is_ending, read) {
                Ok(Called::Done(done)) => return Ok(ForeignOutcome::Done(done)),
                Ok(Called::Refused(reason)) => return Ok(ForeignOutcome::Refused(reason)),
                // No other sample of its kind can be decoded either.
                Ok(Called::Cannot(reason)) => return Err(self.none(&reason)),
                Ok(Called::NoMemory(reason)) => {
                    // Memory that earlier requests have left in pieces is whole in a new process.
                    if let Some(helper) = turn.worker.take() {
                        helper.end();
                    }
                    if losses > 0 {
                        return Ok(ForeignOutcome::Refused(reason));
                    }
                    (reason, Loss::Other)
                }
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, how, .. }) => (reason, how),
            };
            turn.lose();
            losses += 1;
            tracing::warn!(place = self.spec.place, "a decoder's process was lost: a sample {why}");
            if losses >= max_losses(how) {
                let timeout = self.spec.timeout;
                return Ok(ForeignOutcome::Refused(match how {
                    Loss::Late => format!(
                        "decoding takes more than {timeout:?}, in each of {losses} attempts"
                    ),
                    _ => format!("it {why}, in each of {losses} attempts"),
                }));
            }
        }
    }

    fn call<T>(
        &self,
        helper: &mut Worker,
        request: ForeignRequest<'_>,
        is_ending: &dyn Fn() -> bool,
        read: &mut dyn FnMut(ForeignReply<'_>) -> Result<T, String>,
    ) -> Result<Called<T>, Failure> {
        let words = [
            request.memory_bytes,
            request.max_result_bytes,
            request.data.len() as u64,
            request.kind.into(),
        ];
        let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        header.extend_from_slice(request.head);
        let prepared = Prepared::write_parts(helper.link(), 0, request.data, &header);
        let prepared = prepared.map_err(|error| helper.unwritten(&error))?;
        let reply = helper.call(&prepared, Limit::Call(self.spec.timeout), is_ending)?;
        let word = |number: usize| {
            let bytes = reply.get(number * 8..).and_then(|rest| rest.first_chunk());
            bytes.map(|bytes| u64::from_le_bytes(*bytes))
        };
        let (Some(status), Some(bytes), Some(head)) =
            (word(0), word(1), reply.get(REPLY_WORDS * 8..))
        else {
            return Err(helper.malformed());
        };
        let text = || {
            String::from_utf8_lossy(head)
                .chars()
                .filter(|one| !one.is_control())
                .take(1000)
                .collect()
        };
        let at = side_start(0) + prepared.reply_at() + RESULT_AFTER;
        let called = match status {
            STATUS_DONE
                if bytes <= request.max_result_bytes && helper.link().arena().has(at, bytes) =>
            {
                let arena = Arc::clone(helper.link().arena());
                match read(ForeignReply { head, bytes, at, arena: &arena }) {
                    Ok(done) => Ok(Called::Done(done)),
                    // A sound helper's reply is what was asked for.
                    Err(_) => Err(helper.malformed()),
                }
            }
            STATUS_REFUSED => Ok(Called::Refused(text())),
            STATUS_NO_MEMORY => Ok(Called::NoMemory(text())),
            STATUS_CANNOT => Ok(Called::Cannot(text())),
            _ => Err(helper.malformed()),
        };
        if called.is_ok() {
            let bytes = if status == STATUS_DONE { bytes } else { 0 };
            helper.link().arena().give_back(at.saturating_add(bytes));
        }
        called
    }

    /// Makes the turn's helper ready, starting one if there is none; returns its first message if it was started now.
    fn ready(&self, turn: &mut Turn<'_>, is_ending: &dyn Fn() -> bool) -> Result<Vec<u8>, Lost> {
        if turn.worker.as_ref().is_some_and(Worker::is_ready) {
            return Ok(Vec::new());
        }
        let mut failed = 0;
        loop {
            let started = Worker::start(Arc::clone(&self.spawner), false);
            let mut helper = started.map_err(|reason| self.none(&reason))?;
            helper.take_own_cores();
            match helper.hello(Limit::Call(START_LIMIT), is_ending) {
                Ok(hello) => {
                    self.cpu_times.add(helper.process());
                    turn.worker = Some(helper);
                    return Ok(hello);
                }
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, how, .. }) => {
                    failed += 1;
                    let is_killed = how == Loss::Killed;
                    if is_killed {
                        std::thread::sleep(KILLED_PAUSE);
                    }
                    if failed >= if is_killed { MAX_KILLED_STARTS } else { MAX_STARTS } {
                        return Err(self.none(&format!("starting a decoder's process {reason}")));
                    }
                }
            }
        }
    }

    fn none(&self, reason: &str) -> Lost {
        Lost::NoWorkers(format!("{}: {reason}", self.spec.place))
    }
}

impl Drop for ForeignPool {
    fn drop(&mut self) {
        self.spawner.end();
    }
}

impl ForeignSpec {
    fn to_json(&self) -> String {
        let (policy, nice) = self.class.name_and_nice();
        serde_json::json!({
            "place": self.place,
            "policy": policy,
            "nice": nice,
            "memory_bytes": self.memory_bytes,
        })
        .to_string()
    }
}

enum Called<T> {
    Done(T),
    Refused(String),
    NoMemory(String),
    Cannot(String),
}
