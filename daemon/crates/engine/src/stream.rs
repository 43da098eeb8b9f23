//! A stream: one resolved configuration with its dataset, its plan and its stages' figures. Shared by all threads.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_protocol::frames::PythonSource;
use forebay_protocol::ids::SampleId;
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use super::datasets::{DatasetShare, EpochDraws, open_datasets};
use super::jpeg_index::StreamIndex;
use super::quarantine::Quarantine;
use super::stage_cost::StageCost;
use super::stream_error::StreamError;
use super::work_parking::StageGate;
use forebay_config::{Concurrency, Config, ConfigError, Last, StageConfig};
use forebay_observe::recorder::Recorder;
use forebay_observe::{Clock, QueueMetrics, RequestMetrics, RequestReport, StageMetrics};
use forebay_order::Selection;
use forebay_pipeline::batch::BatchOperation;
use forebay_pipeline::{Needs, PythonStart, SamplePlan, SampleTask};
use forebay_source::dataset::{
    ClassSummary, Dataset, IndexBytes, OpenOptions, Opened, SampleBlocks,
};
use forebay_source::location::{ByteRange, Location, SampleBytes};
use forebay_source::storage::{self, Outages, Storage, StorageError};

/// What `ring.memory` is where the machine has it and the plan needs no more.
pub(crate) const USUAL_MEMORY_BYTES: u64 = 2 << 30;

/// The threads of a stage of the user's own Python beside those that wait for its workers: one writes the next call, or reads
/// what an earlier one returned.
const THREADS_BESIDE_WORKERS: u32 = 1;

/// The tensor that says which dataset a row is of.
const DATASET: &str = "dataset";

/// A CPU stage as the threads see it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub name: String,
    /// How many threads may be in it, and are.
    pub(crate) gate: StageGate,
    /// Whether the engine finds the number of threads.
    pub is_auto: bool,
    /// The worker processes of a stage of the user's own Python.
    pub workers: Option<u32>,
    pub cost: StageCost,
    pub figures: StageMetrics,
    /// The rows that wait for this stage.
    pub input: QueueMetrics,
}

/// What a thread needs to read one sample after another.
#[derive(Debug, Default)]
pub(crate) struct ReadScratch {
    pub locations: Vec<Location>,
    pub opened: Vec<storage::Opened>,
    /// Where the bytes of each location end; empty where there is one.
    pub part_ends: Vec<usize>,
    /// What stands before the elements of an array that is read directly.
    pub before: Vec<u8>,
}

/// The name of the batch operations together in reports.
pub(crate) const BATCH_OPERATIONS: &str = "batch.operations";

/// What one configuration describes, ready to be served.
#[derive(Debug)]
pub struct Stream {
    pub(crate) config: Config,
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) storage: Arc<dyn Storage>,
    /// Whether rows are fetched by units that samples share.
    pub(crate) shares_units: bool,
    pub(crate) plan: SamplePlan,
    pub(crate) layout: Arc<SlotLayout>,
    pub(crate) index_tensor: usize,
    pub(crate) valid_tensor: Option<usize>,
    /// Which dataset a row is of, where there are several.
    pub(crate) dataset_tensor: Option<usize>,
    pub(crate) draws: EpochDraws,
    /// Whether a work thread finishes a complete batch before it is published: batch operations, or ragged rows to move
    /// together.
    pub finishes_batches: bool,
    pub(crate) stages: Vec<Stage>,
    pub(crate) clock: Clock,
    pub(crate) fetch: StageMetrics,
    /// The batch operations together; a task is a batch.
    pub(crate) batch_figures: StageMetrics,
    /// Of those of them that are the user's functions, each; a task is a batch.
    pub(crate) function_figures: Vec<StageMetrics>,
    /// Of its storage.
    pub(crate) outages: Arc<Outages>,
    pub(crate) dataset_fingerprint: [u8; 32],
    pub(crate) config_fingerprint: [u8; 32],
    /// What is learned of its JPEG files.
    pub(crate) jpeg_index: StreamIndex,
    /// Where bad samples are listed; set before the engine starts.
    pub quarantine: OnceLock<Quarantine>,
    /// What records its batches: the engine's, set when that starts.
    pub recorder: OnceLock<Arc<Recorder>>,
}

