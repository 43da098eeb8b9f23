//! Strips and tiles: unpacked row by row, so that at most one row of a strip or tile is in memory.

use flate2::{Decompress, FlushDecompress, Status};
use weezl::{BitOrder, LzwStatus, decode::Configuration};

use forebay_dataset::Defect;

/// The compression of a strip or tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    PackBits,
    Lzw,
    Deflate,
}

/// What is stored instead of the samples of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predictor {
    None,
    /// TIFF's predictor 2: the differences to the pixel before, as integers of the samples' size.
    Differences,
    /// TIFF's predictor 3: first the highest bytes of all samples of the row, then the next, and of these bytes the
    /// differences to those of the pixel before.
    Floats,
}

/// The state of unpacking a strip or tile.
enum State {
    Plain,
    /// The rest of a run: this many literal bytes, or copies of one value.
    PackBits {
        left: usize,
        value: Option<u8>,
    },
    Lzw {
        decoder: Box<weezl::decode::Decoder>,
        /// Decodes strips as they were before TIFF 5.0; built for the first of them.
        old: Option<Box<weezl::decode::Decoder>>,
        is_old: bool,
    },
    Deflate(Box<Decompress>),
}

/// Unpacks strips or tiles, one at a time.
pub(super) struct Unpacker<'f> {
    state: State,
    packed: &'f [u8],
}

pub(super) fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the TIFF file: {reason}"))
}

fn cut() -> Defect {
    Defect("image file is truncated: a strip or tile of the TIFF file ends early".to_owned())
}

impl<'f> Unpacker<'f> {
    pub(super) fn new(packing: Packing) -> Self {
        let state = match packing {
            Packing::Plain => State::Plain,
            Packing::PackBits => State::PackBits { left: 0, value: None },
            Packing::Lzw => {
                let configuration = Configuration::with_tiff_size_switch(BitOrder::Msb, 8);
                let decoder = Box::new(configuration.with_yield_on_full_buffer(true).build());
                State::Lzw { decoder, old: None, is_old: false }
            }
            Packing::Deflate => State::Deflate(Box::new(Decompress::new(true))),
        };
        Self { state, packed: &[] }
    }

