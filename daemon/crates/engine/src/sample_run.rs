//! One sample taken through all stages by itself: no daemon, no ring and no other sample. Its bytes are those of its row in
//! a batch, before operations on batches.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::TensorSpec;

use super::datasets::open_datasets;
use super::stream::read_at_start;
use super::stream_error::StreamError;
use forebay_config::{Config, Located};
use forebay_order::DrawKey;
use forebay_pipeline::{Foreground, MemoryRow, PythonStart, SamplePlan, SampleTask, WorkerScratch};
use forebay_source::dataset::{Dataset, OpenOptions, Opened};
use forebay_source::storage::Storage;

/// A dataset whose samples are run one by one.
#[derive(Debug)]
pub struct SampleRun {
    /// Without its batch operations, which change what fields are.
    config: Config,
    batch_operations: Vec<String>,
    dataset: Arc<dyn Dataset>,
    storage: Arc<dyn Storage>,
}

/// A sample's row.
#[derive(Debug)]
pub struct SampleRow {
    /// What its fields are.
    pub tensors: Vec<TensorSpec>,
    /// The bytes of each.
    pub bytes: Vec<Vec<u8>>,
}

impl SampleRun {
    /// Opens the dataset. Blocks.
    ///
    /// # Errors
    /// Names the file, the line and the key, or the path that is wrong.
    pub fn open(mut config: Config, options: OpenOptions<'_>) -> Result<Self, StreamError> {
        let Opened { dataset, storage, .. } = open_datasets(&mut config, options)?.opened;
        let name = |operation: &Located| operation.get("op")?.value.as_text().map(str::to_owned);
        let batch_operations = std::mem::take(&mut config.batch.operations);
        let batch_operations = batch_operations.iter().filter_map(name).collect();
        Ok(Self { config, batch_operations, dataset, storage })
    }

    /// The operations on batches, by name: they are not run.
    #[must_use]
    pub fn batch_operations(&self) -> &[String] {
        &self.batch_operations
    }

    /// The number of samples.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.dataset.sample_count()
    }

    /// What messages call a sample.
    #[must_use]
    pub fn path(&self, id: u64) -> PathBuf {
        self.dataset.full_name(self.storage.as_ref(), SampleId(id))
    }

    /// Runs a sample as an epoch does. The functions of Python stages, or that of `stage` alone, are called once in the
    /// foreground, by the calling thread. They end with it.
    ///
    /// # Errors
    /// What ends a run at this sample, and a mistake in the configuration.
    pub fn run(&self, id: u64, epoch: u64, stage: Option<usize>) -> Result<SampleRow, String> {
        let dataset = self.dataset.as_ref();
        let limit_bytes = self.config.dataset.limits.sample_bytes;
        let read = |task: &mut SampleTask| {
            read_at_start(self.storage.as_ref(), dataset, limit_bytes, task)
                .map_err(|error| error.to_string())
        };
        let key = DrawKey { seed: self.config.order.seed, epoch, sample: id };
        let foreground = Some(Foreground { key, stage });
        let start = PythonStart { workers: 1, read: &read, foreground };
        let plan = SamplePlan::compile_with(&self.config, dataset, start)
            .map_err(|error| error.to_string())?;
        let mut task = SampleTask::new(SampleId(id), key, Vec::new());
        read(&mut task)?;
        let tensors = plan.tensors().to_vec();
        let mut row = MemoryRow::of(&tensors);
        let mut scratch = WorkerScratch::default();
        for stage in 0..self.config.stages.len() {
            plan.run(stage, &mut task, dataset, &mut row, &mut scratch).map_err(|defect| {
                format!("stage `{}`: {defect}", self.config.stages[stage].name)
            })?;
        }
        Ok(SampleRow { tensors, bytes: row.into_bytes() })
    }
}
