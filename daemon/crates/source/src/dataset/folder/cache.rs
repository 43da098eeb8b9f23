//! Where an index is kept, who writes it, and whether it is still true.
//!
//! An index lies at `dataset.index`, else in the user's cache folder under a name made of the dataset's path and options.
//! It is replaced by a rename, never changed, so daemons that have it mapped keep what they have; on a network file system
//! it is copied (`index_bytes`). One daemon scans under a lock beside it; the others wait, asking ever less often, and take
//! the result. It is true as long as no directory has changed: files are never asked. A file whose bytes change in place is
//! met when it is read.
//! Where nothing can be kept (full disk, no permission) the index stays in memory, and a warning says so.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::index::{FolderIndex, IndexBytes};
use super::index_bytes::{own_user, take_in};
use super::layout::LayoutFault;
use crate::dataset::error::DatasetError;
use crate::dataset::opening::OpenOptions;
use crate::dataset::progress::{ProgressCallback, ScanProgress};
use crate::storage::listing::Directories;
use forebay_host::lock_file::LockFile;

/// How soon a waiting daemon first looks whether the scanning one is done.
const FIRST_LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The longest time between looks: each is several requests to a file server.
const LONGEST_LOCK_PAUSE: Duration = Duration::from_secs(5);
/// How often progress is shown meanwhile.
const SLICE: Duration = Duration::from_millis(50);
/// How often a file is opened again that another host replaces while it is read.
const STALE_TRIES: u32 = 5;
/// A directory that changed so shortly before the scan may have changed again within the same tick of its file system's
/// clock (2 s on the coarsest): its stamp proves nothing, and the next start scans again.
pub(in crate::dataset) const CLOCK_TICK_SECONDS: i64 = 2;
/// Directories that one thread checks before another is worth its start.
const CHECKED_PER_THREAD: usize = 512;
const MOST_CHECKING_THREADS: usize = 8;

/// The place of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlace {
    /// The file.
    pub path: PathBuf,
    /// Whether the configuration names it: then what lies there is not overwritten blindly.
    pub is_configured: bool,
    /// A folder among those that all users may write to; it must be this user's and closed to others.
    pub private_folder: Option<PathBuf>,
}

impl IndexPlace {
    /// `configured`, else `forebay/index/NAME.index` in `$XDG_CACHE_HOME`, `~/.cache` or, where there is no home, a
    /// private folder for temporary files.
    #[must_use]
    pub fn choose(configured: Option<&Path>, identity: &[u8; 32], options: &[u8; 32]) -> Self {
        if let Some(path) = configured {
            return Self { path: path.to_owned(), is_configured: true, private_folder: None };
        }
        let absolute =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home =
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        let (cache, private_folder) = match home {
            Some(cache) => (cache, None),
            None => {
                let folder = std::env::temp_dir().join(format!("forebay-{}", own_user()));
                (folder.clone(), Some(folder))
            }
        };
        let name = blake3::hash(&[&identity[..], &options[..]].concat()).to_hex();
        let path = cache.join("forebay").join("index").join(format!("{}.index", &name[..32]));
        Self { path, is_configured: false, private_folder }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    /// Makes the folder, for this user alone where it is new.
    ///
    /// # Errors
    /// What the system says; or the private folder is not this user's alone.
    pub fn make_folder(&self) -> io::Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        if let Some(private) = &self.private_folder {
            builder.create(private)?;
            // Not through a link: whoever made it could turn it elsewhere.
            let status = std::fs::symlink_metadata(private)?;
            if !status.is_dir() || status.uid() != own_user() || status.mode() & 0o077 != 0 {
                let message = format!("{} is not this user's alone", private.display());
                return Err(io::Error::other(message));
            }
        }
        match self.path.parent() {
            Some(folder) => builder.create(folder),
            None => Ok(()),
        }
    }

    /// Takes in the index that lies there, if it is the one wanted: `open` checks its bytes, `keys` says of which dataset
    /// and with which options it was made.
    ///
    /// # Errors
    /// The configured path holds something else, which is not to be overwritten.
    pub fn load<T>(
        &self,
        identity: &[u8; 32],
        options: &[u8; 32],
        open: impl FnOnce(IndexBytes) -> Result<T, LayoutFault>,
        keys: impl FnOnce(&T) -> [&[u8]; 2],
    ) -> Result<Option<T>, DatasetError> {
        let foreign = |what| DatasetError::ForeignIndex { path: self.path.clone(), what };
        let Some(bytes) = self.read()? else { return Ok(None) };
        match open(bytes) {
            Err(LayoutFault::NoIndex) if self.is_configured => Err(foreign("no index of forebay")),
            Err(_) => Ok(None),
            Ok(index) => {
                let [found_identity, found_options] = keys(&index);
                let is_of_dataset = found_identity == identity;
                let is_wanted = is_of_dataset && found_options == options;
                match is_of_dataset {
                    false if self.is_configured => Err(foreign("the index of another dataset")),
                    _ => Ok(is_wanted.then_some(index)),
                }
            }
        }
    }

