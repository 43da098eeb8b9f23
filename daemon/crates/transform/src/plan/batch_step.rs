//! An operation on complete batches in a plan.

use crate::batch::BatchOperation;
use crate::python::BatchBody;

/// See the module's head.
#[derive(Debug)]
pub(super) enum BatchStep {
    /// An operation of this crate. It numbers the tensors that existed when it was added, and the tensors that it
    /// added; the list maps its numbers to a row's.
    Native(Box<dyn BatchOperation>, Vec<usize>),
    /// The user's function.
    Python(Box<BatchBody>),
}
