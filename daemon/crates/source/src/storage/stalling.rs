//! For tests: files whose reads do not return before they are let go, as on a storage that has stopped to answer; and
//! folders whose files take long to read.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static STALLED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LET_GO: Condvar = Condvar::new();
static SLOW: Mutex<Vec<Slow>> = Mutex::new(Vec::new());

fn stalled() -> MutexGuard<'static, Vec<PathBuf>> {
    STALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that cannot be read as long as this lives.
#[derive(Debug)]
pub struct StalledFile(PathBuf);

impl StalledFile {
    /// Reads of the file at `path` do not return until this is dropped.
    pub fn new(path: PathBuf) -> Self {
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

#[derive(Debug)]
struct Slow {
    folder: PathBuf,
    read_takes: Duration,
    one_in: u64,
    reads: u64,
}

fn slow() -> MutexGuard<'static, Vec<Slow>> {
    SLOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder of whose reads one in so many takes long, as long as this lives.
#[derive(Debug)]
pub struct SlowFolder(PathBuf);

impl SlowFolder {
    /// Reads below `folder` take `each`.
    pub fn new(folder: PathBuf, read_takes: Duration, one_in: u64) -> Self {
        slow().push(Slow { folder: folder.clone(), read_takes, one_in, reads: 0 });
        Self(folder)
    }

    /// The reads below it so far.
    pub fn reads(&self) -> u64 {
        slow().iter().find(|slow| slow.folder == self.0).map_or(0, |slow| slow.reads)
    }
}

impl Drop for SlowFolder {
    fn drop(&mut self) {
        slow().retain(|slow| slow.folder != self.0);
    }
}

/// Whether reading the file may wait.
pub(super) fn is_stalled(path: &Path) -> bool {
    stalled().iter().any(|stalled| stalled == path)
        || slow().iter().any(|slow| path.starts_with(&slow.folder))
}

/// Waits as long as the read takes: until the file is let go.
pub(super) fn wait(path: &Path) {
    let read_takes = slow().iter_mut().find(|slow| path.starts_with(&slow.folder)).map(|slow| {
        slow.reads += 1;
        if slow.reads % slow.one_in == 0 { slow.read_takes } else { Duration::ZERO }
    });
    std::thread::sleep(read_takes.unwrap_or_default());
    let mut waiting = stalled();
    while waiting.iter().any(|stalled| stalled == path) {
        waiting = LET_GO.wait(waiting).unwrap_or_else(PoisonError::into_inner);
    }
}
