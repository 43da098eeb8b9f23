//! A batch: a shared lease of its slot.

use std::sync::Arc;

use forebay_protocol::frames::Attached;
use forebay_protocol::ids::Position;
use forebay_protocol::tensor::TensorSpec;

use crate::error::Error;
use crate::ring::Lease;
use crate::views::Tensor;

/// A finished batch. Clones share the slot; dropping the last one returns it to the daemon.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) lease: Arc<Lease>,
    pub(crate) terms: Arc<Attached>,
}

impl Batch {
    /// The number of samples, padding included.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.lease.descriptor().rows
    }

    /// The batch's number in the session, counted from 0 across seeks and epochs.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.lease.descriptor().sequence.0
    }

    /// The batch's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.lease.descriptor().epoch
    }

    /// The stream's position after this batch, as counted by the daemon.
    #[must_use]
    pub fn position_after(&self) -> Position {
        self.lease.descriptor().position_after
    }

    /// Whether it is this rank's last batch of its epoch.
    #[must_use]
    pub fn is_last_of_epoch(&self) -> bool {
        self.lease.descriptor().last_of_epoch
    }

    /// Whether it is a replay of an earlier batch, for a measurement.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.lease.descriptor().replayed
    }

    /// The number of bytes in the slot that hold data.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.lease.descriptor().payload_bytes
    }

    /// The schema, in the order of the tensors.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.terms.tensors
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.terms.tensors.len()).map(|index| Tensor::new(&self.lease, &self.terms, index))
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let index = self.terms.tensors.iter().position(|spec| spec.name == name)?;
        Some(Tensor::new(&self.lease, &self.terms, index))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`] with the names of the batch's tensors.
    pub fn require(&self, name: &str) -> Result<Tensor<'_>, Error> {
        self.tensor(name).ok_or_else(|| {
            let names: Vec<&str> = self.specs().iter().map(|spec| spec.name.as_str()).collect();
            Error::NoSuchTensor(format!(
                "the batch has no tensor `{name}`; it has {}",
                names.join(", ")
            ))
        })
    }
}
