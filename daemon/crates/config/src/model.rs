//! All keys of the configuration except those of stages, output fields, formats and operations: name, kind, unit,
//! default and description in one place. Checks of one key against another follow its table.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::buckets::Buckets;
use crate::by_class::GroupBy;
use crate::by_length::{Budget, check_batch};
use crate::object::DatasetObject;
use crate::operations::BatchOperations;
use crate::select_keys::{Condition, SplitTable};
use crate::single_keys::{
    Address, Amount, BadSampleBudget, Cores, CpuLimit, DatasetName, Group, Preset, Shuffle,
    SocketPath, TlsFiles,
};
use crate::weight_steps::Weight;
use forebay_keys::ConfigError;
use forebay_keys::{
    AtLeastOne, ByteSize, HeldSlots, LocalPath, Niceness, Sessions, Slots, SomeBytes, TimeSpan,
};
use forebay_keys::{DataPath, is_url};
use forebay_keys::{Section, Value};
use forebay_keys::{keys, words};

/// The longest path of a Unix socket (108 bytes with the terminating zero).
const MAX_SOCKET_PATH_BYTES: usize = 107;
const GIBIBYTE: u64 = 1 << 30;
/// The limit of Pillow's `DecompressionBombError`: twice its `MAX_IMAGE_PIXELS`.
const MAX_PIXELS: u64 = 2 * 89_478_485;

keys! {
    /// Keys outside of every table.
    pub(crate) struct TopLevel = "" {
        /// where the configuration starts from; see [Presets](#presets)
        pub(crate) preset: Preset, "", absent("none");
    }
}

words! {
    /// Whether marks of JPEG files are stored.
    pub enum JpegIndexing {
        /// They are.
        Auto = "auto",
        /// They are not, and stored ones are not used.
        Off = "off",
    }
}

keys! {
    /// What the samples are. Of several datasets each is a `[[dataset]]`.
    pub struct DatasetConfig = "dataset" {
        /// of several datasets: what messages and statistics call this one; unique
        pub name: DatasetName, "", absent("its place: `dataset0`, `dataset1`");
        /// an epoch holds each sample so many times, and of 2.5 half of them a third time; see
        /// [Mixtures](../guide/mixtures.md)
        pub repeat: Amount, "times an epoch", absent("1.0");
        /// instead of `repeat`: this dataset's share of `order.samples_per_epoch` relative to the other datasets' weights; a list
        /// such as `[3, { from = 2_000_000, weight = 1 }]` changes it at positions of the run; see
        /// [Weights that change](../guide/mixtures.md#weights-that-change)
        pub weight: Weight, "", absent("none");
        /// the folder of samples, or its URL (see [Data behind a URL](../guide/storage.md)); for `npy` also one file
        /// whose first axis is the samples
        pub path: DataPath, "", required;
        /// how the samples are stored: `image-folder`, `audio-folder`, `video-folder`, `npy`, `npz`, `webdataset`, `manifest`, `mds`,
        /// `litdata`, `tfrecord`, `arrayrecord`, `coco`, `voc`, `yolo`, `arrow`, `parquet`, `lance`, `lerobot`, `zarr`, `hdf5` or `tokens` (see [Formats](formats.md)); `"auto"` takes
        /// the one that reads most of the files at the path; `python` is set by `Loader(dataset)`
        pub format: String, "", default("auto".to_owned(), "the preset's, else `\"auto\"`");
        /// a file that lists the samples to use, one path a line, relative to `dataset.path` or as `loader.paths()` gives it
        pub ids: LocalPath, "", absent("all samples");
        /// use only the samples for which this is true, such as `"score > 0.5 and split == 'train'"`: a condition over
        /// columns, names, labels and sizes, evaluated when the dataset is opened; see
        /// [Select and split](../how-to/select-and-split.md)
        pub condition as "where": Condition, "", absent("all samples");
        /// use only one part of the samples: parts are disjoint and stay the same when samples are added, by a hash of the
        /// sample's path or key, or of the column `by`; `seed` is 0 by default, and never `order.seed`. See
        /// [Select and split](../how-to/select-and-split.md)
        pub split: SplitTable, "", absent("all samples");
        /// use only the first so many samples
        pub limit: AtLeastOne, "samples", absent("all");
        /// where the scanned list of files is saved
        pub index: LocalPath, "", absent("the user's cache folder");
        /// a call to the storage that takes longer is given up and made again
        pub read_timeout: TimeSpan, "", default(Duration::from_secs(60));
        /// how long a storage that is away (any I/O error, a mount that is gone, reads that hang) is waited for, at start,
        /// in the run and when a daemon is restarted; see [Outages](../guide/outages.md)
        pub outage_timeout: TimeSpan, "", default(Duration::from_secs(30 * 60));
        /// the most memory that opening the datasets may take (a scan, the index), before the rings and rows exist; an
        /// opening that takes more ends
        pub opening_memory: SomeBytes, "bytes", absent("half of what the machine and its control groups have left, divided among the local ranks, at least 256 MiB; none at a restart");
        /// `"auto"`: what decoding learns of JPEG files is stored next to the index, and makes later decodings faster;
        /// see [The JPEG index](../guide/jpeg.md#the-jpeg-index). `"off"`: nothing is stored, and nothing stored
        /// earlier is used
        pub jpeg_index: JpegIndexing, "", default(JpegIndexing::Auto);
        /// the most that this file grows to; never more than 2 % of the data that were read
        pub jpeg_index_bytes: ByteSize, "bytes", default(4 * GIBIBYTE);
    }
    with {
        /// `[limits]`.
        pub limits: Limits,
        /// The keys that this crate does not define: the format's keys.
        pub own: Section,
        /// `[storage]`, with the keys of the URL's storage.
        pub storage: Section,
        /// `[cache]`.
        pub cache: CacheConfig,
        /// For `format = "python"`: the trainer's Dataset, which is sent with the configuration.
        pub object: Option<DatasetObject>,
    }
}

