//! A folder of files as a list of samples, for image folders and folders of arrays.
//!
//! The storage lists directories, `hidden` filters them, `scan` traverses them, `classes` detects a wrong root,
//! `select` applies lists and the limit, `names` and `layout` encode, `index` answers queries, and `cache` saves the
//! index. This file combines them. It knows extensions, but not formats.
//!
//! The fingerprint covers paths and classes. It excludes sizes, because requesting the sizes of ten million files costs
//! more than all other work in this module. A file that is modified in place is noticed when it is read, if at all.

pub mod cache;
mod changes;
pub mod classes;
pub mod generated;
pub mod hidden;
pub mod index;
pub mod layout;
pub mod names;
pub mod scan;
pub mod select;
pub mod skipped;

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use self::cache::{IndexPlace, Loaded, Saved};
use self::hidden::VisibleEntries;
use self::index::FolderIndex;
use self::layout::IndexOrigin;
use self::scan::FolderFormat;
use self::select::{ListFile, Selection};
use crate::changes::with_revisions;
use crate::index_file::{self, IndexFile};
use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions};
use forebay_dataset::progress::ProgressCallback;
use forebay_keys::{ConfigError, Keys, LocalPath};
use forebay_storage::StorageError;
use forebay_storage::listing::Directories;

forebay_keys::keys! {
    /// The keys of formats that read folders.
    pub struct FolderKeys = "dataset" {
        /// a file that lists all class folders, one a line, in the order of their labels
        pub classes: LocalPath, "", absent("the sorted class folders");
        /// whether class folders may hold all their files in folders below; `false`: that is refused as a wrong
        /// `dataset.path`, such as one with `train/` and `val/`
        pub nested_classes: bool, "", default(false);
        /// whether hidden files and folders count: names with a leading dot, and those of systems such as `__MACOSX`,
        /// `@eaDir` and `lost+found`
        pub hidden: bool, "", default(false);
    }
}

impl FolderKeys {
    /// Reads the keys from a configuration.
    ///
    /// # Errors
    /// An unknown key, or a value of the wrong type.
    pub fn of(config: &DatasetConfig) -> Result<Self, ConfigError> {
        Self::read(&mut config.own.clone())
    }
}

/// Opens the index of a folder: the saved one if no directory has changed, otherwise a new scan.
///
/// # Errors
/// The folder or a list is unusable, or the callback requested a stop. An index that cannot be saved is only a warning.
pub fn open_folder(
    config: &DatasetConfig,
    source: &dyn Directories,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> Result<(FolderIndex, IndexReport), DatasetError> {
    let started = Instant::now();
    let resolve = || resolve_root(&config.path, source, format);
    let root = options.call("asking the status of", &config.path, resolve)?;
    let server = source.server();
    let mut warnings = Vec::new();
    if let Some(file) = options.previous_index {
        match open_previous(file, config, (&root, server.as_deref()), format, started)? {
            Some(opened) => {
                read_revision_of(source, opened.0.file());
                return Ok(opened);
            }
            None => warnings.push(
                "the index of the daemon before was changed in place or cut off: the folders are looked at anew"
                    .to_owned(),
            ),
        }
    }
    let keys = FolderKeys::of(config)?;
    let selection = read_selection(config, &keys, options)?;
    let identity = digest_identity(&root, server.as_deref(), format);
    let options_digest = digest_options(&selection, &keys, format);
    refuse_index_inside(config.index.as_deref(), &root)?;
    let place = IndexPlace::choose(config.index.as_deref(), &identity, &options_digest);
    let task = Task {
        source,
        root: &root,
        format,
        keys,
        selection,
        identity,
        options: options_digest,
        place,
        opening: options,
    };
    let (index, mut report) = task.open()?;
    report.warnings.splice(0..0, warnings);
    report.warnings.extend(index.left_out().map(hidden::warning));
    if task.selection.ids.is_none() && task.selection.limit.is_none() {
        report.warnings.extend(classes::empty_classes(&index, format.extensions));
    }
    report.samples = index.sample_count();
    report.classes = index.classes().len() as u64;
    report.bytes = index.file().bytes().len() as u64;
    report.path = index.is_mapped().then_some(task.place.path);
    report.seconds = started.elapsed().as_secs_f64();
    Ok((index, report))
}

/// An index with the version of the files that was listed, if their storage keeps versions.
pub fn with_revision_of(source: &dyn Directories, bytes: Vec<u8>) -> Vec<u8> {
    match source.revision() {
        Some(revision) => index_file::with_revision(bytes, &revision),
        None => bytes,
    }
}

/// Reads the files of the version that an index was made of.
pub fn read_revision_of(source: &dyn Directories, index: &IndexFile) {
    if let Some(revision) = index.revision() {
        source.read_revision(revision);
    }
}

/// Whether an index of this dataset is saved. If so, its root has existed before.
pub fn has_saved_index(
    config: &DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    // The root may not be mounted, so its links cannot be resolved: a path with links counts as never seen.
    let root = match config.is_remote() {
        true => config.path.clone(),
        false => std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone()),
    };
    let Ok(keys) = FolderKeys::of(config) else { return false };
    let Ok(selection) = read_selection(config, &keys, options) else { return false };
    // The saved index of a URL is used without a look at the root, so this is asked of file systems alone.
    let identity = digest_identity(&root, None, format);
    let digest = digest_options(&selection, &keys, format);
    let place = IndexPlace::choose(config.index.as_deref(), &identity, &digest);
    let load = || load_at(&place, &identity, &digest, format);
    options.call("reading", &place.path, load).is_ok_and(|index| index.is_some())
}

