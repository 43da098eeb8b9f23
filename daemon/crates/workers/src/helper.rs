//! A helper process that runs foreign decoders: its own side. [`crate::foreign`] is the daemon's.
//!
//! Descriptors at the start are those of any worker: 0 the socket, 1 the arena, 2 the log, and the specification, whose
//! number is in a variable. The helper opens its libraries, says what they are, and gives up everything else before it
//! reads the first request: it can open no file, no socket and no other descriptor, starts no program, writes no core,
//! and has no more memory than its specification says. It ends with its spawner.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;

use crate::arena::Arena;
use crate::call::INPUTS_AT;
use crate::foreign::{
    REPLY_WORDS, REQUEST_WORDS, RESULT_AFTER, STATUS_CANNOT, STATUS_DONE, STATUS_NO_MEMORY,
    STATUS_REFUSED,
};
use crate::interpreter::SPEC_VARIABLE;
use crate::spec::WorkerClass;

/// The latest Landlock ABI whose rights are given up; an older kernel gives up those that it knows.
const KNOWN: ABI = ABI::V5;
/// Private memory that the process itself may take beyond its libraries and a request.
const OWN_BYTES: u64 = 48 << 20;

/// Why a decoder has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperError {
    /// A defect of the sample, in lowercase.
    Refused(String),
    /// Memory could not be had: the request is repeated in a new process, and is a defect there.
    NoMemory(String),
    /// No decoder of this host takes such data, whatever the sample: says what to install.
    Cannot(String),
}

/// Foreign decoders, opened before the process is confined.
pub trait Foreign {
    /// What they are, as JSON.
    fn introduction(&self) -> String;

    /// Decodes: returns the head of the result, whose bytes are appended to `output`.
    ///
    /// # Errors
    /// Why there is none.
    fn decode(
        &mut self,
        kind: u32,
        head: &[u8],
        data: &[u8],
        output: &mut HelperOutput<'_>,
    ) -> Result<Vec<u8>, HelperError>;
}

/// Where the bytes of a result go: the arena.
#[derive(Debug)]
pub struct HelperOutput<'a> {
    arena: &'a Arena,
    start: u64,
    bytes: u64,
    most_bytes: u64,
}

impl HelperOutput<'_> {
    /// The most bytes of the result.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// There are more than were asked for.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), String> {
        let end = self.bytes + bytes.len() as u64;
        if end > self.most_bytes {
            return Err(format!("the result has more than {} bytes", self.most_bytes));
        }
        let written = self.arena.write(bytes, self.start + self.bytes);
        self.bytes = end;
        written.map_err(|error| error.to_string())
    }
}

/// Serves requests until the daemon has ended. `lower` takes the scheduling class, `open` opens the decoders.
///
/// # Errors
/// The process cannot be prepared.
pub fn serve_helper<F: Foreign>(
    lower: impl FnOnce(WorkerClass),
    open: impl FnOnce() -> F,
) -> io::Result<ExitCode> {
    let spec = read_spec()?;
    crate::own_program::take_name();
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() == 1 {
        // The spawner has ended before it could be noticed. (A spawner is not the first process of a container: it is
        // started by a daemon.)
        return Ok(ExitCode::FAILURE);
    }
    lower(class_of(&spec));
    close_inherited();
    let (mut socket, arena) = take_descriptors()?;
    let mut decoders = open();
    let introduction = decoders.introduction();
    let memory_bytes = spec.get("memory_bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let limit = confine(memory_bytes)?;
    arena.write(introduction.as_bytes(), INPUTS_AT)?;
    answer(&mut socket, 0, introduction.len())?;
    let mut scratch = Vec::new();
    loop {
        let mut message = [0; 40];
        if socket.read_exact(&mut message).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        let words: Vec<u64> = message
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)))
            .collect();
        let [call, side, header_at, header_bytes, reply_at] = words[..] else {
            return Ok(ExitCode::FAILURE);
        };
        let call_at = Call { side, header_at, header_bytes, reply_at };
        let reply = call_at.run(&arena, &limit, &mut decoders, &mut scratch)?;
        arena.write(&reply, side + reply_at)?;
        answer(&mut socket, call, reply.len())?;
    }
}

fn answer(socket: &mut UnixStream, call: u64, bytes: usize) -> io::Result<()> {
    let words = [call, bytes as u64];
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    socket.write_all(&message)
}

/// The places of one call in the arena.
struct Call {
    side: u64,
    header_at: u64,
    header_bytes: u64,
    reply_at: u64,
}

