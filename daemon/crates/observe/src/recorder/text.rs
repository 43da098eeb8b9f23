//! Exports a recording in the Chrome trace event format, which Perfetto, chrome://tracing and PyTorch's profiler use.
//!
//! Times are microseconds since `baseTimeNanoseconds` of the Unix epoch. PyTorch's traces have the same base, so one file
//! can contain our events and PyTorch's. docs/guide/tracing.md describes the tracks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    EVENT_WORDS, Event, Kind, MAX_EVENTS, RECORDING_BYTES, Recording, Track, WORKERS, What,
};

/// The maximum size of the text: the recording's limit minus its events.
const MAX_TEXT_BYTES: u64 = RECORDING_BYTES - (MAX_EVENTS * EVENT_WORDS * 8) as u64;
/// Reserved for the end of the text.
const END_BYTES: u64 = 64 << 10;

/// Bases are multiples of this (three months), as in Kineto, the library of PyTorch's profiler.
const BASE_PERIOD_NS: u64 = 7_889_238 * 1_000_000_000;

/// Process numbers of sessions are above all real ones (`pid_max` is at most 2^22).
const FIRST_SESSION_PROCESS: u64 = 1_000_000_000;

/// The names for the numbers in events.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// The daemon's process id.
    pub pid: u32,
    /// The difference between the time since the Unix epoch and the monotonic clock.
    pub unix_offset_ns: u64,
    /// The length of the recording.
    pub seconds: f64,
    /// Indexed by stream number.
    pub streams: Vec<StreamNames>,
    /// The tracks of work threads by the kernel's thread ids.
    pub work_threads: BTreeMap<u32, Track>,
    /// By session number.
    pub sessions: BTreeMap<u64, SessionNames>,
}

/// A stream and its stages.
#[derive(Debug, Clone)]
pub struct StreamNames {
    /// The stream's name.
    pub name: String,
    /// The names of the stages, in order.
    pub stages: Vec<String>,
    /// The positions of the user's functions on complete batches in the configuration, in order.
    pub functions: Vec<String>,
    /// The operations of each stage.
    pub operations: Vec<String>,
}

/// A session.
#[derive(Debug, Clone, Copy)]
pub struct SessionNames {
    /// The index of the stream.
    pub stream: usize,
    /// The client's rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
}

impl Scene {
    /// The stream of a session.
    pub fn stream_of(&self, session: u64) -> Option<&StreamNames> {
        self.streams.get(self.sessions.get(&session)?.stream)
    }

    /// The name of a stage; for an index after the last stage, of a function on complete batches.
    pub fn stage_name(&self, session: u64, stage: usize) -> String {
        let stream = self.stream_of(session);
        let known =
            stream.and_then(|stream| stream.stages.iter().chain(&stream.functions).nth(stage));
        known.map_or_else(|| format!("stage {stage}"), Clone::clone)
    }

    /// The track of a Python stage's worker, and its name; `None` if the session is unknown.
    fn worker(&self, session: u64, place: usize) -> Option<(u64, String)> {
        let stream = self.sessions.get(&session)?.stream;
        let (stage, worker) = (place / WORKERS, place % WORKERS);
        let stage = self.stage_name(session, stage);
        let name = self.stream_of(session).map_or("", |stream| stream.name.as_str());
        let track = FIRST_WORKER + ((stream as u64) << 24) + place as u64;
        Some((track, format!("{stage} {worker} (Python, {name})")))
    }

    /// The track of a thread, and its name.
    fn thread(&self, track: Track) -> (u64, String) {
        match track {
            Track::Engine => (1, "engine".to_owned()),
            Track::Work(group, number) => {
                let name = if group == 0 { "work" } else { "fallback" };
                (10_000 * (1 + group as u64) + number as u64, format!("{name} {number}"))
            }
            Track::Lane(stream, lane) => {
                let name = self.streams.get(stream).map_or("", |stream| stream.name.as_str());
                (100_000 * (1 + stream as u64) + lane as u64, format!("fetch {lane} ({name})"))
            }
        }
    }
}

/// Workers have track numbers above all threads.
const FIRST_WORKER: u64 = 10_000_000;

/// Tracks of a session that are not threads of the daemon.
const STEPS: u64 = 1;
const WAITS: u64 = 2;
const FIRST_SLOT: u64 = 10;

