//! The report that `stats` prints, as one serialisable value. Data only: [`super::History::report`] completes it, and
//! [`super::window`] subtracts two reports.

use forebay_protocol::ids::Position;
use serde::{Deserialize, Serialize};

use super::cache::CacheReport;
use super::cpu_isolation::IsolationItem;
use super::jpeg_index::JpegIndexReport;
use super::python::PythonReport;
use super::queue::QueueReport;
use super::requests::RequestReport;
use super::sharing::SharingReport;
use super::stage::StageReport;
use super::supply::{FeedingReport, SupplyReport};

/// The daemon's metrics, printed by `stats --json`. The engine sets the counters; [`super::History::report`] sets the
/// process's metrics, the verdicts and `stages`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DaemonReport {
    /// The release.
    pub release: String,
    /// The process id.
    pub pid: u32,
    /// The time since the daemon's start.
    #[serde(default)]
    pub uptime_seconds: f64,
    /// User and system time so far, with that of the processes that decode its videos.
    pub cpu_seconds: f64,
    /// User and system time so far of the processes that run the user's Python functions. Not included in
    /// `cpu_seconds`.
    #[serde(default)]
    pub python_cpu_seconds: f64,
    /// Resident memory, including the rings.
    pub resident_bytes: u64,
    /// Resident memory without shared segments.
    pub private_bytes: u64,
    /// The number of work threads.
    pub threads: u32,
    /// Whether the threads of the fallback pool work because the threads of low priority starve.
    pub fallback_pool: bool,
    /// The maximum number of bytes that samples occupy between fetch and work.
    pub fetch_budget_bytes: u64,
    /// The number of bytes that they occupy.
    pub fetch_in_use_bytes: u64,
    /// The CPU budget: `cpu.limit`, or the unused part of a shared quota.
    pub cpu_budget: CpuBudgetReport,
    /// The measures that isolate the trainer from the daemon, including unavailable ones.
    #[serde(rename = "quiet")]
    pub cpu_isolation: Vec<IsolationItem>,
    /// The stages of the first stream with a session, otherwise of the first stream, and its functions on complete
    /// batches: the same as in `streams`.
    pub stages: Vec<StageReport>,
    /// The limit.
    pub verdict: Verdict,
    /// What makes no progress; usually empty.
    pub stalls: Vec<StallReport>,
    /// Every stream.
    pub streams: Vec<StreamReport>,
    /// Every attached client.
    pub sessions: Vec<SessionReport>,
    /// The address and port of the HTTP server for metrics, if it is enabled.
    #[serde(default)]
    pub metrics: Option<String>,
}

/// A limit, and the sentence that describes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// A stage's name, `storage`, `ring`, `cpu-budget`, `trainer` or `none`.
    pub limit: String,
    /// The limit as a short phrase.
    #[serde(default)]
    pub what: String,
    /// The certainty; `None` without enough data.
    #[serde(default)]
    pub certainty: Option<Certainty>,
    /// The remedy as a short phrase; empty if there is none.
    #[serde(default)]
    pub advice: String,
    /// The complete text with numbers.
    pub sentence: String,
    /// The judged period up to now, in seconds.
    #[serde(default)]
    pub seconds: f64,
}

/// The certainty of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Based on few numbers, or on the exclusion of other limits.
    Possible,
    /// The numbers are slightly beyond the rule's thresholds.
    Likely,
    /// The numbers are far beyond the rule's thresholds.
    Certain,
}

impl Certainty {
    pub(super) const fn above(is_far_beyond: bool) -> Self {
        if is_far_beyond { Self::Certain } else { Self::Likely }
    }

    /// The certainty as a word.
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
    /// The limit, its certainty and the remedy as one short line; the sentence if the daemon's release does not report
    /// these.
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

/// Something that has made no progress for `errors.stall_after`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StallReport {
    /// The session that is blocked.
    pub session: u64,
    /// The session's stream.
    pub stream: String,
    /// The stage's name, or `trainer`.
    pub stage: String,
    /// The sample's id, if a sample is the cause.
    pub sample: Option<u64>,
    /// The sample's file.
    pub path: Option<String>,
    /// The time without progress.
    pub seconds: f64,
    /// The complete text.
    pub sentence: String,
}

