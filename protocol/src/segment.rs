//! Shared memory: made, allocated and sealed by the daemon, mapped by the client.
//!
//! A segment is an anonymous memfd: it has no name, so nothing is left behind when its last owner dies. It is allocated
//! in full before anyone maps it and then sealed against growing and shrinking, so that touching it cannot fault.
//! [`Mapping`] owns one mapping of it and gives words and raw bytes; who may touch which bytes when is the business of
//! [`crate::slots`] and the rings.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::huge_pages::{self, AlignedMapping, HUGE_PAGE_BYTES, HugePages};
use crate::sync::AtomicU64;
use crate::words::Words;

/// Why a segment could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The machine does not grant the memory.
    #[error(
        "{bytes} bytes of shared memory for {what} were refused: {source}; lower `ring.slots`, `batch.size` or the memory of other processes"
    )]
    Allocate {
        /// The segment's part.
        what: &'static str,
        /// What was asked for.
        bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused a call.
    #[error("{call} failed for {what}: {source}{}", remedy(source))]
    Call {
        /// The segment's part.
        what: &'static str,
        /// The system call.
        call: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The descriptor is not a segment of the size agreed.
    #[error(
        "the {what} segment is not sealed or has {found} bytes instead of {expected}; daemon and client differ in version"
    )]
    Unsound {
        /// The segment's part.
        what: &'static str,
        /// What was agreed.
        expected: u64,
        /// What was found.
        found: u64,
    },
}

/// What may be done about it.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(code) if code == Errno::EMFILE as i32 => "; raise the limit of open files (ulimit -n)",
        _ => "",
    }
}

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

#[derive(Debug)]
enum Owner {
    Memory(MmapRaw),
    Aligned(AlignedMapping, usize),
    #[cfg(feature = "named-shm")]
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
            #[cfg(feature = "named-shm")]
            Owner::Named(map) => map.bytes(),
        }
    }

    /// The first byte. Page-aligned; valid for [`bytes`](Self::bytes) bytes as long as the mapping lives.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        match &self.owner {
            Owner::Memory(map) => map.as_mut_ptr(),
            Owner::Aligned(map, _) => map.base(),
            #[cfg(feature = "named-shm")]
            Owner::Named(map) => map.base(),
        }
    }

    /// What the mapping may be used for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Leaves the mapping out of forked children: a touch there ends the child, not the ring.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn keep_from_children(&self) -> io::Result<()> {
        match &self.owner {
            Owner::Memory(map) => map.advise(Advice::DontFork),
            Owner::Aligned(map, _) => map.keep_from_children(),
            #[cfg(feature = "named-shm")]
            Owner::Named(_) => Ok(()),
        }
    }
}

impl Words for Mapping {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count(), "word {index} of {}", self.count());
        // SAFETY: the word lies inside the mapping, which is page-aligned and lives as long as `self`; all access to the
        // words of a ring, here and in the other process, is atomic. A read-only mapping is only loaded from, by its role.
        unsafe { AtomicU64::from_ptr(self.base().cast::<u64>().add(index)) }
    }

    fn count(&self) -> usize {
        self.bytes() / 8
    }
}

/// A segment that this process made and the descriptor that lets others map it.
#[derive(Debug)]
pub struct Segment {
    descriptor: OwnedFd,
    what: &'static str,
    bytes: u64,
    huge_pages: HugePages,
}

impl Segment {
    /// Makes and allocates a segment, in huge pages where they can be had. `what` is `data`, `publish` or `return`.
    ///
    /// # Errors
    /// When the machine does not grant the memory.
    pub fn create(what: &'static str, bytes: u64) -> Result<Self, SegmentError> {
        let call_failed =
            |call, error: Errno| SegmentError::Call { what, call, source: error.into() };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let name = format!("forebay-{what}");
        // MFD_NOEXEC_SEAL is Linux 6.3's; older kernels say EINVAL.
        let descriptor = memfd_create(name.as_str(), flags | MFdFlags::from_bits_retain(0x8))
            .or_else(|_| memfd_create(name.as_str(), flags))
            .map_err(|error| call_failed("memfd_create", error))?;
        let huge_pages = huge_pages::allocate(descriptor.as_fd(), bytes);
        // Whatever came of that: from here on every byte has its page.
        allocate(&descriptor, what, bytes)?;
        Ok(Self { descriptor, what, bytes, huge_pages })
    }

