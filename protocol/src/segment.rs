//! Shared memory: created, allocated and sealed by the daemon, mapped by the client.
//!
//! A segment is an anonymous memfd: it has no name, so nothing remains when its last owner dies. It is allocated in
//! full before it is mapped and then sealed against growing and shrinking, so that access to it cannot fault. For
//! clients that cannot receive descriptors, [`named`] gives a segment a name instead, without seals. [`Mapping`] owns
//! one mapping of it and provides words and raw bytes; the slots and the rings decide which bytes are accessed when.

#![allow(unsafe_code)]

pub mod named;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

pub use crate::aligned_mapping::Access;
use crate::aligned_mapping::{AlignedMapping, HUGE_PAGE_BYTES};
use crate::huge_pages::{self, HugePages};
use crate::sync::AtomicU64;
use crate::words::Words;

/// A segment could not be created or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// There is not enough memory.
    #[error(
        "{bytes} bytes of shared memory for {what} were refused: {source}; lower `ring.slots`, `batch.size` or the memory of other processes"
    )]
    Allocate {
        /// The kind of segment.
        what: &'static str,
        /// The requested size.
        bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused a call.
    #[error("{call} failed for {what}: {source}{}", remedy(source))]
    Call {
        /// The kind of segment.
        what: &'static str,
        /// The system call.
        call: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The descriptor is not a segment of the agreed size.
    #[error(
        "the {what} segment is not sealed or has {found} bytes instead of {expected}; daemon and client differ in version"
    )]
    Unsound {
        /// The kind of segment.
        what: &'static str,
        /// The agreed size.
        expected: u64,
        /// The actual size.
        found: u64,
    },
}

fn call_failed(
    what: &'static str,
    call: &'static str,
    error: impl Into<io::Error>,
) -> SegmentError {
    SegmentError::Call { what, call, source: error.into() }
}

/// A descriptor's seals and its size.
fn seals_and_bytes(
    descriptor: BorrowedFd<'_>,
    what: &'static str,
) -> Result<(SealFlag, u64), SegmentError> {
    let seals = fcntl(descriptor, FcntlArg::F_GET_SEALS)
        .map_err(|error| call_failed(what, "F_GET_SEALS", error))?;
    let status =
        nix::sys::stat::fstat(descriptor).map_err(|error| call_failed(what, "fstat", error))?;
    Ok((SealFlag::from_bits_retain(seals), u64::try_from(status.st_size).unwrap_or(0)))
}

/// The remedy for a failed call.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(code) if code == Errno::EMFILE as i32 => "; raise the limit of open files (ulimit -n)",
        _ => "",
    }
}

#[derive(Debug)]
enum Owner {
    Memory(MmapRaw),
    Aligned(AlignedMapping, usize),
    Named(named::NamedMapping),
}

/// One mapping of a segment into this process. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    owner: Owner,
    access: Access,
}

impl Mapping {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.owner {
            Owner::Memory(map) => map.len(),
            Owner::Aligned(_, bytes) => *bytes,
            Owner::Named(map) => map.bytes(),
        }
    }

    /// The first byte. Page-aligned; valid for [`bytes`](Self::bytes) bytes during the mapping's life.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        match &self.owner {
            Owner::Memory(map) => map.as_mut_ptr(),
            Owner::Aligned(map, _) => map.base(),
            Owner::Named(map) => map.base(),
        }
    }

    /// The access rights of the mapping.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Excludes it from forked children (`MADV_DONTFORK`): an access there crashes the child, and the ring remains
    /// intact.
    pub fn exclude_from_fork(&self) -> io::Result<()> {
        match &self.owner {
            Owner::Memory(map) => map.advise(Advice::DontFork),
            Owner::Aligned(map, _) => map.exclude_from_fork(),
            Owner::Named(map) => map.exclude_from_fork(),
        }
    }
}

impl Words for Mapping {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count(), "word {index} of {}", self.count());
        // SAFETY: the word is inside the mapping, which is page-aligned and lives as long as `self`; all access to the
        // words of a ring, here and in the other process, is atomic. The side that has a read-only mapping only loads.
        unsafe { AtomicU64::from_ptr(self.base().cast::<u64>().add(index)) }
    }

    fn count(&self) -> usize {
        self.bytes() / 8
    }
}

