//! A stream's configuration, resolved: defaults filled in, paths absolute, units applied.

use std::fs::File;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::tensor::DType;

use super::error::Place;
use super::value::Located;

/// What one configuration file describes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The stream's name: the file's stem, or `stream` for a dict.
    pub name: String,
    /// What messages call the configuration's source.
    pub source: String,
    /// `[dataset]`.
    pub dataset: DatasetConfig,
    /// `[order]`.
    pub order: OrderConfig,
    /// `[batch]`.
    pub batch: BatchConfig,
    /// The `[[stage]]` named `fetch`.
    pub fetch: FetchConfig,
    /// Every other `[[stage]]`, in order; at least one.
    pub stages: Vec<StageConfig>,
    /// `[output]`, in the order written.
    pub output: Vec<OutputConfig>,
    /// `[ring]`.
    pub ring: RingConfig,
    /// `[errors]`.
    pub errors: ErrorsConfig,
    /// `[cpu]`.
    pub cpu: CpuConfig,
    /// `[listen]`.
    pub listen: ListenConfig,
    /// `[session]`.
    pub session: SessionConfig,
    /// `[security]`.
    pub security: SecurityConfig,
    /// Where some keys stand, for messages about what is found later.
    pub places: KeyPlaces,
}

/// Where the keys stand that only the dataset can judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlaces {
    /// `dataset.format`, whose names the dataset registry knows.
    pub dataset_format: Place,
    /// `dataset.path`, which may not exist.
    pub dataset_path: Place,
    /// `batch.size`, which may exceed what the dataset or the memory has room for.
    pub batch_size: Place,
}

/// `[dataset]`: what the samples are.
#[derive(Debug, Clone)]
pub struct DatasetConfig {
    /// A name in the dataset registry.
    pub format: String,
    /// Absolute.
    pub path: PathBuf,
    /// A file that lists the class folders, one a line.
    pub classes: Option<PathBuf>,
    /// A file that lists relative paths to use, one a line.
    pub ids: Option<PathBuf>,
    /// Use only the first so many samples.
    pub limit: Option<u64>,
    /// Where the saved index goes; `None`: the user's cache folder.
    pub index: Option<PathBuf>,
    /// `[limits]`.
    pub limits: Limits,
    /// How long one attempt to read a sample may take; default 60 s.
    pub read_timeout: Duration,
    /// No key: the index of the daemon whose place this one takes, which is used without a look at the folders.
    pub kept_index: Option<Arc<File>>,
}

/// `[limits]`: what one sample may take, checked before memory is. A sample beyond is a bad sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that are read for a sample; default 1 GiB.
    pub sample_bytes: u64,
    /// The most pixels of an image, as stored or as an operation makes it; default 178,956,970.
    pub pixels: u64,
    /// The most bytes of all members of one `.npz` file, inflated; default 1 GiB.
    pub inflated_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sample_bytes: 1 << 30,
            // Where Pillow raises its `DecompressionBombError`: twice its `MAX_IMAGE_PIXELS`.
            pixels: 2 * 89_478_485,
            inflated_bytes: 1 << 30,
        }
    }
}

/// `[order]`: which sample comes when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderConfig {
    /// Any number; default 0.
    pub seed: u64,
    /// Default true.
    pub shuffle: bool,
    /// `None`: endless.
    pub epochs: Option<u64>,
}

/// What becomes of an epoch's samples that fill no whole global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// They are left out, and counted.
    Drop,
    /// They are dealt to the ranks in contiguous parts that differ by at most one.
    Short,
    /// The batch is filled up from the epoch's start.
    Pad,
}

/// `[batch]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchConfig {
    /// Samples per rank.
    pub size: NonZeroU32,
    /// Default `drop`.
    pub last: Last,
}

/// The fetch stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchConfig {
    /// Reads under way at once; default 16.
    pub concurrency: NonZeroU32,
}

/// How many threads a stage may use at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// The cores that the daemon may use.
    Auto,
    /// So many.
    Threads(NonZeroU32),
}

/// A CPU stage.
#[derive(Debug, Clone)]
pub struct StageConfig {
    /// Unique within the configuration.
    pub name: String,
    /// Default auto.
    pub concurrency: Concurrency,
    /// Each a table with the key `op`; see the operation registry.
    pub operations: Vec<Located>,
}