    /// The saved index, or the bytes of a new one, which is made under the lock and saved. Of several daemons one makes
    /// it. Where it cannot be saved, a warning says so. With `is_anew` a saved one is true only if another daemon has just
    /// made it.
    ///
    /// # Errors
    /// What `load` and `make` say, or the callback's wish to stop.
    pub(in crate::dataset) fn load_or_make<T>(
        &self,
        opening: OpenOptions<'_>,
        is_anew: bool,
        warnings: &mut Vec<String>,
        load: impl Fn() -> Result<Saved<T>, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<Loaded<T>, DatasetError> {
        let before = match load()? {
            Saved::True(index) if !is_anew => return Ok(Loaded::Saved(index)),
            Saved::True(index) | Saved::Old(index) => Some(index),
            Saved::Nothing => None,
        };
        let made = opening.call("making the folder of", &self.path, || self.make_folder());
        let lock = loop {
            let turn = match &made {
                Ok(()) => self.take_turn(opening.progress)?,
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let may_be_saved = match &turn {
                Ok(Turn::Own(lock)) => lock.waited,
                Ok(Turn::Saved) => true,
                Err(_) => false,
            };
            if may_be_saved && let Saved::True(index) = load()? {
                return Ok(Loaded::Saved(index));
            }
            match turn {
                Ok(Turn::Own(lock)) => break Ok(lock),
                Ok(Turn::Saved) => {}
                Err(error) => break Err(error),
            }
        };
        let bytes = make(warnings)?;
        let saved = match &lock {
            Ok(_) => opening.call("saving the index", &self.path, || self.save(&bytes)),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let bytes = saved.unwrap_or_else(|error| {
            warnings.push(format!(
                "the index could not be kept at {} ({error}); it stays in memory and every start scans the dataset \
                 again. Set dataset.index to a file that can be written",
                self.path.display()
            ));
            IndexBytes::Owned(bytes)
        });
        Ok(Loaded::New { bytes, before })
    }

    /// The error for an index that cannot be opened although it was written here.
    pub(in crate::dataset) fn unreadable(&self, fault: LayoutFault) -> DatasetError {
        DatasetError::System {
            path: self.path.clone(),
            action: "reading back the index",
            source: io::Error::other(format!("it is not what was written ({fault:?})")),
        }
    }

    fn read(&self) -> Result<Option<IndexBytes>, DatasetError> {
        for _ in 0..STALE_TRIES {
            let Ok(file) = File::open(&self.path) else { return Ok(None) };
            let Ok(status) = file.metadata() else { return Ok(None) };
            if self.is_configured && !status.is_file() {
                let (path, what) = (self.path.clone(), "no regular file");
                return Err(DatasetError::ForeignIndex { path, what });
            }
            // Nothing is lost when it is overwritten.
            if status.len() == 0 {
                return Ok(None);
            }
            // Another user's file could hold anything. A configured file is the configuration's word.
            if !self.is_configured && status.uid() != own_user() {
                return Ok(None);
            }
            match take_in(file) {
                Ok(bytes) => return Ok(Some(bytes)),
                // Another host has replaced it meanwhile.
                Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Writes an index and takes it in.
    ///
    /// # Errors
    /// What the system says; then nothing new lies there.
    pub fn save(&self, bytes: &[u8]) -> io::Result<IndexBytes> {
        let temporary = self.beside(&temporary_suffix());
        let written = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| File::open(&temporary))
            .and_then(take_in)
            .and_then(|bytes| std::fs::rename(&temporary, &self.path).map(|()| bytes));
        if written.is_err() {
            // It may never have been made; the first error is the one to tell.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    /// Removes what daemons left that were killed while they saved. The lock is held: nobody else saves.
    fn sweep(&self) {
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return;
        };
        let own = self.beside(&temporary_suffix());
        for path in
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
        {
            let rest =
                path.file_name().and_then(|other| other.as_bytes().strip_prefix(name.as_bytes()));
            let number = rest.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(b".tmp"));
            if path != own && number.is_some_and(|number| number.iter().all(u8::is_ascii_digit)) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Takes the lock beside the index, or waits until another daemon that scans has saved one.
    ///
    /// # Errors
    /// What the system says, as where the file system has no locks; or the callback's wish to stop.
    pub fn take_turn(
        &self,
        progress: ProgressCallback<'_>,
    ) -> Result<Result<Turn, io::Error>, DatasetError> {
        let path = self.beside(".lock");
        let identity = || {
            let status = std::fs::symlink_metadata(&self.path).ok()?;
            Some((status.ino(), status.mtime(), status.mtime_nsec()))
        };
        let before = identity();
        let begun = Instant::now();
        for look in 0.. {
            match LockFile::try_take(&path) {
                Ok(Some(lock)) => {
                    self.sweep();
                    return Ok(Ok(Turn::Own(IndexLock { _lock: lock, waited: look > 0 })));
                }
                // Those who waited do not wait for each other.
                Ok(None) if look > 0 && identity() != before => return Ok(Ok(Turn::Saved)),
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
            let until = Instant::now() + lock_pause(begun.elapsed());
            while Instant::now() < until {
                let waiting = ScanProgress { waiting_for_another: true, ..ScanProgress::default() };
                if progress(waiting).is_break() {
                    return Err(DatasetError::Cancelled);
                }
                std::thread::sleep(SLICE.min(until.saturating_duration_since(Instant::now())));
            }
        }
        Ok(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The time to the next look at the lock after having waited so long: a quarter of that, up to twice as long or half as
/// long by chance, so that a thousand ranks neither ask at once nor wait much longer than they must.
pub(super) fn lock_pause(waited: Duration) -> Duration {
    let base = (waited / 4).clamp(FIRST_LOCK_PAUSE, LONGEST_LOCK_PAUSE / 2);
    // Every map of the standard library has other keys.
    let chance = RandomState::new().hash_one(waited) % 1024;
    base / 2 + base * 3 / 2 * u32::try_from(chance).unwrap_or(0) / 1024
}

/// The index that was saved.
pub(in crate::dataset) enum Saved<T> {
    /// The data has not changed since.
    True(T),
    /// Of another state of the data.
    Old(T),
    Nothing,
}

/// What [`IndexPlace::load_or_make`] gives.
pub(in crate::dataset) enum Loaded<T> {
    /// A saved one that is still true.
    Saved(T),
    /// A new one's bytes, and the one that it replaces.
    New { bytes: IndexBytes, before: Option<T> },
}

/// What came of waiting for the index's lock.
#[derive(Debug)]
pub enum Turn {
    /// The lock.
    Own(IndexLock),
    /// Another daemon has saved an index, and it or a third one holds the lock.
    Saved,
}

fn temporary_suffix() -> String {
    format!(".{}.tmp", std::process::id())
}

/// The right to scan and to write the index, until it is dropped.
#[derive(Debug)]
pub struct IndexLock {
    _lock: LockFile,
    /// Whether another daemon held it: its index may be there now.
    pub waited: bool,
}

/// Whether no directory of the index has changed since its scan. One that changed within the clock's tick before the scan
/// counts as changed.
#[must_use]
pub fn is_up_to_date(index: &FolderIndex, source: &dyn Directories) -> bool {
    let directories = index.directory_count();
    let threads = directories.div_ceil(CHECKED_PER_THREAD).clamp(1, MOST_CHECKING_THREADS);
    let share = directories.div_ceil(threads).max(1);
    let check = |range: std::ops::Range<usize>| {
        range.into_iter().all(|place| is_unchanged(index, source, place))
    };
    if threads == 1 {
        return check(0..directories);
    }
    std::thread::scope(|scope| {
        let checks: Vec<_> = (0..directories)
            .step_by(share)
            .map(|start| scope.spawn(move || check(start..directories.min(start + share))))
            .collect();
        checks.into_iter().all(|check| check.join().unwrap_or(false))
    })
}

fn is_unchanged(index: &FolderIndex, source: &dyn Directories, place: usize) -> bool {
    let Some((path, record)) = index.directory(place) else {
        return false;
    };
    let started = index.header().scan_started_seconds;
    source.stamp(path).is_ok_and(|stamp| {
        stamp.changed_seconds == record.changed_seconds
            && stamp.changed_nanoseconds == record.changed_nanoseconds
            && stamp.changed_seconds < started - CLOCK_TICK_SECONDS
    })
}
