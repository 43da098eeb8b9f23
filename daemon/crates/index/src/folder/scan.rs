//! The parallel scan of a folder: its directories, their classes, and their files.
//!
//! A few threads take directories from one stack. Each directory is listed, sorted and front-coded by the same thread,
//! so memory contains little besides the encoded names. The calling thread lists the root, then reports progress. The
//! scan does not apply lists of classes or ids; see `select`.
//!
//! The order is that of torchvision's `make_dataset`: classes by name, in each class the directories by their whole
//! path, and in each directory the files by name, all compared as bytes. Links to directories are followed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::names::{Extensions, NameEncoder, split_extension};
use super::skipped::Skipped;
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::{ProgressCallback, ScanProgress};
use forebay_storage::listing::{Directories, DirectoryStamp, EntryKind};
use forebay_storage::version::ObjectStamp;

/// The interval of progress reports.
const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// Listing waits for the disk or the network more than it computes: at least 4 threads, at most 16.
const SCAN_THREADS: std::ops::RangeInclusive<usize> = 4..=16;

/// One directory with its files' names, sorted and front-coded.
#[derive(Debug, Clone, Default)]
pub struct ScannedDirectory {
    /// Relative to the root, without a trailing slash; empty for the root.
    pub path: Vec<u8>,
    /// The class's index among the class folders sorted by name; 0 if there are none, and for the root.
    pub class: u32,
    /// When it last changed.
    pub stamp: DirectoryStamp,
    /// The number of files that the format reads.
    pub file_count: u64,
    /// See [`NameEncoder`].
    pub encoded_names: Vec<u8>,
    /// The start of each block in `encoded_names`.
    pub block_offsets: Vec<u32>,
    /// The stamp of each file; empty if the listing has no stamps.
    pub stamps: Vec<ObjectStamp>,
}

/// The result of a scan.
#[derive(Debug)]
pub struct ScannedFolder {
    /// The class folders, sorted by name; empty if files are directly in the root.
    pub class_folders: Vec<Vec<u8>>,
    /// All directories in the order of ids, the root first, including directories without files.
    pub directories: Vec<ScannedDirectory>,
    /// The files that the format does not read.
    pub skipped: Skipped,
    /// The number of repeated names in listings; each name counts once.
    pub repeated: u64,
}

impl ScannedFolder {
    /// The number of files found.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.directories.iter().map(|directory| directory.file_count).sum()
    }
}

/// How a format reads a folder.
#[derive(Debug, Clone, Copy)]
pub struct FolderFormat {
    /// The format's name in the registry.
    pub name: &'static str,
    /// The extensions of its files.
    pub extensions: Extensions,
    /// How files directly in the root are treated.
    pub loose: LooseFiles,
}

/// How files directly in the root are treated if there are class folders. Without class folders they are samples
/// without a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LooseFiles {
    /// They are an error.
    NoFolders,
    /// They are skipped and counted, as in torchvision.
    LeftOut,
}

/// A directory that is to be listed.
struct Task {
    path: Vec<u8>,
    class: u32,
    ancestors: Arc<Ancestor>,
}

/// The chain of parent directories, to detect a loop of links.
struct Ancestor {
    identity: (u64, u64),
    above: Option<Arc<Ancestor>>,
}

impl Ancestor {
    fn contains(&self, identity: (u64, u64)) -> bool {
        std::iter::successors(Some(self), |ancestor| ancestor.above.as_deref())
            .any(|ancestor| ancestor.identity == identity)
    }
}

#[derive(Default)]
struct Shared {
    waiting: Vec<Task>,
    /// The number of directories that threads are listing.
    under_way: usize,
    found: Vec<ScannedDirectory>,
    skipped: Skipped,
    repeated: u64,
    samples: u64,
    failure: Option<DatasetError>,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.failure.is_some() || (self.waiting.is_empty() && self.under_way == 0)
    }
}