impl DatasetConfig {
    /// Whether `dataset.path` is a URL.
    pub fn is_remote(&self) -> bool {
        is_url(&self.path)
    }

    /// The files besides the data that the configuration names; the format's keys must be resolved.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let tables = self.own.entries().iter().filter_map(|(_, located)| match &located.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        });
        let own = self.own.entries().iter().chain(tables.flatten());
        let own = own.filter_map(|(_, located)| located.value.as_text());
        let own = own.filter(|text| text.starts_with('/')).map(Path::new);
        [&self.ids, &self.index].into_iter().flatten().map(PathBuf::as_path).chain(own)
    }
}

keys! {
    /// Where what was fetched is kept on a disk of this machine.
    #[derive(Default, Eq)]
    pub struct CacheConfig = "cache" {
        /// a folder on a fast disk, shared by all ranks, runs and streams of this user; see
        /// [A cache on disk](../guide/storage.md#a-cache-on-disk)
        pub path: LocalPath, "", absent("nothing is kept");
        /// the maximal size of all entries
        pub size: SomeBytes, "bytes", absent("the size at the start and 75 % of what is free then");
        /// what stays free of the disk, whatever `size` says
        pub keep_free: ByteSize, "bytes", absent("10 GiB, or a tenth of a small disk");
    }
}

keys! {
    /// What one sample may take.
    #[derive(Copy, Eq)]
    pub struct Limits = "limits" {
        /// what is read of a file for one sample
        pub sample_bytes: ByteSize, "bytes", default(GIBIBYTE);
        /// of an image as it is stored, and as `resize` by the shorter side makes it; Pillow has the same limit
        pub pixels: AtLeastOne, "pixels", default(MAX_PIXELS);
        /// all deflated members of one `.npz` file together, inflated; a sound, as floats
        pub inflated_bytes: ByteSize, "bytes", default(GIBIBYTE);
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { sample_bytes: GIBIBYTE, pixels: MAX_PIXELS, inflated_bytes: GIBIBYTE }
    }
}

