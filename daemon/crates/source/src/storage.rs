//! Where bytes come from: the trait [`Storage`], and one file a kind of storage.
//!
//! A storage knows files by their paths and nothing of samples or formats. A new one is one file here that implements
//! the trait, a line in `registry`, and one line that runs `conformance` over it.

mod cache;
mod compressed;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod conformance;
mod descriptor;
pub mod error;
mod joined;
pub mod listing;
mod local;
#[cfg(any(test, feature = "testing"))]
mod objects;
mod opened;
mod outage;
mod packed;
mod patience;
mod registry;
mod remote;
mod retries;
#[cfg(any(test, feature = "testing"))]
mod stalling;
mod taker;

use std::path::PathBuf;

#[doc(hidden)]
pub use cache::cache_entry;
pub use cache::{CacheKeeper, CachedDataset, Verified};
pub(crate) use cache::{UnpackedFiles, UnpackedStorage};
pub(crate) use compressed::WithoutUnpacking;
pub use descriptor::DirectFile;
pub use error::{Absence, RemoteFailure, RetryClass, StorageError};
pub use joined::JoinedFiles;
pub use local::LocalFiles;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use objects::Objects;
pub use opened::{Handle, Opened};
pub use outage::{OutageSeen, Outages};
pub use packed::KEPT_BYTES as KEPT_PAGE_BYTES;
pub(crate) use packed::UnpackingStorage;
pub use patience::Patience;
pub(crate) use patience::PatientStorage;
pub use registry::{
    open, remote_files, resolve_keys, serve_credential_process, storage_table, with_cache,
};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use remote::testing as remote_testing;
pub use retries::{Retries, RetryTerms};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use stalling::{SlowFolder, StalledFile};
pub use taker::{Lent, Taker};

use crate::location::{FileId, FileTable, Location, Transform, Unit};
use forebay_observe::{CacheMetrics, RequestMetrics};
use listing::Directories;

/// Files below a root, listed and read. Shared by all threads.
///
/// Reading is by call: [`open`](Self::open) says how many bytes a location has, the engine waits until its byte budget
/// grants them, [`read_opened`](Self::read_opened) fetches them. Both may block for long; the engine watches them from
/// another thread and gives up one that outlasts `dataset.read_timeout`. Nothing is retried here.
pub trait Storage: Directories + Send + Sync + std::fmt::Debug {
    /// What messages call a path relative to the root.
    fn full_path(&self, relative: &[u8]) -> PathBuf;

    /// The size of a file, and what tells it from one that takes its place.
    ///
    /// # Errors
    /// The file has vanished, may not be read, or is no regular file.
    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError>;

    /// As [`status`](Self::status) of a file that may well be absent: `None` where it is, or cannot be read.
    ///
    /// # Errors
    /// The storage is away.
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

    /// Learns how many bytes a location is. A file of which parts are read may be kept open for the next one.
    ///
    /// # Errors
    /// As [`status`](Self::status), or the file ends before the range does.
    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError>;

    /// Appends an opened location's bytes to a buffer.
    ///
    /// # Errors
    /// Reading fails, or the file's length is no longer what it was. The buffer then holds nothing of use.
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError>;

