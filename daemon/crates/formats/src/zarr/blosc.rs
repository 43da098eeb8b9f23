//! Containers of Blosc 1: blocks that are compressed one by one, after a shuffle of their bytes or bits.
//!
//! The format: <https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst>. Snappy inside is refused by
//! name; `blosclz` reads BloscLZ. No length in the data is trusted: the caller knows the size of the result.

use super::blosclz;
use forebay_storage::codec::Codec;

const HEADER_BYTES: usize = 16;
const BYTE_SHUFFLE: u8 = 1;
/// The bytes follow the header uncompressed.
const STORED: u8 = 2;
const BIT_SHUFFLE: u8 = 4;
/// Whether a block is one stream, and not one for each byte of an element.
const IS_WHOLE: u8 = 0x10;
/// The names of the compressors.
const COMPRESSORS: [&str; 5] = ["BloscLZ", "LZ4", "Snappy", "Zlib", "Zstd"];

/// Replaces the buffer's contents by what a container unpacks to, of exactly this size.
///
/// # Errors
/// The bytes are not such a container.
pub(crate) fn decode(
    bytes: &[u8],
    expected: usize,
    buffer: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(), String> {
    let (header, _) = bytes
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or("a chunk ends within the header of Blosc")?;
    let [version, _, flags, type_size] = [header[0], header[1], header[2], header[3]];
    let number = |at: usize| u32_at(header, at).unwrap_or(0) as usize;
    let (unpacked, block_bytes, packed) = (number(4), number(8), number(12));
    if version != 2 {
        return Err(format!("a chunk is of Blosc's format {version}, and 2 is read"));
    }
    if unpacked != expected || packed != bytes.len() {
        return Err(format!(
            "a chunk of Blosc has {unpacked} bytes in {packed}; {expected} in {} were to be read",
            bytes.len()
        ));
    }
    buffer.clear();
    if flags & STORED != 0 {
        let stored = bytes.get(HEADER_BYTES..).filter(|stored| stored.len() == expected);
        buffer.extend_from_slice(stored.ok_or("a stored chunk of Blosc has another size")?);
        return Ok(());
    }
    if expected == 0 {
        return Ok(());
    }
    let element = usize::from(type_size.max(1));
    if block_bytes == 0 || block_bytes > expected.max(element) {
        return Err(format!("a chunk of Blosc has blocks of {block_bytes} bytes"));
    }
    buffer.resize(expected, 0);
    let compressor = flags >> 5;
    for (place, block) in buffer.chunks_mut(block_bytes).enumerate() {
        let at = HEADER_BYTES + 4 * place;
        let start = u32_at(bytes, at).ok_or("a chunk of Blosc ends within its offsets")? as usize;
        let mut rest = bytes.get(start..).ok_or("a block of Blosc is beyond its chunk")?;
        let is_rest = block.len() < block_bytes;
        let streams = if flags & IS_WHOLE != 0 || is_rest { 1 } else { element };
        let each = block.len() / streams;
        if each == 0 || each * streams != block.len() {
            return Err(format!("a block of Blosc of {} bytes has {streams} streams", block.len()));
        }
        let shuffle = match (flags & BYTE_SHUFFLE != 0, flags & BIT_SHUFFLE != 0) {
            (true, _) if element > 1 => Some(unshuffle as fn(&[u8], &mut [u8], usize)),
            (_, true) if block.len() >= element => Some(bit_unshuffle as _),
            _ => None,
        };
        let target: &mut [u8] = match shuffle {
            None => &mut *block,
            Some(_) => {
                scratch.resize(block.len(), 0);
                scratch
            }
        };
        for stream in target.chunks_mut(each) {
            rest = unpack(compressor, rest, stream)?;
        }
        if let Some(shuffle) = shuffle {
            shuffle(scratch, block, element);
        }
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Unpacks a stream after its size; returns what follows it.
fn unpack<'b>(compressor: u8, bytes: &'b [u8], into: &mut [u8]) -> Result<&'b [u8], String> {
    let (size, rest) = bytes.split_first_chunk().ok_or("a block of Blosc is cut off")?;
    let size = u32::from_le_bytes(*size) as usize;
    let (packed, rest) = rest.split_at_checked(size).ok_or("a block of Blosc is cut off")?;
    // What does not become smaller is stored.
    if size == into.len() {
        into.copy_from_slice(packed);
        return Ok(rest);
    }
    let is_good = match compressor {
        0 => blosclz::unpack(packed, into).is_some(),
        1 => Codec::Lz4.unpack_into(packed, into),
        3 => Codec::Zlib.unpack_into(packed, into),
        4 => Codec::Zstd.unpack_into(packed, into),
        other => {
            let name = COMPRESSORS.get(usize::from(other)).unwrap_or(&"an unknown compressor");
            return Err(format!(
                "a chunk of Blosc is compressed by {name}; write it with cname=\"zstd\" or \"lz4\""
            ));
        }
    };
    match is_good {
        true => Ok(rest),
        false => Err("a block of Blosc is damaged".to_owned()),
    }
}

/// Puts the bytes of elements together: first are the first bytes of all elements, then the second ones.
pub(crate) fn unshuffle(from: &[u8], into: &mut [u8], element: usize) {
    let count = from.len() / element;
    let (planes, rest) = from.split_at(count * element);
    let (elements, behind) = into.split_at_mut(count * element);
    behind.copy_from_slice(rest);
    match element {
        2 => gather::<2>(planes, elements, count),
        4 => gather::<4>(planes, elements, count),
        8 => gather::<8>(planes, elements, count),
        _ => {
            for (place, plane) in planes.chunks_exact(count.max(1)).enumerate() {
                let bytes = elements[place..].iter_mut().step_by(element);
                bytes.zip(plane).for_each(|(byte, from)| *byte = *from);
            }
        }
    }
}

fn gather<const SIZE: usize>(planes: &[u8], elements: &mut [u8], count: usize) {
    let planes: [&[u8]; SIZE] = std::array::from_fn(|place| &planes[place * count..][..count]);
    let elements = elements.as_chunks_mut::<SIZE>().0;
    for (row, element) in elements.iter_mut().enumerate() {
        *element = std::array::from_fn(|place| planes[place][row]);
    }
}

/// Puts the bits of elements together: for each bit of an element, first are those of eight elements. If the number of
/// elements is not a multiple of 8, they are as they were.
fn bit_unshuffle(from: &[u8], into: &mut [u8], element: usize) {
    let count = from.len() / element;
    if !count.is_multiple_of(8) || count == 0 {
        into.copy_from_slice(from);
        return;
    }
    let (rows, rest) = from.split_at(count * element);
    let (elements, behind) = into.split_at_mut(count * element);
    behind.copy_from_slice(rest);
    let row_bytes = count / 8;
    for place in 0..element {
        let of_byte = &rows[place * 8 * row_bytes..][..8 * row_bytes];
        for group in 0..row_bytes {
            let bits: [u8; 8] = std::array::from_fn(|bit| of_byte[bit * row_bytes + group]);
            let bytes = transposed(u64::from_le_bytes(bits)).to_le_bytes();
            for (row, byte) in bytes.into_iter().enumerate() {
                elements[(group * 8 + row) * element + place] = byte;
            }
        }
    }
}

/// Transposes a matrix of 8 × 8 bits (Warren, Hacker's Delight, section 7-3).
fn transposed(bits: u64) -> u64 {
    let swap = |bits: u64, mask: u64, by: u32| -> u64 {
        let differ = (bits ^ (bits >> by)) & mask;
        bits ^ differ ^ (differ << by)
    };
    let bits = swap(bits, 0x00AA_00AA_00AA_00AA, 7);
    let bits = swap(bits, 0x0000_CCCC_0000_CCCC, 14);
    swap(bits, 0x0000_0000_F0F0_F0F0, 28)
}
