//! Ways in which a part of a file is compressed, and what unpacks it.
//!
//! Nothing here believes a length: what is unpacked is as long as the caller says, or there is nothing.

use std::io::Read;

/// The history that a zstd frame may ask for beyond its own length: what its writers use at the usual levels.
const MAX_ZSTD_WINDOW: u64 = 8 << 20;

/// A way to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Without a frame.
    Snappy,
    /// One member or several.
    Gzip,
    /// One frame.
    Zstd,
    /// A block without a frame.
    Lz4,
}

impl Codec {
    /// All, in the order of their numbers in indexes.
    const ALL: [Self; 4] = [Self::Snappy, Self::Gzip, Self::Zstd, Self::Lz4];

    /// Its number in indexes.
    #[must_use]
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Replaces the buffer's contents by the first `wanted` of the `whole` bytes that `packed` unpacks to, or by more of
    /// them. False: there are not so many, or others.
    pub(crate) fn unpack(
        self,
        packed: &[u8],
        (whole, wanted): (usize, usize),
        buffer: &mut Vec<u8>,
    ) -> bool {
        buffer.clear();
        if wanted > whole {
            return false;
        }
        match self {
            Self::Snappy => {
                if snap::raw::decompress_len(packed).ok() != Some(whole) {
                    return false;
                }
                buffer.resize(whole, 0);
                snap::raw::Decoder::new().decompress(packed, buffer).ok() == Some(whole)
            }
            Self::Lz4 => {
                buffer.resize(whole, 0);
                lz4_flex::block::decompress_into(packed, buffer).ok() == Some(whole)
            }
            Self::Gzip => {
                take(flate2::bufread::MultiGzDecoder::new(packed), (whole, wanted), buffer)
            }
            Self::Zstd => {
                let most = MAX_ZSTD_WINDOW.max(whole as u64);
                if zstd_window(packed).is_none_or(|window| window > most) {
                    return false;
                }
                let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
                decoder.is_ok_and(|decoder| take(decoder, (whole, wanted), buffer))
            }
        }
    }
}

/// The history that a zstd frame asks for: its own length, where it is one segment.
fn zstd_window(packed: &[u8]) -> Option<u64> {
    let (descriptor, behind) = packed.get(4..)?.split_first()?;
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    if descriptor & 0x20 == 0 {
        let window = behind.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (size, least) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    number(behind.get(dictionary..dictionary + size)?).checked_add(least)
}

/// Reads so many bytes; where all are wanted there are to be no more.
fn take(reader: impl Read, (whole, wanted): (usize, usize), buffer: &mut Vec<u8>) -> bool {
    buffer.reserve_exact(wanted + 1);
    let most = wanted as u64 + u64::from(wanted == whole);
    reader.take(most).read_to_end(buffer).is_ok() && buffer.len() == wanted
}
