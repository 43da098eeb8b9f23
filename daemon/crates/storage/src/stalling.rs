//! For tests: files whose reads block until released, as on a storage that does not respond; folders whose files are
//! slow to read, or whose listing repeats names.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static STALLED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LET_GO: Condvar = Condvar::new();
static SLOW: Mutex<Vec<Slow>> = Mutex::new(Vec::new());

fn stalled() -> MutexGuard<'static, Vec<PathBuf>> {
    STALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

static REPEATED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn repeated() -> MutexGuard<'static, Vec<PathBuf>> {
    REPEATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder whose listing, and that of each folder below, repeats every name, as long as this exists.
#[derive(Debug)]
pub struct RepeatingFolder(PathBuf);

impl RepeatingFolder {
    /// Affects the folder at `path`.
    pub fn new(path: PathBuf) -> Self {
        repeated().push(path.clone());
        Self(path)
    }
}

impl Drop for RepeatingFolder {
    fn drop(&mut self) {
        repeated().retain(|path| *path != self.0);
    }
}

/// Whether the listing of a folder repeats names.
pub(super) fn repeats(folder: &Path) -> bool {
    repeated().iter().any(|path| folder.starts_with(path))
}

/// A file whose reads block as long as this exists.
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

/// A folder in which one of several reads is slow, as long as this exists.
#[derive(Debug)]
pub struct SlowFolder(PathBuf);

impl SlowFolder {
    /// One in `one_in` reads below `folder` takes `read_takes`.
    pub fn new(folder: PathBuf, read_takes: Duration, one_in: u64) -> Self {
        slow().push(Slow { folder: folder.clone(), read_takes, one_in, reads: 0 });
        Self(folder)
    }

    /// The number of reads below it so far.
    pub fn reads(&self) -> u64 {
        slow().iter().find(|slow| slow.folder == self.0).map_or(0, |slow| slow.reads)
    }
}

impl Drop for SlowFolder {
    fn drop(&mut self) {
        slow().retain(|slow| slow.folder != self.0);
    }
}

/// Whether reading the file may block.
pub(super) fn is_stalled(path: &Path) -> bool {
    stalled().iter().any(|stalled| stalled == path)
        || slow().iter().any(|slow| path.starts_with(&slow.folder))
}

/// Waits until the file is released, or as long as a slow read takes.
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