keys! {
    /// Which sample comes when.
    pub struct OrderConfig = "order", check check_order {
        /// keys the order of every epoch and all random operations
        pub seed: u64, "", default(0);
        /// an exact, global shuffle, another one each epoch; `false`: the dataset's own order; `"blocks"`: blocks of
        /// neighbours are permuted, and the samples of `blocks` of them at a time, where single samples are dear to read:
        /// in compressed pages, or by a request each; see [Blocks](../guide/shuffling.md)
        pub shuffle: Shuffle, "", default(Shuffle::Exact, "`true` (`imagenet-eval`: `false`)");
        /// with `shuffle = "blocks"`: the blocks whose samples are mixed with each other; more of them mix better and take
        /// more memory
        pub blocks: AtLeastOne, "blocks", absent("8");
        /// the stream ends after so many
        pub epochs: AtLeastOne, "epochs", absent("endless");
        /// the length of an epoch where datasets have a `weight`, samples have `weights` or classes are drawn alike
        /// (`balance`); with none of them, the passes through the dataset go on from epoch to epoch. See
        /// [Mixtures](../guide/mixtures.md)
        pub samples_per_epoch: AtLeastOne, "samples", absent("each sample comes once");
        /// a `.npy` file of float32 or float64 with a weight for each sample, 0 or more: samples are drawn by weight, with
        /// replacement; needs `samples_per_epoch`. See [Weighted draws](../guide/mixtures.md#weighted-draws)
        pub weights: LocalPath, "", absent("none");
        /// a field of whole numbers or text, such as `"label"`: samples are drawn so that an epoch has each of its values
        /// equally often, or once more. `samples_per_epoch` draws, or as many as there are samples. See
        /// [Draw classes alike](../how-to/balance-classes.md)
        pub balance: String, "", absent("none");
        /// such as `{ by = "label", size = 4 }`: a batch consists of `size` samples of each of its groups, which are the
        /// values of a field of whole numbers or text; only a field, such as `"label"`: of one group. See
        /// [Several samples of a group in a batch](../how-to/balance-classes.md#several-samples-of-a-group-in-a-batch)
        pub group: GroupBy, "", absent("none");
        /// with `batch.budget`: the consecutive samples of the order whose lengths are sorted together; more of them make
        /// the batches of a step more alike. With `batch.buckets`: those from which the batches of each shape are made
        pub pool: AtLeastOne, "samples", absent("65536");
    }
}

/// The default of `order.blocks`.
const OPEN_BLOCKS: u64 = 8;

impl OrderConfig {
    /// The blocks whose samples are mixed with each other.
    pub fn open_blocks(&self) -> u64 {
        self.blocks.unwrap_or(OPEN_BLOCKS)
    }
}

fn check_order(order: &mut OrderConfig, section: &Section) -> Result<(), ConfigError> {
    if order.blocks.is_some() && order.shuffle != Shuffle::Blocks {
        let message = format!(
            "`order.blocks` has no effect with `order.shuffle = {}`; set that to \"blocks\", or leave `order.blocks` out",
            order.shuffle.word()
        );
        return Err(section.error_at("blocks", message));
    }
    Ok(())
}

words! {
    /// What happens to an epoch's samples that do not fill a global batch.
    pub enum Last {
        /// They are left out, and counted.
        Drop = "drop",
        /// They are dealt to the ranks in contiguous parts that differ by at most one.
        Short = "short",
        /// The batch is filled up from the epoch's start.
        Pad = "pad",
    }
}

words! {
    /// What becomes of a sample whose length is above the budget.
    pub enum TooLong {
        /// The stream is not opened, and names one of them.
        Error = "error",
        /// They are left out, and counted.
        Drop = "drop",
        /// Their arrays are cut at the end.
        Truncate = "truncate",
    }
}

words! {
    /// To which length clients pad ragged rows.
    pub enum Pad {
        /// To the longest of their batch.
        Batch = "batch",
    }
}

