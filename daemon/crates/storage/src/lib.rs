//! Storages: the trait [`Storage`], and one file per kind of storage.
//!
//! A storage knows files by their paths and knows nothing about samples or formats. A new storage is one file here that
//! implements the trait, a line in `storages.rs` of the crate `formats`, and one line that runs `conformance` on it.

mod body_sink;
pub mod codec;
mod compressed;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod conformance;
mod descriptor;
pub mod error;
mod joined;
mod layer;
pub mod listing;
mod local;
pub mod location;
#[cfg(any(test, feature = "testing"))]
mod objects;
mod opened;
mod outage;
mod packed;
mod patience;
mod retries;
pub mod riegeli;
#[cfg(any(test, feature = "testing"))]
mod stalling;
pub mod varint;
pub mod version;

use std::cmp::Ordering;
use std::path::PathBuf;

pub use body_sink::{BodySink, Lent, Target};
pub use compressed::{WithoutUnpacking, codec_of};
pub use descriptor::DirectFile;
pub use error::{Absence, RemoteFailure, RetryClass, StorageError};
pub use joined::JoinedFiles;
pub use layer::{Layer, StoragePointer};
pub use local::LocalFiles;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use objects::Objects;
pub use opened::{Adds, Handle, Opened, Response};
pub use outage::{OutageSeen, Outages};
pub use packed::KEPT_BYTES as KEPT_PAGE_BYTES;
pub use packed::UnpackingStorage;
pub use patience::Patience;
pub use patience::PatientStorage;
pub use retries::{Retries, RetryTerms};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use stalling::{RepeatingFolder, SlowFolder, StalledFile};

use crate::location::{ByteRange, FileId, FileTable, Location, Transform, Unit};
use forebay_observe::{CacheMetrics, RequestMetrics};
use listing::Directories;
use version::FileStatus;

/// Files below a root, listed and read. Shared by all threads.
///
/// Reading blocks the calling thread: [`open`](Self::open) returns the number of bytes of a location, the engine waits
/// until its byte budget grants them, [`read_opened`](Self::read_opened) reads them. Both may block for long; the
/// engine watches them from another thread and gives up a call that takes longer than `dataset.read_timeout`. Nothing
/// is retried here.
pub trait Storage: Directories + Send + Sync + std::fmt::Debug {
    /// A relative path in messages.
    fn full_path(&self, relative: &[u8]) -> PathBuf;

    /// The size of a file, and its identity, which changes if the file is replaced.
    ///
    /// # Errors
    /// The file has vanished, may not be read, or is not a regular file.
    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError>;

    /// As [`status`](Self::status), for a file that may be absent: `None` if it is, or cannot be read.
    ///
    /// # Errors
    /// The storage cannot be reached.
    fn status_if_there(
        &self,
        files: &dyn FileTable,
        file: FileId,
    ) -> Result<Option<FileStatus>, StorageError> {
        match self.status(files, file) {
            Err(error) if error.class() == RetryClass::Outage => Err(error),
            status => Ok(status.ok()),
        }
    }

    /// Determines a location's length in bytes. A file that is read in parts may be kept open for the next part.
    ///
    /// # Errors
    /// As [`status`](Self::status), or the file ends before the range does.
    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError>;

    /// Appends an opened location's bytes to a buffer.
    ///
    /// # Errors
    /// Reading fails, or the file's length has changed. The buffer's contents are undefined then.
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError>;

