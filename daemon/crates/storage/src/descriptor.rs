//! Descriptors of local files, open for one or many reads, and direct reads into a row.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use crate::location::{FileId, Location};

/// A file that is open for one read or for many.
#[derive(Debug)]
pub(super) enum Descriptor {
    Own(OwnedFd),
    Kept(Arc<KeptFile>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => descriptor.as_fd(),
            Self::Kept(file) => file.as_fd(),
        }
    }
}

/// A file that is open for one of its locations.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) descriptor: Descriptor,
    /// The file's size when it was opened.
    pub(super) file_bytes: u64,
}

/// A file that stays open.
#[derive(Debug)]
pub(super) struct KeptFile {
    pub(super) descriptor: OwnedFd,
    pub(super) file: FileId,
    /// Device and inode. The kernel does not reuse an inode's number while the file is open.
    pub(super) identity: (u64, u64),
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A file to be read directly into an array's memory.
#[derive(Debug)]
pub struct DirectFile {
    pub(super) descriptor: Descriptor,
    pub(super) location: Location,
}

impl DirectFile {
    /// Reads a location that consists of the bytes `before` and an array's elements, and writes the elements directly
    /// into `elements`. Never waits. False: not all of it is in the page cache, the file system cannot report whether
    /// it is, or the contents differ; `elements` is undefined then.
    #[must_use]
    pub fn read(&self, before: &[u8], elements: &mut [u8], scratch: &mut Vec<u8>) -> bool {
        let range = self.location.range;
        let expected = before.len() + elements.len();
        if range.length.is_some_and(|length| length != expected as u64) {
            return false;
        }
        scratch.resize(before.len() + 1, 0);
        let (found, probe) = scratch.split_at_mut(before.len());
        let probe = if range.length.is_none() { probe } else { &mut [] };
        let mut parts = [IoSliceMut::new(found), IoSliceMut::new(elements), IoSliceMut::new(probe)];
        let file = &self.descriptor;
        let mut got = rustix::io::preadv2(file, &mut parts, range.offset, ReadWriteFlags::NOWAIT);
        if got == Err(Errno::OPNOTSUPP) && lies_in_memory(file) {
            got = rustix::io::preadv(file, &mut parts, range.offset);
        }
        // This also excludes a device in the file's place: it does not return exactly these bytes and then its end.
        matches!(got, Ok(got) if got == expected)
            && scratch[..before.len()] == *before
            && (range.length.is_some() || self.ends_at(range.offset + expected as u64))
    }

    /// Whether the file ends where a read without waiting stopped. Such a read also stops at the end of the cached
    /// part, which is the end of a block; anywhere else it has found the file's end.
    fn ends_at(&self, end: u64) -> bool {
        if !end.is_multiple_of(SMALLEST_BLOCK_BYTES) {
            return true;
        }
        let mut byte = [0];
        let mut probe = [IoSliceMut::new(&mut byte)];
        let mut got =
            rustix::io::preadv2(&self.descriptor, &mut probe, end, ReadWriteFlags::NOWAIT);
        if got == Err(Errno::OPNOTSUPP) && lies_in_memory(&self.descriptor) {
            got = rustix::io::preadv(&self.descriptor, &mut probe, end);
        }
        got == Ok(0)
    }
}

/// The smallest unit in which a file system caches a file.
const SMALLEST_BLOCK_BYTES: u64 = 512;

/// Whether the file is stored in memory: no read of it waits, though the file system cannot report it.
pub(super) fn lies_in_memory(file: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(TMPFS_MAGIC))
}