/// The CPU time available to the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuBudgetReport {
    /// CPU seconds per second; `None`: unlimited.
    pub cores: Option<f64>,
    /// The total time for which work threads were throttled.
    pub held_back_seconds: f64,
    /// The number of cores that the daemon may use: its share of the allowed cores, or less under a control group's
    /// quota.
    #[serde(default)]
    pub granted_cores: f64,
    /// Whether a quota of the daemon's control group reduces `granted_cores` below its cores.
    #[serde(default)]
    pub is_quota: bool,
    /// The number of the machine's cores that neither the daemon of a local rank nor its trainer needs; `None`:
    /// unknown.
    #[serde(default)]
    pub spare_cores: Option<u32>,
}

/// The metrics of a stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StreamReport {
    /// The stream's name.
    pub name: String,
    /// `ring.memory`: the memory limit for the rings of its sessions, reads in flight and scratch together.
    #[serde(default)]
    pub memory_budget_bytes: u64,
    /// The number of samples in a full batch.
    #[serde(default)]
    pub batch_size: u32,
    /// The stages, `fetch` first, each with the queue after it.
    pub stages: Vec<StageReport>,
    /// User and system time so far of the processes that decode its videos, which is in no stage's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decoders_cpu_seconds: f64,
    /// All operations on complete batches together, if there are any: a task is a batch, on a work thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_operations: Option<StageReport>,
    /// The Python operations on complete batches, each as a stage whose tasks are batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_functions: Vec<StageReport>,
    /// The requests to its storage, if the storage serves requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// The metrics of the disk cache of its storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// The metrics of rows that several trainers share, once there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingReport>,
    /// Rows that feeders make for it, if it may have feeders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supply: Option<SupplyReport>,
    /// Whether feeders would help, once a trainer and the stages are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feeding: Option<FeedingReport>,
    /// The file that lists bad samples, if any.
    pub quarantine: Option<QuarantineReport>,
    /// The metrics of its index of JPEG files; `None` for a dataset without images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jpeg_index: Option<JpegIndexReport>,
    /// The announced outage of its storage.
    #[serde(default)]
    pub outage: Option<OutageReport>,
    /// `dataset.outage_timeout`: the maximum wait for an unavailable storage.
    #[serde(default)]
    pub outage_timeout_seconds: f64,
    /// The draws of each dataset, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<DatasetReport>,
}

/// One of a stream's datasets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReport {
    /// `dataset.name`.
    pub name: String,
    /// The number of its samples.
    pub samples: u64,
    /// The number of samples that it contributes to an epoch at the run's start.
    pub draws_per_epoch: u64,
    /// Changes of this number: the position, counted over all epochs, and the number from there on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<(u64, u64)>,
    /// Its rows in batches published since the daemon's start, including padding.
    pub rows_published: u64,
}

/// An outage of a storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutageReport {
    /// Its duration.
    pub seconds: f64,
    /// The number of reads that have waited.
    pub reads: u64,
    /// The first file that could not be read.
    pub path: String,
    /// The complete text.
    pub sentence: String,
}

impl StreamReport {
    /// The number and the share of each dataset's rows in published batches; `None` with a single dataset.
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

    /// The stages, then the functions on complete batches, in the order in which a batch passes them.
    pub fn stages_and_functions(&self) -> impl Iterator<Item = &StageReport> {
        self.stages.iter().chain(&self.batch_functions)
    }

    /// The same, then the entry for all batch operations if there are any.
    pub fn stages_and_batch(&self) -> impl Iterator<Item = &StageReport> {
        self.stages_and_functions().chain(&self.batch_operations)
    }

    /// The user's Python functions: of stages, then on complete batches.
    pub fn python(&self) -> impl Iterator<Item = &PythonReport> {
        self.stages_and_functions().filter_map(|stage| stage.python.as_ref())
    }
}

/// The file that lists a stream's bad samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QuarantineReport {
    /// The file.
    pub path: String,
    /// Samples that could not be recorded there.
    pub samples_lost: u64,
}

impl SessionReport {
    /// The stream, with the trainer's name if it has one.
    #[must_use]
    pub fn label(&self) -> String {
        match self.trainer.as_str() {
            "" => self.stream.clone(),
            name => format!("{} {name}", self.stream),
        }
    }

    /// ` of trainer NAME`, if it has a name.
    #[must_use]
    pub fn of_trainer(&self) -> String {
        match self.trainer.as_str() {
            "" => String::new(),
            name => format!(" of trainer {name}"),
        }
    }
}