/// Writes the recording.
///
/// # Errors
/// The writer's errors.
pub fn write_trace(recording: &Recording, scene: &Scene, writer: impl Write) -> io::Result<()> {
    Writer::new(scene, writer, MAX_TEXT_BYTES).write(recording)
}

struct Writer<'a, W: Write> {
    scene: &'a Scene,
    writer: W,
    max_bytes: u64,
    bytes: u64,
    base_ns: u64,
    not_written: u64,
    line: Vec<u8>,
}

/// An event with a time, in the format's terms.
#[derive(Serialize)]
struct TimedEvent<'a> {
    ph: &'static str,
    name: Cow<'a, str>,
    pid: u64,
    tid: u64,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(scene: &'a Scene, writer: W, max_bytes: u64) -> Self {
        Self { scene, writer, max_bytes, bytes: 0, base_ns: 0, not_written: 0, line: Vec::new() }
    }

    fn write(mut self, recording: &Recording) -> io::Result<()> {
        // A base may have passed since the machine's start.
        let now_ns = self.scene.unix_offset_ns.saturating_add(recording.begun_ns());
        self.base_ns = now_ns - now_ns % BASE_PERIOD_NS;
        let head = format!(
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},\"traceEvents\":[\n",
            self.base_ns
        );
        self.put(head.as_bytes())?;
        let mut tracks = BTreeSet::from([Track::Engine]);
        let (mut slots, mut workers) = (BTreeSet::new(), BTreeSet::new());
        let mut sessions: BTreeSet<u64> = self.scene.sessions.keys().copied().collect();
        for event in recording.events() {
            tracks.insert(event.track);
            if event.what.kind == Kind::Batch {
                slots.insert((event.what.session, event.what.place));
            }
            if event.what.kind.is_of_worker() {
                workers.extend(self.scene.worker(event.what.session, event.what.place));
            }
            if event.what.session != 0 {
                sessions.insert(event.what.session);
            }
        }
        let names = self.metadata(&tracks, &workers, &sessions, &slots);
        for (number, name) in names.iter().enumerate() {
            let separator = if number == 0 { "" } else { ",\n" };
            self.put(format!("{separator}{name}").as_bytes())?;
        }
        let mut written = 0_u64;
        for event in recording.events() {
            if self.bytes + END_BYTES > self.max_bytes {
                self.not_written += 1;
                continue;
            }
            self.event(&event)?;
            written += 1;
        }
        let other = json!({
            "forebay": env!("CARGO_PKG_VERSION"),
            "pid": self.scene.pid,
            "clock": "CLOCK_MONOTONIC",
            "monotonic_to_unix_ns": self.scene.unix_offset_ns,
            "began_monotonic_ns": recording.begun_ns(),
            "seconds": self.scene.seconds,
            "events": written,
            "events_dropped": recording.dropped() + self.not_written,
        });
        self.put(format!("\n],\"otherData\":{other}}}\n").as_bytes())?;
        self.writer.flush()
    }

    fn put(&mut self, text: &[u8]) -> io::Result<()> {
        self.bytes += text.len() as u64;
        self.writer.write_all(text)
    }

    /// The names and the order of processes and threads.
    fn metadata(
        &self,
        tracks: &BTreeSet<Track>,
        workers: &BTreeSet<(u64, String)>,
        sessions: &BTreeSet<u64>,
        slots: &BTreeSet<(u64, usize)>,
    ) -> Vec<Value> {
        let mut all = Vec::new();
        let mut name = |what: &str, pid: u64, tid: u64, key: &str, value: Value| {
            all.push(json!({
                "ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": { key: value },
            }));
        };
        let pid = u64::from(self.scene.pid);
        name("process_name", pid, 0, "name", format!("forebay daemon {pid}").into());
        let threads = tracks.iter().map(|track| self.scene.thread(*track));
        for (tid, thread) in threads.chain(workers.iter().cloned()) {
            name("thread_name", pid, tid, "name", thread.into());
            name("thread_sort_index", pid, tid, "sort_index", tid.into());
        }
        for session in sessions {
            let process = FIRST_SESSION_PROCESS + session;
            let of = self.scene.sessions.get(session).map_or_else(String::new, |names| {
                let stream = self.scene.stream_of(*session).map_or("", |stream| &stream.name);
                format!(": {stream}, rank {} of {}", names.rank, names.world_size)
            });
            name(
                "process_name",
                process,
                0,
                "name",
                format!("forebay session {session}{of}").into(),
            );
            for (tid, thread) in [(STEPS, "trainer: steps"), (WAITS, "trainer: waits for data")] {
                name("thread_name", process, tid, "name", thread.into());
                name("thread_sort_index", process, tid, "sort_index", tid.into());
            }
        }
        for (session, slot) in slots {
            let (process, tid) = (FIRST_SESSION_PROCESS + session, FIRST_SLOT + *slot as u64);
            name("thread_name", process, tid, "name", format!("slot {slot}: being filled").into());
            name("thread_sort_index", process, tid, "sort_index", tid.into());
        }
        all
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let What { kind, session, batch, place, row, detail } = event.what;
        let of_session = FIRST_SESSION_PROCESS + session;
        let (pid, tid) = match kind {
            Kind::Batch => (of_session, FIRST_SLOT + place as u64),
            Kind::Ring => (of_session, 0),
            Kind::Step => (of_session, STEPS),
            Kind::Wait => (of_session, WAITS),
            Kind::Python | Kind::PythonBatch => {
                let worker = self.scene.worker(session, place);
                let (tid, _) = worker.unwrap_or_else(|| self.scene.thread(event.track));
                (self.scene.pid.into(), tid)
            }
            _ => (self.scene.pid.into(), self.scene.thread(event.track).0),
        };
        let name = match kind {
            Kind::Stage | Kind::FailedStage => self.scene.stage_name(session, place).into(),
            Kind::Python | Kind::PythonBatch => {
                format!("{} (Python)", self.scene.stage_name(session, place / WORKERS)).into()
            }
            Kind::Compaction => "compact".into(),
            Kind::HeldBack => "throttled by cpu.limit".into(),
            Kind::Fetch | Kind::FailedFetch => "fetch".into(),
            Kind::WaitForBytes => "wait for bytes".into(),
            Kind::Advance => "advance session".into(),
            Kind::Batch => format!("batch {batch}").into(),
            Kind::Ring => "ring slots".into(),
            Kind::Step => "step".into(),
            Kind::Wait => "wait".into(),
        };
        let sample =
            [("sample", detail), ("batch", batch), ("row", row as u64), ("session", session)];
        let slots = |shift: u32| detail >> shift & 0xffff;
        let numbers: &[(&str, u64)] = match kind {
            Kind::Stage
            | Kind::FailedStage
            | Kind::Python
            | Kind::Fetch
            | Kind::FailedFetch
            | Kind::WaitForBytes => &sample,
            Kind::Compaction | Kind::PythonBatch => &[("batch", batch), ("session", session)],
            Kind::Batch => &[
                ("batch", batch),
                ("published_as", detail),
                ("rows", row as u64),
                ("slot", place as u64),
            ],
            Kind::Ring => &[
                ("free", slots(0)),
                ("filling", slots(16)),
                ("ready", slots(32)),
                ("leased", slots(48)),
            ],
            Kind::Step | Kind::Wait => &[("taken", batch), ("batches", detail)],
            Kind::Advance => &[("session", session)],
            Kind::HeldBack => &[],
        };
        let mut args: Map<String, Value> =
            numbers.iter().map(|(name, number)| ((*name).to_owned(), (*number).into())).collect();
        if matches!(kind, Kind::FailedStage | Kind::FailedFetch) {
            args.insert("failed".to_owned(), true.into());
        }
        let since_base_ns =
            self.scene.unix_offset_ns.saturating_add(event.start_ns).saturating_sub(self.base_ns);
        // A step begins where the previous one ends. In floating-point microseconds the end may round up by a
        // nanosecond, which a viewer treats as an overlap.
        let length_ns = event.end_ns.saturating_sub(event.start_ns).saturating_sub(2);
        let timed = TimedEvent {
            ph: if kind == Kind::Ring { "C" } else { "X" },
            name,
            pid,
            tid,
            ts: microseconds(since_base_ns),
            dur: (kind != Kind::Ring).then(|| microseconds(length_ns)),
            args,
        };
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        line.extend(b",\n");
        serde_json::to_writer(&mut line, &timed)?;
        let put = self.put(&line);
        self.line = line;
        put
    }
}

/// Exact: times since a base are below 2^53 ns.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests;
