//! An entry of the cache: a location's bytes, a checksum of each block of them, and the key.
//!
//! ```text
//! bytes        the location's
//! checksums    u32 of each BLOCK_BYTES of them; the last block may be shorter
//! key          32 bytes
//! length       u64, of the bytes
//! checksum     u32, of the checksums, the key and the length
//! magic        8 bytes
//! ```
//!
//! Numbers are little-endian, checksums CRC-32 as in zlib. The file's length follows from the bytes' length.

/// Key of an entry: a digest of the storage, the object, its stamp and the range.
pub(super) type Key = [u8; 32];

const BLOCK_BYTES: usize = 32 << 10;
const MAGIC: [u8; 8] = *b"FBCACHE1";
/// Key, length, checksum and magic.
const END_BYTES: usize = 32 + 8 + 4 + 8;

/// The length of an entry's file.
pub(super) const fn file_bytes(length: u64) -> u64 {
    length + length.div_ceil(BLOCK_BYTES as u64) * 4 + END_BYTES as u64
}

/// The length of an entry's bytes from its file's length; `None`: not the length of an entry's file.
pub(super) fn bytes_of_file(length: u64) -> Option<u64> {
    let rest = length.checked_sub(END_BYTES as u64)?;
    // Each block has its bytes and a checksum of four bytes.
    let bytes = rest.checked_sub(4 * rest.div_ceil(BLOCK_BYTES as u64 + 4))?;
    (file_bytes(bytes) == length).then_some(bytes)
}

/// The part after the bytes.
pub(super) fn tail(key: &Key, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u64;
    let blocks = bytes.chunks(BLOCK_BYTES);
    let mut tail: Vec<u8> = blocks.flat_map(|block| crc32fast::hash(block).to_le_bytes()).collect();
    tail.extend_from_slice(key);
    tail.extend_from_slice(&length.to_le_bytes());
    let checksum = crc32fast::hash(&tail);
    tail.extend_from_slice(&checksum.to_le_bytes());
    tail.extend_from_slice(&MAGIC);
    tail
}

/// The bytes and the key of a complete entry; `None`: it is damaged, or not an entry.
pub(super) fn open(file: &[u8]) -> Option<(Key, &[u8])> {
    let (before, end) = file.split_at_checked(file.len().checked_sub(END_BYTES)?)?;
    let (key, rest) = end.split_first_chunk::<32>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (checksum, magic) = rest.split_first_chunk::<4>()?;
    let length = u64::from_le_bytes(*length);
    if magic != MAGIC || length > file.len() as u64 || file_bytes(length) != file.len() as u64 {
        return None;
    }
    let (bytes, checksums) = before.split_at_checked(usize::try_from(length).ok()?)?;
    let covered = &file[bytes.len()..file.len() - MAGIC.len() - 4];
    if crc32fast::hash(covered) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut blocks = bytes.chunks(BLOCK_BYTES).zip(checksums.chunks(4));
    blocks
        .all(|(block, checksum)| crc32fast::hash(block).to_le_bytes() == checksum)
        .then_some((*key, bytes))
}

/// Entry point for fuzzing: an entry's file, see `forebay::fuzzing`.
///
/// # Panics
/// An accepted file differs from the entry of the same bytes and key.
pub fn cache_entry(file: &[u8]) {
    if let Some((key, bytes)) = open(file) {
        assert_eq!(file_bytes(bytes.len() as u64), file.len() as u64);
        assert_eq!([bytes, &tail(&key, bytes)].concat(), file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: &[u8]) -> Vec<u8> {
        [bytes, &tail(&[7; 32], bytes)].concat()
    }

    #[test]
    fn entry_contains_its_bytes_and_its_key() {
        for length in [0, 1, 100, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES - 1] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let file = entry(&bytes);
            assert_eq!(file.len() as u64, file_bytes(length as u64));
            assert_eq!(open(&file), Some(([7; 32], &bytes[..])));
            assert_eq!(bytes_of_file(file.len() as u64), Some(length as u64));
        }
    }

    #[test]
    fn damage_is_detected_everywhere() {
        let bytes: Vec<u8> = (0..=250).cycle().take(70_000).collect();
        let whole = entry(&bytes);
        // Every byte of the end, and a sample of the other bytes.
        let places = (0..bytes.len()).step_by(997).chain(bytes.len()..whole.len());
        for place in places {
            let mut file = whole.clone();
            file[place] ^= 1 << (place % 8);
            assert_eq!(open(&file), None, "bit of byte {place}");
        }
        for length in (0..whole.len()).step_by(991).chain(whole.len() - 60..whole.len()) {
            assert_eq!(open(&whole[..length]), None, "cut at {length}");
        }
        assert_eq!(open(&[&whole[..], b"x"].concat()), None);
        assert_eq!(open(&vec![0; whole.len()]), None);
    }
}
