//! A file that a format reads directly while it builds an index: its stamp, and ranges of its bytes.

use forebay_dataset::error::DatasetError;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location};
use forebay_storage::version::{FileStamp, ObjectStamp};
use forebay_storage::{Storage, StorageError};

/// A file in a storage.
pub struct StoredFile<'a> {
    storage: &'a dyn Storage,
    path: &'a [u8],
    /// The stamp when the file was opened.
    pub stamp: FileStamp,
}

impl<'a> StoredFile<'a> {
    /// Requests the file's status.
    ///
    /// # Errors
    /// An error of the storage.
    pub fn new(storage: &'a dyn Storage, path: &'a [u8]) -> Result<Self, StorageError> {
        let status = storage.status(&OnePath(path), FileId(0))?;
        Ok(Self { storage, path, stamp: FileStamp::of(&status) })
    }

    /// As [`new`](Self::new); `None` if the file does not exist.
    ///
    /// # Errors
    /// The storage is unavailable.
    pub fn if_there(
        storage: &'a dyn Storage,
        path: &'a [u8],
    ) -> Result<Option<Self>, StorageError> {
        let status = storage.status_if_there(&OnePath(path), FileId(0))?;
        Ok(status.map(|status| Self { storage, path, stamp: FileStamp::of(&status) }))
    }

    /// Replaces the buffer by a range of the file.
    ///
    /// # Errors
    /// An error of the storage.
    pub fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        let range = ByteRange { offset, length: Some(length) };
        let location = Location { range, ..Location::whole(FileId(0)) };
        buffer.clear();
        Ok(self.storage.read(self, location, u64::MAX, buffer)?)
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// The file is larger than `limit_bytes`, or an error of the storage.
    pub fn read_whole(&self, limit_bytes: u64) -> Result<Vec<u8>, DatasetError> {
        if self.stamp.bytes > limit_bytes {
            return Err(self.fault(format!(
                "it has {} bytes, and at most {limit_bytes} are read",
                self.stamp.bytes
            )));
        }
        let mut buffer = Vec::new();
        self.read(0, self.stamp.bytes, &mut buffer)?;
        Ok(buffer)
    }

    /// The error for a defect of the file.
    pub fn fault(&self, reason: String) -> DatasetError {
        let path = self.storage.full_path(self.path);
        DatasetError::BrokenFile { path, reason }
    }

    /// The error for a defect in one of its lines.
    pub fn fault_at(&self, line: usize, message: String) -> DatasetError {
        DatasetError::List { path: self.storage.full_path(self.path), line, message }
    }
}

/// A file before its status is known.
struct OnePath<'a>(&'a [u8]);

impl FileTable for OnePath<'_> {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.0);
    }
}

impl FileTable for StoredFile<'_> {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.path);
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        Some(self.stamp.object())
    }
}
