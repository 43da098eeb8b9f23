//! An operation on complete batches in a plan.

use crate::batch::BatchOperation;
use crate::python::BatchBody;

/// See the module's head.
#[derive(Debug)]
pub(super) enum BatchStep {
    /// Of this crate. It has numbers of its own for the tensors of the batch that were there when it was added, and those
    /// that it added: by those, a row's.
    Native(Box<dyn BatchOperation>, Vec<usize>),
    /// The user's function.
    Python(Box<BatchBody>),
}
