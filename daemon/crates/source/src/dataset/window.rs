//! A window onto a file whose parts are found one by one, each behind the one before: headers with data between them.
//!
//! It begins at a header: 4 KiB while data is large, growing while the next header lies in it or close behind, so that
//! small members cost few reads and large ones little to read.

use super::error::DatasetError;
use super::stored_file::StoredFile;
use crate::storage::Storage;

/// How large a window is: at first, and at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowSize {
    least: u64,
    most: u64,
}

impl WindowSize {
    /// Reading is cheap beside asking.
    pub(super) const LOCAL: Self = Self { least: 4 << 10, most: 64 << 10 };
    /// What is read lies in memory.
    pub(super) const BLOCK: Self = Self { least: 512, most: 512 };
    /// An answer takes about as long as the bytes of a window: what lies between two headers is read over where it is less.
    const REMOTE: Self = Self { least: 1 << 20, most: 4 << 20 };

    /// What suits a storage.
    pub(super) fn for_storage(storage: &dyn Storage) -> Self {
        if storage.remote_root().is_some() { Self::REMOTE } else { Self::LOCAL }
    }
}

/// Where the bytes of a file come from.
pub(super) trait Bytes {
    /// Replaces the buffer by a range that lies in the file.
    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError>;
    /// The error for what is wrong with the file.
    fn fault(&self, reason: String) -> DatasetError;
}

impl Bytes for StoredFile<'_> {
    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        Self::read(self, offset, length, buffer)
    }

    fn fault(&self, reason: String) -> DatasetError {
        Self::fault(self, reason)
    }
}

/// See the module's head.
pub(super) struct Window<'a> {
    file: &'a dyn Bytes,
    file_bytes: u64,
    size: WindowSize,
    buffer: Vec<u8>,
    start: u64,
    bytes: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a dyn Bytes, file_bytes: u64, size: WindowSize) -> Self {
        Self { file, file_bytes, size, buffer: Vec::new(), start: 0, bytes: size.least }
    }

    pub(super) const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// A range that lies in the file.
    ///
    /// # Errors
    /// The file cannot be read, or became shorter.
    pub(super) fn get(&mut self, start: u64, length: u64) -> Result<&[u8], DatasetError> {
        self.fill(start, length)?;
        let from = usize::try_from(start - self.start).unwrap_or(usize::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let found = self.buffer.get(from..).and_then(|bytes| bytes.get(..length));
        found.ok_or_else(|| self.file.fault("it became shorter while it was read".to_owned()))
    }

    fn fill(&mut self, start: u64, length: u64) -> Result<(), DatasetError> {
        let end = self.start + self.buffer.len() as u64;
        if start < self.start || start + length > end {
            let is_near = start <= end + self.bytes;
            self.bytes = match is_near && !self.buffer.is_empty() {
                true => (self.bytes * 2).min(self.size.most),
                false => self.size.least,
            };
            let wanted = self.bytes.max(length).min(self.file_bytes.saturating_sub(start));
            self.file.read(start, wanted, &mut self.buffer)?;
            self.start = start;
        }
        Ok(())
    }

    /// The error for what is wrong at a place of the file.
    pub(super) fn fault(&self, place: u64, reason: &str) -> DatasetError {
        self.file.fault(format!("at byte {place}: {reason}"))
    }
}