/// A panic in another scan thread reaches the caller when the scope ends. The shared data stays valid, because it is
/// only counted and appended to.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scans everything below the root.
///
/// # Errors
/// A directory that cannot be read, a loop of links, files next to class folders or no class folders if the format
/// requires them, or the callback requested a stop.
pub fn scan_folder(
    source: &dyn Directories,
    root: &Path,
    format: FolderFormat,
    progress: ProgressCallback<'_>,
) -> Result<ScannedFolder, DatasetError> {
    let mut class_folders: Vec<(Vec<u8>, EntryKind)> = Vec::new();
    let mut listing = Listing::default();
    let mut skipped = Skipped::default();
    let stamp = source.list(b"", &mut |name, kind| match kind {
        EntryKind::File => listing.add(name, None, format.extensions, &mut skipped),
        EntryKind::Object(stamp) => {
            listing.add(name, Some(stamp), format.extensions, &mut skipped);
        }
        kind => class_folders.push((name.to_vec(), kind)),
    })?;
    let mut repeated = sort_once(&mut class_folders);
    let mut root_directory = ScannedDirectory { stamp, ..ScannedDirectory::default() };
    let is_strict = format.loose == LooseFiles::NoFolders;
    if class_folders.is_empty() && (is_strict || listing.count() > 0) {
        repeated += listing.encode_into(&mut root_directory, format.extensions, root)?;
    } else if let Some((folder, _)) = class_folders.first() {
        if is_strict && listing.count() > 0 {
            return Err(DatasetError::FilesBesideFolders {
                path: root.to_owned(),
                extensions: format.extensions.join(" "),
                folder: String::from_utf8_lossy(folder).into_owned(),
            });
        }
        skipped.add_outside_classes(listing.count());
    } else {
        let expected =
            format!("…/CLASS/file{}", format.extensions.first().copied().unwrap_or_default());
        return Err(DatasetError::NoClassFolders { path: root.to_owned(), expected });
    }

    let ancestors = Arc::new(Ancestor { identity: stamp.identity, above: None });
    let mut waiting = Vec::with_capacity(class_folders.len());
    for (class, (name, kind)) in (0_u32..).zip(&class_folders) {
        check_link(*kind, &ancestors, root, name)?;
        waiting.push(Task { path: name.clone(), class, ancestors: Arc::clone(&ancestors) });
    }
    // A stack: the first class is taken first.
    waiting.reverse();
    let samples = root_directory.file_count;
    let shared = Mutex::new(Shared { waiting, skipped, repeated, samples, ..Shared::default() });
    run_threads(source, root, format, &shared, progress);

    let Shared { found, skipped, repeated, failure, .. } =
        shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut directories = found;
    directories.push(root_directory);
    directories.sort_unstable_by(|left, right| {
        // The root comes first: it has class 0 and an empty path.
        (left.class, &left.path).cmp(&(right.class, &right.path))
    });
    let class_folders = class_folders.into_iter().map(|(name, _)| name).collect();
    Ok(ScannedFolder { class_folders, directories, skipped, repeated })
}

/// Sorts folders by name and removes duplicates: pages of a listing may overlap, and a folder that changes while it is
/// listed may return a name twice. Returns the number of removed names.
fn sort_once(folders: &mut Vec<(Vec<u8>, EntryKind)>) -> u64 {
    let listed = folders.len();
    folders.sort_by(|left, right| left.0.cmp(&right.0));
    folders.dedup_by(|next, first| next.0 == first.0);
    (listed - folders.len()) as u64
}

fn check_link(
    kind: EntryKind,
    ancestors: &Ancestor,
    root: &Path,
    path: &[u8],
) -> Result<(), DatasetError> {
    match kind {
        EntryKind::LinkedDirectory(identity) if ancestors.contains(identity) => {
            Err(DatasetError::LinkLoop { path: full_path(root, path) })
        }
        _ => Ok(()),
    }
}

fn full_path(root: &Path, relative: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    root.join(std::ffi::OsStr::from_bytes(relative))
}

