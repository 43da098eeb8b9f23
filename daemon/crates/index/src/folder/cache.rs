//! The path of an index, the lock for writing it, and the check whether it is up to date.
//!
//! An index is saved at `dataset.index`, or by default in the user's cache folder under a name derived from the
//! dataset's path and options. It is replaced by a rename and never modified, so daemons that have it mapped keep the
//! old one. On a network file system it is copied instead of mapped (`index_bytes`). One daemon scans while it holds a
//! lock file next to the index; the others poll with growing pauses, and use the result. The scan's warnings are saved
//! next to the index. The index is up to date as long as no directory has changed: files are not checked. A file that is
//! modified in place is noticed when it is read. If the index cannot be saved (full disk, no permission), it stays in
//! memory, and a warning is reported.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::index::FolderIndex;
use crate::index_file::{HEADER_BYTES, LayoutFault};
use forebay_dataset::IndexBytes;
use forebay_dataset::error::DatasetError;
use forebay_dataset::index_bytes::{own_user, take_in};
use forebay_dataset::opening::OpenOptions;
use forebay_dataset::progress::{ProgressCallback, ScanProgress};
use forebay_host::lock_file::LockFile;
use forebay_storage::listing::Directories;

/// The first pause of a daemon that waits for another one's scan.
const FIRST_LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause: each poll takes several requests to a file server.
const MAX_LOCK_PAUSE: Duration = Duration::from_secs(5);
/// The interval of progress reports during a pause.
const SLICE: Duration = Duration::from_millis(50);
/// The end of the name of the file with a scan's warnings.
const WARNINGS: &str = ".warnings";
/// How often a file is reopened that another host replaces while it is read.
const STALE_TRIES: u32 = 5;
/// A directory that changed shortly before the scan may have changed again within the same tick of its file system's
/// clock (2 s on the coarsest): its stamp is not conclusive, and the next start scans again.
pub const CLOCK_TICK_SECONDS: i64 = 2;
/// The number of directories to check for which starting another thread pays off.
const CHECKED_PER_THREAD: usize = 512;
const MAX_CHECKING_THREADS: usize = 8;

/// The path of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlace {
    /// The index file.
    pub path: PathBuf,
    /// Whether the configuration sets the path; if so, other content there is not overwritten.
    pub is_configured: bool,
    /// A folder inside a world-writable one; it must belong to this user and be inaccessible to others.
    pub private_folder: Option<PathBuf>,
}

impl IndexPlace {
    /// `configured`, otherwise `forebay/index/NAME.index` in `$XDG_CACHE_HOME` or `~/.cache`, or, without a home
    /// folder, in a private folder in the temporary folder.
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