    /// What came of asking for huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> HugePages {
        self.huge_pages
    }

    /// Takes a segment back that a client kept from a daemon before. The client is not believed: the kernel says that it
    /// is memory of exactly this size which nobody can shrink, and every page that the client gave up is allocated again,
    /// so touching it cannot fault.
    ///
    /// # Errors
    /// When it is anything else, or the machine does not grant the pages.
    pub fn take_back(
        descriptor: OwnedFd,
        what: &'static str,
        bytes: u64,
    ) -> Result<Self, SegmentError> {
        let call_failed =
            |call, error: Errno| SegmentError::Call { what, call, source: error.into() };
        let seals = fcntl(&descriptor, FcntlArg::F_GET_SEALS)
            .map_err(|error| call_failed("F_GET_SEALS", error))?;
        let seals = SealFlag::from_bits_retain(seals);
        let closed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let read_only = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE;
        // Huge pages are not this: where none is free, touching them raises SIGBUS.
        let is_plain = nix::sys::statfs::fstatfs(&descriptor)
            .is_ok_and(|system| system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
        let status =
            nix::sys::stat::fstat(&descriptor).map_err(|error| call_failed("fstat", error))?;
        let found = u64::try_from(status.st_size).unwrap_or(0);
        let sound = seals.contains(closed) && !seals.intersects(read_only) && is_plain;
        if !sound || found != bytes {
            return Err(SegmentError::Unsound { what, expected: bytes, found });
        }
        allocate(&descriptor, what, bytes)?;
        // They are as the daemon before asked for them; nobody can tell from here.
        Ok(Self { descriptor, what, bytes, huge_pages: HugePages::default() })
    }

    /// Maps the segment for this process, for reading and writing.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn map(&self) -> Result<Mapping, SegmentError> {
        map(self.descriptor.as_fd(), self.what, self.bytes, Access::ReadWrite)
    }

    /// Seals the size for ever; with `Access::ReadOnly` also against any writable mapping made from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn seal(&self, peers: Access) -> Result<(), SegmentError> {
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let seals = match peers {
            Access::ReadWrite => size,
            Access::ReadOnly => size | SealFlag::F_SEAL_FUTURE_WRITE,
        };
        fcntl(&self.descriptor, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL))
            .map(drop)
            .map_err(|error| SegmentError::Call {
                what: self.what,
                call: "F_ADD_SEALS",
                source: error.into(),
            })
    }

    /// What is sent to the client.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Gives every byte its page.
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

/// Maps a segment that another process made and sealed.
///
/// # Errors
/// When it is not sealed against shrinking or not of the size agreed: mapping it could fault later.
pub fn open_segment(
    descriptor: BorrowedFd<'_>,
    what: &'static str,
    bytes: u64,
    access: Access,
) -> Result<Mapping, SegmentError> {
    let call_failed = |call, error: Errno| SegmentError::Call { what, call, source: error.into() };
    let seals = fcntl(descriptor, FcntlArg::F_GET_SEALS)
        .map_err(|error| call_failed("F_GET_SEALS", error))?;
    let sealed = SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK);
    let status = nix::sys::stat::fstat(descriptor).map_err(|error| call_failed("fstat", error))?;
    let found = u64::try_from(status.st_size).unwrap_or(0);
    if !sealed || found != bytes {
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
    let call_failed = |call, source: io::Error| SegmentError::Call { what, call, source };
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    if length >= HUGE_PAGE_BYTES {
        let map = AlignedMapping::new(descriptor, length, access)
            .map_err(|error| call_failed("mmap", error))?;
        return Ok(Mapping { owner: Owner::Aligned(map, length), access });
    }
    let file = File::from(
        descriptor.try_clone_to_owned().map_err(|error| call_failed("F_DUPFD_CLOEXEC", error))?,
    );
    let mut options = MmapOptions::new();
    options.len(length);
    let map = match access {
        Access::ReadWrite => options.map_raw(&file),
        Access::ReadOnly => options.map_raw_read_only(&file),
    };
    let map = map.map_err(|error| call_failed("mmap", error))?;
    Ok(Mapping { owner: Owner::Memory(map), access })
}

/// A page that reads as zero in a forked child: it tells a fork without a system call.
#[derive(Debug)]
pub struct ForkMark {
    page: Mapping,
}

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// When the kernel refuses (`MADV_WIPEONFORK` is Linux 4.14's).
    pub fn new() -> io::Result<Self> {
        let map = MmapRaw::from(memmap2::MmapMut::map_anon(4096)?);
        let base =
            std::ptr::NonNull::new(map.as_mut_ptr().cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the page is this mapping's own and stays mapped as long as `map` lives; the advice changes only what a
        // forked child finds in it.
        unsafe {
            nix::sys::mman::madvise(base, 4096, nix::sys::mman::MmapAdvise::MADV_WIPEONFORK)?
        };
        let page = Mapping { owner: Owner::Memory(map), access: Access::ReadWrite };
        // Relaxed: a forked child starts from its parent's memory.
        page.word(0).store(1, crate::sync::Ordering::Relaxed);
        Ok(Self { page })
    }

    /// Whether this is the process that made the mark.
    #[must_use]
    pub fn is_own_process(&self) -> bool {
        // Relaxed: as above.
        self.page.word(0).load(crate::sync::Ordering::Relaxed) == 1
    }
}

#[cfg(feature = "named-shm")]
pub mod named {
    //! Segments with a name in /dev/shm, for a client that cannot receive descriptors.
    //!
    //! What it gives up: there are no seals, so a client can shrink the segment under the daemon's feet; the name stays
    //! behind when every owner is killed; and whoever has the user's id can map it for writing.

    use shared_memory::{Shmem, ShmemConf};