impl Call {
    /// Runs a request; returns the reply. `scratch` keeps memory from call to call.
    fn run<F: Foreign>(
        &self,
        arena: &Arena,
        limit: &MemoryLimit,
        decoders: &mut F,
        scratch: &mut Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let size = |bytes: u64| usize::try_from(bytes).map_err(io::Error::other);
        let mut header = vec![0; size(self.header_bytes)?];
        arena.read(&mut header, self.side + self.header_at)?;
        let (words, head) = header
            .split_at_checked(REQUEST_WORDS * 8)
            .ok_or_else(|| io::Error::other("a request is too short"))?;
        let word = |number: usize| {
            let bytes = words[number * 8..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let (memory_bytes, most_bytes, data_bytes) = (word(0), word(1), word(2));
        limit.allow(memory_bytes.saturating_add(data_bytes.saturating_mul(2)));
        scratch.clear();
        if scratch.try_reserve_exact(size(data_bytes)?).is_err() {
            let reason = format!("{data_bytes} bytes of packets are more than its memory holds");
            return Ok(reply(STATUS_NO_MEMORY, 0, reason.as_bytes()));
        }
        scratch.resize(size(data_bytes)?, 0);
        arena.read(scratch, self.side + INPUTS_AT)?;
        let start = self.side + self.reply_at + RESULT_AFTER;
        let mut output = HelperOutput { arena, start, bytes: 0, most_bytes };
        let kind = u32::try_from(word(3)).unwrap_or(u32::MAX);
        Ok(match decoders.decode(kind, head, scratch, &mut output) {
            Ok(head) if head.len() as u64 + REPLY_WORDS as u64 * 8 <= RESULT_AFTER => {
                reply(STATUS_DONE, output.bytes, &head)
            }
            Ok(_) => reply(STATUS_REFUSED, 0, b"the description of the result is too long"),
            Err(HelperError::Refused(reason)) => reply(STATUS_REFUSED, 0, reason.as_bytes()),
            Err(HelperError::NoMemory(reason)) => reply(STATUS_NO_MEMORY, 0, reason.as_bytes()),
            Err(HelperError::Cannot(reason)) => reply(STATUS_CANNOT, 0, reason.as_bytes()),
        })
    }
}

fn reply(status: u64, bytes: u64, head: &[u8]) -> Vec<u8> {
    let mut reply: Vec<u8> = [status, bytes].iter().flat_map(|word| word.to_le_bytes()).collect();
    reply.extend_from_slice(head);
    reply
}

/// The specification, from sealed memory that all helpers of a pool inherit.
fn read_spec() -> io::Result<serde_json::Value> {
    let number = std::env::var(SPEC_VARIABLE).ok().and_then(|number| number.parse::<i32>().ok());
    let number = number.filter(|number| *number > 2);
    let number = number.ok_or_else(|| io::Error::other("not started by a daemon"))?;
    // Through /proc, with an offset of its own; the inherited descriptor is closed below.
    let file = File::open(format!("/proc/self/fd/{number}"))?;
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    nix::unistd::close(number)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

/// Closes descriptors that a library or a test runner of the daemon has let through.
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in numbers {
        // One of them was the directory's.
        let _ = nix::unistd::close(number);
    }
}

/// Moves socket and arena away from the standard descriptors, where a library might write.
fn take_descriptors() -> io::Result<(UnixStream, Arena)> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let memory = io::stdout().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok((UnixStream::from(socket), Arena::of_file(File::from(memory))))
}

/// The scheduling class of a specification.
fn class_of(spec: &serde_json::Value) -> WorkerClass {
    let nice = spec.get("nice").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let nice = u8::try_from(nice).unwrap_or(0);
    match spec.get("policy").and_then(serde_json::Value::as_str) {
        Some("batch") => WorkerClass::Batch(nice),
        Some("normal") => WorkerClass::Normal(nice),
        _ => WorkerClass::Idle,
    }
}

/// The limit of private memory, which follows the requests.
struct MemoryLimit {
    /// What the process has after its start.
    base_bytes: u64,
    /// The most that it may ever have.
    most_bytes: u64,
    /// The limit that is set.
    set_bytes: std::cell::Cell<u64>,
}

impl MemoryLimit {
    /// Allows so many bytes for a request. A limit is only raised: what an earlier request has left in pieces must not
    /// fail a later, smaller one.
    fn allow(&self, bytes: u64) {
        let wanted =
            self.base_bytes.saturating_add(OWN_BYTES).saturating_add(bytes).min(self.most_bytes);
        if wanted > self.set_bytes.get()
            && setrlimit(Resource::RLIMIT_DATA, wanted, self.most_bytes).is_ok()
        {
            self.set_bytes.set(wanted);
        }
    }
}

/// Gives up all rights that decoding does not need.
fn confine(memory_bytes: u64) -> io::Result<MemoryLimit> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let base = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let base = base.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let base_bytes = base.unwrap_or(0).saturating_mul(1024);
    let most_bytes = base_bytes.saturating_add(OWN_BYTES).saturating_add(memory_bytes);
    let set_bytes = base_bytes + OWN_BYTES;
    let restricted = (|| {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::from_all(KNOWN))?;
        ruleset.create()?.restrict_self()
    })();
    if let Err(error) = restricted {
        tracing::debug!(%error, "a decoder's process keeps its access to files (Landlock)");
    }
    // No descriptor can be opened: no file and no socket, whatever the kernel knows of Landlock.
    setrlimit(Resource::RLIMIT_NOFILE, 0, 0)?;
    setrlimit(Resource::RLIMIT_NPROC, 0, 0)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_DATA, set_bytes, most_bytes)?;
    Ok(MemoryLimit { base_bytes, most_bytes, set_bytes: set_bytes.into() })
}
