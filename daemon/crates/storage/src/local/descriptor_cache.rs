//! A cache of open files, for files that are read in parts.
//!
//! A table whose size follows the limit on descriptors; a file's slot follows from its number, and a file replaces the
//! one in its slot. If the path of a cached file refers to another file now, that one is opened: readers check the
//! path's status first. Locks are held to copy a handle, never during a system call.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;
use rustix::process::{Resource, getrlimit};

use crate::descriptor::KeptFile;
use crate::location::FileId;

/// The most files that a storage keeps open.
const MAX_KEPT: u64 = 1024;
/// The share of the limit on descriptors for one storage.
const SHARE_OF_LIMIT: u64 = 8;

type Place = Mutex<Option<Arc<KeptFile>>>;

/// The table.
#[derive(Debug)]
pub(super) struct DescriptorCache(Box<[Place]>);

impl Default for DescriptorCache {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = (limit / SHARE_OF_LIMIT).clamp(1, MAX_KEPT);
        Self((0..places).map(|_| Place::default()).collect())
    }
}

impl DescriptorCache {
    fn place(&self, file: FileId) -> MutexGuard<'_, Option<Arc<KeptFile>>> {
        let place = usize::try_from(file.0 % self.0.len() as u64).unwrap_or(0);
        self.0[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached file, if its path still refers to it; `status`: the path's present status.
    pub(super) fn find(&self, file: FileId, status: &Stat) -> Option<Arc<KeptFile>> {
        let kept = self.place(file).clone()?;
        (kept.file == file && kept.identity == (status.st_dev, status.st_ino)).then_some(kept)
    }

    /// Removes a file.
    pub(super) fn forget(&self, file: FileId) {
        let mut place = self.place(file);
        let kept =
            if place.as_ref().is_some_and(|kept| kept.file == file) { place.take() } else { None };
        drop(place);
        // Closing may block: not under the lock.
        drop(kept);
    }

    /// Adds a file. The previous file of its slot is closed when its last reader is done.
    pub(super) fn keep(&self, file: FileId, descriptor: OwnedFd, status: &Stat) -> Arc<KeptFile> {
        let identity = (status.st_dev, status.st_ino);
        let kept = Arc::new(KeptFile { descriptor, file, identity });
        let before = self.place(file).replace(Arc::clone(&kept));
        // Closing may block: not under the lock.
        drop(before);
        kept
    }
}
