//! Everything that `stats` tells, as one serialisable value.

use std::time::{Duration, Instant};

use forebay_protocol::ids::Position;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

use super::history::History;
use super::queue::QueueReport;
use super::quiet::QuietItem;
use super::stage::StageReport;
use super::verdict::{Verdict, of_daemon};

/// The daemon's figures. `stats --json` prints this.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DaemonReport {
    /// The release.
    pub release: String,
    /// The process id.
    pub pid: u32,
    /// User and system time so far.
    pub cpu_seconds: f64,
    /// Resident memory, the rings included.
    pub resident_bytes: u64,
    /// Resident memory that is no shared segment.
    pub private_bytes: u64,
    /// The work threads.
    pub threads: u32,
    /// Whether the threads of the next scheduling class work, because the lowered ones starve.
    pub rescue: bool,
    /// What samples may hold between fetch and work.
    pub fetch_budget_bytes: u64,
    /// What they hold.
    pub fetch_in_use_bytes: u64,
    /// The CPU budget: `cpu.limit`, or what a shared quota leaves.
    pub cpu_budget: CpuBudgetReport,
    /// What keeps the daemon quiet beside the trainer, and what could not be had.
    pub quiet: Vec<QuietItem>,
    /// The stages of the first stream with a session, else of the first: the same as in `streams`.
    pub stages: Vec<StageReport>,
    /// What the limit is.
    pub verdict: Verdict,
    /// What does not move. Empty where everything does.
    pub stalls: Vec<StallReport>,
    /// Every stream.
    pub streams: Vec<StreamReport>,
    /// Every attached client.
    pub sessions: Vec<SessionReport>,
    /// The address with port at which figures are served over HTTP, if they are.
    #[serde(default)]
    pub metrics: Option<String>,
}

/// Something that has not moved for `errors.stall_after`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StallReport {
    /// The session that it holds up.
    pub session: u64,
    /// The session's stream.
    pub stream: String,
    /// The stage's name, or `trainer`.
    pub stage: String,
    /// The sample's id, where it is one.
    pub sample: Option<u64>,
    /// The sample's file.
    pub path: Option<String>,
    /// For how long.
    pub seconds: f64,
    /// All of it, for a person.
    pub sentence: String,
}

/// How much CPU time the daemon may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuBudgetReport {
    /// CPU seconds a second; none: no limit.
    pub cores: Option<f64>,
    /// How long work threads have waited for it, all together.
    pub held_back_seconds: f64,
    /// Cores that the daemon may use: its share of those that are allowed, or less under a control group's quota.
    #[serde(default)]
    pub granted_cores: f64,
    /// Whether a quota of the daemon's own control group makes them fewer than its cores.
    #[serde(default)]
    pub is_quota: bool,
}

/// What the engine knows of itself.
pub(crate) struct EngineFigures {
    pub(crate) streams: Vec<StreamReport>,
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) threads: u32,
    pub(crate) rescue: bool,
    pub(crate) fetch_budget_bytes: u64,
    pub(crate) fetch_in_use_bytes: u64,
    pub(crate) cpu_budget: CpuBudgetReport,
    pub(crate) stalls: Vec<StallReport>,
    pub(crate) quiet: Vec<QuietItem>,
    pub(crate) metrics: Option<String>,
}

/// One stream's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// `ring.memory`: what the rings of its sessions, reads under way and scratch may take together.
    #[serde(default)]
    pub memory_budget_bytes: u64,
    /// The samples of a full batch.
    #[serde(default)]
    pub batch_size: u32,
    /// Fetch first; each with the queue after it.
    pub stages: Vec<StageReport>,
    /// Where bad samples are listed, if anywhere.
    pub quarantine: Option<QuarantineReport>,
}

/// The file that lists a stream's bad samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QuarantineReport {
    /// The file.
    pub path: String,
    /// Samples that could not be listed there.
    pub samples_lost: u64,
}

