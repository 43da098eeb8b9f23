//! Operations on a complete batch: the second list of a plan.
//!
//! They run on one work thread, in order, on a slot whose rows are all written and before it is published. They may mix
//! rows, add tensors and change what a tensor holds: what the rows become is known when the plan is compiled.

use std::fmt::Debug;

use forebay_config::{ConfigError, Located};
use forebay_order::DrawKey;
use forebay_protocol::tensor::TensorSpec;
use forebay_source::dataset::Defect;

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

/// Compiles one entry of a list of batch operations, at a path. The registry's.
pub(crate) type CompileBatchEntry =
    fn(String, Located) -> Result<Box<dyn BatchOperation>, ConfigError>;

/// A row of a complete batch.
pub struct BatchRow<'b> {
    /// What its sample's draws are keyed by.
    pub key: DrawKey,
    /// Its memory, in all tensors of the plan.
    pub row: &'b mut dyn Row,
}
