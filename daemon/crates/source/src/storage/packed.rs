//! Values in compressed parts of files, such as pages of Parquet: in front of a storage, which knows files alone.
//!
//! A value of a page cannot be read alone. Its page is read and unpacked, on the thread that reads, and only the
//! value's bytes are passed on, to the caller and to a cache in front of this. A page that samples share is passed on
//! whole ([`Transform::Unpacked`](crate::location::Transform)). What a page takes meanwhile is counted beside
//! the reads ([`Storage::bytes_per_read`]); how much that is at most is known from the index.

use std::cell::RefCell;
use std::ops::Deref;
use std::path::PathBuf;

use forebay_observe::RequestMetrics;

use super::error::StorageError;
use super::listing::InFront;
use super::{CacheScope, FileStatus, Handle, Opened, Storage};
use crate::location::{FileId, FileTable, Location, Packed, Unit};

/// What a thread keeps of its page between two reads, of what it is and of what it unpacks to.
const KEPT_OF_EACH: usize = 2 << 20;
/// Of both.
pub const KEPT_BYTES: u64 = 2 * KEPT_OF_EACH as u64;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct UnpackingStorage<S> {
    behind: S,
    /// A page and what it unpacks to, at most.
    page_bytes: u64,
}

/// A page that is open, and the part of it that is wanted.
struct OpenedPage {
    page: Opened,
    location: Location,
    packed: Packed,
}

/// A page as it lies in its file, and unpacked.
#[derive(Default)]
struct Page {
    packed: Vec<u8>,
    unpacked: Vec<u8>,
}

thread_local! {
    static PAGE: RefCell<Page> = RefCell::default();
}

impl<S> UnpackingStorage<S>
where
    S: Deref<Target: Storage> + Send + Sync + std::fmt::Debug,
{
    pub(crate) fn new(behind: S, page_bytes: u64) -> Self {
        Self { behind, page_bytes }
    }

    fn damaged(&self, files: &dyn FileTable, location: Location) -> StorageError {
        let path = self.full_path(&files.path(location.file));
        StorageError::Damaged { path, offset: location.range.offset }
    }

    /// Appends a part of a page.
    fn read_part(
        &self,
        files: &dyn FileTable,
        opened: OpenedPage,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let OpenedPage { page, location, packed: part } = opened;
        PAGE.with_borrow_mut(|Page { packed, unpacked }| {
            packed.clear();
            self.behind.read_opened(files, page, packed)?;
            let (start, end) = (part.start as usize, part.start as usize + part.length as usize);
            let whole = part.unpacked_bytes as usize;
            if end - start == whole && buffer.is_empty() {
                let is_whole = part.codec.unpack(packed, (whole, whole), buffer);
                packed.shrink_to(KEPT_OF_EACH);
                return if is_whole { Ok(()) } else { Err(self.damaged(files, location)) };
            }
            let is_whole = part.codec.unpack(packed, (whole, end), unpacked);
            let found = unpacked.get(start..end).filter(|_| is_whole);
            let found = found.ok_or_else(|| self.damaged(files, location))?;
            buffer.extend_from_slice(found);
            packed.shrink_to(KEPT_OF_EACH);
            unpacked.shrink_to(KEPT_OF_EACH);
            Ok(())
        })
    }
}

impl<S> InFront for UnpackingStorage<S>
where
    S: Deref<Target: Storage> + Send + Sync + std::fmt::Debug,
{
    type Behind = S::Target;

    fn behind(&self) -> &Self::Behind {
        &self.behind
    }
}

impl<S> Storage for UnpackingStorage<S>
where
    S: Deref<Target: Storage> + Send + Sync + std::fmt::Debug,
{
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.behind.full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.behind.status(files, file)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let Some(packed) = location.packed() else { return self.behind.open(files, location) };
        let page = self.behind.open(files, Location { unit: Unit::Sample, ..location })?;
        let opened = OpenedPage { page, location, packed };
        Ok(Opened::new(packed.length.into(), Handle::Other(Box::new(opened))))
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        match opened.try_into_other::<OpenedPage>() {
            Ok(page) => self.read_part(files, *page, buffer),
            Err(opened) => self.behind.read_opened(files, opened, buffer),
        }
    }

    fn requests(&self) -> Option<&RequestMetrics> {
        self.behind.requests()
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        self.behind.cache_scope()
    }

    fn bytes_per_read(&self) -> u64 {
        self.behind.bytes_per_read().saturating_add(self.page_bytes)
    }
}
