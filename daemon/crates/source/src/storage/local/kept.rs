//! Files of which parts are read, kept open from one part to the next.
//!
//! A table of so many places as the limit on descriptors allows; a file has one place, by its number, and a file that
//! comes to a taken place takes it over. A kept file that is no longer what its path leads to is opened anew: whoever
//! reads has asked for the path's status before. Locks are held to copy a handle, never in a system call.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;
use rustix::process::{Resource, getrlimit};

use crate::location::FileId;
use crate::storage::descriptor::KeptFile;

/// The most files that a storage keeps open.
const MAX_KEPT: u64 = 1024;
/// The share of the limit on descriptors that one storage may take.
const SHARE_OF_LIMIT: u64 = 8;

type Place = Mutex<Option<Arc<KeptFile>>>;

/// The table.
#[derive(Debug)]
pub(super) struct KeptFiles(Box<[Place]>);

impl Default for KeptFiles {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = (limit / SHARE_OF_LIMIT).clamp(1, MAX_KEPT);
        Self((0..places).map(|_| Place::default()).collect())
    }
}

impl KeptFiles {
    fn place(&self, file: FileId) -> MutexGuard<'_, Option<Arc<KeptFile>>> {
        let place = usize::try_from(file.0 % self.0.len() as u64).unwrap_or(0);
        self.0[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if it is kept and `status`, its path's, is still its own.
    pub(super) fn find(&self, file: FileId, status: &Stat) -> Option<Arc<KeptFile>> {
        let kept = self.place(file).clone()?;
        (kept.file == file && kept.identity == (status.st_dev, status.st_ino)).then_some(kept)
    }

    /// Keeps a file no longer.
    pub(super) fn forget(&self, file: FileId) {
        let mut place = self.place(file);
        let kept =
            if place.as_ref().is_some_and(|kept| kept.file == file) { place.take() } else { None };
        drop(place);
        // Closing may block: not under the lock.
        drop(kept);
    }

    /// Keeps a file. The one that had its place is closed when nobody reads it.
    pub(super) fn keep(&self, file: FileId, descriptor: OwnedFd, status: &Stat) -> Arc<KeptFile> {
        let identity = (status.st_dev, status.st_ino);
        let kept = Arc::new(KeptFile { descriptor, file, identity });
        let before = self.place(file).replace(Arc::clone(&kept));
        // Closing may block: not under the lock.
        drop(before);
        kept
    }
}
