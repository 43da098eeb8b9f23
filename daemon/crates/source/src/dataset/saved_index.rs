//! The saved index of a dataset of containers or manifests: of which dataset it is, where it lies, whether it is still true,
//! and making it anew. What is in it is its format's part ([`SavedIndex`]).

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::DatasetConfig;

use super::IndexBytes;
use super::changes;
use super::error::DatasetError;
use super::folder::cache::{CLOCK_TICK_SECONDS, IndexPlace, Loaded, Saved};
use super::folder::index_bytes;
use super::folder::layout::{self, LayoutFault};
use super::folder::refuse_index_inside;
use super::folder::select::ListFile;
use super::opening::{IndexReport, OpenOptions};
use super::stored_file::FileStamp;
use crate::location::{FileId, FileTable};
use crate::storage::Storage;

/// An index as a format has it, whose header is that of all indexes.
pub(super) trait SavedIndex: Sized {
    /// Checks the bytes and takes them.
    ///
    /// # Errors
    /// They are no index of this kind and version, whole and unchanged.
    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault>;

    /// What it was opened with.
    fn bytes(&self) -> &IndexBytes;

    /// Samples in it.
    fn samples(&self) -> u64;

    /// The files that its samples lie in, where they hold many each, with their stamps.
    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)>;
}

/// Which files a configuration asks for.
pub(super) struct Asked<'a> {
    /// The format's name.
    pub(super) format: &'static str,
    /// The folder that all of them lie in.
    pub(super) root: PathBuf,
    /// Of the files, below the folder.
    pub(super) pattern: Option<&'a str>,
    /// Whether the folder is listed for them: then an index is not to lie in it.
    pub(super) is_listed: bool,
}

/// The dataset that a configuration asks for.
pub(super) struct Request<'a> {
    pub(super) config: &'a DatasetConfig,
    pub(super) options: OpenOptions<'a>,
    pub(super) ids: Option<ListFile>,
    pub(super) identity: [u8; 32],
    /// Of all else that decides what is in the index.
    pub(super) digest: [u8; 32],
    pub(super) place: IndexPlace,
}

impl<'a> Request<'a> {
    /// `own`: what of the format's keys decides what is in the index.
    ///
    /// # Errors
    /// A list of ids that cannot be read, or an index among the samples.
    pub(super) fn of(
        config: &'a DatasetConfig,
        options: OpenOptions<'a>,
        Asked { format, root, pattern, is_listed }: Asked<'_>,
        own: &str,
    ) -> Result<Self, DatasetError> {
        let read = |path: &PathBuf| {
            options.call("reading", path, || ListFile::read(path, "reading dataset.ids"))
        };
        let ids = config.ids.as_ref().map(read).transpose()?;
        // A folder is known by where its links lead; one that is away, or a URL, by its path.
        let known = match config.is_remote() {
            true => None,
            false => {
                options.call("asking the status of", &root, || std::fs::canonicalize(&root)).ok()
            }
        };
        let root = known.unwrap_or(root);
        if is_listed {
            refuse_index_inside(config.index.as_deref(), &root)?;
        }
        let identity = digest([
            format.as_bytes(),
            root.as_os_str().as_encoded_bytes(),
            pattern.unwrap_or("").as_bytes(),
        ]);
        let limit = config.limit.map_or(String::new(), |limit| limit.to_string());
        let ids_bytes = ids.as_ref().map(ListFile::bytes);
        let digest = digest([
            own.as_bytes(),
            limit.as_bytes(),
            &[u8::from(ids_bytes.is_some())],
            ids_bytes.unwrap_or_default(),
        ]);
        let place = IndexPlace::choose(config.index.as_deref(), &identity, &digest);
        Ok(Self { config, options, ids, identity, digest, place })
    }

    /// The saved index of this dataset with these options.
    ///
    /// # Errors
    /// The configured path holds something else.
    pub(super) fn load<I: SavedIndex>(&self) -> Result<Option<I>, DatasetError> {
        let keys = |index: &I| layout::keys(index.bytes()).map(<[u8]>::to_vec);
        let load = || {
            let open = |bytes| I::open(bytes).map(|index| (keys(&index), index));
            let loaded = self.place.load(&self.identity, &self.digest, open, |(keys, _)| {
                [keys[0].as_slice(), keys[1].as_slice()]
            })?;
            Ok(loaded.map(|(_, index)| index))
        };
        self.options.call("reading the index", &self.place.path, load)
    }