keys! {
    /// How samples are grouped.
    pub struct BatchConfig = "batch", check check_batch {
        /// a global batch is this times the world size
        pub size: NonZeroU32, "samples per rank", default(NonZeroU32::MIN, "required, unless there is a `budget`");
        /// batches by length, in place of `size`: the most that the rows of a batch times its longest row come to, in
        /// tokens (see `length`), stored bytes, seconds of sound or pixels of pictures; see [Batches by
        /// length](../guide/batches-by-length.md)
        pub budget: Budget, "", absent("none: batches have `size` samples");
        /// with `budget`: what the length of a sample is. `"bytes"`: its size as it is stored. A field, for tokens: the
        /// value of an integer, the elements of an array's first dimension, or the bytes of text; for seconds: a sound's
        /// duration, or the value of a number; for pixels: a picture's area, or the value of an integer. Lengths by a field
        /// are read once and saved
        pub length: String, "", absent("`\"bytes\"` for bytes, the only sound for seconds, the only picture for pixels; required for tokens");
        /// with `budget`: a row counts as its length rounded up to a multiple of this, of seconds in milliseconds. With
        /// `pad`, unless the budget is of another unit than tokens: rows are padded to a multiple of this
        pub multiple_of: NonZeroU32, "", absent("1");
        /// with `budget`, which requires it: the most rows of a batch, for which memory is planned
        pub max_rows: NonZeroU32, "samples per rank", absent("required with `budget`");
        /// with `budget`: what becomes of a sample that is longer than the budget: `"error"`: the stream is not opened, and
        /// one of them is named; `"drop"`: they are left out, and counted; `"truncate"`, of tokens: arrays are cut at their end
        pub too_long: TooLong, "", absent("`\"error\"`");
        /// `"batch"`: arrays of a ragged field arrive in Python as one array, padded to the longest row of the batch, and
        /// their lengths as the field `NAME_lengths`, and clients in Rust and C get both on request; see [Batches by length](../guide/batches-by-length.md#padded-batches)
        pub pad: Pad, "", absent("ragged fields arrive as `forebay.Ragged`");
        /// each batch has one of these shapes: the sample's picture goes to the one of the nearest aspect ratio, and operations
        /// with `size = "bucket"` give it that shape. A list, or an area whose shapes have sides of multiples of `step`
        /// (64) from the least to the greatest of `sides` (half and double the square's); see [Aspect-ratio
        /// buckets](../how-to/aspect-buckets.md)
        pub buckets: Buckets, "pixels", absent("none: all batches have one shape");
        /// with `buckets`: the field whose picture's size decides, by its header
        pub shape: String, "", absent("the only picture");
        /// what becomes of an epoch's samples that fill no global batch; see below
        pub last: Last, "", default(Last::Drop, "`\"drop\"` (`imagenet-eval`: `\"short\"`)");
        /// what is done to each complete batch, in order; each with `op` and its arguments
        pub operations: BatchOperations, "", default(Vec::new(), "none");
    }
}

keys! {
    /// The batches in shared memory.
    pub struct RingConfig = "ring", check check_ring {
        /// batches in shared memory, for each session; by default fewer where the machine's memory is small, and up to 64 in
        /// 512 MiB where samples come from a URL or from feeders that the configuration names, since nothing is read
        /// ahead of them
        pub slots: Slots, "batches", default(8);
        /// of these the user may keep at once
        pub hold: HeldSlots, "batches", default(0, "slots − 2");
        /// ceiling for the rings of all sessions, reads under way and scratch together
        pub memory: SomeBytes, "bytes", absent("2 GiB, or what the plan and the machine's memory make of it");
    }
}

fn check_ring(ring: &mut RingConfig, section: &Section) -> Result<(), ConfigError> {
    let RingConfig { slots, hold, .. } = *ring;
    if section.location_of("hold").is_none() {
        ring.hold = slots - 2;
    } else if !(1..slots).contains(&hold) {
        let message = format!(
            "`ring.hold` must be 1 to {} (one less than `ring.slots`, which is {slots}), not {hold}; raise `ring.slots` to hold more",
            slots - 1
        );
        return Err(section.error_at("hold", message));
    }
    Ok(())
}

