//! Chunks of Riegeli files, as `ArrayRecord` stores its records (riegeli/doc/riegeli_records_file_format.md). All numbers
//! are little endian:
//!
//! ```text
//! chunk header   0 hash of the rest u64   8 bytes of the data u64   16 hash of the data u64   24 kind u8
//!               25 records, 7 bytes      32 unpacked bytes of the records u64
//! data of records, of kind "r"   compression u8, bytes of the sizes varint, the sizes: a varint per record,
//!                                the records one after the other
//! ```
//!
//! Compressed sizes and records have their unpacked bytes before them as a varint. At each multiple of 64 KiB of the file
//! a block header of 24 bytes interrupts what is stored there; it is needed only to find chunks in a damaged file. Hashes
//! are HighwayHash.

use std::borrow::Cow;

use highway::{HighwayHash, HighwayHasher, Key};

use crate::codec::Codec;
use crate::varint;

/// The distance of block headers in a file.
pub const BLOCK_BYTES: u64 = 64 << 10;
const BLOCK_HEADER_BYTES: usize = 24;
/// The length of a chunk's header.
pub const HEADER_BYTES: usize = 40;
/// Chunks of records, one after the other.
pub const RECORDS: u8 = b'r';
/// Chunks of records whose fields are stored apart.
pub const TRANSPOSED: u8 = b't';
/// The most bytes of a varint.
const VARINT_BYTES: usize = 10;

/// "Riegeli/records\n" twice.
const KEY: Key = Key([
    u64::from_le_bytes(*b"Riegeli/"),
    u64::from_le_bytes(*b"records\n"),
    u64::from_le_bytes(*b"Riegeli/"),
    u64::from_le_bytes(*b"records\n"),
]);

fn hash(bytes: &[u8]) -> u64 {
    HighwayHasher::new(KEY).hash64(bytes)
}

/// The header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The bytes of the data.
    pub data_bytes: u64,
    data_hash: u64,
    /// What the data are: [`RECORDS`], [`TRANSPOSED`] or a chunk without records.
    pub kind: u8,
    /// The number of records.
    pub records: u64,
    /// The bytes of all records, unpacked.
    pub unpacked_bytes: u64,
}

impl ChunkHeader {
    /// Reads the header that a chunk begins with; `None`: it is cut off, or its hash differs.
    #[must_use]
    pub fn read(chunk: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = chunk.first_chunk()?;
        let number = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
        (hash(&header[8..]) == number(0)).then(|| Self {
            data_bytes: number(8),
            data_hash: number(16),
            kind: header[24],
            records: number(24) >> 8,
            unpacked_bytes: number(32),
        })
    }
}

/// Writes the hashes that a chunk's bytes have, so that a fuzzer gets past them; returns the chunk's length.
#[doc(hidden)]
pub fn seal_for_fuzzing(chunk: &mut [u8]) -> Option<usize> {
    let length = u64::from_le_bytes(*chunk.get(8..)?.first_chunk()?);
    let end = HEADER_BYTES.checked_add(usize::try_from(length).ok()?)?;
    let data_hash = hash(chunk.get(HEADER_BYTES..end)?);
    chunk[16..24].copy_from_slice(&data_hash.to_le_bytes());
    let header_hash = hash(&chunk[8..HEADER_BYTES]);
    chunk[..8].copy_from_slice(&header_hash.to_le_bytes());
    Some(end)
}

/// Bytes of a file from the offset `start` on, without block headers.
#[must_use]
pub fn without_block_headers(stored: &[u8], start: u64) -> Cow<'_, [u8]> {
    let start = start % BLOCK_BYTES;
    // To the first block header; a chunk at a multiple begins after one.
    let first = usize::try_from((BLOCK_BYTES - start) % BLOCK_BYTES).unwrap_or(usize::MAX);
    if stored.len() <= first {
        return Cow::Borrowed(stored);
    }
    let (before, blocks) = stored.split_at(first);
    let blocks = blocks.chunks(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX));
    let mut blocks = blocks.map(|block| block.get(BLOCK_HEADER_BYTES..).unwrap_or_default());
    if before.is_empty() && stored.len() as u64 <= BLOCK_BYTES {
        return Cow::Borrowed(blocks.next().unwrap_or_default());
    }
    let mut joined = Vec::with_capacity(stored.len());
    joined.extend_from_slice(before);
    blocks.for_each(|block| joined.extend_from_slice(block));
    Cow::Owned(joined)
}

/// How many bytes of a file, from the offset `start` on, have `bytes` besides block headers.
#[must_use]
pub fn stored_bytes(start: u64, bytes: u64) -> u64 {
    let header = BLOCK_HEADER_BYTES as u64;
    let (block, start) = (BLOCK_BYTES - header, start % BLOCK_BYTES);
    // What precedes the first block header.
    let first = (BLOCK_BYTES - start) % BLOCK_BYTES;
    let headers = bytes.saturating_sub(first).div_ceil(block);
    bytes.saturating_add(headers.saturating_mul(header))
}

/// How a part of a chunk is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Codec(Codec),
}