    use super::{Access, Mapping, Owner, SegmentError};

    /// A mapping by name. The process that made the segment unlinks the name when it drops it.
    pub(super) struct NamedMapping {
        memory: Shmem,
    }

    // SAFETY: `Shmem` is a pointer, a length, a descriptor and a name; unmapping and unlinking work from any thread. All
    // access to the memory goes through `Mapping`, which hands out atomics and raw pointers only.
    unsafe impl Send for NamedMapping {}
    // SAFETY: as above; no method of `NamedMapping` changes it.
    unsafe impl Sync for NamedMapping {}

    impl std::fmt::Debug for NamedMapping {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(formatter, "NamedMapping({})", self.memory.get_os_id())
        }
    }

    impl NamedMapping {
        pub(super) fn bytes(&self) -> usize {
            self.memory.len()
        }

        pub(super) fn base(&self) -> *mut u8 {
            self.memory.as_ptr()
        }
    }

    /// Makes a segment under a fresh random name and gives the name.
    ///
    /// # Errors
    /// When /dev/shm has no room (checked by touching every page) or the kernel refuses.
    pub fn create(what: &'static str, bytes: u64) -> Result<(Mapping, String), SegmentError> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let free = nix::sys::statvfs::statvfs("/dev/shm")
            .map(|status| status.blocks_available() * status.fragment_size())
            .unwrap_or(u64::MAX);
        if free < bytes {
            let source = std::io::Error::from(nix::errno::Errno::ENOSPC);
            return Err(SegmentError::Allocate { what, bytes, source });
        }
        let memory = ShmemConf::new().size(length).create().map_err(|error| failed(what, error))?;
        let name = memory.get_os_id().to_owned();
        let mapping =
            Mapping { owner: Owner::Named(NamedMapping { memory }), access: Access::ReadWrite };
        Ok((mapping, name))
    }

    /// Maps a segment by name.
    ///
    /// # Errors
    /// When there is none of that name, or its size is not the one agreed.
    pub fn open(name: &str, what: &'static str, bytes: u64) -> Result<Mapping, SegmentError> {
        let memory = ShmemConf::new().os_id(name).open().map_err(|error| failed(what, error))?;
        let found = memory.len() as u64;
        if found < bytes {
            return Err(SegmentError::Unsound { what, expected: bytes, found });
        }
        Ok(Mapping { owner: Owner::Named(NamedMapping { memory }), access: Access::ReadWrite })
    }

    fn failed(what: &'static str, error: shared_memory::ShmemError) -> SegmentError {
        SegmentError::Call {
            what,
            call: "shm_open",
            source: std::io::Error::other(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::ftruncate;

    use super::*;
    use crate::sync::Ordering;

    const BYTES: u64 = 64 * 4096;

    fn sealed() -> Segment {
        let segment = Segment::create("data", BYTES).unwrap();
        segment.seal(Access::ReadWrite).unwrap();
        segment
    }

    fn copy(segment: &Segment) -> OwnedFd {
        segment.descriptor().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_segment_that_comes_back_holds_its_bytes_and_every_page() {
        let segment = sealed();
        segment.map().unwrap().word(9).store(7, Ordering::Relaxed);
        let client = copy(&segment);
        let flags = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
            | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
        nix::fcntl::fallocate(&client, flags, 4096, 8 * 4096).unwrap();
        let blocks = || nix::sys::stat::fstat(&client).unwrap().st_blocks;
        let all = 64 * 4096 / 512;
        assert!(blocks() < all);
        let taken = Segment::take_back(copy(&segment), "data", BYTES).unwrap();
        assert_eq!(blocks(), all);
        assert_eq!(taken.map().unwrap().word(9).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn what_is_no_segment_of_a_daemon_is_not_taken_back() {
        let refused = |descriptor: OwnedFd, bytes: u64| {
            let taken = Segment::take_back(descriptor, "data", bytes);
            assert!(taken.is_err(), "{taken:?}");
        };
        refused(copy(&sealed()), BYTES * 2);
        refused(copy(&sealed()), BYTES / 2);
        // Not sealed: it could be cut short under the daemon's feet.
        refused(copy(&Segment::create("data", BYTES).unwrap()), BYTES);
        // Nobody may write it.
        let read_only = Segment::create("publish", BYTES).unwrap();
        read_only.seal(Access::ReadOnly).unwrap();
        refused(copy(&read_only), BYTES);
        // A file, a socket.
        let file = tempfile::tempfile().unwrap();
        ftruncate(&file, i64::try_from(BYTES).unwrap()).unwrap();
        refused(file.into(), BYTES);
        if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
            ftruncate(&file, i64::try_from(BYTES).unwrap()).unwrap();
            refused(file.into(), BYTES);
        }
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        refused(socket.into(), BYTES);
        // Huge pages, where the kernel makes such memory at all.
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
        if let Ok(huge) = memfd_create("huge", flags)
            && ftruncate(&huge, 2 << 20).is_ok()
        {
            let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
            fcntl(&huge, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            refused(huge, 2 << 20);
        }
    }
}
