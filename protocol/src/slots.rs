//! The data segment: slots of rows, written by the daemon's threads and read by one client.
//!
//! The daemon splits the whole segment once into [`RowWriter`]s. Each owns its row's bytes in every tensor and no two
//! overlap, so threads write in parallel without a lock. The engine ensures that a row is written only while its slot is
//! being filled ([`crate::lease`]); a violation would tear a batch but not make the daemon unsound, because the daemon
//! bases no decision on these bytes.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::layout::SlotLayout;
use crate::mix::{MIX_WORDS, Mix};
use crate::segment::{Access, Mapping};
use crate::sync::Ordering;
use crate::tensor::{Extent, TensorSpec};
use crate::words::Words;

/// The right to write one row of one slot.
#[derive(Debug)]
pub struct RowWriter {
    memory: Arc<Mapping>,
    layout: Arc<SlotLayout>,
    slot_offset: usize,
    row: usize,
    /// The elements of this row in each ragged tensor, as last recorded: the table in shared memory is not read back.
    ragged_elements: Vec<u64>,
}

/// A copy of a row in private memory.
#[derive(Debug)]
pub struct RowCopy {
    /// The tensors' bytes, one after another.
    bytes: Vec<u8>,
    /// The number of bytes of each tensor.
    lengths: Vec<usize>,
}

