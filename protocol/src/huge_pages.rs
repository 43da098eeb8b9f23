//! Huge pages for a segment: requested from the kernel during allocation, best effort. What the kernel refuses is
//! allocated in small pages.
//!
//! On most machines shared memory gets no huge pages by default (`shmem_enabled` is `never`), but since Linux 6.1 a
//! process can collapse a block of its memory into one (`MADV_COLLAPSE`). The page tables have a single entry for it
//! only if address and file offset have the same alignment, so the mappings are aligned ([`crate::aligned_mapping`]).

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::aligned_mapping::{Access, AlignedMapping, HUGE_PAGE_BYTES};

/// The kernel may have to compact memory first; this bounds the delay of the segment's creation.
const MAX_DURATION: Duration = Duration::from_millis(100);
const MAX_REFUSALS: u32 = 8;

/// The part of a segment in huge pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HugePages {
    /// The number of bytes in huge pages.
    pub bytes: u64,
    /// The number of bytes that could be: whole blocks of a huge page's size.
    pub possible_bytes: u64,
    /// The reason if not all of them are.
    pub refusal: Option<Refusal>,
}

impl HugePages {
    /// The sum of two segments.
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
    /// The kernel does not support it, or it is disabled.
    Unsupported,
    /// No contiguous memory is free, or compaction took too long.
    NoneFree,
}

/// Allocates as much of an empty segment as possible in huge pages; the caller allocates the rest.
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
        // An empty block cannot be collapsed.
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
        if refusals > MAX_REFUSALS || begin.elapsed() > MAX_DURATION {
            if made.bytes < made.possible_bytes {
                made.refusal = Some(Refusal::NoneFree);
            }
            break;
        }
    }
    made
}