/// One client's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number in the daemon.
    pub session: u64,
    /// The stream.
    pub stream: String,
    /// Its rank.
    pub rank: u32,
    /// The ranks of the job.
    pub world_size: u32,
    /// Since it attached.
    pub seconds: f64,
    /// Where the next batch to be opened begins.
    pub position: Position,
    /// Batches in the ring so far.
    pub batches_published: u64,
    /// Batches that the client says it took.
    pub batches_taken: u64,
    /// The client's wait in all, by its word.
    pub wait_seconds: f64,
    /// Slots by state.
    pub slots_free: u64,
    /// Being written.
    pub slots_filling: u64,
    /// Published and not taken.
    pub slots_ready: u64,
    /// Taken and not returned.
    pub slots_leased: u64,
    /// Data, publish and return.
    pub ring_bytes: u64,
    /// How long the next batch waited for a free slot with nothing else under way, in all.
    #[serde(default)]
    pub put_wait_seconds: f64,
    /// The ring as a queue: what the daemon puts and the client gets.
    #[serde(default)]
    pub ring: Option<QueueReport>,
    /// What limits this client.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// Samples that took another one's place since the client attached.
    #[serde(default)]
    pub samples_substituted: u64,
    /// The last hundred of them.
    pub substituted: Vec<Substitution>,
}

/// A sample that took another one's place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Substitution {
    /// In which epoch.
    pub epoch: u64,
    /// The bad sample's id.
    pub sample: u64,
    /// The id of the sample in its place.
    pub substitute: u64,
    /// The bad sample's file.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
}

impl DaemonReport {
    /// The figures as they are now; sessions are judged by their last minute.
    pub(crate) fn new(figures: EngineFigures, history: &History) -> Self {
        let process = ProcessFigures::now();
        let judgements = history.judge(&figures, process.cpu_seconds, Instant::now());
        let EngineFigures { streams, mut sessions, threads, cpu_budget, .. } = figures;
        let shown = sessions.first().map(|session| session.stream.as_str());
        let stream = streams
            .iter()
            .find(|stream| Some(stream.name.as_str()) == shown)
            .or_else(|| streams.first());
        let stages = stream.map(|stream| stream.stages.clone()).unwrap_or_default();
        let verdict = of_daemon(&judgements, &sessions);
        for (session, judgement) in sessions.iter_mut().zip(judgements) {
            session.verdict = Some(judgement.verdict);
        }
        Self {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            cpu_seconds: process.cpu_seconds,
            resident_bytes: process.resident_bytes,
            private_bytes: process.resident_bytes.saturating_sub(process.shared_bytes),
            threads,
            rescue: figures.rescue,
            fetch_budget_bytes: figures.fetch_budget_bytes,
            fetch_in_use_bytes: figures.fetch_in_use_bytes,
            cpu_budget,
            quiet: figures.quiet,
            stages,
            verdict,
            stalls: figures.stalls,
            streams,
            sessions,
            metrics: figures.metrics,
        }
    }
}

/// What the kernel says of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessFigures {
    /// User and system time.
    pub cpu_seconds: f64,
    /// `VmRSS`.
    pub resident_bytes: u64,
    /// `RssShmem`.
    pub shared_bytes: u64,
    /// `VmHWM`.
    pub peak_bytes: u64,
}

impl ProcessFigures {
    /// This process's figures now; zeros where /proc cannot be read.
    #[must_use]
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field_of = |name| field(&status, name);
        Self {
            cpu_seconds: cpu_time().as_secs_f64(),
            resident_bytes: field_of("VmRSS:"),
            shared_bytes: field_of("RssShmem:"),
            peak_bytes: field_of("VmHWM:"),
        }
    }

    /// The most that another process of this user has had resident; 0 when it is gone.
    #[must_use]
    pub fn peak_of(pid: u32) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        field(&status, "VmHWM:")
    }
}

/// A line of /proc/PID/status, in bytes.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// User and system time of this process.
#[must_use]
pub fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(Duration::ZERO, Duration::from)
}

/// User and system time of this process's children that have ended: of a client, the daemons of its own that died.
#[must_use]
pub fn ended_children_cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_or(Duration::ZERO, |usage| {
        let time = usage.user_time() + usage.system_time();
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    })
}