fn read_selection(
    config: &DatasetConfig,
    keys: &FolderKeys,
    options: OpenOptions<'_>,
) -> Result<Selection, DatasetError> {
    let list = |path: &Option<PathBuf>, action| {
        let read = |path| options.call("reading", path, || ListFile::read(path, action));
        path.as_deref().map(read).transpose()
    };
    Ok(Selection {
        classes: list(&keys.classes, "reading dataset.classes")?,
        ids: list(&config.ids, "reading dataset.ids")?.map(|ids| ids.below(options.samples_root)),
        limit: config.limit,
    })
}

/// Opens the index of the previous daemon: the stream continues with the samples that it began with, whatever has
/// changed in the folders. `None`: the bytes are not valid; they may be what made that daemon crash. If a scan then
/// finds other samples, the stream's fingerprint shows it.
fn open_previous(
    file: &File,
    config: &DatasetConfig,
    (root, server): (&Path, Option<&str>),
    format: FolderFormat,
    started: Instant,
) -> Result<Option<(FolderIndex, IndexReport)>, DatasetError> {
    let Ok(bytes) = file.try_clone().and_then(forebay_dataset::index_bytes::take_in) else {
        return Ok(None);
    };
    let Ok(index) = FolderIndex::open(bytes, format.extensions) else {
        return Ok(None);
    };
    let [identity, options] = index.file().keys();
    if identity != digest_identity(root, server, format) {
        return Err(DatasetError::KeptIndex { path: root.to_owned() });
    }
    let place = IndexPlace::choose(config.index.as_deref(), &identity, &options);
    let report = IndexReport {
        samples: index.sample_count(),
        classes: index.classes().len() as u64,
        bytes: index.file().bytes().len() as u64,
        path: Some(place.path),
        seconds: started.elapsed().as_secs_f64(),
        reused: true,
        ..IndexReport::default()
    };
    Ok(Some((index, report)))
}

fn resolve_root(
    path: &Path,
    source: &dyn Directories,
    format: FolderFormat,
) -> Result<PathBuf, DatasetError> {
    if let Some(url) = source.remote_root().filter(|_| !source.root_is_file()) {
        return Ok(url.to_owned());
    }
    let is_remote = source.remote_root().is_some();
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DatasetError::Missing { path: path.to_owned() },
        _ => DatasetError::from_io(path.to_owned(), "resolving", error),
    };
    if !is_remote {
        let root = std::fs::canonicalize(path).map_err(fail)?;
        if std::fs::metadata(&root).map_err(fail)?.is_dir() {
            return Ok(root);
        }
    }
    Err(DatasetError::WrongKind {
        path: path.to_owned(),
        found: "a file",
        format: format.name,
        expected: "a folder",
    })
}

/// Refuses an index inside the dataset's folder: every write would change that folder.
pub fn refuse_index_inside(index: Option<&Path>, root: &Path) -> Result<(), DatasetError> {
    let folder = index
        .and_then(Path::parent)
        .map(|folder| std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()));
    match (index, folder) {
        (Some(path), Some(folder)) if folder.starts_with(root) => {
            Err(DatasetError::IndexInside { path: path.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Identifies the dataset: the format, the root and its server.
fn digest_identity(root: &Path, server: Option<&str>, format: FolderFormat) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format.name.as_bytes());
    hasher.update(b"\0");
    hasher.update(root.as_os_str().as_bytes());
    with_server(*hasher.finalize().as_bytes(), server)
}

/// The identity of a dataset at a [server](Directories::server): others have other data under one URL.
#[must_use]
pub fn with_server(identity: [u8; 32], server: Option<&str>) -> [u8; 32] {
    let Some(server) = server else { return identity };
    *blake3::Hasher::new().update(&identity).update(server.as_bytes()).finalize().as_bytes()
}

/// Everything else that determines the contents of the index.
fn digest_options(selection: &Selection, keys: &FolderKeys, format: FolderFormat) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: Option<&[u8]>| {
        let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
        hasher.update(&length.to_le_bytes());
        hasher.update(bytes.unwrap_or_default());
    };
    part(Some(format.extensions.join("\0").as_bytes()));
    part(selection.classes.as_ref().map(ListFile::bytes));
    part(selection.ids.as_ref().map(ListFile::bytes));
    part(selection.limit.map(u64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice));
    part(Some(&[u8::from(keys.nested_classes), u8::from(keys.hidden)]));
    *hasher.finalize().as_bytes()
}

fn load_at(
    place: &IndexPlace,
    identity: &[u8; 32],
    options: &[u8; 32],
    format: FolderFormat,
) -> Result<Option<FolderIndex>, DatasetError> {
    let open = |bytes| FolderIndex::open(bytes, format.extensions);
    place.load(identity, options, open, |index| index.file().keys())
}

/// The inputs of opening one folder.
struct Task<'a> {
    source: &'a dyn Directories,
    root: &'a Path,
    format: FolderFormat,
    keys: FolderKeys,
    selection: Selection,
    identity: [u8; 32],
    options: [u8; 32],
    place: IndexPlace,
    opening: OpenOptions<'a>,
}