/// The metrics of a client.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionReport {
    /// The session's number in the daemon.
    pub session: u64,
    /// The stream.
    pub stream: String,
    /// The trainer's name; empty if the stream has one trainer without a name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trainer: String,
    /// The client's rank.
    pub rank: u32,
    /// The number of ranks in the job.
    pub world_size: u32,
    /// The time since it attached.
    pub seconds: f64,
    /// The start of the next batch to be opened.
    pub position: Position,
    /// The number of published batches.
    pub batches_published: u64,
    /// The number of batches that the client took, as the client reports.
    pub batches_taken: u64,
    /// The client's total wait, as the client reports.
    pub wait_seconds: f64,
    /// The time that work threads spent on its rows and batches: on a core, or asleep in an operation.
    #[serde(default)]
    pub work_seconds: f64,
    /// The number of free slots.
    pub slots_free: u64,
    /// The number of slots being written.
    pub slots_filling: u64,
    /// The number of published slots that are not taken.
    pub slots_ready: u64,
    /// The number of taken slots that are not returned.
    pub slots_leased: u64,
    /// The size of the data, publish and return segments.
    pub ring_bytes: u64,
    /// The total time for which the next batch waited for a free slot with nothing else in flight.
    #[serde(default)]
    pub put_wait_seconds: f64,
    /// The ring as a queue: the daemon puts, the client gets.
    #[serde(default)]
    pub ring: Option<QueueReport>,
    /// The limit of this client.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// The metrics of the period that the verdict judges.
    #[serde(default)]
    pub window: Option<WindowReport>,
    /// The trainer's progress.
    #[serde(default)]
    pub progress: Option<ProgressReport>,
    /// The number of substituted samples since the client attached.
    #[serde(default)]
    pub samples_substituted: u64,
    /// The number of these whose file could not be read.
    #[serde(default)]
    pub samples_unreadable: u64,
    /// The last hundred substitutions.
    pub substituted: Vec<Substitution>,
}

/// A trainer's progress, by the batches that it took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// Counted from 0.
    pub epoch: u64,
    /// The number of epochs; `None`: unlimited.
    pub epochs: Option<u64>,
    /// The samples of this epoch that all ranks together took.
    pub samples: u64,
    /// The number of samples in an epoch.
    pub samples_per_epoch: u64,
    /// This rank's remaining batches of this epoch.
    pub batches_left_of_epoch: u64,
    /// This rank's remaining batches in total.
    pub batches_left: Option<u64>,
    /// The estimated time to the end of this epoch, at the rate of the verdict's window.
    pub epoch_seconds_left: Option<f64>,
    /// The estimated time to the end of the last epoch, at the rate of the verdict's window.
    pub seconds_left: Option<f64>,
}

/// The metrics of the period that a session's verdict judges.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    /// The length of the period.
    pub seconds: f64,
    /// The share of the time for which the client waited.
    pub wait_share: f64,
    /// The rate at which the client took batches.
    pub batches_per_second: f64,
    /// The rate at which samples left the stream's last stage, for all of its sessions.
    pub samples_per_second: f64,
    /// The mean number of work threads that worked for the session.
    #[serde(default)]
    pub work_threads: f64,
    /// The mean number of cores that the daemon used.
    pub cpu_cores: f64,
    /// The mean number of cores that the processes with the user's Python functions used in addition.
    #[serde(default)]
    pub python_cores: f64,
    /// The stream's stages, and the user's functions on complete batches.
    pub stages: Vec<StageWindow>,
    /// The requests to the stream's storage as one line, if the storage serves requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    /// The metrics of the disk cache as one line, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

/// A stage's metrics in a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageWindow {
    /// The stage.
    pub name: String,
    /// The mean number of running tasks.
    pub busy: f64,
    /// The maximum number of concurrent tasks.
    pub concurrency: u32,
    /// The rate of successful tasks.
    pub tasks_per_second: f64,
    /// Whether a task is a complete batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_batches: bool,
    /// The mean time of a task.
    pub mean_seconds: f64,
    /// The share of the time in which the queue after it (for the last stage, the ring) was not empty.
    pub occupancy: Option<f64>,
    /// The hot spot of a Python stage's function; empty if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
}

/// The substitution of a sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Substitution {
    /// The epoch.
    pub epoch: u64,
    /// The bad sample's id.
    pub sample: u64,
    /// The id of the substitute.
    pub substitute: u64,
    /// The bad sample's file.
    pub path: String,
    /// The reason.
    pub reason: String,
    /// Whether the file could not be read; otherwise its bytes are defective.
    #[serde(default)]
    pub unreadable: bool,
}

impl DaemonReport {
    /// User and system time so far of the processes that decode videos.
    #[must_use]
    pub fn decoders_cpu_seconds(&self) -> f64 {
        self.streams.iter().map(|stream| stream.decoders_cpu_seconds).sum()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}
