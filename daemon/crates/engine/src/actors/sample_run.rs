//! Runs one sample through all stages: no daemon, no ring and no other sample. The result's bytes equal the bytes of
//! its row in a batch, before operations on batches.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::TensorSpec;

use crate::ground::datasets::{OpenDataset, open_datasets};
use crate::ground::lengths::buckets_of_sample;
use crate::ground::stream::read_at_start;
use crate::ground::stream_error::StreamError;
use forebay_config::Config;
use forebay_dataset::{Dataset, OpenOptions, Opened};
use forebay_keys::Located;
use forebay_order::DrawKey;
use forebay_storage::Storage;
use forebay_transform::{
    Foreground, MemoryRow, PythonStart, SamplePlan, SampleTask, WorkerScratch, WorkerStart,
};

/// A dataset whose samples are run one at a time.
#[derive(Debug)]
pub struct SampleRun {
    /// Without its batch operations, which change the fields' shapes and types.
    config: Config,
    batch_operations: Vec<String>,
    dataset: Arc<dyn Dataset>,
    storage: Arc<dyn Storage>,
}

/// A sample's row.
#[derive(Debug)]
pub struct SampleRow {
    /// The fields.
    pub tensors: Vec<TensorSpec>,
    /// The bytes of each field.
    pub bytes: Vec<Vec<u8>>,
}

impl SampleRun {
    /// Opens the dataset. Blocks.
    ///
    /// # Errors
    /// Names the file, the line and the key, or the wrong path.
    pub fn open(
        mut config: Config,
        open: OpenDataset,
        options: OpenOptions<'_>,
    ) -> Result<Self, StreamError> {
        let Opened { dataset, storage, .. } = open_datasets(&mut config, open, options)?.opened;
        let name = |operation: &Located| operation.get("op")?.value.as_text().map(str::to_owned);
        let batch_operations = std::mem::take(&mut config.batch.operations);
        let batch_operations = batch_operations.iter().filter_map(name).collect();
        Ok(Self { config, batch_operations, dataset, storage })
    }

    /// Names of the operations on batches, which are not run.
    #[must_use]
    pub fn batch_operations(&self) -> &[String] {
        &self.batch_operations
    }

    /// The number of samples.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.dataset.sample_count()
    }

    /// A sample's name in messages.
    #[must_use]
    pub fn path(&self, id: u64) -> PathBuf {
        self.dataset.full_name(self.storage.as_ref(), SampleId(id))
    }

    /// Runs a sample as an epoch does. The functions of Python stages, or only that of `stage`, are called once in the
    /// foreground, by the calling thread; their processes end with that thread.
    ///
    /// # Errors
    /// The error that would end a run at this sample, or a mistake in the configuration.
    pub fn run(&self, id: u64, epoch: u64, stage: Option<usize>) -> Result<SampleRow, String> {
        let dataset = self.dataset.as_ref();
        let limit_bytes = self.config.dataset.limits.sample_bytes;
        let read = |task: &mut SampleTask| {
            read_at_start(self.storage.as_ref(), dataset, limit_bytes, task)
                .map_err(|error| error.to_string())
        };
        let key = DrawKey { seed: self.config.order.seed, epoch, sample: id };
        let mut task = SampleTask::new(SampleId(id), key, Vec::new());
        read(&mut task)?;
        let buckets = buckets_of_sample(&self.config, dataset, &task)?;
        let foreground = Some(Foreground { key, stage });
        let start = PythonStart {
            workers: 1,
            start: WorkerStart::WhenCalled,
            cores: &[],
            read: &read,
            buckets: buckets.as_ref(),
            foreground,
        };
        let plan = SamplePlan::compile_with(&self.config, dataset, start)
            .map_err(|error| error.to_string())?;
        let mut tensors = plan.tensors().to_vec();
        let mut row = MemoryRow::of(&tensors);
        let mut scratch = WorkerScratch::default();
        for stage in 0..self.config.stages.len() {
            plan.run(stage, &mut task, dataset, &mut row, &mut scratch).map_err(|defect| {
                format!("stage `{}`: {defect}", self.config.stages[stage].name)
            })?;
        }
        let mut bytes = row.into_bytes();
        let number = plan.bucket_of(SampleId(id)).map_or(0, |bucket| bucket.number);
        for (tensor, bytes) in tensors.iter_mut().zip(&mut bytes) {
            if let Some(shape) = tensor.row_shapes.get(number).cloned() {
                let row_bytes = tensor.shape_bytes(&shape).unwrap_or(0);
                bytes.truncate(usize::try_from(row_bytes).unwrap_or(usize::MAX));
                (tensor.row_shape, tensor.row_shapes) = (shape, Vec::new());
            }
        }
        Ok(SampleRow { tensors, bytes })
    }
}