    /// The index of the daemon before, the saved one where it is true, or a new one, which is saved.
    ///
    /// # Errors
    /// What the functions say, or an index of another dataset.
    pub(super) fn open<I: SavedIndex>(
        &self,
        storage: &dyn Storage,
        report: &mut IndexReport,
        is_true: impl Fn(&I) -> Result<bool, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<I, DatasetError> {
        let index = match self.previous::<I>()? {
            Some(Ok(index)) => {
                report.reused = true;
                index
            }
            other => {
                if other.is_some() {
                    report.warnings.push(
                        "the index of the daemon before was changed in place or cut off: the data is looked at anew"
                            .to_owned(),
                    );
                }
                self.load_or_make(storage, report, is_true, make)?
            }
        };
        report.samples = index.samples();
        report.bytes = index.bytes().len() as u64;
        let is_mapped = matches!(index.bytes(), IndexBytes::Mapped(_));
        report.path = is_mapped.then(|| self.place.path.clone());
        Ok(index)
    }

    /// The index of the daemon before: `None` where there is none, `Some(Err)` where its bytes are not sound.
    fn previous<I: SavedIndex>(&self) -> Result<Option<Result<I, ()>>, DatasetError> {
        let Some(file) = self.options.previous_index else { return Ok(None) };
        let Ok(bytes) = file.try_clone().and_then(index_bytes::take_in) else {
            return Ok(Some(Err(())));
        };
        match I::open(bytes) {
            Ok(index) if layout::keys(index.bytes())[0] == self.identity => Ok(Some(Ok(index))),
            Ok(_) => Err(DatasetError::KeptIndex { path: self.config.path.clone() }),
            Err(_) => Ok(Some(Err(()))),
        }
    }

    fn load_or_make<I: SavedIndex>(
        &self,
        storage: &dyn Storage,
        report: &mut IndexReport,
        is_true: impl Fn(&I) -> Result<bool, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<I, DatasetError> {
        let mut warnings = Vec::new();
        let is_anew = self.options.lists_anew && storage.remote_root().is_some();
        let load = || {
            Ok(match self.load()? {
                Some(index) if is_true(&index)? => Saved::True(index),
                Some(index) => Saved::Old(index),
                None => Saved::Nothing,
            })
        };
        let loaded = self.place.load_or_make(self.options, is_anew, &mut warnings, load, make)?;
        report.warnings.append(&mut warnings);
        match loaded {
            Loaded::Saved(index) => {
                report.reused = true;
                Ok(index)
            }
            Loaded::New { bytes, before } => {
                let index = I::open(bytes).map_err(|fault| self.place.unreadable(fault))?;
                report.changes =
                    before.map(|before| changes::of_files(before.files(), index.files()));
                Ok(index)
            }
        }
    }

    /// The error for a dataset without samples.
    pub(super) fn no_samples(&self, reason: impl Into<String>) -> DatasetError {
        DatasetError::NoSamples { path: self.config.path.clone(), reason: reason.into() }
    }

    /// Refuses a limit that leaves nothing.
    ///
    /// # Errors
    /// It is 0.
    pub(super) fn check_limit(&self) -> Result<(), DatasetError> {
        match self.config.limit {
            Some(0) => Err(self.no_samples("dataset.limit is 0; leave it out or raise it")),
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub(super) fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}

/// Whether a file is as it was when it was read. One that changed within the clock's tick before the reading began counts
/// as changed.
///
/// # Errors
/// The storage is away.
pub(super) fn is_unchanged(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    known: Option<FileStamp>,
    read_at_seconds: i64,
) -> Result<bool, DatasetError> {
    // Then the index is made anew, with what unpacking takes.
    if !storage.is_at_hand(&files.path(file)) {
        return Ok(false);
    }
    let found = match storage.status(files, file) {
        Ok(status) => FileStamp::of(&status),
        Err(error) if error.is_transient() => return Err(error.into()),
        Err(_) => return Ok(false),
    };
    let is_settled = found.changed_seconds < read_at_seconds - CLOCK_TICK_SECONDS;
    Ok(known == Some(found) && is_settled)
}

/// A file that a path names and that is not there.
pub(super) fn tell_missing(error: DatasetError) -> DatasetError {
    match error {
        DatasetError::Storage(crate::storage::StorageError::Vanished { path }) => {
            DatasetError::Missing { path }
        }
        error => error,
    }
}

/// Refuses a file that is named twice.
///
/// # Errors
/// Names it.
pub(super) fn refuse_twice(storage: &dyn Storage, files: &[Vec<u8>]) -> Result<(), DatasetError> {
    let mut sorted: Vec<&Vec<u8>> = files.iter().collect();
    sorted.sort_unstable();
    let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) else { return Ok(()) };
    let reason = "the pattern names it twice; a sample is used once an epoch".to_owned();
    Err(DatasetError::BrokenFile { path: storage.full_path(twice[0]), reason })
}

/// Refuses a file where a folder or files of some names are read.
///
/// # Errors
/// Says what is read.
pub(super) fn refuse_other_file(
    storage: &dyn Storage,
    path: &Path,
    (found, format, expected): (&'static str, &'static str, &'static str),
    options: OpenOptions<'_>,
) -> Result<(), DatasetError> {
    let is_file = || options.call("asking the status of", path, || path.is_file());
    match storage.root_is_file() || is_file() {
        true => Err(DatasetError::WrongKind { path: path.to_owned(), found, format, expected }),
        false => Ok(()),
    }
}

fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}
