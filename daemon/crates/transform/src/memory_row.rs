//! A row in this process's own memory.

use forebay_protocol::tensor::{Extent, TensorSpec};

use super::row::Row;

/// See the module's head. Tensors are numbered as in the list passed to [`MemoryRow::of`].
#[derive(Debug, Clone, Default)]
pub struct MemoryRow {
    /// By tensor: the maximal length of a ragged one; `None` for a dense one.
    limits: Vec<Option<u64>>,
    bytes: Vec<Vec<u8>>,
}

impl MemoryRow {
    /// A row of zeros; ragged tensors are empty.
    #[must_use]
    pub fn of(tensors: &[TensorSpec]) -> Self {
        let limit = |tensor: &TensorSpec| match tensor.extent {
            Extent::Dense => None,
            Extent::Ragged { max_row_bytes, .. } => Some(max_row_bytes),
        };
        let bytes = |tensor: &TensorSpec| match tensor.extent {
            Extent::Dense => tensor.row_pitch_bytes().unwrap_or(0),
            Extent::Ragged { .. } => 0,
        };
        let row = |tensor| vec![0; usize::try_from(bytes(tensor)).unwrap_or(0)];
        Self {
            limits: tensors.iter().map(limit).collect(),
            bytes: tensors.iter().map(row).collect(),
        }
    }

    /// Whether it has no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.iter().map(Vec::len).sum()
    }

    /// The bytes of each tensor.
    #[must_use]
    pub fn into_bytes(self) -> Vec<Vec<u8>> {
        self.bytes
    }
}

impl Row for MemoryRow {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        &mut self.bytes[tensor]
    }

    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        if bytes > self.limits[tensor]? {
            return None;
        }
        self.bytes[tensor].resize(usize::try_from(bytes).ok()?, 0);
        Some(&mut self.bytes[tensor])
    }

    fn ragged_bytes(&mut self, tensor: usize) -> &[u8] {
        &self.bytes[tensor]
    }
}
