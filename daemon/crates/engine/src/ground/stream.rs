//! A stream: one resolved configuration with its dataset, its plan and its stages' metrics. Shared by all threads.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_protocol::frames::PythonSource;
use forebay_protocol::ids::SampleId;
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use crate::ground::classes::DrawnClasses;
use crate::ground::datasets::{DatasetShare, EpochDraws, OpenDataset, open_datasets};
use crate::ground::jpeg_index::StreamIndex;
use crate::ground::lengths::batches_by_length;
use crate::ground::quarantine::Quarantine;
use crate::ground::row_cells::RowCell;
use crate::ground::row_columns::{RowColumn, columns_of};
use crate::ground::stage_cost::StageCost;
use crate::ground::stream_error::StreamError;
use crate::ground::work_parking::StageGate;
use forebay_config::{Concurrency, Config, Last, Shuffle, StageConfig};
use forebay_dataset::{Dataset, Description, IndexBytes, OpenOptions, Opened, SampleBlocks};
use forebay_keys::ConfigError;
use forebay_observe::recorder::Recorder;
use forebay_observe::{Clock, QueueMetrics, RequestMetrics, RequestReport, StageMetrics};
use forebay_order::{ByLength, Dealing, OrderError, Schedule, Selection};
use forebay_storage::location::{ByteRange, Location, SampleBytes};
use forebay_storage::{Outages, Storage, StorageError};
use forebay_transform::batch::BatchOperation;
use forebay_transform::{
    Buckets, Needs, PythonStart, SamplePlan, SampleTask, WorkerStart, bucket_sizes,
};

/// Default of `ring.memory`, if the machine has it and the plan needs no more.
pub(crate) const USUAL_MEMORY_BYTES: u64 = 2 << 30;

/// Threads of a Python stage in addition to the threads that wait for its workers: one writes the next call, or reads
/// the result of an earlier one.
const THREADS_BESIDE_WORKERS: u32 = 1;

/// The tensor with the number of a row's dataset.
const DATASET: &str = "dataset";

/// A CPU stage.
#[derive(Debug)]
pub(crate) struct Stage {
    pub name: String,
    /// The maximal and the current number of threads in it.
    pub(crate) gate: StageGate,
    /// Whether the engine tunes its number of threads.
    pub is_auto: bool,
    /// Number of worker processes of a Python stage.
    pub workers: Option<u32>,
    pub cost: StageCost,
    pub figures: StageMetrics,
    /// The rows that wait for this stage.
    pub input: QueueMetrics,
}

impl Stage {
    /// The mean time of a task so far.
    pub(crate) fn mean_time(&self) -> Duration {
        let (tasks, time) = self.figures.done();
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ns / tasks.max(1))
    }
}

/// A thread's buffers for reading one sample after another.
#[derive(Debug, Default)]
pub(crate) struct ReadScratch {
    pub locations: Vec<Location>,
    pub opened: Vec<forebay_storage::Opened>,
    /// The ends of the locations' bytes; empty if there is one location.
    pub part_ends: Vec<usize>,
    /// The bytes before the elements of an array that is read directly.
    pub before: Vec<u8>,
}

/// The name for all batch operations in reports.
pub(crate) const BATCH_OPERATIONS: &str = "batch.operations";

/// A configuration, ready to be served.
#[derive(Debug)]
pub struct Stream {
    pub(crate) config: Config,
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) storage: Arc<dyn Storage>,
    /// Whether rows are fetched by units shared between samples.
    pub(crate) shares_units: bool,
    pub(crate) plan: SamplePlan,
    pub(crate) layout: Arc<SlotLayout>,
    pub(crate) index_tensor: usize,
    pub(crate) valid_tensor: Option<usize>,
    /// The tensor with the number of a row's dataset, if there are several.
    pub(crate) dataset_tensor: Option<usize>,
    /// What a row consists of when it travels between daemons.
    pub(crate) columns: Vec<RowColumn>,
    pub(crate) draws: EpochDraws,
    /// For batches by length: the lengths of the samples.
    pub(crate) by_length: Option<Arc<ByLength>>,
    /// Whether a work thread finishes a complete batch before it is published: batch operations, or rows to move together.
    pub finishes_batches: bool,
    pub(crate) stages: Vec<Stage>,
    pub(crate) clock: Clock,
    pub(crate) fetch: StageMetrics,
    /// Metrics of all batch operations; a task is a batch.
    pub(crate) batch_figures: StageMetrics,
    /// Metrics of each batch operation that is a user's function; a task is a batch.
    pub(crate) function_figures: Vec<StageMetrics>,
    /// See [`wake_by_rows`](Self::wake_by_rows).
    wakes_by_rows: AtomicBool,
    /// The outages of its storage.
    pub(crate) outages: Arc<Outages>,
    pub(crate) dataset_fingerprint: [u8; 32],
    pub(crate) config_fingerprint: [u8; 32],
    /// Its JPEG index.
    pub(crate) jpeg_index: StreamIndex,
    /// The list of bad samples; set before the engine starts.
    pub quarantine: OnceLock<Quarantine>,
    /// The engine's recorder, for its batches; set when the engine starts.
    pub recorder: OnceLock<Arc<Recorder>>,
}