    /// Opens a file of which it is known how long the location is and what it begins with, to be read directly into an
    /// array's place. `None`: this storage has no descriptors, or the file cannot be opened; reading it by call tells
    /// why.
    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        let _ = (files, location);
        None
    }

    /// Whether [`read_in_pieces`](Self::read_in_pieces) brings bytes without a buffer of its own between.
    fn reads_in_pieces(&self) -> bool {
        false
    }

    /// Gives an opened location's bytes to `taker`, a piece after another and together as many as it has, for as long as
    /// it wants them. False: it did not want all.
    ///
    /// # Errors
    /// As [`read_opened`](Self::read_opened); some pieces may have been taken.
    fn read_in_pieces(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        taker: &mut dyn Taker,
    ) -> Result<bool, StorageError> {
        let mut buffer = Vec::new();
        self.read_opened(files, opened, &mut buffer)?;
        Ok(buffer.is_empty() || taker.take(&buffer))
    }

    /// Hands a read to a storage that has hundreds in flight without a thread for each, as an object store has.
    ///
    /// The engine asks for the location's length first ([`open`](Self::open), which such a storage answers from the
    /// dataset's index), gets the bytes granted, then submits; `done` is called once, on any thread, and does no more
    /// than hand the row on. A read that is overdue is given up by ignoring its `done`. As many reads are submitted as
    /// the byte budget grants. The default gives the read back: this storage reads by call.
    ///
    /// # Errors
    /// The read, where it was not taken.
    fn submit(&self, read: SubmittedRead) -> Result<(), SubmittedRead> {
        Err(read)
    }

    /// What it was asked for; `None`: it answers no requests, as a file system does not.
    fn requests(&self) -> Option<&RequestMetrics> {
        None
    }

    /// How its files are told apart in a cache on disk; `None`: they are not kept in one.
    fn cache_scope(&self) -> Option<CacheScope> {
        None
    }

    /// The metrics of the cache in front of it; `None`: there is none.
    fn cache(&self) -> Option<&CacheMetrics> {
        None
    }

    /// Whether a file is given unpacked, which lies there compressed.
    fn unpacks(&self, path: &[u8]) -> bool {
        let _ = path;
        false
    }

    /// Whether a file can be read as it is; false: it would have to be unpacked first.
    fn is_at_hand(&self, path: &[u8]) -> bool {
        let _ = path;
        true
    }

    /// What a read under way holds at most beside its own bytes: a connection's buffers.
    fn bytes_per_read(&self) -> u64 {
        0
    }

    /// Opens every location of a sample; their bytes together.
    ///
    /// # Errors
    /// As [`open`](Self::open), and more than `limit_bytes` to read, beside pages that samples share.
    fn open_all(
        &self,
        files: &dyn FileTable,
        locations: &[Location],
        limit_bytes: u64,
        opened: &mut Vec<Opened>,
    ) -> Result<u64, StorageError> {
        opened.clear();
        let (mut length_bytes, mut limited_bytes) = (0_u64, 0_u64);
        for location in locations {
            let next = self.open(files, *location)?;
            length_bytes = length_bytes.saturating_add(next.length_bytes());
            // A page is as long as it is, however short a sample's value in it.
            if !matches!(location.unit, Unit::Block(Transform::Unpacked { .. })) {
                limited_bytes = limited_bytes.saturating_add(next.length_bytes());
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

    /// Replaces the buffer's contents by the bytes of what was opened, one location after the other, and notes where each
    /// ends if there are several.
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
            self.read_opened(files, opened, buffer)?;
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

/// A file as its storage sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Its size.
    pub bytes: u64,
    /// What tells it from a file that takes its place or from what it was before a change.
    pub identity: ObjectIdentity,
}

/// What changes when a file is replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectIdentity {
    /// A file of a file system.
    Inode {
        /// The file system.
        device: u64,
        /// The file in it.
        inode: u64,
        /// When its bytes last changed: seconds since 1970, and nanoseconds.
        modified: (i64, u32),
    },
    /// The ETag or version that an object store gives.
    Tag(String),
}

/// How a storage's files are told apart for as long as the cache lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheScope {
    /// The server and the folder, or the folder's path; no secret is in it.
    pub name: String,
    /// What tells those apart of which the index has no tag.
    pub untagged: Untagged,
}

/// What tells files from others of their names where the index does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untagged {
    /// Their status, which is asked at each read. One whose status has no tag is not kept.
    Status,
    /// Nothing: they never change under their names.
    Name,
}

/// A read for [`Storage::submit`].
pub struct SubmittedRead {
    /// What to read.
    pub location: Location,
    /// The file's path, relative to the root.
    pub path: Vec<u8>,
    /// Where the bytes go; empty, with room for them.
    pub buffer: Vec<u8>,
    /// Takes the buffer back, filled, or why it is not.
    pub done: Box<dyn FnOnce(Result<Vec<u8>, StorageError>) + Send>,
}
