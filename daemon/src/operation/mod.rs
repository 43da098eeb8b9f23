//! What is done to one sample on a work thread. One file an operation, one line in the registry.

use crate::config::{Config, ConfigError};
use crate::dataset::{Dataset, Defect};
use crate::order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::TensorSpec;

/// The memory of one sample's row in its batch's slot. Tensors are numbered as in [`SamplePlan::tensors`].
pub trait Row {
    /// The row's bytes of a dense tensor. Write-only by contract: a client may be writing there too.
    fn dense(&mut self, tensor: usize) -> &mut [u8];

    /// Sets the length of a ragged tensor's row and gives its bytes; `None` when they exceed `max_row_bytes`.
    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]>;
}

/// Everything that a stream does to a sample after its bytes were fetched; shared by all threads.
#[derive(Debug)]
pub struct SamplePlan {}

/// One sample on its way through the stages. Handed from stage to stage.
#[derive(Debug)]
pub struct SampleTask {
    /// Whose data it is.
    pub id: SampleId,
    /// What its draws are keyed by.
    pub key: DrawKey,
    /// The fetched bytes.
    pub bytes: Vec<u8>,
}

/// What a work thread keeps from sample to sample: decoder handles, resizer, scratch memory.
#[derive(Debug, Default)]
pub struct WorkerScratch {}

impl SampleTask {
    /// A task without bytes.
    #[must_use]
    pub fn new(id: SampleId, key: DrawKey) -> Self {
        Self { id, key, bytes: Vec::new() }
    }

    /// Begins anew with another sample; the bytes are to be fetched.
    pub fn reset(&mut self, id: SampleId, key: DrawKey) {
        (self.id, self.key) = (id, key);
    }

    /// Gives the fetched bytes' memory back; what else the task holds is let go.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl SamplePlan {
    /// Checks the operations against the dataset's fields and compiles them.
    ///
    /// # Errors
    /// An unknown operation or argument, an operation whose input is missing (names the operation that makes it), an
    /// output that does not exist: each with its place in the configuration.
    pub fn compile(_config: &Config, _dataset: &dyn Dataset) -> Result<Self, ConfigError> {
        unimplemented!()
    }

    /// The tensors of a batch without `index` and `valid`, in the order of the dataset's fields.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        unimplemented!()
    }

    /// Runs one stage (counted from 0 over `Config::stages`); the last one writes the row.
    ///
    /// # Errors
    /// The sample is bad.
    pub fn run(
        &self,
        _stage: usize,
        _task: &mut SampleTask,
        _dataset: &dyn Dataset,
        _row: &mut dyn Row,
        _scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        unimplemented!()
    }
}