impl Compression {
    const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            b'z' => Some(Self::Codec(Codec::Zstd)),
            b'b' => Some(Self::Codec(Codec::Brotli)),
            b's' => Some(Self::Codec(Codec::Snappy)),
            _ => None,
        }
    }

    /// Replaces the buffer's contents by at least the first `wanted` of the `whole` bytes.
    fn unpack(
        self,
        mut stored: &[u8],
        (whole, wanted): (usize, usize),
        buffer: &mut Vec<u8>,
    ) -> bool {
        match self {
            Self::None => {
                buffer.clear();
                let found = stored.get(..wanted).filter(|_| stored.len() == whole);
                buffer.extend_from_slice(found.unwrap_or_default());
                found.is_some()
            }
            Self::Codec(codec) => {
                varint::take(&mut stored) == Some(whole as u64)
                    && codec.unpack(stored, (whole, wanted), buffer)
            }
        }
    }
}

/// The parts of the data of a chunk of records.
struct Data<'a> {
    compression: Compression,
    sizes: &'a [u8],
    records: &'a [u8],
}

/// The compression, the bytes of the sizes, and what follows.
fn split_head(data: &[u8]) -> Option<(Compression, u64, &[u8])> {
    let (compression, mut rest) = data.split_first()?;
    let sizes = varint::take(&mut rest)?;
    Some((Compression::of(*compression)?, sizes, rest))
}

impl<'a> Data<'a> {
    fn of(data: &'a [u8]) -> Option<Self> {
        let (compression, sizes, rest) = split_head(data)?;
        let (sizes, records) = rest.split_at_checked(usize::try_from(sizes).ok()?)?;
        Some(Self { compression, sizes, records })
    }
}

/// How many bytes of a chunk end with its sizes, by its beginning; `None`: its data do not begin so.
#[must_use]
pub fn sizes_end(chunk: &[u8]) -> Option<u64> {
    let (_, sizes, rest) = split_head(chunk.get(HEADER_BYTES..)?)?;
    sizes.checked_add((chunk.len() - rest.len()) as u64)
}

/// The sizes of a chunk's records, by its bytes up to [`sizes_end`] at least; `None`: they do not add up to all records.
/// Their memory is that of the records which the header counts: the caller bounds these.
#[must_use]
pub fn record_sizes(chunk: &[u8]) -> Option<Vec<u64>> {
    let header = ChunkHeader::read(chunk)?;
    let data = Data::of(chunk.get(HEADER_BYTES..)?)?;
    let (mut unpacked, records) = (Vec::new(), usize::try_from(header.records).ok()?);
    let mut stored = data.sizes;
    let mut rest = match data.compression {
        Compression::None => stored,
        Compression::Codec(codec) => {
            let whole = usize::try_from(varint::take(&mut stored)?).ok()?;
            let is_plausible = whole <= records.checked_mul(VARINT_BYTES)?;
            (is_plausible && codec.unpack(stored, (whole, whole), &mut unpacked)).then_some(())?;
            &unpacked
        }
    };
    // A size has a byte at least.
    if rest.len() < records {
        return None;
    }
    let sizes = (0..records).map(|_| varint::take(&mut rest)).collect::<Option<Vec<_>>>()?;
    let sum = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size));
    (rest.is_empty() && sum == Some(header.unpacked_bytes)).then_some(sizes)
}

/// Replaces the buffer's contents by at least the first `wanted` of the `whole` bytes of a chunk's records. `stored` is
/// the chunk as a file has it at an offset `start` modulo [`BLOCK_BYTES`], and perhaps what follows it. False: it is
/// damaged, or has other records.
pub(crate) fn unpack(
    stored: &[u8],
    start: u16,
    (whole, wanted): (usize, usize),
    buffer: &mut Vec<u8>,
) -> bool {
    let chunk = without_block_headers(stored, start.into());
    let Some(header) = ChunkHeader::read(&chunk) else { return false };
    let length = usize::try_from(header.data_bytes).ok();
    let data = length.and_then(|length| chunk[HEADER_BYTES..].get(..length));
    let data = data.filter(|data| {
        header.kind == RECORDS
            && header.unpacked_bytes == whole as u64
            && hash(data) == header.data_hash
    });
    data.and_then(Data::of)
        .is_some_and(|data| data.compression.unpack(data.records, (whole, wanted), buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_headers_are_counted_and_removed() {
        let block = usize::try_from(BLOCK_BYTES).unwrap();
        // A file whose block headers are zeros.
        let (mut file, mut next) = (Vec::new(), 1_u32);
        while file.len() < 3 * block {
            match file.len() % block {
                0 => file.resize(file.len() + BLOCK_HEADER_BYTES, 0),
                _ => {
                    file.extend_from_slice(&next.to_le_bytes());
                    next += 1;
                }
            }
        }
        for (start, bytes) in [
            (BLOCK_HEADER_BYTES, 100),
            (block - 4, 4),
            (block - 4, 8),
            (block, 40),
            (block, block - BLOCK_HEADER_BYTES),
            (block, block),
            (2000, 2 * block),
        ] {
            let stored = stored_bytes(start as u64, bytes as u64);
            let stored = &file[start..start + usize::try_from(stored).unwrap()];
            let found = without_block_headers(stored, start as u64);
            assert_eq!(found.len(), bytes, "{start} {bytes}");
            let numbers = found.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
            assert!(numbers.is_sorted_by(|one, next| one + 1 == *next), "{start} {bytes}");
        }
    }
}