impl Stream {
    /// Opens the dataset and compiles the operations. Blocks; `threads` is what an `auto` stage gets; `clock`
    /// measures the times of its rows.
    ///
    /// # Errors
    /// Names the file, the line and the key, or the path that is wrong.
    pub fn open(
        config: Config,
        threads: u32,
        options: OpenOptions<'_>,
        clock: Clock,
    ) -> Result<Self, StreamError> {
        Self::open_with(config, threads, options, clock, Vec::new())
    }

    /// As [`open`](Self::open), with operations on complete batches.
    ///
    /// # Errors
    /// As [`open`](Self::open), and an operation that does not fit the tensors.
    pub fn open_with(
        mut config: Config,
        threads: u32,
        options: OpenOptions<'_>,
        clock: Clock,
        batch_operations: Vec<Box<dyn BatchOperation>>,
    ) -> Result<Self, StreamError> {
        let datasets = open_datasets(&mut config, options)?;
        let draws = EpochDraws::of(&config, &datasets)?;
        let Opened { dataset, storage, report } = datasets.opened;
        let jpeg_index =
            StreamIndex::open(&config.dataset, dataset.as_ref(), report.path.as_deref());
        let limit_bytes = config.dataset.limits.sample_bytes;
        let read = |task: &mut SampleTask| {
            read_at_start(storage.as_ref(), dataset.as_ref(), limit_bytes, task)
                .map_err(|error| error.to_string())
        };
        let start = PythonStart { workers: threads, read: &read, foreground: None };
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
            || tensors
                .iter()
                .any(|tensor| matches!(tensor.extent, Extent::Ragged { compact: true, .. }));
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
        let config_fingerprint = config.fingerprint(plan.batch_operations());
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
            draws,
            finishes_batches,
            stages,
            clock,
            fetch: StageMetrics::default(),
            batch_figures: StageMetrics::default(),
            function_figures,
            outages,
            dataset_fingerprint,
            config_fingerprint,
            jpeg_index,
            quarantine: OnceLock::new(),
            recorder: OnceLock::new(),
        })
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

    /// `ring.memory`, given or chosen.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.config.ring.memory.unwrap_or(USUAL_MEMORY_BYTES)
    }

    /// The tensors of a batch, `index` and `valid` included.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        self.layout.tensors()
    }

    /// Where the tensors lie in a slot.
    #[must_use]
    pub fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// What is learned of its JPEG files.
    #[must_use]
    pub const fn jpeg_index(&self) -> &StreamIndex {
        &self.jpeg_index
    }

    /// The number of samples, of all datasets together.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.dataset.sample_count()
    }

    /// What the positions of an epoch draw from.
    #[must_use]
    pub const fn selection(&self) -> &Selection {
        &self.draws.selection
    }

    /// What the open blocks of an order in blocks take at most; 0 for others.
    #[must_use]
    pub const fn open_block_bytes(&self) -> u64 {
        self.draws.open_blocks.bytes
    }

    /// The blocks of its dataset. Looks at the whole index.
    #[must_use]
    pub fn blocks(&self) -> Option<SampleBlocks> {
        self.dataset.blocks()
    }

    /// The datasets, where there are several.
    #[must_use]
    pub fn datasets(&self) -> &[DatasetShare] {
        &self.draws.datasets
    }

    /// The place of the dataset that a sample is of, where there are several.
    pub(crate) fn dataset_of(&self, id: SampleId) -> Option<usize> {
        match &self.draws.selection {
            Selection::Mixture(mixture) if self.dataset_tensor.is_some() => {
                Some(mixture.part_of(id))
            }
            _ => None,
        }
    }

    /// The classes in numbers, where the dataset's folders give them.
    #[must_use]
    pub fn classes(&self) -> Option<ClassSummary> {
        self.dataset.class_summary()
    }

    /// The names of the classes, in label order; none where the dataset has no classes.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        self.dataset.classes()
    }

    /// What is to be said of the dataset beside its numbers: names and texts.
    #[must_use]
    pub fn notes(&self) -> Vec<(&'static str, String)> {
        self.dataset.notes()
    }

    /// The hidden files and folders that are left out, where there are some.
    #[must_use]
    pub fn left_out(&self) -> Option<&str> {
        self.dataset.left_out()
    }

    /// The index of the dataset's folders, where it has one.
    #[must_use]
    pub fn index(&self) -> Option<&IndexBytes> {
        self.dataset.index()
    }

    /// The work threads that it starts with: those of the stages with a number, and the cores for all `auto` stages
    /// together.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        let fixed = self.stages.iter().filter(|stage| !stage.is_auto);
        let auto = self.stages.iter().filter(|stage| stage.is_auto).map(|stage| stage.gate.limit());
        // A thread waits for each function on batches that is called.
        let batches = self.plan.batch_workers(0).map(|(workers, ..)| workers);
        let fixed = fixed.map(|stage| stage.gate.limit()).chain(batches);
        fixed.sum::<u32>() + auto.max().unwrap_or(0)
    }

    /// The stages of the user's own Python, and the workers of each.
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

    /// A stage's name and its most threads at once; its workers where it is the user's own Python.
    pub fn stage_limits(&self) -> impl Iterator<Item = (&str, u32)> {
        let limit = |stage: &Stage| stage.workers.unwrap_or_else(|| stage.gate.limit());
        self.stages.iter().map(move |stage| (stage.name.as_str(), limit(stage)))
    }

    /// Whether there are operations on complete batches.
    #[must_use]
    pub fn has_batch_operations(&self) -> bool {
        self.plan.has_batch_operations()
    }

    /// What its samples under work are known by to the next daemon; never 0.
    #[must_use]
    pub fn work_key(&self) -> u64 {
        let part = |digest: &[u8; 32]| u64::from_le_bytes(digest.as_chunks().0[0]);
        (part(&self.dataset_fingerprint) ^ part(&self.config_fingerprint).rotate_left(17)).max(1)
    }

    /// Opens the file that bad samples are listed in, if there is to be one.
    pub fn open_quarantine(&self) -> io::Result<()> {
        let Some(path) = &self.config.errors.quarantine else {
            return Ok(());
        };
        let quarantine = Quarantine::open(path).map_err(|error| {
            let message =
                format!("errors.quarantine {} cannot be written: {error}", path.display());
            io::Error::new(error.kind(), message)
        })?;
        // A stream is started once.
        let _ = self.quarantine.set(quarantine);
        Ok(())
    }

    /// What messages call a sample: its file, or the file that it lies in and its name there.
    pub fn sample_path(&self, id: SampleId) -> PathBuf {
        self.dataset.full_name(self.storage.as_ref(), id)
    }

    /// What messages call a sample, and where in its first file it lies.
    pub fn sample_place(&self, id: SampleId) -> (PathBuf, ByteRange) {
        (self.sample_path(id), self.dataset.own_range(id))
    }

    /// Reads a sample's bytes outside of any batch, to measure it; how many they are.
    ///
    /// # Errors
    /// As the storage has it; nothing is tried again.
    pub fn read_bytes(&self, id: SampleId, buffer: &mut Vec<u8>) -> Result<u64, StorageError> {
        let mut scratch = ReadScratch::default();
        let length_bytes = self.open_sample(id, &mut scratch)?;
        self.read_sample(&mut scratch, buffer)?;
        Ok(length_bytes)
    }

    /// What its storage was asked for so far; `None`: it answers no requests.
    #[must_use]
    pub fn requests(&self) -> Option<RequestReport> {
        self.storage.requests().map(RequestMetrics::report)
    }

    /// The most that a sample takes beside its fetched bytes and its row.
    pub(crate) fn needs(&self, id: SampleId, fetched: SampleBytes<'_>) -> Needs {
        self.plan.needs(id, fetched, self.dataset.as_ref())
    }

    /// Opens all that a sample's bytes lie in; how many they are.
    pub(crate) fn open_sample(
        &self,
        id: SampleId,
        scratch: &mut ReadScratch,
    ) -> Result<u64, StorageError> {
        let ReadScratch { locations, opened, .. } = scratch;
        locations.clear();
        self.dataset.locate(id, locations);
        let limit_bytes = self.config.dataset.limits.sample_bytes;
        self.storage.open_all(self.dataset.as_ref(), locations, limit_bytes, opened)
    }

    /// Reads what [`open_sample`](Self::open_sample) has opened.
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
    dataset.locate(task.id, &mut locations);
    storage.open_all(dataset, &locations, limit_bytes, &mut opened)?;
    storage.read_all(dataset, &mut opened, &mut task.bytes, &mut task.part_ends)
}
