//! A stream: one resolved configuration with its dataset, its plan and its stages' figures. Shared by all threads.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_protocol::ids::SampleId;
use forebay_protocol::layout::{LayoutError, SlotLayout};
use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use super::hand_over::StageGate;
use super::quarantine::Quarantine;
use super::tuning::StageCost;
use crate::config::{Concurrency, Config, ConfigError, Last, Place};
use crate::dataset::{
    self, ByteRange, Dataset, DatasetError, FolderIndex, IndexBytes, ProgressCallback,
};
use crate::observe::recorder::Recorder;
use crate::observe::{QueueFigures, StageFigures};
use crate::operation::SamplePlan;
use crate::storage::{LocalFiles, StorageError};

/// Why a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A mistake in the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The dataset cannot be used.
    #[error("{place}: {error}")]
    Dataset {
        /// Where the key stands.
        place: Place,
        /// Why.
        error: DatasetError,
    },
    /// The dataset's folder cannot be opened.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A batch cannot be laid out.
    #[error("{source_name}: a batch cannot be laid out: {error}")]
    Layout {
        /// The configuration.
        source_name: String,
        /// Why.
        error: LayoutError,
    },
}

/// A CPU stage as the threads see it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: String,
    /// How many threads may be in it, and are.
    pub(crate) gate: StageGate,
    /// Whether the engine finds the number of threads.
    pub(crate) is_auto: bool,
    pub(crate) cost: StageCost,
    pub(crate) figures: StageFigures,
    /// The rows that wait for this stage.
    pub(crate) input: QueueFigures,
}

/// What one configuration describes, ready to be served.
#[derive(Debug)]
pub struct Stream {
    pub(crate) config: Config,
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) storage: LocalFiles,
    pub(crate) plan: SamplePlan,
    pub(crate) layout: Arc<SlotLayout>,
    pub(crate) index_tensor: usize,
    pub(crate) valid_tensor: Option<usize>,
    /// Whether a batch's ragged rows are moved together before it is published.
    pub(crate) compacts: bool,
    pub(crate) stages: Vec<Stage>,
    pub(crate) fetch: StageFigures,
    pub(crate) dataset_fingerprint: [u8; 32],
    pub(crate) config_fingerprint: [u8; 32],
    /// Where bad samples are listed; set before the engine starts.
    pub(crate) quarantine: OnceLock<Quarantine>,
    /// What records its batches: the engine's, set when that starts.
    pub(crate) recorder: OnceLock<Arc<Recorder>>,
}

impl Stream {
    /// Opens the dataset and compiles the operations. Blocks; `threads` is what an `auto` stage gets.
    ///
    /// # Errors
    /// Names the file, the line and the key, or the path that is wrong.
    pub fn open(
        config: Config,
        threads: u32,
        progress: ProgressCallback<'_>,
    ) -> Result<Self, StreamError> {
        let dataset = dataset::open(&config.dataset, progress).map_err(|error| {
            let places = &config.places;
            let place = match error {
                DatasetError::UnknownFormat { .. } => places.dataset_format.clone(),
                _ => places.dataset_path.clone(),
            };
            StreamError::Dataset { place, error }
        })?;
        let storage = LocalFiles::open(&config.dataset.path)?;
        let plan = SamplePlan::compile(&config, dataset.as_ref())?;
        let mut tensors = plan.tensors().to_vec();
        let index_tensor = tensors.len();
        tensors.push(TensorSpec::dense("index", DType::I64, &[]));
        let valid_tensor = (config.batch.last == Last::Pad).then(|| {
            tensors.push(TensorSpec::dense("valid", DType::Bool, &[]));
            index_tensor + 1
        });
        let layout = SlotLayout::new(&tensors, config.batch.size.get())
            .map_err(|error| StreamError::Layout { source_name: config.source.clone(), error })?;
        let stages = config
            .stages
            .iter()
            .map(|stage| Stage {
                name: stage.name.clone(),
                is_auto: stage.concurrency == Concurrency::Auto,
                cost: StageCost::default(),
                gate: StageGate::new(match stage.concurrency {
                    Concurrency::Auto => threads,
                    Concurrency::Threads(count) => count.get(),
                }),
                figures: StageFigures::default(),
                input: QueueFigures::default(),
            })
            .collect();
        let config_fingerprint = config.fingerprint();
        let dataset_fingerprint = dataset.fingerprint();
        Ok(Self {
            config,
            dataset,
            storage,
            plan,
            layout: Arc::new(layout),
            index_tensor,
            valid_tensor,
            compacts: tensors
                .iter()
                .any(|tensor| matches!(tensor.extent, Extent::Ragged { compact: true, .. })),
            stages,
            fetch: StageFigures::default(),
            dataset_fingerprint,
            config_fingerprint,
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

    /// The number of samples.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.dataset.sample_count()
    }

    /// The index of the dataset's folders, where it has one.
    #[must_use]
    pub fn index(&self) -> Option<&IndexBytes> {
        self.dataset.index().map(FolderIndex::bytes)
    }

    /// The work threads that it starts with: those of the stages with a number, and the cores for all `auto` stages
    /// together.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        let fixed = self.stages.iter().filter(|stage| !stage.is_auto);
        let auto = self.stages.iter().filter(|stage| stage.is_auto).map(|stage| stage.gate.limit());
        fixed.map(|stage| stage.gate.limit()).sum::<u32>() + auto.max().unwrap_or(0)
    }

    /// A stage's name and its most threads at once.
    pub fn stage_limits(&self) -> impl Iterator<Item = (&str, u32)> {
        self.stages.iter().map(|stage| (stage.name.as_str(), stage.gate.limit()))
    }

    /// Opens the file that bad samples are listed in, if there is to be one.
    pub(crate) fn open_quarantine(&self) -> io::Result<()> {
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

    /// The file that a sample lies in, for messages.
    pub(crate) fn sample_path(&self, id: SampleId) -> PathBuf {
        self.sample_place(id).0
    }

    /// The file that a sample lies in, and where in it.
    pub(crate) fn sample_place(&self, id: SampleId) -> (PathBuf, ByteRange) {
        let mut relative = Vec::new();
        let range = self.dataset.locate(id, &mut relative);
        (self.storage.full_path(&relative), range)
    }
}
