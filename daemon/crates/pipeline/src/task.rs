//! One sample on its way through the stages, and what a work thread keeps from sample to sample.

use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_source::dataset::FieldValue;
use forebay_source::location::SharedBytes;

use forebay_workers::CallBuffer;

use super::field::{CarriedField, FieldInProgress, Tools};

/// One sample on its way through the stages. Handed from stage to stage.
#[derive(Debug)]
pub struct SampleTask {
    /// Whose data it is.
    pub id: SampleId,
    /// What its draws are keyed by.
    pub key: DrawKey,
    /// The fetched bytes, where they are the sample's own.
    pub bytes: Vec<u8>,
    /// Where the bytes of each location end; empty where there is one.
    pub part_ends: Vec<usize>,
    /// The bytes of each location, where the sample shares them with others; empty where it does not.
    pub shared: Vec<SharedBytes>,
    /// The tensor whose elements were read directly into the row; there are then no fetched bytes.
    pub in_place: Option<usize>,
    /// What a stage leaves for the next, by field.
    pub(crate) carried: Vec<CarriedField>,
}

impl SampleTask {
    /// A sample whose bytes were fetched and to which nothing has been done.
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

    /// Begins anew with another sample; the bytes are to be fetched.
    pub fn reset(&mut self, id: SampleId, key: DrawKey) {
        (self.id, self.key, self.in_place) = (id, key, None);
        self.carried.clear();
    }

    /// The bytes that it alone holds: those fetched, and what a stage left for the next.
    pub fn held_bytes(&self) -> usize {
        self.bytes.len() + self.carried.iter().map(CarriedField::held_bytes).sum::<usize>()
    }

    /// Gives the fetched bytes' memory back; what else the task holds is let go, shared bytes too.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.carried.clear();
        self.shared.clear();
        std::mem::take(&mut self.bytes)
    }
}

/// What a work thread keeps from sample to sample: decoder handles, resizer, scratch memory.
#[derive(Debug, Default)]
pub struct WorkerScratch {
    pub(crate) tools: Tools,
    /// The rows of the next call of a Python stage.
    pub(crate) call: CallBuffer,
    pub(crate) lists: SampleLists,
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
