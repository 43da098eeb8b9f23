//! Descriptors of local files, open for one read or kept open for many, and reading one directly into a row.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use crate::location::{FileId, Location};

/// A file that is open for one read, or kept open for many.
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

/// A file that stays open.
#[derive(Debug)]
pub(super) struct KeptFile {
    pub(super) descriptor: OwnedFd,
    pub(super) file: FileId,
    /// Device and inode. The kernel gives an inode's number to no other file as long as it is open.
    pub(super) identity: (u64, u64),
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A file to be read directly into an array's place.
#[derive(Debug)]
pub struct DirectFile {
    pub(super) descriptor: Descriptor,
    pub(super) location: Location,
}

impl DirectFile {
    /// Reads a location that begins with `before` and ends with an array's elements, those directly into `elements`,
    /// where the kernel has all of it in its memory: never waits. False: it has not, its file system cannot say so, or
    /// the file is not so; `elements` then holds nothing of use.
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
        // A device gives anything, but not these bytes and then its end.
        matches!(got, Ok(got) if got == expected)
            && scratch[..before.len()] == *before
            && (range.length.is_some() || self.ends_at(range.offset + expected as u64))
    }

    /// Whether the file ends where a read without waiting stopped. Such a read stops at the end of what the kernel has in
    /// its memory, too, which is the end of a block: elsewhere it has proven the file's end.
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

/// The smallest unit in which a file system brings a file into the kernel's memory.
const SMALLEST_BLOCK_BYTES: u64 = 512;

/// Whether a file's bytes are the kernel's memory: no read of it waits for anything, though the file system cannot say so.
pub(super) fn lies_in_memory(file: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(TMPFS_MAGIC))
}
