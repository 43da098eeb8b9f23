//! The frames of a TFRecord file, as in TensorFlow's `record_writer.cc`: the length of the data (u64), the masked
//! CRC32C of these eight bytes (u32), the data, its masked CRC32C (u32); all numbers little endian. The file has
//! neither a header nor an end mark.
//!
//! For an index, only the heads are read; their checksums detect a damaged file. A sample is read with its whole frame,
//! so both checksums are verified at each read.

use forebay_dataset::error::DatasetError;
use forebay_index::shards::Extent;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The length and its checksum.
const HEAD_BYTES: usize = 12;
/// The size of a frame without its data.
pub(super) const FRAME_BYTES: u64 = HEAD_BYTES as u64 + 4;

/// TensorFlow masks checksums, because a checksum of data that contains checksums is weak.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The data length of a frame; `None`: its checksum is wrong.
fn length(head: &[u8]) -> Option<u64> {
    let (length, rest) = head.split_first_chunk::<8>()?;
    let checksum = u32::from_le_bytes(*rest.first_chunk()?);
    (masked_checksum(length) == checksum).then(|| u64::from_le_bytes(*length))
}

/// The data of a complete frame.
///
/// # Errors
/// The defect of the frame.
pub(super) fn data(frame: &[u8]) -> Result<&[u8], &'static str> {
    const CHANGED: &str =
        "there is no record of this length any more: the file was changed after it was indexed";
    let expected = (frame.len() as u64).checked_sub(FRAME_BYTES);
    if expected.is_none() || length(frame) != expected {
        return Err(CHANGED);
    }
    let (head, checksum) = frame.split_last_chunk::<4>().ok_or(CHANGED)?;
    let data = head.get(HEAD_BYTES..).ok_or(CHANGED)?;
    match masked_checksum(data) == u32::from_le_bytes(*checksum) {
        true => Ok(data),
        false => {
            Err("the checksum of its data is another one's: the file is damaged; copy it again")
        }
    }
}

/// Iterates over the frames of a file.
pub(super) struct Frames<'a> {
    window: Window<'a>,
    position: u64,
}

impl<'a> Frames<'a> {
    pub(super) fn new(file: &'a dyn Bytes, size: WindowSize) -> Self {
        Self { window: Window::new(file, size), position: 0 }
    }

    /// The extent of the next frame; `None` at the end of the file. `remedy` describes how to decompress the file.
    ///
    /// # Errors
    /// The file is damaged, truncated or compressed; the error has the byte offset.
    pub(super) fn next(
        &mut self,
        remedy: impl Fn(Compression) -> String,
    ) -> Result<Option<Extent>, DatasetError> {
        let start = self.position;
        let left = self.window.file.length() - start;
        if left == 0 {
            return Ok(None);
        }
        let head = self.window.get(start, left.min(HEAD_BYTES as u64))?;
        let Some(length) = length(head) else {
            let compression = Compression::of(head).filter(|_| start == 0);
            let reason = match compression {
                Some(compression) => remedy(compression),
                None if left < HEAD_BYTES as u64 => "the file is cut off within a record's head".to_owned(),
                None if start == 0 => "it is no TFRecord file: the checksum of the first record's length is another".to_owned(),
                None => "the checksum of a record's length is another: the file is damaged; copy it again".to_owned(),
            };
            return Err(self.window.fault(start, &reason));
        };
        let Some(bytes) = length.checked_add(FRAME_BYTES).filter(|bytes| *bytes <= left) else {
            let reason = format!(
                "a record of {length} bytes ends behind the file, which has {}: the file is cut off",
                self.window.file.length()
            );
            return Err(self.window.fault(start, &reason));
        };
        self.position += bytes;
        Ok(Some(Extent { offset: start, bytes }))
    }
}

/// The compression of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zlib,
}

impl Compression {
    /// Detected by the first bytes: gzip's magic number, or zlib's method with its check bits (RFC 1950).
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x78, flags, ..] if (0x7800 + u16::from(*flags)).is_multiple_of(31) => {
                Some(Self::Zlib)
            }
            _ => None,
        }
    }
}