/// A segment that this process created, and the descriptor with which others map it.
#[derive(Debug)]
pub struct Segment {
    descriptor: OwnedFd,
    what: &'static str,
    bytes: u64,
    huge_pages: HugePages,
    name: Option<named::Name>,
}

impl Segment {
    /// Creates and allocates a segment, in huge pages where available. `what` is `data`, `publish` or `return`.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn create(what: &'static str, bytes: u64) -> Result<Self, SegmentError> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let name = format!("forebay-{what}");
        // MFD_NOEXEC_SEAL exists since Linux 6.3; older kernels return EINVAL.
        let descriptor = memfd_create(name.as_str(), flags | MFdFlags::from_bits_retain(0x8))
            .or_else(|_| memfd_create(name.as_str(), flags))
            .map_err(|error| call_failed(what, "memfd_create", error))?;
        let huge_pages = huge_pages::allocate(descriptor.as_fd(), bytes);
        // In any case every byte gets its page here.
        allocate(&descriptor, what, bytes)?;
        Ok(Self { descriptor, what, bytes, huge_pages, name: None })
    }

    /// Creates and allocates a segment with a name, which lasts until the segment is dropped. It cannot be sealed.
    ///
    /// # Errors
    /// When there is not enough room in /dev/shm.
    pub fn create_named(what: &'static str, bytes: u64) -> Result<Self, SegmentError> {
        let (descriptor, name) =
            named::create(what, bytes).map_err(|error| call_failed(what, "shm_open", error))?;
        allocate(&descriptor, what, bytes)?;
        Ok(Self { descriptor, what, bytes, huge_pages: HugePages::default(), name: Some(name) })
    }

    /// A segment in a file, which keeps its bytes after all processes have ended. It is not sealed: only the file's
    /// owner may be able to shorten it.
    ///
    /// # Errors
    /// When there is not enough room in the file system.
    pub fn in_file(file: OwnedFd, what: &'static str, bytes: u64) -> Result<Self, SegmentError> {
        allocate(&file, what, bytes)?;
        Ok(Self { descriptor: file, what, bytes, huge_pages: HugePages::default(), name: None })
    }

    /// The name in /dev/shm, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(named::Name::as_str)
    }

    /// The part of it in huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> HugePages {
        self.huge_pages
    }

    /// Adopts the segment that a client has from a previous daemon. The client is not trusted: the kernel confirms that it
    /// is memory of exactly this size that cannot shrink, and pages that the client has punched out are allocated again,
    /// so access to it cannot fault.
    ///
    /// # Errors
    /// When it is anything else, or there is not enough memory.
    pub fn take_back(
        descriptor: OwnedFd,
        what: &'static str,
        bytes: u64,
    ) -> Result<Self, SegmentError> {
        let (seals, found) = seals_and_bytes(descriptor.as_fd(), what)?;
        let closed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let read_only = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE;
        // hugetlbfs is refused: where no huge page is free, access raises SIGBUS.
        let is_plain = nix::sys::statfs::fstatfs(&descriptor)
            .is_ok_and(|system| system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
        let sound = seals.contains(closed) && !seals.intersects(read_only) && is_plain;
        if !sound || found != bytes {
            return Err(SegmentError::Unsound { what, expected: bytes, found });
        }
        allocate(&descriptor, what, bytes)?;
        // Its huge pages are as the previous daemon allocated them, which cannot be queried.
        Ok(Self { descriptor, what, bytes, huge_pages: HugePages::default(), name: None })
    }

    /// Maps the segment into this process, for reading and writing.
    pub fn map(&self) -> Result<Mapping, SegmentError> {
        map(self.descriptor.as_fd(), self.what, self.bytes, Access::ReadWrite)
    }

    /// Seals the size; with `Access::ReadOnly` also against any later writable mapping. Has no effect on a named segment.
    pub fn seal(&self, peers: Access) -> Result<(), SegmentError> {
        if self.name.is_some() {
            return Ok(());
        }
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let seals = match peers {
            Access::ReadWrite => size,
            Access::ReadOnly => size | SealFlag::F_SEAL_FUTURE_WRITE,
        };
        fcntl(&self.descriptor, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL))
            .map(drop)
            .map_err(|error| call_failed(self.what, "F_ADD_SEALS", error))
    }

    /// The descriptor that is sent to the client.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Allocates every page.