impl Task<'_> {
    fn open(&self) -> Result<(FolderIndex, IndexReport), DatasetError> {
        let mut report = IndexReport::default();
        let mut warnings = Vec::new();
        let make = |warnings: &mut Vec<String>| {
            let bytes = self
                .scan(self.opening.progress, warnings)
                .map_err(|error| self.distinguish_empty_root(error))?;
            Ok(with_revision_of(self.source, bytes))
        };
        let rescans = self.opening.lists_anew && self.source.remote_root().is_some();
        // A new listing is of what the branch is now.
        let load = || self.load(!rescans);
        let loaded = self.place.load_or_make(self.opening, rescans, &mut warnings, load, make)?;
        let index = match loaded {
            Loaded::Saved(index) => {
                report.reused = true;
                read_revision_of(self.source, index.file());
                index
            }
            Loaded::New { bytes, before } => {
                let index = FolderIndex::open(bytes, self.format.extensions)
                    .map_err(|fault| self.place.unreadable(fault))?;
                if let Some(before) = before {
                    warnings.extend(changes::gone(&before, &index));
                    let files = changes::all(&before, &index);
                    report.changes = Some(with_revisions(before.file(), index.file(), files));
                }
                index
            }
        };
        report.warnings = warnings;
        Ok((index, report))
    }

    fn load(&self, reads_its_revision: bool) -> Result<Saved<FolderIndex>, DatasetError> {
        let load = || load_at(&self.place, &self.identity, &self.options, self.format);
        let loaded = self.opening.call("reading the index", &self.place.path, load)?;
        if let Some(index) = loaded.as_ref().filter(|_| reads_its_revision) {
            read_revision_of(self.source, index.file());
        }
        Ok(match loaded {
            Some(index) if cache::is_up_to_date(&index, self.source) => Saved::Fresh(index),
            Some(index) => Saved::Stale(index),
            None => Saved::Nothing,
        })
    }

    /// A root without entries may be a file system that is not mounted yet: if the start may wait, this error
    /// distinguishes it from a root without samples.
    fn distinguish_empty_root(&self, error: DatasetError) -> DatasetError {
        let mut is_empty = true;
        match error {
            DatasetError::NoClassFolders { .. } | DatasetError::NoSamples { .. }
                if self.opening.patience.is_some()
                    && self.source.list(b"", &mut |_, _| is_empty = false).is_ok()
                    && is_empty =>
            {
                DatasetError::EmptyRoot(Box::new(error))
            }
            error => error,
        }
    }

    fn scan(
        &self,
        progress: ProgressCallback<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok())
            .unwrap_or(0);
        let visible = VisibleEntries::new(self.source, self.format.extensions);
        let source: &dyn Directories = if self.keys.hidden { self.source } else { &visible };
        let scanned = scan::scan_folder(source, self.root, self.format, progress);
        let scanned = scanned.map_err(|error| match error {
            // Nothing exists at the URL.
            DatasetError::Storage(StorageError::Vanished { path })
                if self.source.remote_root() == Some(path.as_path()) =>
            {
                DatasetError::Missing { path }
            }
            error => error,
        })?;
        // A list of classes shows that these folders are intended.
        if !self.keys.nested_classes && self.selection.classes.is_none() {
            classes::refuse_nested_classes(&scanned, self.root, self.format)?;
        }
        warnings.extend(scanned.skipped.summary(self.format.extensions));
        if scanned.repeated > 0 {
            warnings.push(format!(
                "the storage lists {} names more than once, and each counts once: pages of its listing overlap, or folders \
                 changed while they were listed",
                scanned.repeated
            ));
        }
        let selected = self.selection.apply(scanned, self.root, self.format)?;
        let origin = IndexOrigin {
            identity: self.identity,
            options: self.options,
            scan_started_seconds,
            left_out: visible.left_out(),
        };
        Ok(FolderIndex::build(&selected, &origin, self.format.extensions))
    }
}
