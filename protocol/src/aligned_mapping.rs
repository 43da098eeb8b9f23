//! Shared mappings that begin at a multiple of a huge page's size, so that the kernel can map them with huge pages.
//!
//! A mapping is placed inside a larger reservation of address space; the rest of the reservation is unmapped at once.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

/// The size of a huge page on x86-64, and on aarch64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// `MADV_COLLAPSE`, which older C library headers do not define.
const COLLAPSE: i32 = 25;

/// The access rights of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping that begins at a multiple of a huge page's size. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct AlignedMapping {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access to its bytes is the user's responsibility.
unsafe impl Send for AlignedMapping {}
// SAFETY: as above.
unsafe impl Sync for AlignedMapping {}

impl AlignedMapping {
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize, access: Access) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(page_bytes()).ok_or_else(too_large)?;
        let reserved = bytes.checked_add(HUGE_PAGE_BYTES).and_then(NonZeroUsize::new);
        let (reserved, length) = reserved.zip(NonZeroUsize::new(bytes)).ok_or_else(too_large)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(None, reserved, ProtFlags::PROT_NONE, flags) }?;
        let head = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let tail = HUGE_PAGE_BYTES - head;
        let prot = match access {
            Access::ReadOnly => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: `head` is at most a huge page's size, by which the reservation is longer than `bytes`.
        let base = unsafe { start.byte_add(head) };
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: the address range is inside the reservation made above, which nothing else uses.
        let mapped = unsafe { mmap(Some(base.addr()), length, prot, flags, file, 0) };
        let unmap = |start: NonNull<c_void>, bytes: usize| {
            if bytes > 0 {
                // SAFETY: a part of the reservation that nothing uses.
                let _ = unsafe { munmap(start, bytes) };
            }
        };
        match mapped {
            Ok(_) => {
                unmap(start, head);
                // SAFETY: the mapping's end is `tail` bytes before the reservation's.
                unmap(unsafe { base.byte_add(bytes) }, tail);
                Ok(Self { base, bytes })
            }
            Err(error) => {
                unmap(start, reserved.get());
                Err(error.into())
            }
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    pub(crate) fn exclude_from_fork(&self) -> io::Result<()> {
        // SAFETY: this value owns the mapping; the advice affects forked children only.
        Ok(unsafe { madvise(self.base, self.bytes, MmapAdvise::MADV_DONTFORK) }?)
    }

    /// Collapses one block into a huge page (`MADV_COLLAPSE`).
    pub(crate) fn collapse(&self, block: usize) -> Result<(), Errno> {
        // SAFETY: the block is inside the mapping; its content does not change.
        let status = unsafe {
            let start = self.base.byte_add(block * HUGE_PAGE_BYTES);
            nix::libc::madvise(start.as_ptr(), HUGE_PAGE_BYTES, COLLAPSE)
        };
        Errno::result(status).map(drop)
    }
}

impl Drop for AlignedMapping {
    fn drop(&mut self) {
        // SAFETY: created in `new`; every user of its bytes borrows from this value.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

fn page_bytes() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn dropped_mapping_and_its_reservation_are_unmapped() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * HUGE_PAGE_BYTES as u64).unwrap();
        let count = || std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages = |text: String| text.split(' ').next().unwrap().parse::<u64>().unwrap();
        let before = pages(count());
        for _ in 0..10_000 {
            drop(AlignedMapping::new(file.as_fd(), 3 * HUGE_PAGE_BYTES, Access::ReadOnly).unwrap());
        }
        // If the rests of the reservations stayed mapped, they would be 20 GB. Other tests run at the same time, and
        // each of their threads reserves 128 MB.
        assert!(pages(count()) < before + 5_000 * 512);
    }
}
