//! What is done to one sample on a work thread. One file an operation, one line in the registry.
//!
//! The engine owns the tasks, the rows and one [`WorkerScratch`] a thread; this folder owns what happens between a
//! sample's fetched bytes and its row. It draws no thread, no queue and no clock into it (but for `delay`).

mod arguments;
mod array;
mod contract;
mod decode;
mod finish;
#[doc(hidden)]
pub mod fuzzing;
mod geometry;
mod image;
mod jpeg;
mod operations;
mod output;
mod plan;
mod reduction;
mod registry;
#[cfg(test)]
mod test_images;

use crate::order::DrawKey;
use forebay_protocol::ids::SampleId;

pub use plan::SamplePlan;

/// The memory of one sample's row in its batch's slot. Tensors are numbered as in [`SamplePlan::tensors`].
pub trait Row {
    /// The row's bytes of a dense tensor. Write-only by contract: a client may be writing there too.
    fn dense(&mut self, tensor: usize) -> &mut [u8];

    /// Sets the length of a ragged tensor's row and gives its bytes; `None` when they exceed `max_row_bytes`.
    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]>;
}

/// One sample on its way through the stages. Handed from stage to stage.
#[derive(Debug)]
pub struct SampleTask {
    /// Whose data it is.
    pub id: SampleId,
    /// What its draws are keyed by.
    pub key: DrawKey,
    /// The fetched bytes.
    pub bytes: Vec<u8>,
    /// The tensor whose elements were read straight into the row; there are then no fetched bytes.
    pub straight: Option<usize>,
    /// What a stage leaves for the next.
    carried: Vec<plan::CarriedField>,
}

impl SampleTask {
    /// A sample whose bytes were fetched and to which nothing has been done.
    #[must_use]
    pub const fn new(id: SampleId, key: DrawKey, bytes: Vec<u8>) -> Self {
        Self { id, key, bytes, straight: None, carried: Vec::new() }
    }

    /// Begins anew with another sample; the bytes are to be fetched.
    pub fn reset(&mut self, id: SampleId, key: DrawKey) {
        (self.id, self.key, self.straight) = (id, key, None);
        self.carried.clear();
    }

    /// The bytes that it holds: those fetched, and what a stage left for the next.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let carried = self.carried.iter().map(plan::CarriedField::held_bytes);
        self.bytes.len() + carried.sum::<usize>()
    }

    /// Gives the fetched bytes' memory back; what else the task holds is let go.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.carried.clear();
        std::mem::take(&mut self.bytes)
    }
}

/// What a work thread keeps of a buffer from sample to sample (64 MiB); a larger one is given back.
const KEPT_BYTES: usize = 64 << 20;

/// What a work thread keeps from sample to sample: decoder handles, resizer, scratch memory.
#[derive(Debug, Default)]
pub struct WorkerScratch {
    tools: image::ImageTools,
    reordered: Vec<u8>,
    lists: plan::SampleLists,
}

impl WorkerScratch {
    /// The images that were decoded in spite of a decoder's warning, counted from the thread's start.
    #[must_use]
    pub const fn decoder_warnings(&self) -> u64 {
        self.tools.decoders.warnings()
    }

    /// Gives back what an unusually large sample took: a thread keeps at most [`KEPT_BYTES`] of each buffer.
    fn trim(&mut self) {
        self.tools.trim();
        if self.reordered.capacity() > KEPT_BYTES {
            self.reordered = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests;