fn allocate(descriptor: &OwnedFd, what: &'static str, bytes: u64) -> Result<(), SegmentError> {
    let length = i64::try_from(bytes).unwrap_or(i64::MAX);
    loop {
        match posix_fallocate(descriptor, 0, length) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => {
                return Err(SegmentError::Allocate { what, bytes, source: error.into() });
            }
        }
    }
}

/// Maps a segment that another process created and sealed.
///
/// # Errors
/// When it is not sealed against shrinking or not of the agreed size: access to it could fault later.
pub fn open_segment(
    descriptor: BorrowedFd<'_>,
    what: &'static str,
    bytes: u64,
    access: Access,
) -> Result<Mapping, SegmentError> {
    let (seals, found) = seals_and_bytes(descriptor, what)?;
    if !seals.contains(SealFlag::F_SEAL_SHRINK) || found != bytes {
        return Err(SegmentError::Unsound { what, expected: bytes, found });
    }
    map(descriptor, what, bytes, access)
}

fn map(
    descriptor: BorrowedFd<'_>,
    what: &'static str,
    bytes: u64,
    access: Access,
) -> Result<Mapping, SegmentError> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    if length >= HUGE_PAGE_BYTES {
        let map = AlignedMapping::new(descriptor, length, access)
            .map_err(|error| call_failed(what, "mmap", error))?;
        return Ok(Mapping { owner: Owner::Aligned(map, length), access });
    }
    let mut options = MmapOptions::new();
    options.len(length);
    let map = match access {
        Access::ReadWrite => options.map_raw(descriptor.as_raw_fd()),
        Access::ReadOnly => options.map_raw_read_only(descriptor.as_raw_fd()),
    };
    let map = map.map_err(|error| call_failed(what, "mmap", error))?;
    Ok(Mapping { owner: Owner::Memory(map), access })
}

/// Maps a named segment, for reading and writing.
///
/// # Errors
/// When no segment has that name, or it is not of the agreed size.
pub fn open_named_segment(
    name: &str,
    what: &'static str,
    bytes: u64,
) -> Result<Mapping, SegmentError> {
    let map = named::open(name).map_err(|error| call_failed(what, "shm_open", error))?;
    let found = map.bytes() as u64;
    if found != bytes {
        return Err(SegmentError::Unsound { what, expected: bytes, found });
    }
    Ok(Mapping { owner: Owner::Named(map), access: Access::ReadWrite })
}

/// A page that reads as zero in a forked child: detects a fork without a system call.
#[derive(Debug)]
pub struct ForkMark {
    page: Mapping,
}

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// The kernel refuses (`MADV_WIPEONFORK` exists since Linux 4.14).
    pub fn new() -> io::Result<Self> {
        let map = MmapRaw::from(memmap2::MmapMut::map_anon(4096)?);
        let base =
            std::ptr::NonNull::new(map.as_mut_ptr().cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: this mapping owns the page, which stays mapped as long as `map` lives; the advice affects forked
        // children only.
        unsafe {
            nix::sys::mman::madvise(base, 4096, nix::sys::mman::MmapAdvise::MADV_WIPEONFORK)?
        };
        let page = Mapping { owner: Owner::Memory(map), access: Access::ReadWrite };
        // Relaxed: a forked child starts with its parent's memory.
        page.word(0).store(1, crate::sync::Ordering::Relaxed);
        Ok(Self { page })
    }

    /// Whether this is the process that created the mark.
    #[must_use]
    pub fn is_own_process(&self) -> bool {
        // Relaxed: as above.
        self.page.word(0).load(crate::sync::Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests;