/// Splits a data segment into its rows: by slot, then by row.
///
/// # Panics
/// When the mapping is smaller than `slots` slots of the layout or not writable: an internal error of the daemon.
#[must_use]
pub fn split_rows(memory: Mapping, layout: &Arc<SlotLayout>, slots: u16) -> Vec<Vec<RowWriter>> {
    let slot_bytes = to_usize(layout.slot_bytes());
    assert!(memory.access() == Access::ReadWrite, "the daemon's own mapping is writable");
    assert!(memory.bytes() / slot_bytes >= usize::from(slots), "the mapping holds every slot");
    // The mapping is moved into the writers, so it cannot be split a second time.
    let memory = Arc::new(memory);
    let is_ragged = |tensor: &TensorSpec| matches!(tensor.extent, Extent::Ragged { .. });
    let ragged_tensors =
        if layout.tensors().iter().any(is_ragged) { layout.tensors().len() } else { 0 };
    (0..usize::from(slots))
        .map(|slot| {
            (0..layout.rows() as usize)
                .map(|row| RowWriter {
                    memory: Arc::clone(&memory),
                    layout: Arc::clone(layout),
                    slot_offset: slot * slot_bytes,
                    row,
                    ragged_elements: vec![0; ragged_tensors],
                })
                .collect()
        })
        .collect()
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl RowWriter {
    /// The layout of the slot.
    #[must_use]
    pub fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// The row's bytes of a dense tensor, or the maximum range of a ragged tensor's row.
    ///
    /// # Panics
    /// The tensor does not exist.
    pub fn bytes_mut(&mut self, tensor: usize) -> &mut [u8] {
        let place = self.layout.places()[tensor];
        let length = match self.layout.tensors()[tensor].extent {
            Extent::Dense => place.row_pitch_bytes,
            Extent::Ragged { max_row_bytes, .. } => max_row_bytes,
        };
        let start = self.slot_offset
            + to_usize(place.offset_bytes)
            + self.row * to_usize(place.row_pitch_bytes);
        // SAFETY: the range is inside the mapping (`split_rows` checked slots × slot_bytes, and the layout keeps every
        // tensor inside its slot). `split_rows` made exactly one writer for each (slot, row), the distance of rows of a
        // tensor is a pitch that is not smaller than a row, and `&mut self` is exclusive, so no other reference to
        // these bytes exists in this process. A client that writes here at the same time violates the protocol and
        // tears its own batch; any byte is a valid u8 and the daemon bases no decision on them.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(start), to_usize(length)) }
    }

    /// Records the length of a ragged tensor's row, in elements.
    ///
    /// # Panics
    /// When the tensor is dense.
    pub fn set_ragged_length(&mut self, tensor: usize, elements: u64) {
        let place = self.layout.places()[tensor];
        let spec = &self.layout.tensors()[tensor];
        // The table's offset is not sufficient: it is 0 for a ragged tensor that comes first.
        assert!(matches!(spec.extent, Extent::Ragged { .. }), "tensor {tensor} is dense");
        let size = spec.dtype.size_bytes();
        let first = (self.slot_offset + to_usize(place.table_offset_bytes)) / 8;
        let rows = self.layout.rows() as usize;
        let offset = self.row as u64 * (place.row_pitch_bytes / size);
        // Relaxed: the publish ring's release store orders them.
        self.memory.word(first + self.row).store(offset, Ordering::Relaxed);
        self.memory.word(first + rows + self.row).store(elements, Ordering::Relaxed);
        self.ragged_elements[tensor] = elements;
    }

    /// Records one of the batch's mixes of a tensor. Any row of the slot may do this.
    ///
    /// # Panics
    /// When the tensor has no such mix.
    pub fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        let (place, spec) = (self.layout.places()[tensor], &self.layout.tensors()[tensor]);
        assert!(number < spec.mixes(), "mix {number} of {}", spec.mixes());
        let first = (self.slot_offset + to_usize(place.table_offset_bytes)) / 8;
        for (word, value) in mix.to_words().into_iter().enumerate() {
            let at = first + number as usize * MIX_WORDS + word;
            // Relaxed: the publish ring's release store orders them.
            self.memory.word(at).store(value, Ordering::Relaxed);
        }
    }

    /// The bytes of a ragged tensor's row, with the last recorded length.
    ///
    /// # Panics
    /// When the tensor is dense.
    pub fn ragged_bytes(&mut self, tensor: usize) -> &[u8] {
        let size = self.layout.tensors()[tensor].dtype.size_bytes();
        let length = to_usize(self.ragged_elements[tensor] * size);
        &self.bytes_mut(tensor)[..length]
    }

    /// Writes a copy of another row, of the same tensors.
    ///
    /// # Panics
    /// The rows differ in their tensors: an internal error of the daemon.
    pub fn copy_from(&mut self, source: &mut Self) {
        for tensor in 0..source.tensors() {
            self.write(tensor, source.written(tensor));
        }
    }

    /// Writes a copy of a row of the same tensors.
    ///
    /// # Panics
    /// As [`copy_from`](Self::copy_from).
    pub fn write_copy(&mut self, copy: &RowCopy) {
        let mut start = 0;
        for (tensor, length) in copy.lengths.iter().enumerate() {
            self.write(tensor, &copy.bytes[start..start + length]);
            start += length;
        }
    }

    /// A copy of the row.
    #[must_use]
    pub fn to_copy(&mut self) -> RowCopy {
        let tensors = 0..self.tensors();
        let lengths: Vec<usize> = tensors.map(|tensor| self.written(tensor).len()).collect();
        let mut bytes = Vec::with_capacity(lengths.iter().sum());
        for tensor in 0..lengths.len() {
            bytes.extend_from_slice(self.written(tensor));
        }
        RowCopy { bytes, lengths }
    }

    /// The size of [`to_copy`](Self::to_copy)'s bytes.
    #[must_use]
    pub fn written_bytes(&mut self) -> u64 {
        (0..self.tensors()).map(|tensor| self.written(tensor).len() as u64).sum()
    }

    /// The bytes of a tensor's row, as last written.
    ///
    /// # Panics
    /// The tensor does not exist.
    #[must_use]
    pub fn tensor_bytes(&mut self, tensor: usize) -> &[u8] {
        self.written(tensor)
    }

    /// Writes a tensor's row.
    ///
    /// # Panics
    /// The bytes are not as many as the tensor's row has, or has at most if it is ragged.
    pub fn write_tensor(&mut self, tensor: usize, bytes: &[u8]) {
        self.write(tensor, bytes);
    }

    /// Whether the row has the bytes of a copy.
    #[must_use]
    pub fn equals_copy(&mut self, copy: &RowCopy) -> bool {
        let mut start = 0;
        let is_equal = copy.lengths.iter().enumerate().all(|(tensor, length)| {
            let end = start + length;
            let bytes = &copy.bytes[std::mem::replace(&mut start, end)..end];
            self.written(tensor) == bytes
        });
        is_equal && copy.lengths.len() == self.tensors()
    }

    fn tensors(&self) -> usize {
        self.layout.tensors().len()
    }

    fn is_ragged(&self, tensor: usize) -> bool {
        matches!(self.layout.tensors()[tensor].extent, Extent::Ragged { .. })
    }

    /// The bytes of a tensor's row.
    fn written(&mut self, tensor: usize) -> &[u8] {
        if self.is_ragged(tensor) { self.ragged_bytes(tensor) } else { self.bytes_mut(tensor) }
    }

    fn write(&mut self, tensor: usize, bytes: &[u8]) {
        if self.is_ragged(tensor) {
            let size = self.layout.tensors()[tensor].dtype.size_bytes();
            self.set_ragged_length(tensor, bytes.len() as u64 / size);
            self.bytes_mut(tensor)[..bytes.len()].copy_from_slice(bytes);
        } else {
            self.bytes_mut(tensor).copy_from_slice(bytes);
        }
    }

    /// Compacts the rows of a ragged tensor, in order, and returns their total number of elements.
    ///
    /// # Panics
    /// The writers are not the rows 0, 1, 2 … of one slot: an internal error of the daemon.
    pub fn compact(rows: &mut [&mut Self], tensor: usize) -> u64 {
        let Some(first) = rows.first() else { return 0 };
        let (slot_offset, layout) = (first.slot_offset, Arc::clone(&first.layout));
        let place = layout.places()[tensor];
        let size = layout.tensors()[tensor].dtype.size_bytes();
        let table = (slot_offset + to_usize(place.table_offset_bytes)) / 8;
        let mut elements = 0;
        Self::move_together(rows, tensor, |row| {
            // Relaxed: the publish ring's release store orders it.
            row.memory.word(table + row.row).store(elements, Ordering::Relaxed);
            let length = row.ragged_elements[tensor];
            elements += length;
            length * size
        });
        elements
    }

    /// Moves the rows of a dense tensor together, of which this batch has only the first `row_bytes` bytes.
    ///
    /// # Panics
    /// As [`compact`](Self::compact).
    pub fn close_up(rows: &mut [&mut Self], tensor: usize, row_bytes: u64) {
        Self::move_together(rows, tensor, |_| row_bytes);
    }

    /// Moves the rows of a tensor together, in order, of each as many bytes as `length_bytes` says, to its pitch at most.
    fn move_together(
        rows: &mut [&mut Self],
        tensor: usize,
        mut length_bytes: impl FnMut(&Self) -> u64,
    ) {
        let Some(first) = rows.first() else { return };
        let slot_offset = first.slot_offset;
        let place = first.layout.places()[tensor];
        let mut target = slot_offset + to_usize(place.offset_bytes);
        for (index, row) in rows.iter_mut().enumerate() {
            assert!(row.row == index && row.slot_offset == slot_offset, "all rows of one slot");
            let length = to_usize(length_bytes(row).min(place.row_pitch_bytes));
            let from = row.bytes_mut(tensor).as_ptr();
            // SAFETY: both ranges are in the tensor's region of this slot, because no row is longer than its pitch and
            // the target is not past the row's position; the rows from 0 up to this one are all borrowed mutably here,
            // so no reference to their bytes exists; `copy` allows the ranges to overlap.
            unsafe { std::ptr::copy(from, row.memory.base().add(target), length) };
            target += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finish::Finish;
    use crate::segment::Segment;
    use crate::tensor::{DType, TensorSpec};

    fn ragged(name: &str, dtype: DType, max_row_bytes: u64) -> TensorSpec {
        let extent = Extent::Ragged { max_row_bytes, compact: false };
        TensorSpec { extent, ..TensorSpec::dense(name, dtype, &[]) }
    }

    /// The layout, a client's mapping and the rows of a segment.
    fn segment(
        tensors: &[TensorSpec],
        rows: u32,
        slots: u16,
    ) -> (Arc<SlotLayout>, Mapping, Vec<Vec<RowWriter>>) {
        let layout = Arc::new(SlotLayout::new(tensors, rows).unwrap());
        let segment = Segment::create("data", layout.slot_bytes() * u64::from(slots)).unwrap();
        let rows = split_rows(segment.map().unwrap(), &layout, slots);
        (layout, segment.map().unwrap(), rows)
    }

    #[test]
    fn rows_do_not_overlap_and_fill_their_tensors() {
        let image = TensorSpec::dense("image", DType::U8, &[3, 7]);
        let (layout, client, mut rows) = segment(&[image, ragged("ids", DType::I32, 40)], 5, 2);
        for (slot, rows) in rows.iter_mut().enumerate() {
            for (row, writer) in rows.iter_mut().enumerate() {
                let mark = u8::try_from(1 + slot * 5 + row).unwrap();
                writer.bytes_mut(0).fill(mark);
                writer.bytes_mut(1)[..8].fill(mark);
                writer.set_ragged_length(1, 2);
            }
        }
        for slot in 0..2 {
            for row in 0..5 {
                let start = slot * to_usize(layout.slot_bytes()) + row * 21;
                for byte in start..start + 21 {
                    // SAFETY: inside the mapping; no writer exists any more.
                    let value = unsafe { client.base().add(byte).read() };
                    assert_eq!(usize::from(value), 1 + slot * 5 + row);
                }
                let table = (slot * to_usize(layout.slot_bytes())
                    + to_usize(layout.places()[1].table_offset_bytes))
                    / 8;
                assert_eq!(client.word(table + row).load(Ordering::Relaxed), row as u64 * 64);
                assert_eq!(client.word(table + 5 + row).load(Ordering::Relaxed), 2);
            }
        }
    }

    #[test]
    fn mixes_of_a_slot_precede_its_rows() {
        let finish = Finish { mixes: 2, ..Finish::new(DType::F32, [2, 2, 3], false, None) };
        let image = TensorSpec {
            channels_last: true,
            finish: Some(finish),
            ..TensorSpec::dense("image", DType::U8, &[2, 2, 3])
        };
        let (layout, client, mut slots) = segment(&[image], 3, 2);
        slots[1].iter_mut().for_each(|row| row.bytes_mut(0).fill(0xee));
        let mix = Mix::Part { columns: 0..1, rows: 1..2 };
        slots[1][2].set_mix(0, 1, &mix);
        let first = to_usize(layout.slot_bytes()) / 8;
        let words: Vec<u64> =
            (0..8).map(|word| client.word(first + word).load(Ordering::Relaxed)).collect();
        assert_eq!(words, [Mix::Nothing.to_words(), mix.to_words()].concat());
        assert_eq!(client.word(first + 32).load(Ordering::Relaxed), 0xeeee_eeee_eeee_eeee);
    }

    #[test]
    fn copied_rows_are_equal_in_segments_of_other_sizes() {
        let tensors = [TensorSpec::dense("image", DType::U8, &[3]), ragged("ids", DType::I32, 40)];
        let (_, _, mut from) = segment(&tensors, 2, 1);
        let (layout, client, mut to) = segment(&tensors, 5, 2);
        let source = &mut from[0][1];
        source.bytes_mut(0).copy_from_slice(&[1, 2, 3]);
        source.set_ragged_length(1, 2);
        source.bytes_mut(1)[..8].copy_from_slice(&[9, 8, 7, 6, 5, 4, 3, 2]);
        let copy = source.to_copy();
        assert_eq!(source.written_bytes(), 11);
        to[1][0].copy_from(source);
        to[1][4].write_copy(&copy);
        for row in [0, 4] {
            let writer = &mut to[1][row];
            assert_eq!(writer.bytes_mut(0), [1, 2, 3]);
            assert_eq!(writer.ragged_bytes(1), [9, 8, 7, 6, 5, 4, 3, 2]);
            let table = to_usize(layout.slot_bytes() + layout.places()[1].table_offset_bytes) / 8;
            assert_eq!(client.word(table + 5 + row).load(Ordering::Relaxed), 2);
        }
        assert_eq!(to[1][3].bytes_mut(0), [0, 0, 0], "no other row is written");
    }

    #[test]
    fn ragged_tensor_may_be_first() {
        let (_, client, mut rows) = segment(&[ragged("ids", DType::I32, 40)], 2, 1);
        rows[0][1].set_ragged_length(0, 7);
        assert_eq!(client.word(1).load(Ordering::Relaxed), 64);
        assert_eq!(client.word(3).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn rows_of_a_smaller_shape_are_moved_together() {
        let (layout, client, mut slots) =
            segment(&[TensorSpec::dense("image", DType::U8, &[3, 7])], 4, 2);
        for (row, writer) in slots[1].iter_mut().enumerate() {
            writer.bytes_mut(0).fill(0xee);
            writer.bytes_mut(0)[..6].fill(u8::try_from(row).unwrap());
        }
        let mut writers: Vec<&mut RowWriter> = slots[1].iter_mut().take(3).collect();
        RowWriter::close_up(&mut writers, 0, 6);
        let slot = to_usize(layout.slot_bytes());
        let expected = [[0; 6], [1; 6], [2; 6]].concat();
        for (index, byte) in expected.into_iter().enumerate() {
            // SAFETY: inside the mapping; no writer exists any more.
            assert_eq!(unsafe { client.base().add(slot + index).read() }, byte);
        }
        assert_eq!(slots[1][3].bytes_mut(0)[..7], [3, 3, 3, 3, 3, 3, 0xee], "not of the batch");
    }

    #[test]
    fn compacted_rows_are_contiguous_and_in_order() {
        let (layout, client, mut slots) = segment(&[ragged("text", DType::U16, 300)], 4, 2);
        let rows = &mut slots[1];
        for (row, length) in [5usize, 0, 150, 2].into_iter().enumerate() {
            let mark = u8::try_from(row + 1).unwrap();
            rows[row].bytes_mut(0)[..length * 2].fill(mark);
            rows[row].set_ragged_length(0, length as u64);
        }
        let mut writers: Vec<&mut RowWriter> = rows.iter_mut().collect();
        assert_eq!(RowWriter::compact(&mut writers, 0), 157);
        let slot = to_usize(layout.slot_bytes());
        let first = slot + to_usize(layout.places()[0].offset_bytes);
        let expected = [vec![1u8; 10], vec![3; 300], vec![4; 4]].concat();
        for (index, byte) in expected.into_iter().enumerate() {
            // SAFETY: inside the mapping; no writer exists any more.
            assert_eq!(unsafe { client.base().add(first + index).read() }, byte);
        }
        let table = (slot + to_usize(layout.places()[0].table_offset_bytes)) / 8;
        let offsets: Vec<u64> =
            (0..4).map(|row| client.word(table + row).load(Ordering::Relaxed)).collect();
        assert_eq!(offsets, [0, 5, 5, 155]);
    }
}
