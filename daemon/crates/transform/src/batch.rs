//! Operations on a complete batch: the second list of a plan.
//!
//! They run on one work thread, in order, on a slot whose rows are all written, before the batch is published. They may
//! mix rows, add tensors and change a tensor's type and shape: the changes are known when the plan is compiled.

use std::fmt::Debug;
use std::time::Duration;

use forebay_config::Concurrency;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Located, SourceLocation};
use forebay_order::DrawKey;
use forebay_protocol::tensor::TensorSpec;
use forebay_workers::RowTime;

use super::row::Row;

/// An operation on complete batches. Shared by all work threads.
pub trait BatchOperation: Debug + Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// Its arguments, as a text that differs if the resulting bytes differ. Part of the stream's fingerprint, together
    /// with the name.
    fn arguments(&self) -> String;

    /// Changes the tensors as [`run`](Self::run) changes the rows: it may append some and change the type or shape of
    /// others. The stages write a changed tensor in its original form, at the beginning of its row, so a row may grow
    /// and not shrink; a ragged tensor keeps its extent. Called once, when the plan is compiled.
    ///
    /// # Errors
    /// The tensors do not fit the operation.
    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError>;

    /// Runs on the rows of one batch, in their order. `operation` is the key of its draws in addition to a row's key
    /// ([`Draws::new`](forebay_order::Draws::new)): with these keys, a batch's bytes depend only on its samples.
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
    /// The user's function: a plan starts its workers and calls it, to find its results' fields.
    Function(BatchFunction),
}

/// Compiles one entry of a list of batch operations, at a path. Provided by the registry.
pub(crate) type CompileBatchEntry = fn(String, Located) -> Result<BatchEntry, ConfigError>;

/// A user's function on complete batches, as configured.
#[derive(Debug)]
pub(crate) struct BatchFunction {
    /// Its path in the configuration, for messages.
    pub(crate) path: String,
    pub(crate) location: SourceLocation,
    pub(crate) target: String,
    pub(crate) arguments: Vec<(String, Located)>,
    pub(crate) workers: Concurrency,
    pub(crate) timeout: Duration,
    pub(crate) memory_bytes: u64,
}

/// The caller of a batch's operations.
pub struct BatchCaller<'c> {
    /// Distinguishes the threads, so that each keeps a worker.
    pub thread: usize,
    /// Whether the caller ends: unfinished work may then be skipped.
    pub is_ending: &'c dyn Fn() -> bool,
    /// Called after each call of a user's function with the function's number and the time of the call; `None`: the
    /// call failed.
    pub called: &'c dyn Fn(usize, Option<RowTime>),
}

impl BatchCaller<'static> {
    /// A caller that does not end and does not record calls.
    #[must_use]
    pub const fn plain(thread: usize) -> Self {
        Self { thread, is_ending: &|| false, called: &|_, _| () }
    }
}

/// A row of a complete batch.
pub struct BatchRow<'b> {
    /// The key of its sample's draws.
    pub key: DrawKey,
    /// Its memory, with all tensors of the plan.
    pub row: &'b mut dyn Row,
}
