//! Decodes the bytes of a chunk. The size of the result is known before: no length in the data is trusted.

use super::blosc;
use super::metadata::{ByteCodec, ZarrArray};
use forebay_dataset::Defect;
use forebay_storage::codec::Codec;

/// The size of a checksum.
const CHECKSUM_BYTES: usize = 4;

/// The elements of a chunk, in its order.
///
/// # Errors
/// The bytes are not such a chunk.
pub(crate) fn decode<'a>(
    array: &ZarrArray,
    packed: &'a [u8],
    buffers: &'a mut [Vec<u8>; 2],
) -> Result<&'a [u8], Defect> {
    let whole = usize::try_from(array.chunk_bytes())
        .map_err(|_| Defect("a chunk is larger than memory".to_owned()))?;
    let [first, second] = buffers;
    let mut bytes = packed;
    let mut unpacked = Some((first, second));
    for (place, codec) in array.codecs.iter().enumerate().rev() {
        let checksums =
            array.codecs[..place].iter().filter(|codec| **codec == ByteCodec::Crc32c).count();
        let expected = whole + checksums * CHECKSUM_BYTES;
        if *codec == ByteCodec::Crc32c {
            bytes = checked(bytes)?;
            continue;
        }
        // There is one at most.
        let Some((buffer, scratch)) = unpacked.take() else { continue };
        unpack(*codec, bytes, expected, buffer, scratch)?;
        bytes = buffer;
    }
    match bytes.len() == whole {
        true => Ok(bytes),
        false => Err(Defect(format!(
            "a chunk of {:?} of {} has {whole} bytes, and this one {}",
            array.chunk,
            array.dtype,
            bytes.len()
        ))),
    }
}

/// The bytes before a checksum that is theirs.
fn checked(bytes: &[u8]) -> Result<&[u8], Defect> {
    let (bytes, checksum) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or_else(|| Defect("a chunk ends within its checksum".to_owned()))?;
    match crc_fast::crc32_iscsi(bytes) == u32::from_le_bytes(*checksum) {
        true => Ok(bytes),
        false => Err(Defect("a chunk does not have its checksum".to_owned())),
    }
}

/// Replaces the buffer's contents by what the bytes unpack to, of exactly this size.
fn unpack(
    codec: ByteCodec,
    packed: &[u8],
    expected: usize,
    buffer: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(), Defect> {
    let whole = (expected, expected);
    let is_good = match codec {
        ByteCodec::Gzip => Codec::Gzip.unpack(packed, whole, buffer),
        ByteCodec::Zstd => Codec::Zstd.unpack(packed, whole, buffer),
        ByteCodec::Zlib => Codec::Zlib.unpack(packed, whole, buffer),
        ByteCodec::Lz4 => packed.split_first_chunk().is_some_and(|(size, block)| {
            u32::from_le_bytes(*size) as usize == expected
                && Codec::Lz4.unpack(block, whole, buffer)
        }),
        ByteCodec::Blosc => {
            return blosc::decode(packed, expected, buffer, scratch).map_err(Defect);
        }
        ByteCodec::Crc32c => false,
    };
    match is_good {
        true => Ok(()),
        false => Err(Defect(format!("a chunk is no {codec:?} of {expected} bytes"))),
    }
}
