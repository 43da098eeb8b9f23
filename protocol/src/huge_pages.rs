//! Huge pages for a segment: asked of the kernel while the segment is allocated, and mappings whose addresses let it use
//! them. A wish: whatever is refused is given in small pages.
//!
//! Shared memory gets none by itself on most machines (`shmem_enabled` is `never`), but since Linux 6.1 a process may ask
//! for a block of its own to be put into one (`MADV_COLLAPSE`). The page tables of a process show it as one entry only
//! where address and offset agree, so mappings begin at a multiple of its size.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::segment::Access;

/// The size of a huge page: that of x86-64, and of aarch64 with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// `MADV_COLLAPSE`, which the C library of some systems does not name yet.
const COLLAPSE: i32 = 25;
/// The kernel may have to move other memory away first. Whoever waits for the segment waits no longer than this.
const LONGEST: Duration = Duration::from_millis(100);
const MOST_REFUSALS: u32 = 8;

/// What came of asking for huge pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HugePages {
    /// Bytes that lie in huge pages.
    pub bytes: u64,
    /// Bytes that could: the whole blocks of their size.
    pub possible_bytes: u64,
    /// Why not all of them do.
    pub refusal: Option<Refusal>,
}

impl HugePages {
    /// Of two segments together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            possible_bytes: self.possible_bytes + other.possible_bytes,
            refusal: self.refusal.or(other.refusal),
        }
    }
}

/// Why memory is not in huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This kernel cannot, or is told not to.
    Unsupported,
    /// No memory hangs together that far, or it took too long to make some.
    NoneFree,
}

/// A shared mapping that begins at a multiple of a huge page's size. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct AlignedMapping {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a mapping is memory of the process, not of a thread; what is done with its bytes is its user's business.
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
        // SAFETY: new memory at a place that the kernel chooses.
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
        // SAFETY: the place is inside the reservation made above, which nobody else knows of.
        let mapped = unsafe { mmap(Some(base.addr()), length, prot, flags, file, 0) };
        let unmap = |start: NonNull<c_void>, bytes: usize| {
            if bytes > 0 {
                // SAFETY: a part of the reservation in which nothing is mapped that anybody uses.
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

    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: this mapping; the advice changes what forked children have, not what this process has.
        Ok(unsafe { madvise(self.base, self.bytes, MmapAdvise::MADV_DONTFORK) }?)
    }

    /// Puts one block into a huge page.
    fn collapse(&self, block: usize) -> Result<(), Errno> {
        // SAFETY: the block is inside the mapping; its content stays as it is.
        let status = unsafe {
            let start = self.base.byte_add(block * HUGE_PAGE_BYTES);
            nix::libc::madvise(start.as_ptr(), HUGE_PAGE_BYTES, COLLAPSE)
        };
        Errno::result(status).map(drop)
    }
}

impl Drop for AlignedMapping {
    fn drop(&mut self) {
        // SAFETY: made in `new`; whoever has its bytes has borrowed from this.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

fn page_bytes() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

/// Allocates what it can of an empty segment in huge pages; the rest is left to the caller.
pub(crate) fn allocate(segment: BorrowedFd<'_>, bytes: u64) -> HugePages {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    let blocks = bytes / HUGE_PAGE_BYTES;
    let whole = |blocks: usize| (blocks * HUGE_PAGE_BYTES) as u64;
    let mut made = HugePages { possible_bytes: whole(blocks), ..HugePages::default() };
    if blocks == 0 {
        return made;
    }
    let Ok(mapping) = AlignedMapping::new(segment, bytes, Access::ReadWrite) else {
        made.refusal = Some(Refusal::NoneFree);
        return made;
    };
    let (begin, mut refusals) = (Instant::now(), 0);
    for block in 0..blocks {
        // A block with nothing in it is refused.
        let offset = i64::try_from(block * HUGE_PAGE_BYTES).unwrap_or(i64::MAX);
        let page = fallocate(segment, FallocateFlags::empty(), offset, 1);
        match page.and_then(|()| mapping.collapse(block)) {
            Ok(()) => made.bytes += whole(1),
            Err(Errno::EINVAL | Errno::EPERM | Errno::ENOSYS) => {
                made.refusal = Some(Refusal::Unsupported);
                break;
            }
            Err(_) => {
                made.refusal = Some(Refusal::NoneFree);
                refusals += 1;
            }
        }
        if refusals > MOST_REFUSALS || begin.elapsed() > LONGEST {
            if made.bytes < made.possible_bytes {
                made.refusal = Some(Refusal::NoneFree);
            }
            break;
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Segment, open_segment};
    use crate::sync::Ordering;
    use crate::words::Words;

    /// Bytes that this process sees through one entry of its page tables each, at a place.
    fn seen_huge(place: *mut u8) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", place.addr());
        let of_mapping = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = of_mapping.into_iter().find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    #[test]
    fn a_segment_lies_in_huge_pages_as_far_as_it_says_for_both_sides() {
        let bytes = (2 * HUGE_PAGE_BYTES + 3 * 4096) as u64;
        let segment = Segment::create("data", bytes).unwrap();
        segment.seal(Access::ReadWrite).unwrap();
        let made = segment.huge_pages();
        assert_eq!(made.possible_bytes, 2 * HUGE_PAGE_BYTES as u64);
        assert_eq!(made.bytes == made.possible_bytes, made.refusal.is_none(), "{made:?}");
        let own = segment.map().unwrap();
        let client = open_segment(segment.descriptor(), "data", bytes, Access::ReadWrite).unwrap();
        for mapping in [&own, &client] {
            assert_eq!(mapping.base().addr() % HUGE_PAGE_BYTES, 0);
            assert_eq!(mapping.bytes() as u64, bytes);
        }
        for word in (0..own.count()).step_by(512) {
            own.word(word).store(word as u64 + 1, Ordering::Relaxed);
        }
        for word in (0..client.count()).step_by(512) {
            assert_eq!(client.word(word).load(Ordering::Relaxed), word as u64 + 1);
        }
        for mapping in [&own, &client] {
            assert_eq!(seen_huge(mapping.base()), made.bytes, "{made:?}");
        }
    }

    #[test]
    fn a_dropped_mapping_and_its_reservation_are_gone() {
        let segment = Segment::create("data", 3 * HUGE_PAGE_BYTES as u64).unwrap();
        let count = || std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages = |text: String| text.split(' ').next().unwrap().parse::<u64>().unwrap();
        let before = pages(count());
        for _ in 0..100 {
            drop(
                AlignedMapping::new(segment.descriptor(), 3 * HUGE_PAGE_BYTES, Access::ReadOnly)
                    .unwrap(),
            );
        }
        // Other tests run beside this one: far less than a hundred reservations of 2 MiB.
        assert!(pages(count()) < before + 20 * 512);
    }
}