impl Stream {
    /// Has the engine thread woken by each row that a work thread finishes, from now on: fetch lanes wait for them.
    pub(crate) fn wake_by_rows(&self) {
        // Relaxed, here and below: at worst a row is noticed at the next tick.
        self.wakes_by_rows.store(true, Ordering::Relaxed);
    }

    /// Whether a finished row wakes the engine thread in any case.
    pub(crate) fn is_woken_by_rows(&self) -> bool {
        self.wakes_by_rows.load(Ordering::Relaxed)
    }

    /// Opens the dataset and compiles the operations. Blocks. `threads`: the threads of an `auto` stage; `clock`:
    /// measures the times of its rows.
    ///
    /// # Errors
    /// Names the file, the line and the key, or the wrong path.
    pub fn open(
        config: Config,
        open: OpenDataset,
        threads: u32,
        options: OpenOptions<'_>,
        clock: Clock,
    ) -> Result<Self, StreamError> {
        Self::open_with(config, open, threads, options, clock, Vec::new())
    }

    /// As [`open`](Self::open), for a run: with the time at which the workers of Python stages are started, and their
    /// cores (`None`: the cores of the calling thread).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_to_run(
        config: Config,
        open: OpenDataset,
        threads: u32,
        options: OpenOptions<'_>,
        clock: Clock,
        workers: (WorkerStart, &[u32]),
    ) -> Result<Self, StreamError> {
        Self::open_stream(config, open, (threads, workers), options, clock, Vec::new())
    }

    /// As [`open`](Self::open), with operations on complete batches.
    ///
    /// # Errors
    /// As [`open`](Self::open), and an operation that does not fit the tensors.
    pub fn open_with(
        config: Config,
        open: OpenDataset,
        threads: u32,
        options: OpenOptions<'_>,
        clock: Clock,
        batch_operations: Vec<Box<dyn BatchOperation>>,
    ) -> Result<Self, StreamError> {
        let workers = (WorkerStart::WhenCalled, &[][..]);
        Self::open_stream(config, open, (threads, workers), options, clock, batch_operations)
    }

    fn open_stream(
        mut config: Config,
        open: OpenDataset,
        (threads, (worker_start, worker_cores)): (u32, (WorkerStart, &[u32])),
        options: OpenOptions<'_>,
        clock: Clock,
        batch_operations: Vec<Box<dyn BatchOperation>>,
    ) -> Result<Self, StreamError> {
        let datasets = open_datasets(&mut config, open, options)?;
        let mut draws = EpochDraws::of(&config, &datasets, options)?;
        let by_length = batches_by_length(&config, &datasets.opened, &mut draws, options)?;
        let Opened { dataset, storage, report } = datasets.opened;
        let jpeg_index =
            StreamIndex::open(&config.dataset, dataset.as_ref(), report.path.as_deref());
        let limit_bytes = config.dataset.limits.sample_bytes;
        let read = |task: &mut SampleTask| {
            read_at_start(storage.as_ref(), dataset.as_ref(), limit_bytes, task)
                .map_err(|error| error.to_string())
        };
        let is_by_shape = |by_length: &&Arc<ByLength>| by_length.is_by_shape();
        let buckets = by_length.as_ref().filter(is_by_shape);
        let buckets =
            buckets.map(|table| Buckets::of_table(bucket_sizes(&config), Arc::clone(table)));
        let start = PythonStart {
            workers: threads,
            start: worker_start,
            cores: worker_cores,
            read: &read,
            buckets: buckets.as_ref(),
            foreground: None,
        };
        let plan = batch_operations.into_iter().try_fold(
            SamplePlan::compile_with(&config, dataset.as_ref(), start)?
                .with_jpeg_index(jpeg_index.get().ok().cloned()),
            SamplePlan::with_batch_operation,
        )?;
        let mut tensors = plan.tensors().to_vec();
        let index_tensor = tensors.len();
        tensors.push(TensorSpec::dense("index", DType::I64, &[]));
        let valid_tensor = (config.batch.last == Last::Pad).then(|| {
            tensors.push(TensorSpec::dense("valid", DType::Bool, &[]));
            index_tensor + 1
        });
        let dataset_tensor = (!draws.datasets.is_empty()).then(|| {
            tensors.push(TensorSpec::dense(DATASET, DType::I64, &[]));
            tensors.len() - 1
        });
        if let Some(taken) = tensors.iter().rev().skip(1).find(|tensor| tensor.name == DATASET) {
            let message = format!(
                "a field is called `{}`, as the one that says which dataset of a mixture a sample is of; give it another name",
                taken.name
            );
            return Err(ConfigError::new(&config.dataset_location(0, "fields"), message).into());
        }
        let finishes_batches = plan.has_batch_operations()
            || tensors.iter().any(|tensor| {
                matches!(tensor.extent, Extent::Ragged { compact: true, .. })
                    || !tensor.row_shapes.is_empty()
            });
        let layout = SlotLayout::new(&tensors, config.batch.size.get())
            .map_err(|error| StreamError::Layout { source_name: config.source.clone(), error })?;
        let function_figures =
            plan.batch_function_figures().map(|_| StageMetrics::default()).collect();
        let stages = config
            .stages
            .iter()
            .map(|stage| {
                let limit = match stage.threads() {
                    Concurrency::Auto => threads,
                    Concurrency::Threads(count) => count.get(),
                };
                let workers = stage.python.as_ref().map(|_| limit);
                let beside = workers.map_or(0, |_| THREADS_BESIDE_WORKERS);
                Stage {
                    name: stage.name.clone(),
                    is_auto: workers.is_none() && stage.concurrency == Concurrency::Auto,
                    workers,
                    cost: StageCost::default(),
                    gate: StageGate::new(limit.saturating_add(beside)),
                    figures: StageMetrics::default(),
                    input: QueueMetrics::new(clock.clone()),
                }
            })
            .collect();
        let outages = Outages::new(&config.name, config.dataset.outage_timeout, clock.clone());
        // The dataset was opened from this storage.
        outages.note_answer();
        let columns = columns_of(&tensors, valid_tensor, plan.beside_tensors());
        let config_fingerprint = config.fingerprint(plan.file_digests(), plan.batch_operations());
        let dataset_fingerprint = draws.fingerprint(dataset.fingerprint());
        Ok(Self {
            config,
            shares_units: dataset.shares_units(),
            dataset,
            storage,
            plan,
            layout: Arc::new(layout),
            index_tensor,
            valid_tensor,
            dataset_tensor,
            columns,
            draws,
            by_length,
            finishes_batches,
            stages,
            clock,
            fetch: StageMetrics::default(),
            batch_figures: StageMetrics::default(),
            function_figures,
            wakes_by_rows: AtomicBool::new(false),
            outages,
            dataset_fingerprint,
            config_fingerprint,
            jpeg_index,
            quarantine: OnceLock::new(),
            recorder: OnceLock::new(),
        })
    }

    /// Writes what the daemon adds to a row: its id, whether it is no padding, and its dataset.
    pub(crate) fn write_id(&self, cell: &mut RowCell) {
        let id = i64::try_from(cell.task.id.0).unwrap_or(i64::MAX);
        cell.writer.bytes_mut(self.index_tensor).copy_from_slice(&id.to_ne_bytes());
        if let Some(tensor) = self.valid_tensor {
            cell.writer.bytes_mut(tensor)[0] = cell.valid.into();
        }
        if let (Some(tensor), Some(dataset)) = (self.dataset_tensor, self.dataset_of(cell.task.id))
        {
            let dataset = i64::try_from(dataset).unwrap_or(i64::MAX);
            cell.writer.bytes_mut(tensor).copy_from_slice(&dataset.to_ne_bytes());
        }
    }

    /// A number that is equal for samples whose bytes lie in the same file, or the same block of it.
    pub(crate) fn unit_of(&self, id: SampleId) -> u64 {
        let mut locations = Vec::new();
        self.dataset.locate(id, &mut locations);
        let Some(first) = locations.first() else { return id.0 };
        let block = if self.shares_units { first.range.offset } else { 0 };
        let mut digest = blake3::Hasher::new();
        digest.update(&first.file.0.to_le_bytes()).update(&block.to_le_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *digest.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The resolved configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `ring.memory`, configured or chosen.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.config.ring.memory.unwrap_or(USUAL_MEMORY_BYTES)
    }

    /// The tensors of a batch, `index` and `valid` included.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        self.layout.tensors()
    }

    /// The positions of the tensors in a slot.
    #[must_use]
    pub fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// Its JPEG index.
    #[must_use]
    pub const fn jpeg_index(&self) -> &StreamIndex {
        &self.jpeg_index
    }

    /// Number of samples, over all datasets: ids are below it, also if only some samples are used.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.dataset.sample_count()
    }

    /// The processes that decode videos, if there are videos.
    #[must_use]
    pub fn helpers(&self) -> Option<&forebay_transform::HelperPlan> {
        self.plan.helpers()
    }

    /// Number of samples that are used.
    #[must_use]
    pub fn kept_count(&self) -> u64 {
        self.dataset.kept_count()
    }

    /// The sample that is used after `number` others, in the order of ids.
    ///
    /// # Panics
    /// The number is not below [`kept_count`](Self::kept_count).
    #[must_use]
    pub fn kept_at(&self, number: u64) -> SampleId {
        self.dataset.kept_at(number)
    }

    /// Number of used samples that are left out, since they are longer than `batch.budget`.
    #[must_use]
    pub const fn too_long(&self) -> u64 {
        self.draws.too_long
    }

    /// The settings that determine an epoch's order and batches, besides the selection of samples.
    pub fn dealing(&self) -> Dealing {
        let Config { order, batch, .. } = &self.config;
        Dealing {
            seed: order.seed,
            is_shuffled: order.shuffle != Shuffle::Off,
            epochs: order.epochs,
            batch_size: batch.size.get(),
            last: match batch.last {
                Last::Drop => forebay_order::Last::Drop,
                Last::Short => forebay_order::Last::Short,
                Last::Pad => forebay_order::Last::Pad,
            },
        }
    }

    /// The batches of a rank.
    ///
    /// # Errors
    /// As [`Schedule::of`] or [`Schedule::by_length`].
    pub fn schedule(
        &self,
        dealing: Dealing,
        rank: u32,
        world_size: u32,
    ) -> Result<Schedule, OrderError> {
        let selection = self.selection().clone();
        let schedule = match &self.by_length {
            None => Schedule::of(selection, dealing, rank, world_size),
            Some(by_length) => {
                let by_length = Arc::clone(by_length);
                Schedule::by_length(selection, dealing, rank, world_size, by_length)
            }
        }?;
        Ok(schedule.among(self.draws.kept.clone()))
    }

    /// The `attempt`-th substitute of a bad sample in a batch of so many rows, which with batches by length stays within
    /// its budget.
    pub(crate) fn substitute(
        &self,
        pass: u64,
        bad: SampleId,
        attempt: u64,
        rows: u32,
    ) -> Option<SampleId> {
        let (selection, seed) = (self.selection(), self.config.order.seed);
        let kept = self.draws.kept.as_deref();
        match &self.by_length {
            None => selection.substitute(kept, seed, pass, bad, attempt),
            Some(by_length) => {
                let lengths = (by_length.as_ref(), rows);
                selection.substitute_by_length(kept, seed, pass, bad, attempt, lengths)
            }
        }
    }

    /// For batches by length: the lengths of the samples.
    #[must_use]
    pub fn by_length(&self) -> Option<&ByLength> {
        self.by_length.as_deref()
    }

    /// The selection from which the positions of an epoch draw.
    #[must_use]
    pub const fn selection(&self) -> &Selection {
        &self.draws.selection
    }

    /// Maximal memory of the open blocks of an order in blocks; 0 for other orders.
    #[must_use]
    pub const fn open_block_bytes(&self) -> u64 {
        self.draws.open_blocks.bytes
    }

    /// The least and the most concurrent reads. In an order in blocks no more than the fetch budget has room for besides
    /// the open blocks: others would wait for bytes, and blocks that later rows need would be released for them.
    pub(crate) fn bounds_of_reads(&self, fetch_bytes: u64) -> (u32, u32) {
        let (least, most) = self.config.reads();
        let open = self.draws.open_blocks;
        let room = fetch_bytes.saturating_sub(open.bytes).checked_div(open.largest);
        let room = room.map_or(most, |reads| u32::try_from(reads).unwrap_or(u32::MAX));
        (least, most.min(room).max(least))
    }

    /// The blocks of its dataset. Reads the whole index.
    #[must_use]
    pub fn blocks(&self) -> Option<SampleBlocks> {
        self.dataset.blocks()
    }

    /// Whether samples lie in compressed pages, which several of them share.
    #[must_use]
    pub fn has_pages(&self) -> bool {
        self.dataset.page_bytes().is_some()
    }

    /// The datasets, if there are several.
    #[must_use]
    pub fn datasets(&self) -> &[DatasetShare] {
        &self.draws.datasets
    }

    /// If classes are drawn alike, or batches are grouped: the classes.
    #[must_use]
    pub const fn drawn_classes(&self) -> Option<&DrawnClasses> {
        self.draws.classes.as_ref()
    }

    /// The index of a sample's dataset, if there are several.
    pub(crate) fn dataset_of(&self, id: SampleId) -> Option<usize> {
        match &self.draws.selection {
            // By the id, since a row that is asked for may be of a sample that no order draws.
            Selection::Mixture(_) if self.dataset_tensor.is_some() => {
                Some(self.draws.datasets.partition_point(|share| share.end <= id.0))
            }
            _ => None,
        }
    }

    /// What the dataset reports to a user.
    #[must_use]
    pub fn description(&self) -> Description {
        self.dataset.description()
    }

    /// Names of the classes, in label order; empty if the dataset has no classes.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        self.dataset.classes()
    }

    /// The index of the dataset's folders, if it has one.
    #[must_use]
    pub fn index(&self) -> Option<&IndexBytes> {
        self.dataset.index()
    }

    /// Mean time of a row on work threads so far, over all stages; at least 1.
    pub(crate) fn row_ns(&self) -> u64 {
        let time: Duration = self.stages.iter().map(Stage::mean_time).sum();
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Initial number of work threads: the threads of stages with a fixed number, plus one per core for all `auto`
    /// stages together.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        let fixed = self.stages.iter().filter(|stage| !stage.is_auto);
        let auto = self.stages.iter().filter(|stage| stage.is_auto).map(|stage| stage.gate.limit());
        // A thread waits for each call of a function on batches.
        let batches = self.plan.batch_workers(0).map(|(workers, ..)| workers);
        let fixed = fixed.map(|stage| stage.gate.limit()).chain(batches);
        fixed.sum::<u32>() + auto.max().unwrap_or(0)
    }

    /// The Python stages, each with its number of workers.
    pub(crate) fn python_stages(&self) -> impl Iterator<Item = (&StageConfig, u32)> {
        let stages = self.config.stages.iter().zip(&self.stages);
        stages.filter_map(|(config, stage)| Some((config, stage.workers?)))
    }

    /// The sources of Python stages, for saved states.
    pub(crate) fn python_sources(&self) -> Vec<PythonSource> {
        let sources = self.plan.python_sources().map(|(stage, (target, source))| PythonSource {
            stage: self.stages[stage].name.clone(),
            target: target.to_owned(),
            file: source.file,
            digest: source.digest,
        });
        let of_batches = self.plan.batch_sources().map(|(place, (target, source))| PythonSource {
            stage: place.to_owned(),
            target: target.to_owned(),
            file: source.file,
            digest: source.digest,
        });
        sources.chain(of_batches).collect()
    }

    /// Each stage's name and maximal number of threads; for a Python stage its number of workers.
    pub fn stage_limits(&self) -> impl Iterator<Item = (&str, u32)> {
        let limit = |stage: &Stage| stage.workers.unwrap_or_else(|| stage.gate.limit());
        self.stages.iter().map(move |stage| (stage.name.as_str(), limit(stage)))
    }

    /// Whether there are operations on complete batches.
    #[must_use]
    pub fn has_batch_operations(&self) -> bool {
        self.plan.has_batch_operations()
    }

    /// Identifies the stream's samples under work to the next daemon; never 0.
    #[must_use]
    pub fn work_key(&self) -> u64 {
        let part = |digest: &[u8; 32]| u64::from_le_bytes(digest.as_chunks().0[0]);
        (part(&self.dataset_fingerprint) ^ part(&self.config_fingerprint).rotate_left(17)).max(1)
    }

    /// Opens the file that lists bad samples, if it is configured.
    pub fn open_quarantine(&self) -> io::Result<()> {
        let Some(path) = &self.config.errors.quarantine else {
            return Ok(());
        };
        let quarantine = Quarantine::open(path).map_err(|error| {
            let message =
                format!("errors.quarantine {} cannot be written: {error}", path.display());
            io::Error::new(error.kind(), message)
        })?;
        // Set once: a stream is started once.
        let _ = self.quarantine.set(quarantine);
        Ok(())
    }

    /// A sample's label.
    ///
    /// # Errors
    /// The index does not have it, or its value is defective.
    pub fn label(&self, id: SampleId) -> Result<i64, String> {
        let reason = match self.dataset.label(id) {
            Some(Ok(label)) => return Ok(label),
            Some(Err(defect)) => format!("cannot be read: {defect}"),
            None => {
                "is not in the index of the dataset: labels are known of folders of classes and of manifests with a column \
                 of integers or classes; read the others from the batches"
                    .to_owned()
            }
        };
        Err(format!("the label of sample {} ({}) {reason}", id.0, self.sample_path(id).display()))
    }

    /// A sample's name in messages: its file, or its name within a file of several samples.
    pub fn sample_path(&self, id: SampleId) -> PathBuf {
        self.dataset.full_name(self.storage.as_ref(), id)
    }

    /// A sample's name in messages, and its byte range in its first file.
    pub fn sample_place(&self, id: SampleId) -> (PathBuf, ByteRange) {
        (self.sample_path(id), self.dataset.own_range(id))
    }

    /// The files of a sample's bytes, and the range of each.
    pub fn sample_parts(&self, id: SampleId) -> Vec<(PathBuf, ByteRange)> {
        let mut locations = Vec::new();
        self.dataset.locate(id, &mut locations);
        let path = |file| self.storage.full_path(&self.dataset.path(file));
        locations.iter().map(|location| (path(location.file), location.range)).collect()
    }

    /// Reads a sample's bytes outside of any batch, for measurements; returns their number.
    ///
    /// # Errors
    /// The storage's error; there are no retries.
    pub fn read_bytes(&self, id: SampleId, buffer: &mut Vec<u8>) -> Result<u64, StorageError> {
        let mut scratch = ReadScratch::default();
        let length_bytes = self.open_sample((id, 0), &mut scratch)?;
        self.read_sample(&mut scratch, buffer)?;
        Ok(length_bytes)
    }

    /// Requests to its storage so far; `None`: the storage is not request-based.
    #[must_use]
    pub fn requests(&self) -> Option<RequestReport> {
        self.storage.properties().requests.map(RequestMetrics::report)
    }

    /// Memory that a sample needs at most, in addition to its fetched bytes and its row.
    pub(crate) fn needs(&self, id: SampleId, draw: u64, fetched: SampleBytes<'_>) -> Needs {
        self.plan.needs((id, draw), fetched, self.dataset.as_ref())
    }

    /// Opens all files with a sample's bytes for a draw; returns the number of bytes.
    pub(crate) fn open_sample(
        &self,
        (id, draw): (SampleId, u64),
        scratch: &mut ReadScratch,
    ) -> Result<u64, StorageError> {
        let ReadScratch { locations, opened, .. } = scratch;
        locations.clear();
        self.dataset.locate_drawn(id, draw, locations);
        let limit_bytes = self.config.dataset.limits.sample_bytes;
        self.storage.open_all(self.dataset.as_ref(), locations, limit_bytes, opened)
    }

    /// Reads the files that [`open_sample`](Self::open_sample) has opened.
    pub(crate) fn read_sample(
        &self,
        scratch: &mut ReadScratch,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let ReadScratch { opened, part_ends, .. } = scratch;
        self.storage.read_all(self.dataset.as_ref(), opened, buffer, part_ends)
    }
}

/// Reads one sample's bytes outside of any batch.
pub(crate) fn read_at_start(
    storage: &dyn Storage,
    dataset: &dyn Dataset,
    limit_bytes: u64,
    task: &mut SampleTask,
) -> Result<(), StorageError> {
    let mut locations = Vec::new();
    let mut opened = Vec::new();
    dataset.locate_drawn(task.id, task.key.of_sample(), &mut locations);
    storage.open_all(dataset, &locations, limit_bytes, &mut opened)?;
    storage.read_all(dataset, &mut opened, &mut task.bytes, &mut task.part_ends)
}
