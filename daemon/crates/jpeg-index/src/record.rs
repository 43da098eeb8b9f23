//! The bytes of the file: a header, then records.
//!
//! All numbers are little endian.
//! ```text
//! header   0 magic [8]    8 version u32   12 zero to 32
//! record   0 checksum u64: XXH3 of everything from byte 8 to the record's end, seeded with the version
//!          8 bytes of marks u32           12 bytes of the JPEG file u32
//!         16 XXH3 of the JPEG file, 128 bits
//!         32 marks, then zeros to a multiple of 8
//! ```

use twox_hash::{XxHash3_64, XxHash3_128};

/// The size of the file's header.
pub(crate) const HEADER_BYTES: usize = 32;
/// What stands before a record's marks.
pub(crate) const HEAD_BYTES: usize = 32;
/// Records begin at multiples of it.
pub(crate) const ALIGNMENT: usize = 8;
/// The longest marks: a hundredth of a file of 100 MB.
pub(crate) const MOST_MARK_BYTES: usize = 1 << 20;
const MAGIC: [u8; 8] = *b"FOREBJPG";
/// Raised whenever a byte changes its meaning, those of the marks included.
const VERSION: u32 = 1;
/// A smaller file is decoded before its record is found.
const LEAST_FILE_BYTES: usize = 8 << 10;

/// Which file: by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub(crate) hash: u128,
    pub(crate) file_bytes: u32,
}

impl Key {
    /// Reads all bytes of a file. None where nothing is kept of it: it is too small or too large.
    pub fn of(file: &[u8]) -> Option<Self> {
        (file.len() >= LEAST_FILE_BYTES && u32::try_from(file.len()).is_ok())
            .then(|| Self::of_any(file))
    }

    pub(crate) fn of_any(file: &[u8]) -> Self {
        let file_bytes = u32::try_from(file.len()).unwrap_or(u32::MAX);
        Self { hash: XxHash3_128::oneshot(file), file_bytes }
    }
}

/// What a file's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    Own,
    /// Not yet written, or cut off while it was.
    Missing,
    OtherVersion,
    /// Another kind of file.
    Foreign,
}

pub(crate) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// By the first bytes of a file, as many as there are of a header.
pub(crate) fn read_header(bytes: &[u8]) -> Header {
    let own = header();
    match bytes {
        _ if bytes == own => Header::Own,
        _ if bytes.len() < HEADER_BYTES && own.starts_with(bytes) => Header::Missing,
        _ if bytes.starts_with(&MAGIC) => Header::OtherVersion,
        _ => Header::Foreign,
    }
}

/// What lies at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'b> {
    /// A record, and how many bytes it takes.
    Whole { key: Key, marks: &'b [u8], bytes: usize },
    /// A record of so many bytes, of which some are missing; or its head.
    Cut(usize),
    /// No record of this version.
    Damaged,
}

pub(crate) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let head = || {
        let check = u64::from_le_bytes(*bytes.first_chunk()?);
        let hash = u128::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
        Some((check, number(8)? as usize, Key { hash, file_bytes: number(12)? }))
    };
    let Some((check, length, key)) = head() else { return Parsed::Cut(HEAD_BYTES) };
    if length > MOST_MARK_BYTES {
        return Parsed::Damaged;
    }
    let all = (HEAD_BYTES + length).next_multiple_of(ALIGNMENT);
    let Some(record) = bytes.get(..all) else { return Parsed::Cut(all) };
    let (marks, padding) = record[HEAD_BYTES..].split_at(length);
    if check != checksum(record) || padding.iter().any(|byte| *byte != 0) {
        return Parsed::Damaged;
    }
    Parsed::Whole { key, marks, bytes: all }
}

/// None: the marks are longer than any record's.
pub(crate) fn encode(key: Key, marks: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(marks.len()).ok().filter(|_| marks.len() <= MOST_MARK_BYTES)?;
    let all = (HEAD_BYTES + marks.len()).next_multiple_of(ALIGNMENT);
    let mut record = Vec::with_capacity(all);
    record.extend_from_slice(&[0; 8]);
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&key.file_bytes.to_le_bytes());
    record.extend_from_slice(&key.hash.to_le_bytes());
    record.extend_from_slice(marks);
    record.resize(all, 0);
    let check = checksum(&record).to_le_bytes();
    record[..8].copy_from_slice(&check);
    Some(record)
}

fn checksum(record: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(VERSION.into(), record.get(8..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_returns_and_every_changed_bit_is_noticed() {
        let key = Key::of(&[7; LEAST_FILE_BYTES]).unwrap();
        for marks in [&b""[..], b"m", b"marks of", b"some marks"] {
            let record = encode(key, marks).unwrap();
            assert_eq!(parse(&record), Parsed::Whole { key, marks, bytes: record.len() });
            for bit in 0..record.len() * 8 {
                let mut changed = record.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(parse(&changed), Parsed::Whole { .. }), "bit {bit}");
            }
            for length in 0..record.len() {
                assert!(matches!(parse(&record[..length]), Parsed::Cut(_)), "{length}");
            }
        }
        assert_eq!(encode(key, &vec![0; MOST_MARK_BYTES + 1]), None);
        assert_eq!(Key::of(&[7; LEAST_FILE_BYTES - 1]), None);
    }

    #[test]
    fn headers_are_told_apart() {
        let own = header();
        assert_eq!(read_header(&own), Header::Own);
        assert_eq!([0, 5, 31].map(|length| read_header(&own[..length])), [Header::Missing; 3]);
        let mut other = own;
        other[8] += 1;
        assert_eq!(read_header(&other), Header::OtherVersion);
        assert_eq!(read_header(b"a picture of someone else's cats"), Header::Foreign);
        assert_eq!(read_header(b"cat"), Header::Foreign);
    }
}
