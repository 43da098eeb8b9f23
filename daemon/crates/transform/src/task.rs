//! One sample during its stages, and a work thread's scratch memory.

use forebay_dataset::FieldValue;
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::SharedBytes;

use forebay_workers::CallBuffer;

use super::field::{CarriedField, FieldInProgress, Tools};

/// One sample during its stages. Passed from stage to stage.
#[derive(Debug)]
pub struct SampleTask {
    /// The sample.
    pub id: SampleId,
    /// The key of its draws.
    pub key: DrawKey,
    /// The fetched bytes, if the sample does not share them.
    pub bytes: Vec<u8>,
    /// The ends of the locations' bytes; empty if there is one location.
    pub part_ends: Vec<usize>,
    /// The bytes of each location, if the sample shares them with others; otherwise empty.
    pub shared: Vec<SharedBytes>,
    /// The tensor whose elements were read directly into the row; there are then no fetched bytes.
    pub in_place: Option<usize>,
    /// Values carried to the next stage, by field.
    pub(crate) carried: Vec<CarriedField>,
}

impl SampleTask {
    /// A sample whose bytes were fetched, before the first stage.
    pub const fn new(id: SampleId, key: DrawKey, bytes: Vec<u8>) -> Self {
        Self {
            id,
            key,
            bytes,
            part_ends: Vec::new(),
            shared: Vec::new(),
            in_place: None,
            carried: Vec::new(),
        }
    }

    /// Starts with another sample; the bytes must be fetched.
    pub fn reset(&mut self, id: SampleId, key: DrawKey) {
        (self.id, self.key, self.in_place) = (id, key, None);
        self.carried.clear();
    }

    /// The bytes that only this task holds: fetched ones, and values carried to the next stage.
    pub fn held_bytes(&self) -> usize {
        self.bytes.len() + self.carried.iter().map(CarriedField::held_bytes).sum::<usize>()
    }

    /// Returns the fetched bytes' memory; drops everything else that the task holds, shared bytes included.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.carried.clear();
        self.shared.clear();
        std::mem::take(&mut self.bytes)
    }
}

/// Memory that a work thread keeps from sample to sample: decoder handles, resizer, scratch memory.
#[derive(Debug, Default)]
pub struct WorkerScratch {
    pub(crate) tools: Tools,
    /// The rows of the next call of a Python stage.
    pub(crate) call: CallBuffer,
    pub(crate) lists: SampleLists,
}

impl WorkerScratch {
    /// Why no process that decodes videos could be started for the last sample, which is not at fault.
    pub fn take_no_helpers(&mut self) -> Option<String> {
        self.tools.no_helpers.take()
    }

    /// Frees everything, after a panic, but what the thread has set.
    pub fn renew(&mut self) {
        let ending = std::mem::take(&mut self.tools.ending);
        *self = Self::default();
        self.tools.ending = ending;
    }

    /// Sets how the thread learns that it must end while it waits for a decoder's process.
    pub fn set_ending(&mut self, is_ending: std::sync::Arc<dyn Fn() -> bool + Send + Sync>) {
        self.tools.ending = crate::video::Ending::new(is_ending);
    }
}

/// Lists that are empty between samples and kept for their memory.
#[derive(Debug, Default)]
pub(crate) struct SampleLists {
    pub values: Vec<FieldValue<'static>>,
    pub fields: Vec<FieldInProgress<'static>>,
    pub carried: Vec<CarriedField>,
}

/// An empty list for values of another lifetime, in the same memory: the standard library collects in place.
pub(crate) fn emptied<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}