words! {
    /// The reaction to a bad sample.
    pub enum OnBadSample {
        /// The stream ends with an error that names the sample.
        Fail = "fail",
        /// Another sample takes its place and it is listed.
        Substitute = "substitute",
    }
}

words! {
    /// The reaction to a sample whose file cannot be read, after its retries.
    pub enum OnUnreadable {
        /// The stream ends with an error that names the file.
        Fail = "fail",
        /// Another sample takes its place and it is listed.
        Substitute = "substitute",
    }
}

keys! {
    /// What follows from samples that cannot be used, and from what does not move.
    pub struct ErrorsConfig = "errors" {
        /// `"fail"`: the stream ends and names the sample; `"substitute"`: another sample takes its place, and it is
        /// listed
        pub on_bad_sample: OnBadSample, "", default(OnBadSample::Fail);
        /// for a file that is gone or may not be read: `"fail"` or `"substitute"`, as above; see below
        pub on_unreadable: OnUnreadable, "", default(OnUnreadable::Fail);
        /// more substitutes than this (at least one is allowed by a percentage) end the stream
        pub budget: BadSampleBudget, "of an epoch's samples", default(BadSampleBudget::Share(0.001));
        /// a file to which each substituted sample is added as a line of JSON; see below
        pub quarantine: LocalPath, "", absent("none");
        /// a sample, a read or a trainer without progress for this long is named in the log, in `forebay stats` and in
        /// the client's time-out
        pub stall_after: TimeSpan, "", default(Duration::from_secs(30));
    }
}

words! {
    /// The scheduling class of the work threads.
    pub enum CpuPolicy {
        /// `SCHED_IDLE`: run when nothing else wants to.
        Idle = "idle",
        /// `SCHED_BATCH`, with `nice`.
        Batch = "batch",
        /// `SCHED_OTHER`, with `nice`.
        Normal = "normal",
    }
}

keys! {
    /// The cores that the daemon uses, and how.
    pub struct CpuConfig = "cpu", check check_cpu {
        /// cores such as `"8-15"` or `"0,2,4-7"`; `"auto"`: this rank's share of the allowed cores
        pub cores: Cores, "", default(None);
        /// what the whole daemon may use, for example `"40%"` of two cores: 0.8 CPU seconds a second; kept by the
        /// daemon itself over windows of about 100 ms. The worker processes of [your own
        /// Python](../guide/python-workers.md#where-its-time-goes) are not in it: `workers` bounds them
        pub limit: CpuLimit, "of the allowed cores' time", absent("none");
        /// scheduling class of the work threads; `"idle"`: they run only where nothing else is ready to
        pub policy: CpuPolicy, "", default(CpuPolicy::Idle);
        /// with `"batch"` or `"normal"`
        pub nice: Niceness, "", default(0);
    }
}

fn check_cpu(cpu: &mut CpuConfig, section: &Section) -> Result<(), ConfigError> {
    if cpu.nice > 0 && cpu.policy == CpuPolicy::Idle {
        return Err(section.error_at(
            "nice",
            "`cpu.nice` has no effect with policy = \"idle\", which is below every nice level; set `cpu.policy` to \"batch\" or \"normal\"",
        ));
    }
    Ok(())
}

words! {
    /// Who may read metrics over HTTP.
    pub enum MetricsFrom {
        /// Programs of this machine.
        Loopback = "loopback",
        /// All who reach the address.
        Anywhere = "anywhere",
    }
}

