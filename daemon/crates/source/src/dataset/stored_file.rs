//! A file that a format reads by itself while it makes an index: its stamp, and parts of it.

use super::error::DatasetError;
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp};
use crate::storage::{FileStatus, ObjectIdentity, Storage, StorageError};

/// What tells a file from one that takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FileStamp {
    pub(super) bytes: u64,
    pub(super) changed_seconds: i64,
    pub(super) changed_nanoseconds: u32,
    /// Of an object's ETag; 0: it is a file, or has none.
    pub(super) tag: u64,
}

impl FileStamp {
    pub(super) fn of(status: &FileStatus) -> Self {
        let bytes = status.bytes;
        match &status.identity {
            ObjectIdentity::Inode { modified: (changed_seconds, changed_nanoseconds), .. } => {
                Self {
                    bytes,
                    changed_seconds: *changed_seconds,
                    changed_nanoseconds: *changed_nanoseconds,
                    tag: 0,
                }
            }
            ObjectIdentity::Tag(tag) => {
                Self { bytes, tag: ObjectStamp::new(bytes, Some(tag)).tag, ..Self::default() }
            }
        }
    }

    /// As a storage of objects asks for it.
    pub(super) fn object(self) -> ObjectStamp {
        ObjectStamp { bytes: self.bytes, tag: self.tag }
    }
}

/// A file in a storage.
pub(super) struct StoredFile<'a> {
    storage: &'a dyn Storage,
    path: &'a [u8],
    pub(super) stamp: FileStamp,
}

impl<'a> StoredFile<'a> {
    /// Asks for its size.
    ///
    /// # Errors
    /// As the storage has it.
    pub(super) fn new(storage: &'a dyn Storage, path: &'a [u8]) -> Result<Self, StorageError> {
        let status = storage.status(&OnePath(path), FileId(0))?;
        Ok(Self { storage, path, stamp: FileStamp::of(&status) })
    }

    /// As [`new`](Self::new) of a file that may well be absent.
    ///
    /// # Errors
    /// The storage is away.
    pub(super) fn if_there(
        storage: &'a dyn Storage,
        path: &'a [u8],
    ) -> Result<Option<Self>, StorageError> {
        let status = storage.status_if_there(&OnePath(path), FileId(0))?;
        Ok(status.map(|status| Self { storage, path, stamp: FileStamp::of(&status) }))
    }

    /// Replaces the buffer by a part of the file.
    ///
    /// # Errors
    /// As the storage has it.
    pub(super) fn read(
        &self,
        offset: u64,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), DatasetError> {
        let range = ByteRange { offset, length: Some(length) };
        let location = Location { range, ..Location::whole(FileId(0)) };
        buffer.clear();
        Ok(self.storage.read(self, location, u64::MAX, buffer)?)
    }

    /// The whole of a file that is not to be larger than that.
    ///
    /// # Errors
    /// It is larger, or as the storage has it.
    pub(super) fn read_whole(&self, limit_bytes: u64) -> Result<Vec<u8>, DatasetError> {
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

    /// The error for what is wrong with it.
    pub(super) fn fault(&self, reason: String) -> DatasetError {
        let path = self.storage.full_path(self.path);
        DatasetError::BrokenFile { path, reason }
    }

    /// The error for what is wrong in one of its lines.
    pub(super) fn fault_at(&self, line: usize, message: String) -> DatasetError {
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
