//! Positions in a file's entropy-coded data at which decoding can begin, learned when the data were read to their end.
//!
//! Checkpoint *n* is before MCU *n* times the spacing, in the order of the scan. It contains the position in bits and
//! the last first coefficient of each component. Packed as differences from the previous checkpoint, in numbers of one
//! to five bytes (LEB128), one takes about seven bytes.
//!
//! Packed checkpoints are not trusted: they may belong to another file or be damaged. [`Checkpoints::unpack`] refuses
//! what does not fit the file's frame and the length of its data, and a decoder that arrives at a checkpoint compares
//! it with its own state. Memory is safe with any content; pixels are correct for the file that they were learned from.

use crate::layout::Layout;
use crate::request::Unsure;

/// Pixels between two checkpoints, if the packed ones stay within their share of the file.
const SPACING_PIXELS: usize = 128;
/// The packed checkpoints take at most one byte per this number of bytes of the file.
const FILE_BYTES_EACH: usize = 100;
/// New checkpoints are kept only if they are at least this part of all checkpoints of the image: a file's marks are
/// rewritten a few times, usually once.
const LEAST_SHARE: usize = 8;
/// With more MCUs between them they are of no use for crops.
const MOST_SPACING: usize = 1 << 12;

/// A position at which decoding can begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// In bits, from the start of the data without stuffing.
    pub position: u32,
    /// The last first coefficient of each component.
    pub before: [i32; 3],
}

/// The checkpoints of one file.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The number of MCUs between two of them.
    pub spacing: usize,
    /// From MCU `spacing` on, without gaps: the image's first MCU needs none.
    pub places: Vec<Checkpoint>,
    /// Number of checkpoints known before this decode; checkpoints found further down are appended.
    known: usize,
}

impl Checkpoints {
    /// Begins to learn the checkpoints of a file.
    pub(crate) fn begin(&mut self, layout: &Layout) {
        self.spacing = (SPACING_PIXELS / layout.mcu_width).max(1);
        self.places.clear();
        self.known = 0;
    }

    /// Whether enough new checkpoints were found to keep them.
    pub(crate) fn has_grown(&self, layout: &Layout, whole: bool) -> bool {
        let (added, all) = (self.places.len() - self.known, self.most(layout));
        added > 0 && (whole || added * LEAST_SHARE >= all)
    }

    /// The number of checkpoints of the whole image.
    fn most(&self, layout: &Layout) -> usize {
        (layout.mcus_across * layout.mcus_down - 1) / self.spacing
    }

    /// The packed form; empty if the file is too small for any.
    pub(crate) fn pack(
        &mut self,
        layout: &Layout,
        data_bytes: usize,
        file_bytes: usize,
        packed: &mut Vec<u8>,
    ) {
        loop {
            packed.clear();
            if self.places.is_empty() || self.spacing > MOST_SPACING {
                return;
            }
            for number in [layout.mcus_across, layout.mcus_down, data_bytes, self.spacing] {
                put(packed, u32::try_from(number).unwrap_or(u32::MAX));
            }
            let mut last = Checkpoint::default();
            for place in &self.places {
                put(packed, place.position - last.position);
                for (now, before) in
                    place.before.iter().zip(last.before).take(layout.planes().len())
                {
                    let change = now.wrapping_sub(before);
                    put(packed, (change << 1 ^ change >> 31).cast_unsigned());
                }
                last = *place;
            }
            if packed.len() <= file_bytes / FILE_BYTES_EACH {
                return;
            }
            // Keeps every second one.
            self.spacing *= 2;
            let mut number = 0;
            self.places.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
    }

    /// Reads packed checkpoints up to the one before `last_mcu`; there may be fewer.
    ///
    /// # Errors
    /// They belong to another file, or are damaged.
    pub(crate) fn unpack(
        &mut self,
        mut packed: &[u8],
        layout: &Layout,
        data_bytes: usize,
        last_mcu: usize,
    ) -> Result<(), Unsure> {
        const FOREIGN: Unsure = Unsure("checkpoints of another file");
        self.places.clear();
        self.known = 0;
        let next = |packed: &mut &[u8]| take(packed).ok_or(FOREIGN);
        for own in [layout.mcus_across, layout.mcus_down, data_bytes] {
            if next(&mut packed)? as usize != own {
                return Err(FOREIGN);
            }
        }
        self.spacing = next(&mut packed)? as usize;
        if !(1..=MOST_SPACING).contains(&self.spacing) {
            return Err(FOREIGN);
        }
        let mut place = Checkpoint::default();
        for _ in 0..self.most(layout).min(last_mcu / self.spacing) {
            if packed.is_empty() {
                break;
            }
            place.position = place.position.checked_add(next(&mut packed)?).ok_or(FOREIGN)?;
            for before in place.before.iter_mut().take(layout.planes().len()) {
                let change = next(&mut packed)?;
                *before =
                    before.wrapping_add((change >> 1).cast_signed() ^ -(change & 1).cast_signed());
            }
            if place.position as usize >= data_bytes * 8 {
                return Err(FOREIGN);
            }
            self.places.push(place);
        }
        self.known = self.places.len();
        Ok(())
    }

    /// The last checkpoint before or at an MCU, and that checkpoint's MCU.
    pub(crate) fn before(&self, mcu: usize) -> Option<(usize, Checkpoint)> {
        let number = (mcu / self.spacing).min(self.places.len());
        Some((number * self.spacing, *self.places.get(number.checked_sub(1)?)?))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Checkpoint>()
    }
}

fn put(packed: &mut Vec<u8>, mut number: u32) {
    while number > 127 {
        packed.push(number as u8 | 128);
        number >>= 7;
    }
    packed.push(number as u8);
}

fn take(packed: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        number |= u32::from(byte & 127) << shift;
        if *byte < 128 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_round_trip() {
        let mut packed = Vec::new();
        let numbers = (0..32).flat_map(|bit| [(1 << bit) - 1, 1_u32 << bit]).chain([u32::MAX]);
        numbers.clone().for_each(|number| put(&mut packed, number));
        let mut rest = packed.as_slice();
        assert!(numbers.eq(std::iter::from_fn(|| take(&mut rest))));
        assert_eq!(take(&mut [255; 9].as_slice()), None);
    }
}