keys! {
    /// Where the daemon listens, and to whom.
    pub struct ListenConfig = "listen", check check_listen {
        /// the socket's path, at most 107 bytes, used as given with mode 0600 (0660 with `group`, 0666 with
        /// `allow_uids`: the daemon asks the kernel who connects); `"auto"`: in a private run-time folder
        pub socket: SocketPath, "", default(None);
        /// users who may connect besides the daemon's own
        pub allow_uids: Vec<u32>, "user ids", default(Vec::new());
        /// a group whose members may connect
        pub group: Group, "group name or id", absent("none");
        /// clients at once; one whose ring does not fit `ring.memory` together with the others' is refused
        pub max_sessions: Sessions, "sessions", default(4);
        /// offers rings under names in `/dev/shm` to clients that cannot receive descriptors and ask for them; see
        /// [Named segments](../design/protocol-memory.md#named-segments) for what they give up
        pub named_segments: bool, "", default(false);
        /// figures over HTTP: `/metrics` for Prometheus, a live page at `/`, `/healthz` and `/readyz`; port 0 is any
        /// free one, which the log and `forebay stats --json` name; see [Metrics over HTTP](metrics.md)
        pub metrics: Address, "", absent("none");
        /// who may read them: `"loopback"`: programs of this machine, so `listen.metrics` must be a loopback address;
        /// `"anywhere"`: all who reach the address, without a password
        pub metrics_from: MetricsFrom, "", default(MetricsFrom::Loopback);
    }
}

fn check_listen(listen: &mut ListenConfig, section: &Section) -> Result<(), ConfigError> {
    if let Some(path) = &listen.socket
        && path.as_os_str().len() > MAX_SOCKET_PATH_BYTES
    {
        let message = format!(
            "`listen.socket` has {} bytes as an absolute path, and the system takes at most {MAX_SOCKET_PATH_BYTES}; choose a shorter path, or \"auto\": {}",
            path.as_os_str().len(),
            path.display()
        );
        return Err(section.error_at("socket", message));
    }
    // Metrics contain file names, so an address that other machines reach is refused by default.
    if let Some(address) = listen.metrics
        && listen.metrics_from == MetricsFrom::Loopback
        && !address.ip().to_canonical().is_loopback()
    {
        let message = format!(
            "`listen.metrics` is {address}, which other machines may reach; set it to \"127.0.0.1:{}\", or \
             `listen.metrics_from` to \"anywhere\" if all who reach it may read figures and file names",
            address.port()
        );
        return Err(section.error_at("metrics", message));
    }
    Ok(())
}

keys! {
    /// What attached clients may be asked for.
    #[derive(Copy, Eq)]
    pub struct SessionConfig = "session" {
        /// whether `forebay headspace --replay` may show the trainer batches again for a while: `true`: all who may
        /// connect may ask for it; `false`: nobody
        pub allow_headspace: bool, "", absent("processes of the daemon's user, in its user and PID namespaces");
    }
}

words! {
    /// How the trainers of a load keep together.
    pub enum Pace {
        /// Not at all: who falls behind the window makes its rows itself.
        Free = "free",
        /// Nobody gets further ahead than the window.
        Together = "together",
    }
}

keys! {
    /// How trainers share the rows of a stream; see [Several trainers](../guide/trainers.md).
    #[derive(Copy, Eq)]
    pub struct ShareConfig = "share" {
        /// rows kept for trainers that need them later
        pub window: SomeBytes, "bytes", absent("the size of a ring, if `ring.memory` has room for it");
        /// `"free"`: no trainer waits for another, and who is further behind than the window makes its rows itself;
        /// `"together"`: a trainer that is a window ahead of the last one waits for it, until that one has held a full
        /// ring for `errors.stall_after`
        pub pace: Pace, "", default(Pace::Free);
        /// a stream begins when so many trainers with a name have attached, or a minute after the first one; a loader
        /// without a trainer's name begins at once
        pub start_together: AtLeastOne, "trainers", absent("each begins at once");
    }
}

words! {
    /// What this host makes itself while feeders can be reached.
    pub enum LocalWork {
        /// Rows of the same queue: who is free takes the next one.
        Also = "also",
        /// What no feeder has room for.
        Last = "last",
        /// Nothing, whether feeders can be reached or not.
        Never = "never",
    }
}