    /// Creates the folder; a new one is accessible to this user only.
    ///
    /// # Errors
    /// An error of the system, or the private folder belongs to or is accessible to another user.
    pub fn make_folder(&self) -> io::Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        if let Some(private) = &self.private_folder {
            builder.create(private)?;
            // Links are refused: their owner could redirect them.
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

    /// Whether its folder can have the lock that [`load_or_make`](Self::load_or_make) takes.
    ///
    /// # Errors
    /// An error of the system: there are no locks, or the folder may not be written to.
    pub fn try_lock(&self) -> io::Result<()> {
        LockFile::try_take(&self.beside(".lock")).map(drop)
    }

    /// Loads the saved index if it has the given digests. `open` validates its bytes, `keys` returns the digests of the
    /// dataset and of the options that it was made for.
    ///
    /// # Errors
    /// The configured path contains something else, which must not be overwritten.
    pub fn load<T>(
        &self,
        identity: &[u8; 32],
        options: &[u8; 32],
        open: impl FnOnce(IndexBytes) -> Result<T, LayoutFault>,
        keys: impl FnOnce(&T) -> [[u8; 32]; 2],
    ) -> Result<Option<T>, DatasetError> {
        let foreign = |what| DatasetError::ForeignIndex { path: self.path.clone(), what };
        let Some(bytes) = self.read()? else { return Ok(None) };
        match open(bytes) {
            Err(LayoutFault::NoIndex) if self.is_configured => Err(foreign("no index of forebay")),
            Err(_) => Ok(None),
            Ok(index) => {
                let [found_identity, found_options] = keys(&index);
                let is_of_dataset = found_identity == *identity;
                let is_wanted = is_of_dataset && found_options == *options;
                match is_of_dataset {
                    false if self.is_configured => Err(foreign("the index of another dataset")),
                    _ => Ok(is_wanted.then_some(index)),
                }
            }
        }
    }

    /// The saved index, or the bytes of a new one, which is made under the lock and saved. Only one of several daemons
    /// makes it. If it cannot be saved, a warning is added. With `rescans`, a saved index counts as fresh only if
    /// another daemon has just made it.
    ///
    /// # Errors
    /// An error of `load` or `make`, or the callback requested a stop.
    pub fn load_or_make<T>(
        &self,
        opening: OpenOptions<'_>,
        rescans: bool,
        warnings: &mut Vec<String>,
        load: impl Fn() -> Result<Saved<T>, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<Loaded<T>, DatasetError> {
        let before = match load()? {
            Saved::Fresh(index) if !rescans => return Ok(Loaded::Saved(index)),
            Saved::Fresh(index) | Saved::Stale(index) => Some(index),
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
            if may_be_saved && let Saved::Fresh(index) = load()? {
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

    /// The error for an index that this program has just written but cannot open.
    pub fn unreadable(&self, fault: LayoutFault) -> DatasetError {
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
            // An empty file may be overwritten.
            if status.len() == 0 {
                return Ok(None);
            }
            // Another user's file is not trusted, unless the configuration names it.
            if !self.is_configured && status.uid() != own_user() {
                return Ok(None);
            }
            match take_in(file) {
                Ok(bytes) => return Ok(Some(bytes)),
                // Another host has replaced the file meanwhile.
                Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Writes an index and opens it.
    ///
    /// # Errors
    /// An error of the system; the previous file is then unchanged.
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
            // The file may not exist; the first error is the relevant one.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    /// Saves the warnings of the scan that made an index, in a file next to it: the next start repeats them. A file that
    /// cannot be written is left out.
    pub fn save_warnings(&self, index: &[u8], warnings: &[String]) {
        let path = self.beside(WARNINGS);
        let _ = match warnings {
            [] => std::fs::remove_file(path),
            _ => {
                let text = [&[head_digest(index)][..], warnings].concat().join("\0");
                let temporary = self.beside(&temporary_suffix());
                let mut options = File::options();
                let options = options.create(true).truncate(true).write(true).mode(0o600);
                options
                    .open(&temporary)
                    .and_then(|mut file| file.write_all(text.as_bytes()))
                    .and_then(|()| std::fs::rename(&temporary, path))
            }
        };
    }

    /// The warnings of the scan that made this index; none if the file next to it belongs to another index.
    pub fn saved_warnings(&self, index: &[u8]) -> Vec<String> {
        let text = std::fs::read_to_string(self.beside(WARNINGS)).unwrap_or_default();
        let mut parts = text.split('\0');
        match parts.next() == Some(&head_digest(index)) {
            true => parts.map(str::to_owned).collect(),
            false => Vec::new(),
        }
    }

    /// Removes the temporary files of daemons that were killed while they saved. The caller holds the lock, so no other
    /// daemon saves.
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

    /// Takes the lock next to the index, or waits until another daemon that scans has saved an index.
    ///
    /// # Errors
    /// An error of the system, such as a file system without locks, or the callback requested a stop.
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
                // Daemons that have waited do not wait for each other.
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

/// The pause before the next attempt to take the lock: a quarter of the time waited so far, times a random factor from
/// 0.5 to 2, so that a thousand ranks neither poll at the same time nor wait much longer than necessary.
pub fn lock_pause(waited: Duration) -> Duration {
    let base = (waited / 4).clamp(FIRST_LOCK_PAUSE, MAX_LOCK_PAUSE / 2);
    // Each `RandomState` of the standard library has different keys.
    let chance = RandomState::new().hash_one(waited) % 1024;
    base / 2 + base * 3 / 2 * u32::try_from(chance).unwrap_or(0) / 1024
}

/// The result of loading a saved index.
pub enum Saved<T> {
    /// The data is unchanged since.
    Fresh(T),
    /// An index of another state of the data.
    Stale(T),
    /// The index does not exist or is unusable.
    Nothing,
}

/// The result of [`IndexPlace::load_or_make`].
pub enum Loaded<T> {
    /// A saved index that is up to date.
    Saved(T),
    /// The bytes of a new index, and the index that it replaces.
    New {
        /// The new index.
        bytes: IndexBytes,
        /// The replaced index.
        before: Option<T>,
    },
}

/// The result of waiting for the index's lock.
#[derive(Debug)]
pub enum Turn {
    /// This daemon holds the lock.
    Own(IndexLock),
    /// Another daemon has saved an index; that daemon or a third one holds the lock.
    Saved,
}

/// The digest of an index's header, which contains the checksum of the rest.
fn head_digest(index: &[u8]) -> String {
    blake3::hash(&index[..index.len().min(HEADER_BYTES)]).to_hex().to_string()
}

fn temporary_suffix() -> String {
    format!(".{}.tmp", std::process::id())
}

/// The right to scan and to write the index, until it is dropped.
#[derive(Debug)]
pub struct IndexLock {
    _lock: LockFile,
    /// Whether another daemon held the lock before: it may have saved an index.
    pub waited: bool,
}

/// Whether no directory of the index has changed since its scan. One that changed within the clock's tick before the
/// scan counts as changed.
#[must_use]
pub fn is_up_to_date(index: &FolderIndex, source: &dyn Directories) -> bool {
    let directories = index.directory_count();
    let threads = directories.div_ceil(CHECKED_PER_THREAD).clamp(1, MAX_CHECKING_THREADS);
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
    let started = index.file().scan_started_seconds();
    source.stamp(path).is_ok_and(|stamp| {
        stamp.modified_seconds == record.modified_seconds
            && stamp.modified_nanoseconds == record.modified_nanoseconds
            && stamp.modified_seconds < started - CLOCK_TICK_SECONDS
    })
}
