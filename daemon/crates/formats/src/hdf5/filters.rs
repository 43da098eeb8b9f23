//! What was done to the bytes of a chunk, and how it is undone. The size of the result is known before: no length in the
//! data is trusted.

use forebay_dataset::Defect;
use forebay_storage::codec::Codec;
use serde::{Deserialize, Serialize};

use super::{Numbers, REWRITE};
use crate::zarr::blosc;

/// The size of a checksum.
const CHECKSUM_BYTES: usize = 4;
/// The most filters of a dataset, each of which has a bit in a chunk's mask.
const MAX_FILTERS: usize = 16;

/// A filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Filter {
    Deflate,
    /// The first bytes of all elements of this size, then the second ones, and so on.
    Shuffle(u32),
    /// A checksum follows.
    Fletcher32,
    Lzf,
    Blosc,
    Zstd,
}

/// The filters of a message.
pub(super) fn filters(bytes: &[u8]) -> Result<Vec<Filter>, String> {
    let damaged = || "its filters are damaged".to_owned();
    let mut numbers = Numbers { rest: bytes };
    let version = numbers.u8().ok_or_else(damaged)?;
    let count = usize::from(numbers.u8().ok_or_else(damaged)?);
    if count > MAX_FILTERS {
        return Err(format!("it has {count} filters, and at most {MAX_FILTERS} are read"));
    }
    if version == 1 {
        numbers.skip(6).ok_or_else(damaged)?;
    }
    let found: Vec<Filter> = (0..count)
        .map(|_| filter(&mut numbers, version == 1).ok_or_else(damaged)?)
        .collect::<Result<_, _>>()?;
    let is_packing = |filter: &&Filter| !matches!(filter, Filter::Shuffle(_) | Filter::Fletcher32);
    match found.iter().filter(is_packing).count() {
        0 | 1 => Ok(found),
        _ => Err(format!("it is compressed twice, by {found:?}, which is not read; {REWRITE}")),
    }
}

fn filter(numbers: &mut Numbers<'_>, is_old: bool) -> Option<Result<Filter, String>> {
    let number = numbers.u16()?;
    let has_name = is_old || number >= 256;
    let name_bytes = if has_name { usize::from(numbers.u16()?) } else { 0 };
    // Whether a chunk may be without it.
    numbers.skip(2)?;
    let values = usize::from(numbers.u16()?);
    let padded = if is_old { name_bytes.next_multiple_of(8) } else { name_bytes };
    let name = numbers.take(padded)?;
    let parameters = numbers.take(4 * values)?;
    if is_old && values % 2 == 1 {
        numbers.skip(4)?;
    }
    Some(Ok(match number {
        1 => Filter::Deflate,
        2 => Filter::Shuffle(u32::from_le_bytes(*parameters.first_chunk()?)),
        3 => Filter::Fletcher32,
        32000 => Filter::Lzf,
        32001 => Filter::Blosc,
        32015 => Filter::Zstd,
        other => {
            let name = String::from_utf8_lossy(name);
            let known = ["szip", "nbit", "scaleoffset"].get(usize::from(other).wrapping_sub(4));
            let name = known.map_or_else(
                || name.trim_end_matches('\0').to_owned(),
                |known| (*known).to_owned(),
            );
            return Some(Err(format!(
                "its filter {other} ({name}) is not read, and gzip, lzf, Blosc, Zstandard, shuffle and fletcher32 are; {REWRITE}"
            )));
        }
    }))
}

/// Memory for the chunks of one window after another.
#[derive(Debug, Default)]
pub(in super::super) struct Scratch {
    buffers: [Vec<u8>; 2],
    /// Of Blosc.
    more: Vec<u8>,
}

/// The most chunks that a [`Scratch`] has memory for.
pub(in super::super) fn scratch_chunks(filters: &[Filter]) -> u64 {
    let makers = filters.iter().filter(|filter| **filter != Filter::Fletcher32).count() as u64;
    makers.min(2) + u64::from(filters.contains(&Filter::Blosc))
}

