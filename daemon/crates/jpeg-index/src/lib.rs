//! Stores what a decoder learned of JPEG files, its *marks*, for later decodings of the same bytes.
//!
//! Records are consecutive in an append-only file that all daemons of a host share. A record's key is the content of
//! its JPEG file: a hash of all its bytes. So it applies wherever these bytes are stored: in a folder, in an archive,
//! at a URL, under another name. The decoder defines the meaning of marks.
//!
//! # States of a record, and who moves it
//!
//! 1. *Learned*: a work thread has decoded a file, to its end or to the last row that it needed, and offers its marks.
//!    It makes no system call and does not wait: `waiting` has a slot for the record, or the record is dropped and learned
//!    at a later decoding.
//! 2. *Waiting*: in memory. The writer, a thread of normal class, takes all waiting records, four times a second and at
//!    the end.
//! 3. *Appended*: the writer holds the file's lock (`flock`) and has read what others have appended since; records that
//!    are known already are dropped, the others are written at the file's end. A kill may truncate the last record.
//! 4. *Known*: its place is in the `table` of this daemon. Work threads read it with a positional read and verify it.
//!
//! A record is never changed and never moves. Longer marks of the same file become a new record further down, to which
//! the tables then point. A damaged record is cut off together with all later ones, by the holder of the lock after a
//! scan from the start; they are learned again.
//!
//! # Why a record can be trusted
//!
//! It is written only after its file was decoded without any error as far as the marks go. It is used only if its
//! checksum is correct and if its length and hash (128 bits) match the file. The hash is keyed by random bytes in the
//! file's header, which are secret: an attacker who chooses the data cannot construct two files with the same hash. If
//! a table points to another record, or the file was truncated, replaced or changed at any time, the record is not
//! used. The file is never mapped: reading a truncated file returns fewer bytes, where a mapping would end the process.

#![forbid(unsafe_code)]

mod index;
mod record;
mod shared_file;
mod table;
mod waiting;

pub use index::{Figures, Found, JpegIndex, Terms};
pub use record::Key;

/// Entry point for fuzzing the parser of records.
///
/// # Panics
/// A record does not parse to what was encoded.
#[doc(hidden)]
pub fn fuzz_records(bytes: &[u8]) {
    let mut rest = bytes;
    while let record::Parsed::Whole { key, marks, bytes } = record::parse(rest) {
        assert_eq!(record::encode(key, marks).as_deref(), Some(&rest[..bytes]));
        rest = &rest[bytes..];
    }
    // A fuzzer does not find a checksum: the bytes are used as marks.
    let key = Key::of_any(bytes, &record::Secret([7; 192]));
    let written = record::encode(key, bytes).unwrap_or_default();
    let parsed = record::parse(&written);
    let is_same = matches!(parsed, record::Parsed::Whole { key: found, marks, .. } if found == key && marks == bytes);
    assert!(is_same || written.is_empty());
}
