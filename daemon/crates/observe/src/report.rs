//! The report that `stats` prints, as one serialisable value. Data only: [`super::History::report`] makes one, and
//! [`super::window`] subtracts one from another.

use forebay_protocol::ids::Position;
use serde::{Deserialize, Serialize};

use super::cache::CacheReport;
use super::cpu_isolation::IsolationItem;
use super::jpeg_index::JpegIndexReport;
use super::python::PythonReport;
use super::queue::QueueReport;
use super::requests::RequestReport;
use super::stage::StageReport;

/// The daemon's figures. `stats --json` prints this. The engine fills in what it counts, [`super::History::report`] the
/// process, the verdicts and `stages`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DaemonReport {
    /// The release.
    pub release: String,
    /// The process id.
    pub pid: u32,
    /// The time since its start.
    #[serde(default)]
    pub uptime_seconds: f64,
    /// User and system time so far.
    pub cpu_seconds: f64,
    /// User and system time so far of the processes that run the user's own Python. Not part of `cpu_seconds`.
    #[serde(default)]
    pub python_cpu_seconds: f64,
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
    /// The measures that isolate the trainer from the daemon, the unavailable ones included.
    #[serde(rename = "quiet")]
    pub cpu_isolation: Vec<IsolationItem>,
    /// The stages of the first stream with a session, else of the first, and its functions on complete batches: the same
    /// as in `streams`.
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

/// The limit and the sentence that says so.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// A stage's name, `storage`, `ring`, `cpu-budget`, `trainer` or `none`.
    pub limit: String,
    /// What it is, in a few words.
    #[serde(default)]
    pub what: String,
    /// How sure that is; none where there is too little to judge.
    #[serde(default)]
    pub certainty: Option<Certainty>,
    /// What to do, in a few words; empty where there is nothing to do.
    #[serde(default)]
    pub advice: String,
    /// All of it with its numbers, for a person.
    pub sentence: String,
    /// The time that it judges, up to now.
    #[serde(default)]
    pub seconds: f64,
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Few numbers, or a limit that is found by exclusion.
    Possible,
    /// The numbers are just beyond the rule's thresholds.
    Likely,
    /// They are far beyond them.
    Certain,
}

impl Certainty {
    pub(super) const fn above(is_far_beyond: bool) -> Self {
        if is_far_beyond { Self::Certain } else { Self::Likely }
    }

    /// As a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

impl Verdict {
    /// What, how sure and what to do, as one short line; the sentence where a daemon of another release says no more.
    #[must_use]
    pub fn line(&self) -> String {
        if self.what.is_empty() {
            return self.sentence.clone();
        }
        let certainty = self.certainty.map_or("", Certainty::word);
        let parts = [self.what.as_str(), certainty, &self.advice];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(" · ")
    }
}

/// Something that has not moved for `errors.stall_after`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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

/// One stream's figures.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    /// The operations on complete batches together, where there are any: a task is a batch, on a work thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_operations: Option<StageReport>,
    /// Those of them that are Python, each as a stage whose tasks are batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_functions: Vec<StageReport>,
    /// What its storage was asked for, where it answers requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// What the cache on disk in front of its storage did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// Where bad samples are listed, if anywhere.
    pub quarantine: Option<QuarantineReport>,
    /// What is learned of its JPEG files; none for a dataset without images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jpeg_index: Option<JpegIndexReport>,
    /// The outage of its storage that is announced.
    #[serde(default)]
    pub outage: Option<OutageReport>,
    /// `dataset.outage_timeout`: how long a storage that is away is waited for.
    #[serde(default)]
    pub outage_timeout_seconds: f64,
    /// What is drawn of each dataset, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<DatasetReport>,
}

/// One of several datasets of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReport {
    /// `dataset.name`.
    pub name: String,
    /// Its samples.
    pub samples: u64,
    /// How many of an epoch's samples are its own, at the run's start.
    pub draws_per_epoch: u64,
    /// Where that changes: the position, counted over all epochs, and how many they are from there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<(u64, u64)>,
    /// Its rows in batches that were published since the daemon started, padding included.
    pub rows_published: u64,
}