keys! {
    /// Other hosts that make rows for this one; see [Feeders](../how-to/feeders.md).
    #[derive(Eq)]
    pub struct FeedersConfig = "feeders", check check_feeders {
        /// hosts that run `forebay feed`, as names or IP addresses, each with a port unless it is 9461; all addresses of a
        /// name are used, and it is looked up again every 5 s. The variable FOREBAY_FEEDERS, separated by commas, takes
        /// the place of this and of `file`
        pub addresses: Vec<String>, "", default(Vec::new());
        /// a file with one such address a line, read again when it changes
        pub file: LocalPath, "", absent("none");
        /// what this host makes itself: `"also"`: rows of the same queue, who is free takes the next one; `"last"`: what
        /// no feeder has room for; with both it makes all rows while no feeder can be reached; `"never"`: nothing, an
        /// outage of all feeders is waited for as one of the dataset's storage
        pub local: LocalWork, "", default(LocalWork::Also);
        /// the most feeders that this daemon connects to
        pub spread: u32, "feeders", default(32);
        /// `{ ca, cert, key, name }`: the files (PEM) with which this daemon and its feeders know each other, read again
        /// when they change; `name`: the name in the feeders' certificates, by default that of the address
        pub tls: TlsFiles, "", absent("plain connections, to feeders of this host alone");
        /// whether connections to other hosts may be plain: for networks that encrypt themselves
        pub allow_plain: bool, "", default(false);
    }
}

fn check_feeders(feeders: &mut FeedersConfig, section: &Section) -> Result<(), ConfigError> {
    if !(1..=MAX_FEEDERS).contains(&feeders.spread) {
        let message =
            format!("`feeders.spread` must be from 1 to {MAX_FEEDERS}, not {}", feeders.spread);
        return Err(section.error_at("spread", message));
    }
    Ok(())
}

/// The most feeders that a daemon connects to.
const MAX_FEEDERS: u32 = 256;

keys! {
    /// What `forebay feed` serves, and to whom; see [Feeders](../how-to/feeders.md).
    #[derive(Eq)]
    pub struct FeedConfig = "feed", check check_feed {
        /// the most rows of one request
        pub rows: u32, "rows", default(16);
        /// the requests in the making; each has memory for `rows` rows
        pub requests: u32, "requests", default(16);
        /// the most daemons that are connected at once
        pub peers: u32, "daemons", default(128);
        /// `{ ca, cert, key }`: the files (PEM) with which the feeder and its daemons know each other, read again when
        /// they change
        pub tls: TlsFiles, "", absent("plain connections, from this host alone");
        /// names in the certificates of daemons that may connect, `*` for any characters; by default all that the `ca`
        /// has signed
        pub allow: Vec<String>, "names", default(Vec::new());
        /// whether connections from other hosts may be plain: for networks that encrypt themselves
        pub allow_plain: bool, "", default(false);
    }
}

fn check_feed(feed: &mut FeedConfig, section: &Section) -> Result<(), ConfigError> {
    for (key, value, most) in
        [("rows", feed.rows, 256), ("requests", feed.requests, 256), ("peers", feed.peers, 4096)]
    {
        if !(1..=most).contains(&value) {
            let message = format!("`feed.{key}` must be from 1 to {most}, not {value}");
            return Err(section.error_at(key, message));
        }
    }
    Ok(())
}

words! {
    /// How far the daemon gives up rights over files that it does not need, where the kernel has Landlock.
    pub enum Confinement {
        /// It can no longer write, make or remove files but its own, nor start programs.
        Auto = "auto",
        /// Nor read any but its dataset, the system's libraries and what the kernel exports.
        Strict = "strict",
        /// Not at all.
        Off = "off",
    }
}

keys! {
    /// What the daemon gives up once it has started.
    #[derive(Eq)]
    pub struct SecurityConfig = "security" {
        /// where the kernel has Landlock, the daemon at work gives up rights over files: `"auto"`: it writes its
        /// run-time folder only and starts no program; `"strict"`: it also reads nothing but its dataset, the system's
        /// folders and what the kernel exports (symbolic links that lead out of the dataset then fail); `"off"`: it
        /// keeps all
        pub confine: Confinement, "", default(Confinement::Auto);
    }
}