    /// Starts the next strip or tile.
    pub(super) fn begin(&mut self, packed: &'f [u8]) {
        self.packed = packed;
        match &mut self.state {
            State::Plain => {}
            State::PackBits { left, .. } => *left = 0,
            State::Lzw { decoder, old, is_old } => {
                // The first code clears the table. Before TIFF 5.0 codes began with their lowest bit, and became longer
                // one code later; libtiff knows such strips by the same two bytes.
                *is_old = matches!(packed, [0, second, ..] if second & 1 == 1);
                if *is_old {
                    let old = old.get_or_insert_with(|| {
                        let configuration = Configuration::new(BitOrder::Lsb, 8);
                        Box::new(configuration.with_yield_on_full_buffer(true).build())
                    });
                    old.reset();
                } else {
                    decoder.reset();
                }
            }
            State::Deflate(decoder) => decoder.reset(true),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'f [u8], Defect> {
        let (taken, rest) = self.packed.split_at_checked(count).ok_or_else(cut)?;
        self.packed = rest;
        Ok(taken)
    }

    /// The next bytes of the strip or tile.
    ///
    /// # Errors
    /// The data end early, or are invalid.
    pub(super) fn read(&mut self, mut out: &mut [u8]) -> Result<(), Defect> {
        while !out.is_empty() {
            let written = match &mut self.state {
                State::Plain => {
                    out.copy_from_slice(self.take(out.len())?);
                    return Ok(());
                }
                State::PackBits { left: 0, .. } => {
                    let header = self.take(1)?[0];
                    let state = match header {
                        0..=127 => (usize::from(header) + 1, None),
                        128 => continue,
                        129.. => (257 - usize::from(header), Some(self.take(1)?[0])),
                    };
                    self.state = State::PackBits { left: state.0, value: state.1 };
                    continue;
                }
                State::PackBits { left, value } => {
                    let count = (*left).min(out.len());
                    *left -= count;
                    match *value {
                        Some(value) => out[..count].fill(value),
                        None => out[..count].copy_from_slice(self.take(count)?),
                    }
                    count
                }
                State::Lzw { decoder, old, is_old } => {
                    let decoder = if *is_old { old.as_mut().unwrap_or(decoder) } else { decoder };
                    let result = decoder.decode_bytes(self.packed, out);
                    self.packed = &self.packed[result.consumed_in..];
                    let is_done = match result.status {
                        Ok(LzwStatus::Ok) => result.consumed_in == 0 && result.consumed_out == 0,
                        Ok(LzwStatus::NoProgress | LzwStatus::Done) => true,
                        Err(reason) => return Err(defect(reason)),
                    };
                    if is_done && result.consumed_out < out.len() {
                        return Err(cut());
                    }
                    result.consumed_out
                }
                State::Deflate(decoder) => {
                    let before = (decoder.total_in(), decoder.total_out());
                    let status = decoder.decompress(self.packed, out, FlushDecompress::None);
                    let status = status.map_err(defect)?;
                    let count = |after: u64, before: u64| {
                        usize::try_from(after - before).unwrap_or(usize::MAX)
                    };
                    let consumed = count(decoder.total_in(), before.0);
                    let written = count(decoder.total_out(), before.1);
                    self.packed = &self.packed[consumed..];
                    let is_over = status == Status::StreamEnd || (consumed, written) == (0, 0);
                    if is_over && written < out.len() {
                        return Err(cut());
                    }
                    written
                }
            };
            out = &mut out[written..];
        }
        Ok(())
    }
}

/// Reverses the bytes of each element of 2, 4 or 8 bytes.
pub(super) fn swap_bytes(row: &mut [u8], element_bytes: usize) {
    fn swap<const N: usize>(row: &mut [u8]) {
        row.as_chunks_mut::<N>().0.iter_mut().for_each(|element| element.reverse());
    }
    match element_bytes {
        2 => swap::<2>(row),
        4 => swap::<4>(row),
        _ => swap::<8>(row),
    }
}

/// Undoes [`Predictor::Differences`] in a row of native byte order.
pub(super) fn add_up(row: &mut [u8], element_bytes: usize, samples: usize) {
    macro_rules! add_up_as {
        ($integer:ty) => {{
            let row = row.as_chunks_mut::<{ size_of::<$integer>() }>().0;
            for at in samples..row.len() {
                let [before, now] = [row[at - samples], row[at]].map(<$integer>::from_ne_bytes);
                row[at] = now.wrapping_add(before).to_ne_bytes();
            }
        }};
    }
    match element_bytes {
        1 => add_up_as!(u8),
        2 => add_up_as!(u16),
        4 => add_up_as!(u32),
        _ => add_up_as!(u64),
    }
}

/// Undoes [`Predictor::Floats`]: the row is in native byte order after it. `scratch` is used for a copy of the row.
pub(super) fn join_floats(
    row: &mut [u8],
    element_bytes: usize,
    samples: usize,
    scratch: &mut Vec<u8>,
) {
    add_up(row, 1, samples);
    scratch.clear();
    scratch.extend_from_slice(row);
    let count = row.len() / element_bytes;
    for (place, bytes) in scratch.chunks_exact(count.max(1)).enumerate() {
        let place = if cfg!(target_endian = "big") { place } else { element_bytes - 1 - place };
        for (element, byte) in row.chunks_exact_mut(element_bytes).zip(bytes) {
            element[place] = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apples_example_is_unpacked_in_pieces_of_any_length() {
        // From Apple's Technical Note TN1023.
        let packed = [
            0xfe, 0xaa, 0x02, 0x80, 0x00, 0x2a, 0xfd, 0xaa, 0x03, 0x80, 0x00, 0x2a, 0x22, 0xf7,
            0xaa,
        ];
        let unpacked = [
            0xaa, 0xaa, 0xaa, 0x80, 0x00, 0x2a, 0xaa, 0xaa, 0xaa, 0xaa, 0x80, 0x00, 0x2a, 0x22,
            0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa,
        ];
        for piece in 1..=24 {
            let mut unpacker = Unpacker::new(Packing::PackBits);
            unpacker.begin(&packed);
            let mut out = [0; 24];
            for part in out.chunks_mut(piece) {
                unpacker.read(part).unwrap();
            }
            assert_eq!(out, unpacked, "{piece}");
            assert!(unpacker.read(&mut [0]).is_err());
        }
    }

    #[test]
    fn differences_are_added_per_channel() {
        let mut bytes = [1, 10, 255, 1, 3, 0];
        add_up(&mut bytes, 1, 2);
        assert_eq!(bytes, [1, 10, 0, 11, 3, 11]);
        let mut words: Vec<u8> =
            [65_535_u16, 2, 7].iter().flat_map(|it| it.to_ne_bytes()).collect();
        add_up(&mut words, 2, 1);
        let words: Vec<_> =
            words.as_chunks::<2>().0.iter().map(|it| u16::from_ne_bytes(*it)).collect();
        assert_eq!(words, [65_535, 1, 8]);
    }

    #[test]
    fn bytes_of_floats_are_joined() {
        // The highest bytes of two floats, then the next: each a difference to the one before.
        let mut bytes = [0x3f, 1, 0x40, 0, 0x80, 0, 0, 0];
        join_floats(&mut bytes, 4, 1, &mut Vec::new());
        let floats = bytes.as_chunks::<4>().0.iter().map(|float| f32::from_ne_bytes(*float));
        assert_eq!(floats.collect::<Vec<_>>(), [1.0, 4.0]);
    }
}