/// Lists directories on several threads until none is left, and reports progress on this thread.
fn run_threads(
    source: &dyn Directories,
    root: &Path,
    format: FolderFormat,
    shared: &Mutex<Shared>,
    progress: ProgressCallback<'_>,
) {
    let changed = Condvar::new();
    let threads = if lock(shared).is_over() {
        0
    } else {
        std::thread::available_parallelism()
            .map_or(4, std::num::NonZeroUsize::get)
            .clamp(*SCAN_THREADS.start(), *SCAN_THREADS.end())
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| list_until_done(source, root, format, shared, &changed));
        }
        let mut state = lock(shared);
        loop {
            // Also reports at the end: after a failure, a retry needs the progress.
            let is_over = state.is_over();
            let reported = ScanProgress {
                directories: state.found.len() as u64,
                samples: state.samples,
                ..ScanProgress::default()
            };
            drop(state);
            let wish = progress(reported);
            state = lock(shared);
            if is_over {
                break;
            }
            if wish.is_break() {
                state.failure.get_or_insert(DatasetError::Cancelled);
                changed.notify_all();
            } else if !state.is_over() {
                state = changed
                    .wait_timeout(state, REPORT_PERIOD)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    });
}

fn list_until_done(
    source: &dyn Directories,
    root: &Path,
    format: FolderFormat,
    shared: &Mutex<Shared>,
    changed: &Condvar,
) {
    let _end = ThreadEnd { shared, changed };
    loop {
        let mut state = lock(shared);
        let task = loop {
            if state.is_over() {
                changed.notify_all();
                return;
            }
            match state.waiting.pop() {
                Some(task) => break task,
                None => state = changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        state.under_way += 1;
        drop(state);
        let mut skipped = Skipped::default();
        let outcome = list_one(source, root, format, task, &mut skipped);
        let mut state = lock(shared);
        state.under_way -= 1;
        state.skipped.merge(skipped);
        match outcome {
            Ok((directory, below, repeated)) => {
                state.repeated += repeated;
                state.samples += directory.file_count;
                state.found.push(directory);
                if !below.is_empty() {
                    state.waiting.extend(below);
                    changed.notify_all();
                }
            }
            Err(error) => {
                state.failure.get_or_insert(error);
            }
        }
    }
}

/// Stops the other threads if this one panics; the scope then propagates the panic.
struct ThreadEnd<'a> {
    shared: &'a Mutex<Shared>,
    changed: &'a Condvar,
}

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.shared).failure.get_or_insert(DatasetError::Cancelled);
            self.changed.notify_all();
        }
    }
}

fn list_one(
    source: &dyn Directories,
    root: &Path,
    format: FolderFormat,
    task: Task,
    skipped: &mut Skipped,
) -> Result<(ScannedDirectory, Vec<Task>, u64), DatasetError> {
    let mut listing = Listing::default();
    let mut folders: Vec<(Vec<u8>, EntryKind)> = Vec::new();
    let stamp = source.list(&task.path, &mut |name, kind| match kind {
        EntryKind::File => listing.add(name, None, format.extensions, skipped),
        EntryKind::Object(stamp) => listing.add(name, Some(stamp), format.extensions, skipped),
        kind => folders.push((name.to_vec(), kind)),
    })?;
    let mut repeated = sort_once(&mut folders);
    let mut below = Vec::with_capacity(folders.len());
    if !folders.is_empty() {
        let chain = Arc::new(Ancestor { identity: stamp.identity, above: Some(task.ancestors) });
        for (name, kind) in folders {
            let path = [&task.path[..], b"/", &name].concat();
            check_link(kind, &chain, root, &path)?;
            below.push(Task { path, class: task.class, ancestors: Arc::clone(&chain) });
        }
    }
    let mut directory = ScannedDirectory {
        path: task.path,
        class: task.class,
        stamp,
        ..ScannedDirectory::default()
    };
    repeated += listing.encode_into(&mut directory, format.extensions, root)?;
    Ok((directory, below, repeated))
}

/// The names of one directory's files while it is listed, concatenated in one buffer.
#[derive(Default)]
struct Listing {
    bytes: Vec<u8>,
    names: Vec<ListedName>,
    /// One per name, or empty.
    stamps: Vec<ObjectStamp>,
}

