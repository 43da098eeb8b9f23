//! A row of an open batch, as operations write it.

use forebay_protocol::mix::Mix;
use forebay_protocol::slots::RowWriter;
use forebay_transform::{MemoryRow, Row, RowPlace, SamplePlan};

/// A row as operations see it: the tensors in its slot, and the tensors that are not part of the batch.
pub(crate) struct SlotRow<'a> {
    writer: &'a mut RowWriter,
    beside: &'a mut MemoryRow,
    plan: &'a SamplePlan,
}

impl<'a> SlotRow<'a> {
    pub(crate) fn new(
        writer: &'a mut RowWriter,
        beside: &'a mut MemoryRow,
        plan: &'a SamplePlan,
    ) -> Self {
        if beside.is_empty() && !plan.beside_tensors().is_empty() {
            *beside = MemoryRow::of(plan.beside_tensors());
        }
        Self { writer, beside, plan }
    }
}

impl Row for SlotRow<'_> {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        match self.plan.place_of(tensor) {
            RowPlace::Batch(tensor) => self.writer.bytes_mut(tensor),
            RowPlace::Beside(place) => self.beside.dense(place),
        }
    }

    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        let tensor = match self.plan.place_of(tensor) {
            RowPlace::Batch(tensor) => tensor,
            RowPlace::Beside(place) => return self.beside.ragged(place, bytes),
        };
        let size = self.writer.layout().tensors()[tensor].dtype.size_bytes();
        let length = usize::try_from(bytes).ok()?;
        if length > self.writer.bytes_mut(tensor).len() {
            return None;
        }
        self.writer.set_ragged_length(tensor, bytes / size);
        Some(&mut self.writer.bytes_mut(tensor)[..length])
    }

    fn ragged_bytes(&mut self, tensor: usize) -> &[u8] {
        match self.plan.place_of(tensor) {
            RowPlace::Batch(tensor) => self.writer.ragged_bytes(tensor),
            RowPlace::Beside(place) => self.beside.ragged_bytes(place),
        }
    }

    fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        if let RowPlace::Batch(tensor) = self.plan.place_of(tensor) {
            self.writer.set_mix(tensor, number, mix);
        }
    }
}
