//! The file format: a header, then records.
//!
//! All numbers are little endian.
//! ```text
//! header   0 magic [8]    8 version u32   12 checksum u32: XXH3 of the secret
//!         16 secret [192]: random bytes of this file alone
//! record   0 checksum u64: XXH3 of everything from byte 8 to the record's end, seeded with the version
//!          8 bytes of marks u32           12 bytes of the JPEG file u32
//!         16 XXH3 of the JPEG file with the header's secret, 128 bits
//!         32 marks, then zeros to a multiple of 8
//! ```

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use twox_hash::{XxHash3_64, XxHash3_128};

/// The size of the file's header.
pub(crate) const HEADER_BYTES: usize = SECRET_AT + SECRET_BYTES;
const SECRET_AT: usize = 16;
const SECRET_BYTES: usize = 192;
/// Size of a record before its marks.
pub(crate) const HEAD_BYTES: usize = 32;
/// Alignment of records.
pub(crate) const ALIGNMENT: usize = 8;
/// The longest marks: a hundredth of a file of 100 MB.
pub(crate) const MOST_MARK_BYTES: usize = 1 << 20;
const MAGIC: [u8; 8] = *b"FOREBJPG";
/// Incremented whenever a byte changes its meaning, including bytes of marks.
const VERSION: u32 = 2;
/// A smaller file is decoded before its record is found.
const LEAST_FILE_BYTES: usize = 8 << 10;

/// The key of a file's hashes. Constructing two files with the same hash requires it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) [u8; SECRET_BYTES]);

impl Secret {
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        let mut filled = 0;
        while filled < SECRET_BYTES {
            filled += getrandom(&mut secret[filled..], GetRandomFlags::empty())?;
        }
        Ok(Self(secret))
    }
}

/// Identifies a file by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub(crate) hash: u128,
    pub(crate) file_bytes: u32,
}

impl Key {
    /// Whether a file may have a record: it is neither too small nor too large.
    pub fn is_kept(file: &[u8]) -> bool {
        file.len() >= LEAST_FILE_BYTES && u32::try_from(file.len()).is_ok()
    }

    /// Hashes all bytes of a file. None if it cannot have a record.
    pub(crate) fn of(file: &[u8], secret: &Secret) -> Option<Self> {
        Self::is_kept(file).then(|| Self::of_any(file, secret))
    }

    pub(crate) fn of_any(file: &[u8], Secret(secret): &Secret) -> Self {
        let file_bytes = u32::try_from(file.len()).unwrap_or(u32::MAX);
        // A secret of this length never causes an error.
        let hash = XxHash3_128::oneshot_with_secret(secret, file).unwrap_or_default();
        Self { hash, file_bytes }
    }
}

/// The content of a file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Header {
    Own(Secret),
    /// Not yet written, or truncated.
    Missing,
    OtherVersion,
    /// Another kind of file.
    Foreign,
}

pub(crate) fn header(Secret(secret): &Secret) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&secret_checksum(secret));
    header[SECRET_AT..].copy_from_slice(secret);
    header
}

fn secret_checksum(secret: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = XxHash3_64::oneshot(secret).to_le_bytes();
    [a, b, c, d]
}

/// Parses the first bytes of a file, up to the header's size.
pub(crate) fn read_header(bytes: &[u8]) -> Header {
    let own = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    let secret = bytes.get(SECRET_AT..).and_then(|secret| secret.first_chunk());
    match secret {
        // A damaged header is rewritten; so are zeros, which a crash of the machine may leave and which are not secret.
        Some(secret) if bytes.starts_with(&own) => {
            let is_whole = bytes[12..16] == secret_checksum(secret) && secret != &[0; SECRET_BYTES];
            if is_whole { Header::Own(Secret(*secret)) } else { Header::Missing }
        }
        None if bytes.starts_with(&own) || own.starts_with(bytes) => Header::Missing,
        _ if bytes.starts_with(&MAGIC) => Header::OtherVersion,
        _ => Header::Foreign,
    }
}

/// The record at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'b> {
    /// A record and its size.
    Whole { key: Key, marks: &'b [u8], bytes: usize },
    /// A truncated record of this size, or its head.
    Cut(usize),
    /// Not a record of this version.
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

/// None: the marks are too long for a record.
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
    fn record_round_trips_and_every_changed_bit_is_detected() {
        let secret = Secret::random().unwrap();
        let key = Key::of(&[7; LEAST_FILE_BYTES], &secret).unwrap();
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
        assert_eq!(Key::of(&[7; LEAST_FILE_BYTES - 1], &secret), None);
    }

    #[test]
    fn keys_differ_between_indexes() {
        let [one, other] = [(); 2].map(|()| Secret::random().unwrap());
        let file = [7; LEAST_FILE_BYTES];
        assert_eq!(Key::of(&file, &one), Key::of(&file, &one));
        assert_ne!(Key::of(&file, &one), Key::of(&file, &other));
    }

    #[test]
    fn headers_are_distinguished() {
        let secret = Secret::random().unwrap();
        let own = header(&secret);
        assert_eq!(read_header(&own), Header::Own(secret));
        for length in [0, 5, 12, 31, HEADER_BYTES - 1] {
            assert_eq!(read_header(&own[..length]), Header::Missing, "{length}");
        }
        assert_eq!(read_header(&header(&Secret([0; SECRET_BYTES]))), Header::Missing);
        let mut damaged = own;
        damaged[100] ^= 1;
        assert_eq!(read_header(&damaged), Header::Missing);
        let mut other = own;
        other[8] += 1;
        assert_eq!(read_header(&other), Header::OtherVersion);
        assert_eq!(read_header(b"a picture of someone else's cats"), Header::Foreign);
        assert_eq!(read_header(b"cat"), Header::Foreign);
    }
}