/// One name in the buffer.
#[derive(Clone, Copy)]
struct ListedName {
    start: usize,
    /// Its index in the listing.
    place: u32,
    stem: u16,
    extension: u16,
}

impl Listing {
    fn add(
        &mut self,
        name: &[u8],
        stamp: Option<ObjectStamp>,
        extensions: Extensions,
        skipped: &mut Skipped,
    ) {
        match split_extension(name, extensions) {
            // Longer names do not exist in any file system, so the file could not be opened.
            Some((stem, extension)) if stem <= usize::from(u16::MAX) - 8 => {
                let stem = u16::try_from(stem).unwrap_or(0);
                // The names of one directory exceed 4 GiB before the index exceeds `u32`.
                let place = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
                self.names.push(ListedName { start: self.bytes.len(), place, stem, extension });
                self.bytes.extend_from_slice(name);
                self.stamps.extend(stamp);
            }
            _ => skipped.add(name),
        }
    }

    fn count(&self) -> u64 {
        self.names.len() as u64
    }

    /// Returns the number of duplicate names. The last duplicate is kept, because its stamp is the newest.
    fn encode_into(
        mut self,
        directory: &mut ScannedDirectory,
        extensions: Extensions,
        root: &Path,
    ) -> Result<u64, DatasetError> {
        let Self { bytes, names, stamps } = &mut self;
        let listed = names.len();
        names.sort_unstable_by(|left, right| {
            let whole = |name| whole_name(bytes, name, extensions);
            whole(*left).cmp(whole(*right)).then(right.place.cmp(&left.place))
        });
        names.dedup_by(|next, first| {
            whole_name(bytes, *next, extensions) == whole_name(bytes, *first, extensions)
        });
        let mut encoder = NameEncoder::default();
        for name in names.iter() {
            let stem = &bytes[name.start..name.start + usize::from(name.stem)];
            encoder
                .push(stem, name.extension, &mut directory.encoded_names, &mut directory.block_offsets)
                .map_err(|_| DatasetError::System {
                    path: full_path(root, &directory.path),
                    action: "indexing",
                    source: std::io::Error::other(
                        "the names of this one directory exceed 4 GiB; spread the files over several folders",
                    ),
                })?;
        }
        if stamps.len() == listed {
            directory.stamps =
                names.iter().filter_map(|name| stamps.get(name.place as usize).copied()).collect();
        }
        directory.file_count = names.len() as u64;
        directory.encoded_names.shrink_to_fit();
        Ok((listed - names.len()) as u64)
    }
}

fn whole_name(bytes: &[u8], name: ListedName, extensions: Extensions) -> &[u8] {
    let ListedName { start, stem, extension, .. } = name;
    let extension =
        extensions.get(usize::from(extension / 32)).map_or(0, |extension| extension.len());
    &bytes[start..start + usize::from(stem) + extension]
}

#[cfg(test)]
mod tests {
    use super::{FolderFormat, LooseFiles, scan_folder};
    use forebay_dataset::no_progress;
    use forebay_storage::StorageError;
    use forebay_storage::listing::{Directories, DirectoryStamp, EntryKind};

    /// One class folder, whose listing panics.
    struct Broken;

    impl Directories for Broken {
        fn list(
            &self,
            directory: &[u8],
            visit: &mut dyn FnMut(&[u8], EntryKind),
        ) -> Result<DirectoryStamp, StorageError> {
            assert!(directory.is_empty(), "a panic for a test");
            visit(b"class", EntryKind::Directory);
            self.stamp(directory)
        }

        fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
            Ok(DirectoryStamp::default())
        }
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_in_a_scan_thread_reaches_the_caller_instead_of_hanging() {
        let format =
            FolderFormat { name: "test", extensions: &[".jpg"], loose: LooseFiles::LeftOut };
        let _ = scan_folder(&Broken, "/broken".as_ref(), format, &no_progress);
    }
}
