//! Reads a file in pieces larger than requested: the descriptions of a file's parts are small and close to each other.

use std::path::PathBuf;

use crate::stored_file::StoredFile;
use forebay_dataset::error::DatasetError;
use forebay_storage::Storage;

/// The maximum length of a part from [`Window::get`]. Descriptions of a file are smaller.
pub const MAX_PART_BYTES: u64 = 64 << 20;

/// The size of the pieces that a [`Window`] reads: `least` at first, doubled up to `most` while the next part starts
/// within the previous piece or shortly after it. Small members then need few reads, and large ones cause little
/// unneeded reading.
#[derive(Debug, Clone, Copy)]
pub struct WindowSize {
    least: u64,
    most: u64,
}

impl WindowSize {
    /// For local files: reading a page costs less than another call.
    pub const LOCAL: Self = Self { least: 4 << 10, most: 64 << 10 };
    /// For bytes in memory.
    pub const BLOCK: Self = Self::fixed(512);
    /// For remote storage: a request takes about as long as reading a piece of this size, so smaller gaps are read
    /// over.
    const REMOTE: Self = Self { least: 1 << 20, most: 4 << 20 };

    /// Pieces of one size, in bytes.
    pub const fn fixed(bytes: u64) -> Self {
        Self { least: bytes, most: bytes }
    }

    /// The sizes for a storage.
    pub fn for_storage(storage: &dyn Storage) -> Self {
        if storage.remote_root().is_some() { Self::REMOTE } else { Self::LOCAL }
    }
}

/// A file's bytes, as input of a parser.
pub trait Bytes {
    /// The length of the file.
    fn length(&self) -> u64;

    /// Replaces the buffer by a range within the file.
    ///
    /// # Errors
    /// An error of the storage.
    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError>;

    /// The error for a malformed file.
    fn fault(&self, reason: String) -> DatasetError;

    /// The error for a malformed line.
    fn fault_at(&self, line: usize, message: String) -> DatasetError {
        self.fault(format!("line {line}: {message}"))
    }
}

impl Bytes for StoredFile<'_> {
    fn length(&self) -> u64 {
        self.stamp.bytes
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        Self::read(self, offset, length, buffer)
    }

    fn fault(&self, reason: String) -> DatasetError {
        Self::fault(self, reason)
    }

    fn fault_at(&self, line: usize, message: String) -> DatasetError {
        Self::fault_at(self, line, message)
    }
}

/// A file in memory, for tests and fuzzers.
pub struct InMemory<'a>(pub &'a [u8]);

impl Bytes for InMemory<'_> {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        let [start, length] = [offset, length].map(|number| usize::try_from(number).unwrap());
        buffer.clear();
        buffer.extend_from_slice(&self.0[start..start + length]);
        Ok(())
    }

    fn fault(&self, reason: String) -> DatasetError {
        DatasetError::BrokenFile { path: PathBuf::from("memory"), reason }
    }
}

/// A file with its most recently read piece.
pub struct Window<'f> {
    /// The file.
    pub file: &'f dyn Bytes,
    size: WindowSize,
    piece: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl<'f> Window<'f> {
    /// A window over a file; does not read yet.
    pub fn new(file: &'f dyn Bytes, size: WindowSize) -> Self {
        Self { file, size, piece: size.least, start: 0, buffer: Vec::new() }
    }

    /// A part of the file.
    ///
    /// # Errors
    /// The part ends past the end of the file or is longer than [`MAX_PART_BYTES`], the file cannot be read, or it
    /// became shorter.
    pub fn get(&mut self, offset: u64, length: u64) -> Result<&[u8], DatasetError> {
        let all = self.file.length();
        if offset.checked_add(length).is_none_or(|end| end > all) {
            return Err(self.file.fault(format!(
                "{length} bytes are to be at byte {offset}, and the file has {all}: it is cut off or damaged"
            )));
        }
        if length > MAX_PART_BYTES {
            return Err(self.file.fault(format!(
                "its part of {length} bytes at byte {offset} is longer than the {MAX_PART_BYTES} bytes that are read at once"
            )));
        }
        self.fill(offset, length, all)?;
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let found = self.buffer.get(from..).and_then(|bytes| bytes.get(..length));
        found.ok_or_else(|| self.file.fault("it became shorter while it was read".to_owned()))
    }

    fn fill(&mut self, offset: u64, length: u64, all: u64) -> Result<(), DatasetError> {
        let end = self.start + self.buffer.len() as u64;
        if offset < self.start || offset + length > end {
            let is_near = offset <= end + self.piece;
            self.piece = match is_near && !self.buffer.is_empty() {
                true => (self.piece * 2).min(self.size.most),
                false => self.size.least,
            };
            self.start = offset;
            let wanted = self.piece.max(length).min(all - offset);
            self.file.read(offset, wanted, &mut self.buffer)?;
        }
        Ok(())
    }

    /// The error for a malformed file, with the byte offset.
    pub fn fault(&self, place: u64, reason: &str) -> DatasetError {
        self.file.fault(format!("at byte {place}: {reason}"))
    }
}
