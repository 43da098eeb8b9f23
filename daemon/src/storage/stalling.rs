//! For tests: files whose reads do not return before they are let go, as on a storage that has stopped to answer.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static STALLED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LET_GO: Condvar = Condvar::new();

fn stalled() -> MutexGuard<'static, Vec<PathBuf>> {
    STALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that cannot be read as long as this lives.
#[derive(Debug)]
pub(crate) struct StalledFile(PathBuf);

impl StalledFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        stalled().push(path.clone());
        Self(path)
    }
}

impl Drop for StalledFile {
    fn drop(&mut self) {
        stalled().retain(|path| *path != self.0);
        LET_GO.notify_all();
    }
}

/// Whether reading the file would wait.
pub(super) fn is_stalled(path: &Path) -> bool {
    stalled().iter().any(|stalled| stalled == path)
}

/// Waits until the file is let go.
pub(super) fn wait(path: &Path) {
    let mut waiting = stalled();
    while waiting.iter().any(|stalled| stalled == path) {
        waiting = LET_GO.wait(waiting).unwrap_or_else(PoisonError::into_inner);
    }
}
