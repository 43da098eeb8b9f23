//! Segments with a name in /dev/shm, for clients that cannot receive descriptors.
//!
//! Without seals a client can shrink the segment while the daemon uses it, which kills the daemon with SIGBUS, and
//! write to parts that it may only read; every process of the user can open it. The client removes the name as soon as
//! it has mapped the segment, and so does the daemon when it drops the segment. After a SIGKILL in between, the name
//! remains until [`sweep`] finds that its lock, which the kernel releases, is free.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::mman::{MmapAdvise, madvise};
use nix::unistd::Uid;
use shared_memory::{Shmem, ShmemConf, ShmemError};

const FOLDER: &str = "/dev/shm";

/// A mapping of a named segment. The process that created the segment removes the name when it drops this.
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

    pub(super) fn exclude_from_fork(&self) -> io::Result<()> {
        let base = std::ptr::NonNull::new(self.base().cast()).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: this mapping owns the range; the advice affects forked children only.
        unsafe { madvise(base, self.bytes(), MmapAdvise::MADV_DONTFORK)? };
        Ok(())
    }
}

/// The name of a segment that this process created, and the lock that marks it as in use.
#[derive(Debug)]
pub(super) struct Name {
    // Dropped first: the name is removed before its lock is released.
    mapping: NamedMapping,
    _lock: Flock<File>,
}

impl Name {
    pub(super) fn as_str(&self) -> &str {
        self.mapping.memory.get_os_id()
    }
}

/// The beginning of the names of this user's segments.
fn prefix() -> String {
    format!("forebay-{}-", Uid::effective())
}

/// Creates a segment of unallocated pages under a new name.
pub(super) fn create(what: &str, bytes: u64) -> io::Result<(OwnedFd, Name)> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    loop {
        let random = RandomState::new().build_hasher().finish();
        let name = format!("/{}{what}-{random:016x}", prefix());
        let memory = match ShmemConf::new().size(length).os_id(&name).create() {
            Err(ShmemError::MappingIdExists) => continue,
            made => made.map_err(system_error)?,
        };
        let mapping = NamedMapping { memory };
        let file = open_file(&path_of(&name))?;
        let descriptor = file.try_clone()?.into();
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        // Another daemon's sweep may have found the name before it was locked.
        if let Ok(lock) = lock
            && lock.metadata().is_ok_and(|status| status.nlink() > 0)
        {
            return Ok((descriptor, Name { mapping, _lock: lock }));
        }
    }
}

/// Maps a segment by name.
pub(super) fn open(name: &str) -> io::Result<NamedMapping> {
    let memory = ShmemConf::new().os_id(name).open().map_err(system_error)?;
    Ok(NamedMapping { memory })
}

/// Removes a name. Mappings stay valid.
pub fn unlink(name: &str) {
    let _ = nix::sys::mman::shm_unlink(name);
}

/// Removes the names that dead daemons of this user have left. Returns how many.
pub fn sweep() -> usize {
    let prefix = prefix();
    let entries = std::fs::read_dir(FOLDER).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let of_the_dead = names.filter(|name| {
        name.starts_with(&prefix)
            && open_file(&Path::new(FOLDER).join(name))
                .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok())
    });
    of_the_dead.inspect(|name| unlink(&format!("/{name}"))).count()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name.trim_start_matches('/'))
}

fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW.bits();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn system_error(error: ShmemError) -> io::Error {
    match error {
        ShmemError::MapOpenFailed(code)
        | ShmemError::MapCreateFailed(code)
        | ShmemError::UnknownOsError(code) => {
            io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(0))
        }
        other => io::Error::other(other.to_string()),
    }
}
