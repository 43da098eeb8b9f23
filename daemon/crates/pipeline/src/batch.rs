//! Operations on a complete batch: the second list of a plan.
//!
//! They run on one work thread, in order, on a slot whose rows are all written and before it is published. They may mix
//! rows, add tensors and change what a tensor holds: what the rows become is known when the plan is compiled.

use std::fmt::Debug;
use std::time::Duration;

use forebay_config::{Concurrency, ConfigError, Located, SourceLocation};
use forebay_order::DrawKey;
use forebay_protocol::tensor::TensorSpec;
use forebay_source::dataset::Defect;
use forebay_workers::RowTime;

use super::row::Row;

/// Something that is done to each complete batch. Shared by all work threads.
pub trait BatchOperation: Debug + Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// Its arguments, as a text that is another one whenever the bytes that it makes are others. Part of the stream's
    /// fingerprint, beside the name.
    fn arguments(&self) -> String;

    /// Changes the tensors as [`run`](Self::run) changes the rows: it may append some and change the type or shape of
    /// others. The stages write a tensor that it changes as it was before, at the beginning of its row, so a row may
    /// grow and not shrink; a ragged tensor keeps its extent. Called once, when the plan is compiled.
    ///
    /// # Errors
    /// The tensors are not those that it works on.
    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError>;

    /// Does it to the rows of one batch, in their order. `operation` is what its draws are keyed by besides a row's key
    /// ([`Draws::new`](forebay_order::Draws::new)): keyed so, a batch's bytes depend on its samples alone.
    ///
    /// # Errors
    /// The batch cannot be made: the stream ends.
    fn run(&self, rows: &mut [BatchRow<'_>], operation: u64) -> Result<(), Defect>;
}

/// One entry of a list of batch operations.
#[derive(Debug)]
pub(crate) enum BatchEntry {
    /// An operation of this crate.
    Operation(Box<dyn BatchOperation>),
    /// The user's function: a plan starts its workers and calls it, to find what it returns.
    Function(BatchFunction),
}

/// Compiles one entry of a list of batch operations, at a path. The registry's.
pub(crate) type CompileBatchEntry = fn(String, Located) -> Result<BatchEntry, ConfigError>;

/// A function of the user's on complete batches, as the configuration has it.
#[derive(Debug)]
pub(crate) struct BatchFunction {
    /// Its place in the configuration, for messages.
    pub(crate) path: String,
    pub(crate) location: SourceLocation,
    pub(crate) target: String,
    pub(crate) arguments: Vec<(String, Located)>,
    pub(crate) workers: Concurrency,
    pub(crate) timeout: Duration,
    pub(crate) memory_bytes: u64,
}

/// Who runs the operations of a batch.
pub struct BatchCaller<'c> {
    /// Tells the threads apart, so that each keeps a worker.
    pub thread: usize,
    /// Whether it ends: what is not done then need not be.
    pub is_ending: &'c dyn Fn() -> bool,
    /// Is told of each call of the user's functions: which of them it is, and when it was called; none: it has failed.
    pub called: &'c dyn Fn(usize, Option<RowTime>),
}

impl BatchCaller<'static> {
    /// One that does not end and wants to know nothing.
    #[must_use]
    pub const fn plain(thread: usize) -> Self {
        Self { thread, is_ending: &|| false, called: &|_, _| () }
    }
}

/// A row of a complete batch.
pub struct BatchRow<'b> {
    /// What its sample's draws are keyed by.
    pub key: DrawKey,
    /// Its memory, in all tensors of the plan.
    pub row: &'b mut dyn Row,
}
