//! Values in compressed parts of files, such as pages of Parquet: a wrapper for a storage, which only knows files.
//!
//! A single value of a page cannot be read separately. Its page is read and unpacked on the reading thread, and only
//! the value's bytes are passed on, to the caller and to a cache in front of this. A page that samples share is passed
//! on whole ([`Transform::Unpacked`](crate::location::Transform)). The memory for pages is counted in addition to the
//! reads ([`Properties::bytes_per_read`]); its maximum is known from the index.

use std::cell::RefCell;

use super::error::StorageError;
use super::{Layer, Opened, Properties, Storage, StoragePointer};
use crate::location::{ByteRange, FileTable, Location, Packed, Unit};

/// Maximal size of each of the two buffers that a thread keeps between reads: for compressed and for unpacked bytes.
const KEPT_OF_EACH: usize = 2 << 20;
/// Maximal size of both buffers.
pub const KEPT_BYTES: u64 = 2 * KEPT_OF_EACH as u64;

/// See the module's head.
#[derive(Debug)]
pub struct UnpackingStorage<S> {
    inner: S,
    /// Maximal size of a page and its unpacked bytes.
    page_bytes: u64,
}

/// A thread's cache of the last page: its compressed and its uncompressed bytes.
#[derive(Default)]
struct Page {
    packed: Vec<u8>,
    unpacked: Vec<u8>,
}

thread_local! {
    static PAGE: RefCell<Page> = RefCell::default();
}

impl<S: StoragePointer> UnpackingStorage<S> {
    /// Unpacks what `inner` reads; pages have at most `page_bytes`.
    pub fn new(inner: S, page_bytes: u64) -> Self {
        Self { inner, page_bytes }
    }

    fn damaged(&self, files: &dyn FileTable, location: Location) -> StorageError {
        let path = self.full_path(&files.path(location.file));
        StorageError::Damaged { path, offset: location.range.offset }
    }

    /// Appends a part of a page.
    fn read_part(
        &self,
        files: &dyn FileTable,
        part: Packed,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let location = Location { unit: Unit::Sample, ..opened.location };
        let length_bytes = location.range.length.unwrap_or(opened.length_bytes);
        let page = Opened { location, length_bytes, ..opened };
        PAGE.with_borrow_mut(|Page { packed, unpacked }| {
            packed.clear();
            self.inner.read_opened(files, page, packed)?;
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

impl<S: StoragePointer> Layer for UnpackingStorage<S> {
    type Inner = S::Target;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let Some(part) = location.packed() else { return self.inner.open(files, location) };
        let page = self.inner.open(files, Location { unit: Unit::Sample, ..location })?;
        let range = ByteRange { length: Some(page.length_bytes), ..location.range };
        let location = Location { range, ..location };
        Ok(Opened { location, length_bytes: part.length.into(), ..page })
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        match opened.location.packed() {
            Some(part) => self.read_part(files, part, opened, buffer),
            None => self.inner.read_opened(files, opened, buffer),
        }
    }

    fn properties(&self) -> Properties<'_> {
        let inner = self.inner.properties();
        let bytes_per_read = inner.bytes_per_read.saturating_add(self.page_bytes);
        Properties { bytes_per_read, ..inner }
    }
}