/// How an image's axes lie in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageLayout {
    /// Channels × height × width.
    Nchw,
    /// Height × width × channels; PyTorch sees an NCHW-shaped channels_last view.
    Nhwc,
}

/// Who makes a field's rows what `[output]` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedOn {
    /// The daemon. The default.
    Cpu,
    /// The client's GPU, from the bytes as decoded.
    Gpu,
}

/// One field of `[output]`.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputConfig {
    /// The field's name.
    pub field: String,
    /// Left out: the field's own type.
    pub dtype: Option<DType>,
    /// Images only; default NCHW.
    pub layout: Option<ImageLayout>,
    /// Per channel, in 0–1 units; together with `std`.
    pub mean: Option<Vec<f64>>,
    /// Per channel, in 0–1 units.
    pub std: Option<Vec<f64>>,
    /// Images only; default the CPU.
    pub on: FinishedOn,
    /// The most bytes of a row of a ragged field; `None`: dense.
    pub ragged_max_bytes: Option<u64>,
    /// Ragged only: rows are moved together.
    pub compact: bool,
    /// Where the field's table stands, for messages.
    pub place: Place,
    /// Where `on` stands, else as `place`, for messages.
    pub on_place: Place,
}

/// `[ring]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// At least 3; default 8.
    pub slots: u16,
    /// Batches that the user may keep; default slots − 2.
    pub hold: u16,
    /// The ceiling for rings, fetch and scratch together; default `"2GiB"`.
    pub memory_bytes: u64,
    /// Where `memory` stands, for messages.
    pub memory_place: Place,
}

/// What a bad sample leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBadSample {
    /// The stream ends with an error that names the sample.
    Fail,
    /// Another sample takes its place and it is listed.
    Substitute,
}

/// How many substitutes an epoch may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BadSampleBudget {
    /// A share of the epoch's samples, 0 to 1; at least one sample.
    Share(f64),
    /// So many samples.
    Count(u64),
}

/// `[errors]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorsConfig {
    /// Default fail.
    pub on_bad_sample: OnBadSample,
    /// Default `"0.1%"`.
    pub budget: BadSampleBudget,
    /// Where bad samples are listed; absolute. `None`: nowhere.
    pub quarantine: Option<PathBuf>,
    /// What moves in no way for so long is named; default 30 s.
    pub stall_after: Duration,
}

/// The scheduling class of the work threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuPolicy {
    /// `SCHED_IDLE`: run when nothing else wants to. The default.
    Idle,
    /// `SCHED_BATCH`, with `nice`.
    Batch,
    /// `SCHED_OTHER`, with `nice`.
    Normal,
}

/// `[cpu]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuConfig {
    /// `None`: this rank's share of the allowed cores.
    pub cores: Option<Vec<u32>>,
    /// The share of the allowed cores' time that the daemon may use, 0 to 1; `None`: all of it.
    pub limit: Option<f64>,
    /// Default idle.
    pub policy: CpuPolicy,
    /// 0 to 19; default 0.
    pub nice: u8,
}

/// Who reads figures over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFrom {
    /// Programs of this machine. The default.
    Loopback,
    /// Whoever reaches the address.
    Anywhere,
}

/// `[listen]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// Absolute. `None`: a private run-time folder.
    pub socket: Option<PathBuf>,
    /// User ids that may connect besides the daemon's own.
    pub allow_uids: Vec<u32>,
    /// A group id whose members may connect too.
    pub group: Option<u32>,
    /// Sessions at once; default 4.
    pub max_sessions: u32,
    /// Where figures are served over HTTP; port 0: any free one. `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Default loopback.
    pub metrics_from: MetricsFrom,
}

/// `[session]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfig {
    /// Whether `forebay headspace --replay` may show the trainer batches again; default true.
    pub allow_headspace: bool,
}

/// How far the daemon gives up rights over files that it does not need, where the kernel has Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// Not at all.
    Off,
    /// It can no longer write, make or remove files but its own, nor start programs. The default.
    Auto,
    /// Nor read any but its dataset, the system's libraries and what the kernel tells.
    Strict,
}

/// `[security]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityConfig {
    /// Default auto.
    pub confine: Confinement,
}