    /// Opens a file to read a location of known length and known first bytes directly into an array's memory. `None`:
    /// this storage has no descriptors, or the file cannot be opened; the other calls report why.
    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        let _ = (files, location);
        None
    }

    /// Whether [`read_in_pieces`](Self::read_in_pieces) avoids an intermediate buffer.
    fn reads_in_pieces(&self) -> bool {
        false
    }

    /// Passes an opened location's bytes to `sink`, piece by piece, as long as it accepts them. False: it did not
    /// accept all.
    ///
    /// # Errors
    /// As [`read_opened`](Self::read_opened); some pieces may have been taken.
    fn read_in_pieces(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        sink: &mut dyn BodySink,
    ) -> Result<bool, StorageError> {
        let mut buffer = Vec::new();
        self.read_opened(files, opened, &mut buffer)?;
        Ok(buffer.is_empty() || sink.take(&buffer))
    }

    /// Its metrics and its memory.
    fn properties(&self) -> Properties<'_> {
        Properties::default()
    }

    /// Its files' identity in a cache on disk; `None`: they are not cached.
    fn cache_scope(&self) -> Option<CacheScope> {
        None
    }

    /// Whether the file is stored compressed and read uncompressed.
    fn unpacks(&self, path: &[u8]) -> bool {
        let _ = path;
        false
    }

    /// Whether a file can be read immediately; false: it would have to be unpacked first.
    fn is_at_hand(&self, path: &[u8]) -> bool {
        let _ = path;
        true
    }

    /// Opens every location of a sample and returns the total number of bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open), or more than `limit_bytes` to read, not counting pages that samples share.
    fn open_all(
        &self,
        files: &dyn FileTable,
        locations: &[Location],
        limit_bytes: u64,
        opened: &mut Vec<Opened>,
    ) -> Result<u64, StorageError> {
        opened.clear();
        let (mut length_bytes, mut limited_bytes, mut unknown) = (0_u64, 0_u64, 0);
        for location in locations {
            let is_unknown = locations.len() > MOST_HELD && is_of_unknown_length(files, location);
            unknown += usize::from(is_unknown);
            let next = match is_unknown && unknown > MOST_HELD {
                true => defer(self, files, *location)?,
                false => self.open(files, *location)?,
            };
            length_bytes = length_bytes.saturating_add(next.length_bytes);
            // Pages that samples share do not count for the limit of one sample.
            if !matches!(location.unit, Unit::Block(Transform::Unpacked { .. })) {
                limited_bytes = limited_bytes.saturating_add(next.length_bytes);
            }
            if limited_bytes > limit_bytes {
                let path = self.full_path(&files.path(location.file));
                let length_bytes = limited_bytes;
                return Err(StorageError::TooLarge { path, length_bytes, limit_bytes });
            }
            opened.push(next);
        }
        Ok(length_bytes)
    }

    /// Appends the bytes of a location that [`open_all`](Self::open_all) opened.
    ///
    /// # Errors
    /// As [`read_opened`](Self::read_opened), and those of [`open`](Self::open) for a file that is opened only now.
    fn read_held(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        if !matches!(opened.handle, Handle::Deferred) {
            return self.read_opened(files, opened, buffer);
        }
        let now = self.open(files, opened.location)?;
        let found = match now.length_bytes.cmp(&opened.length_bytes) {
            Ordering::Equal => return self.read_opened(files, now, buffer),
            Ordering::Less => "fewer",
            Ordering::Greater => "more",
        };
        let path = self.full_path(&files.path(opened.location.file));
        Err(StorageError::Changed { path, expected_bytes: opened.length_bytes, found })
    }

    /// Replaces the buffer's contents by the bytes of the opened locations, in order, and records their ends if there
    /// are several.
    ///
    /// # Errors
    /// As [`read_opened`](Self::read_opened).
    fn read_all(
        &self,
        files: &dyn FileTable,
        opened: &mut Vec<Opened>,
        buffer: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) -> Result<(), StorageError> {
        buffer.clear();
        ends.clear();
        let is_split = opened.len() > 1;
        for opened in opened.drain(..) {
            self.read_held(files, opened, buffer)?;
            if is_split {
                ends.push(buffer.len());
            }
        }
        Ok(())
    }

    /// Replaces the buffer's contents by the bytes of one location, at most `limit_bytes`.
    ///
    /// # Errors
    /// As [`open_all`](Self::open_all) and [`read_opened`](Self::read_opened).
    fn read(
        &self,
        files: &dyn FileTable,
        location: Location,
        limit_bytes: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let mut opened = Vec::with_capacity(1);
        self.open_all(files, &[location], limit_bytes, &mut opened)?;
        self.read_all(files, &mut opened, buffer, &mut Vec::new())
    }
}

/// Whole files of unknown size that a sample holds open at once: for each a storage holds a descriptor, or a connection
/// with its buffers.
const MOST_HELD: usize = 4;

fn is_of_unknown_length(files: &dyn FileTable, location: &Location) -> bool {
    location.range == ByteRange::WHOLE && files.stamp(location.file).is_none()
}

/// Asks for the size of a whole file, which is opened when it is read.
fn defer(
    storage: &(impl Storage + ?Sized),
    files: &dyn FileTable,
    location: Location,
) -> Result<Opened, StorageError> {
    let bytes = storage.status(files, location.file)?.bytes;
    Ok(Opened::new(location, bytes, Handle::Deferred))
}

/// A storage's metrics and memory, with those of its layers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Properties<'a> {
    /// Metrics of its requests; `None`: it makes no requests, as a file system does not.
    pub requests: Option<&'a RequestMetrics>,
    /// The metrics of the cache in front of it; `None`: no cache.
    pub cache: Option<&'a CacheMetrics>,
    /// Maximal memory of a read besides the bytes that it reads: a connection's buffers.
    pub bytes_per_read: u64,
}

/// Identifies a storage's files for the lifetime of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheScope {
    /// The server and the folder, or the folder's path; contains no secret.
    pub name: String,
    /// Identifies files that have no tag in the index.
    pub untagged: Untagged,
}

/// Identifies files that have no tag in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untagged {
    /// Their status, which is requested at each read. A file whose status has no tag is not cached.
    Status,
    /// Their names: they never change.
    Name,
}
