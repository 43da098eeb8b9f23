//! Keeps what a decoder learned of JPEG files, its *marks*, for every later decoding of the same bytes.
//!
//! Records lie one behind the other in a file that is only appended to and that all daemons of a host share. A record is
//! found by the content of the file that it was learned of: a hash of all its bytes. So it serves a sample wherever its
//! bytes lie: in a folder, in an archive, behind a URL, under another name. What marks mean is the decoder's part.
//!
//! # States of a record, and who moves it
//!
//! 1. *Learned*: a work thread has decoded a file, to its end or to the last row that it needed, and offers its marks. It makes no system call and waits for
//!    nobody: `waiting` has a place for the record, or the record is dropped and learned at a later decoding.
//! 2. *Waiting*: in memory. The writer, a thread of normal class, takes all that wait, four times a second and at the end.
//! 3. *Appended*: the writer holds the file's lock (`flock`) and has taken in what others have appended since; what they
//!    know is dropped, the rest is written at the file's end. A kill may leave the last record cut off.
//! 4. *Known*: its place stands in the `table` of this daemon. Work threads read it with a positional read and check it.
//!
//! A record is never changed and never moves. Longer marks of the same file are a record of their own, behind it, to which
//! the tables then point. What is damaged is cut off together with all that follows, by the holder of the lock after a scan
//! from the start; it is then learned anew.
//!
//! # Why a record can be trusted
//!
//! It is written only after its file was decoded without any doubt as far as the marks go. It is used only when its checksum
//! is right, and when length and hash (128 bits) of the file at hand are those in it. A table that points to another record,
//! a file that was cut off, replaced or changed at any time: all end in a record that is not used. The file is never mapped:
//! a read of one that was cut off is short, where a mapping would end the process.

#![forbid(unsafe_code)]

mod index;
mod record;
mod shared_file;
mod table;
mod waiting;

pub use index::{Figures, Found, JpegIndex, Terms};
pub use record::Key;

/// The fuzzer's way to the parser of records.
///
/// # Panics
/// When a record does not read back as it was written.
#[doc(hidden)]
pub fn fuzz_records(bytes: &[u8]) {
    let mut rest = bytes;
    while let record::Parsed::Whole { key, marks, bytes } = record::parse(rest) {
        assert_eq!(record::encode(key, marks).as_deref(), Some(&rest[..bytes]));
        rest = &rest[bytes..];
    }
    // A fuzzer does not find a checksum: the bytes as marks.
    let key = Key::of_any(bytes);
    let written = record::encode(key, bytes).unwrap_or_default();
    let parsed = record::parse(&written);
    let is_same = matches!(parsed, record::Parsed::Whole { key: found, marks, .. } if found == key && marks == bytes);
    assert!(is_same || written.is_empty());
}
