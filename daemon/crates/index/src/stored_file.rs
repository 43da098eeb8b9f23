//! A file that a format reads directly while it builds an index: its stamp, and ranges of its bytes.

use forebay_dataset::error::DatasetError;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, ObjectStamp};
use forebay_storage::{FileStatus, ObjectIdentity, Storage, StorageError};

/// Distinguishes a file from another one that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStamp {
    /// The length in bytes.
    pub bytes: u64,
    /// When the bytes last changed, in seconds since 1970.
    pub changed_seconds: i64,
    /// The nanoseconds of that time.
    pub changed_nanoseconds: u32,
    /// The status change time (ctime) in nanoseconds since 1970, which programs cannot set; 0: the file system does not
    /// record it.
    pub status_changed: u64,
    /// Derived from an object's ETag; 0: a file, or an object without one.
    pub tag: u64,
}

impl FileStamp {
    /// The stamp of a file with this status.
    pub fn of(status: &FileStatus) -> Self {
        let bytes = status.bytes;
        match &status.identity {
            ObjectIdentity::Inode {
                modified: (changed_seconds, changed_nanoseconds),
                changed,
                ..
            } => {
                let number = |(seconds, nanoseconds): (i64, u32)| {
                    let seconds = seconds.cast_unsigned();
                    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds.into())
                };
                Self {
                    bytes,
                    changed_seconds: *changed_seconds,
                    changed_nanoseconds: *changed_nanoseconds,
                    status_changed: changed.map_or(0, number),
                    tag: 0,
                }
            }
            ObjectIdentity::Tag(tag) => {
                Self { bytes, tag: ObjectStamp::new(bytes, Some(tag)).tag, ..Self::default() }
            }
        }
    }

    /// The stamp for requests to an object storage.
    pub fn object(self) -> ObjectStamp {
        ObjectStamp { bytes: self.bytes, tag: self.tag }
    }
}

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