/// A storage that is away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutageReport {
    /// For how long.
    pub seconds: f64,
    /// The reads that have waited for it.
    pub reads: u64,
    /// The first file that could not be read.
    pub path: String,
    /// All of it, for a person.
    pub sentence: String,
}

impl StreamReport {
    /// The datasets' rows in batches that were published, and their shares; `None`: there is one dataset.
    #[must_use]
    pub fn datasets_line(&self) -> Option<String> {
        let all: u64 = self.datasets.iter().map(|dataset| dataset.rows_published).sum();
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = |rows: u64| (100.0 * rows as f64 / all.max(1) as f64).round();
        let words = |one: &DatasetReport| {
            format!("{} {} ({} %)", one.name, one.rows_published, share(one.rows_published))
        };
        let words: Vec<_> = self.datasets.iter().map(words).collect();
        (!words.is_empty()).then(|| words.join(" · "))
    }

    /// The stages, and after them the functions on complete batches: what a batch passes through.
    pub fn stages_and_functions(&self) -> impl Iterator<Item = &StageReport> {
        self.stages.iter().chain(&self.batch_functions)
    }

    /// The same, and after them the batch operations together where there are any.
    pub fn stages_and_batch(&self) -> impl Iterator<Item = &StageReport> {
        self.stages_and_functions().chain(&self.batch_operations)
    }

    /// The user's own Python: that of stages, and after it that on complete batches.
    pub fn python(&self) -> impl Iterator<Item = &PythonReport> {
        self.stages_and_functions().filter_map(|stage| stage.python.as_ref())
    }
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    /// The metrics of the time that the verdict judges.
    #[serde(default)]
    pub window: Option<WindowReport>,
    /// How far the trainer is.
    #[serde(default)]
    pub progress: Option<ProgressReport>,
    /// Samples that took another one's place since the client attached.
    #[serde(default)]
    pub samples_substituted: u64,
    /// Of these the ones whose file could not be read.
    #[serde(default)]
    pub samples_unreadable: u64,
    /// The last hundred of them.
    pub substituted: Vec<Substitution>,
}

/// How far a trainer is: by the batches that it took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// From 0.
    pub epoch: u64,
    /// None: endless.
    pub epochs: Option<u64>,
    /// Samples of this epoch that all ranks together took.
    pub samples: u64,
    /// Samples that an epoch gives.
    pub samples_per_epoch: u64,
    /// This rank's batches that are left of this epoch.
    pub batches_left_of_epoch: u64,
    /// This rank's batches that are left in all.
    pub batches_left: Option<u64>,
    /// By the verdict's window: until the end of this epoch.
    pub epoch_seconds_left: Option<f64>,
    /// By the verdict's window: until the end of the last epoch.
    pub seconds_left: Option<f64>,
}

/// Metrics of the time that a session's verdict judges.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    /// Its length.
    pub seconds: f64,
    /// The share of the time that the client waited.
    pub wait_share: f64,
    /// Batches that the client took.
    pub batches_per_second: f64,
    /// Samples that left the stream's last stage, for all of its sessions.
    pub samples_per_second: f64,
    /// What the daemon used.
    pub cpu_cores: f64,
    /// What the processes with the user's own Python used besides.
    #[serde(default)]
    pub python_cores: f64,
    /// The stream's stages, and the user's functions on complete batches.
    pub stages: Vec<StageWindow>,
    /// What the stream's storage was asked for, in a line, where it answers requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    /// What the cache on disk did, in a line, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

/// A stage's metrics in a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageWindow {
    /// The stage.
    pub name: String,
    /// Tasks at work, in the mean.
    pub busy: f64,
    /// The maximum of tasks at once.
    pub concurrency: u32,
    /// Tasks that succeeded.
    pub tasks_per_second: f64,
    /// A task is a complete batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_batches: bool,
    /// The mean time of a task.
    pub mean_seconds: f64,
    /// The share of the time in which the queue after it, for the last stage the ring, was not empty.
    pub occupancy: Option<f64>,
    /// Where the time of a Python stage's function goes, in a few words; empty where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
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
    /// Whether its file could not be read; else its bytes are defective.
    #[serde(default)]
    pub unreadable: bool,
}