/// The elements of a chunk of `whole` bytes. `mask`: filters that were not applied.
///
/// # Errors
/// The bytes are not such a chunk.
pub(in super::super) fn unfilter<'a>(
    filters: &[Filter],
    mask: u32,
    packed: &'a [u8],
    whole: usize,
    scratch: &'a mut Scratch,
) -> Result<&'a [u8], Defect> {
    // The buffer with the bytes, `None`: they are still those of the file; and how many of them count.
    let (mut found, mut length) = (None, packed.len());
    let is_applied = |place: usize| mask >> place & 1 == 0;
    for (place, filter) in filters.iter().enumerate().rev().filter(|(place, _)| is_applied(*place))
    {
        let checksums = filters[..place]
            .iter()
            .enumerate()
            .filter(|(place, filter)| **filter == Filter::Fletcher32 && is_applied(*place));
        let expected = whole + checksums.count() * CHECKSUM_BYTES;
        let next = found.map_or(0, |buffer: usize| 1 - buffer);
        let mut into = std::mem::take(&mut scratch.buffers[next]);
        let bytes = found.map_or(packed, |buffer| &scratch.buffers[buffer]);
        let bytes = &bytes[..length];
        let is_good = match *filter {
            Filter::Fletcher32 => {
                let checked = bytes.split_last_chunk().filter(|(bytes, sum)| is_sum(bytes, **sum));
                if checked.is_none() {
                    return Err(Defect("a chunk does not have its checksum".to_owned()));
                }
                length -= CHECKSUM_BYTES;
                scratch.buffers[next] = into;
                continue;
            }
            Filter::Deflate => Codec::Zlib.unpack(bytes, (expected, expected), &mut into),
            Filter::Zstd => Codec::Zstd.unpack(bytes, (expected, expected), &mut into),
            Filter::Lzf => lzf(bytes, expected, &mut into).is_some(),
            Filter::Blosc => {
                blosc::decode(bytes, expected, &mut into, &mut scratch.more).map_err(Defect)?;
                true
            }
            // It keeps the length.
            Filter::Shuffle(_) if length != expected => false,
            Filter::Shuffle(size) => {
                into.resize(length, 0);
                blosc::unshuffle(bytes, &mut into, (size as usize).max(1));
                true
            }
        };
        if !is_good {
            return Err(Defect(format!("a chunk is no {filter:?} of {expected} bytes")));
        }
        length = into.len();
        scratch.buffers[next] = into;
        found = Some(next);
    }
    let bytes = &found.map_or(packed, |buffer| &scratch.buffers[buffer][..])[..length];
    match length == whole {
        true => Ok(bytes),
        false => Err(Defect(format!("a chunk has {whole} bytes, and this one {length}"))),
    }
}

/// Whether bytes have this checksum: Fletcher's, of words of 16 bits. Old versions of the library wrote it in another order.
fn is_sum(bytes: &[u8], stored: [u8; CHECKSUM_BYTES]) -> bool {
    let (mut first, mut second) = (0_u32, 0_u32);
    let (words, rest) = bytes.as_chunks::<2>();
    // As many as do not overflow.
    for words in words.chunks(360) {
        for word in words {
            first += u32::from(u16::from_be_bytes(*word));
            second += first;
        }
        first = (first & 0xffff) + (first >> 16);
        second = (second & 0xffff) + (second >> 16);
    }
    if let [last] = rest {
        first += u32::from(*last) << 8;
        second += first;
        first = (first & 0xffff) + (first >> 16);
        second = (second & 0xffff) + (second >> 16);
    }
    first = (first & 0xffff) + (first >> 16);
    second = (second & 0xffff) + (second >> 16);
    let stored = u32::from_le_bytes(stored);
    let [a, b, c, d] = stored.to_be_bytes();
    let sum = second << 16 | first;
    stored == sum || u32::from_be_bytes([b, a, d, c]) == sum
}

/// Unpacks LZF to exactly `expected` bytes.
fn lzf(packed: &[u8], expected: usize, into: &mut Vec<u8>) -> Option<()> {
    let mut rest = packed;
    into.clear();
    into.reserve(expected.min(1 << 26));
    while let Some((control, after)) = rest.split_first() {
        let control = usize::from(*control);
        rest = after;
        if control < 32 {
            let (literals, after) = rest.split_at_checked(control + 1)?;
            into.extend_from_slice(literals);
            rest = after;
        } else {
            let mut length = control >> 5;
            if length == 7 {
                let (more, after) = rest.split_first()?;
                length += usize::from(*more);
                rest = after;
            }
            let (low, after) = rest.split_first()?;
            rest = after;
            let back = ((control & 31) << 8) + usize::from(*low) + 1;
            let start = into.len().checked_sub(back)?;
            if into.len() + length + 2 > expected {
                return None;
            }
            let end = into.len() + length + 2;
            // A copy that overlaps itself repeats what is there.
            while into.len() < end {
                let most = (into.len() - start).min(end - into.len());
                into.extend_from_within(start..start + most);
            }
        }
        if into.len() > expected {
            return None;
        }
    }
    (into.len() == expected).then_some(())
}
