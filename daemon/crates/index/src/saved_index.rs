//! The saved index of a dataset of containers or manifests: its identity, its path, whether it is up to date, and how
//! it is rebuilt. The format defines its contents ([`SavedIndex`]).

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_storage::version::FileStamp;

use crate::changes;
use crate::folder::cache::{CLOCK_TICK_SECONDS, IndexPlace, Loaded, Saved};
use crate::folder::select::ListFile;
use crate::folder::{read_revision_of, refuse_index_inside, with_revision_of, with_server};
use crate::index_file::{IndexFile, LayoutFault};
use crate::stored_file::StoredFile;
use forebay_dataset::IndexBytes;
use forebay_dataset::error::DatasetError;
use forebay_dataset::index_bytes;
use forebay_dataset::opening::{IndexReport, OpenOptions};
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable};

/// The start of a scan's warning about reading pages again and again: it is saved, but not reported for an order of
/// blocks, which reads each page once.
pub const EXCEPT_BY_BLOCKS: char = '\u{1}';

/// An index of samples that share files, or that a file lists. As a file table it lists these files.
pub trait SavedIndex: FileTable + Sized {
    /// The section with the definition of the fields.
    const RULES: usize;

    /// Validates the bytes and opens them.
    ///
    /// # Errors
    /// The bytes are not an intact index of this kind and version.
    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault>;

    /// The file of the index.
    fn file(&self) -> &IndexFile;

    /// The bytes that the index was opened with.
    fn bytes(&self) -> &IndexBytes {
        self.file().bytes()
    }

    /// The number of samples.
    fn samples(&self) -> u64 {
        self.file().samples()
    }

    /// The files that contain the samples, with their stamps.
    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)>;

    /// The number of columns.
    fn columns(&self) -> usize;

    /// The definition of the fields.
    fn rules(&self) -> &str {
        self.file().text(Self::RULES)
    }

    /// Appends a sample's name for `dataset.ids` and messages: its file, and the sample's key or line in it.
    ///
    /// # Panics
    /// The sample does not exist.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>);

    /// BLAKE3 of everything that identifies the samples.
    fn fingerprint(&self) -> [u8; 32] {
        self.file().fingerprint()
    }
}

/// The files that a configuration selects.
pub struct Asked<'a> {
    /// The format's name.
    pub format: &'static str,
    /// The folder that contains all files.
    pub root: PathBuf,
    /// As [`Directories::server`](forebay_storage::listing::Directories::server).
    pub server: Option<&'a str>,
    /// The pattern of the files, relative to the folder.
    pub pattern: Option<&'a str>,
    /// Whether the folder is listed for the files; if so, the index must not be inside it.
    pub is_listed: bool,
}

/// The dataset that a configuration selects.
pub struct Request<'a> {
    /// The dataset's configuration.
    pub config: &'a DatasetConfig,
    /// The resources of the opening.
    pub options: OpenOptions<'a>,
    /// The file of `dataset.ids`.
    pub ids: Option<ListFile>,
    /// A digest of the format, the root and the pattern.
    pub identity: [u8; 32],
    /// A digest of the other options that determine the contents of the index.
    pub digest: [u8; 32],
    /// The path of the index.
    pub place: IndexPlace,
}

impl<'a> Request<'a> {
    /// `own`: the format's keys that determine the contents of the index.
    ///
    /// # Errors
    /// The list of ids cannot be read, or the index is inside the samples' folder.
    pub fn of(
        config: &'a DatasetConfig,
        options: OpenOptions<'a>,
        Asked { format, root, server, pattern, is_listed }: Asked<'_>,
        own: &str,
    ) -> Result<Self, DatasetError> {
        let read = |path: &PathBuf| {
            options.call("reading", path, || ListFile::read(path, "reading dataset.ids"))
        };
        let ids = config.ids.as_ref().map(read).transpose()?;
        let ids = ids.map(|ids| ids.below(options.samples_root));
        // A folder is identified by its resolved path; one that is not mounted, or a URL, by its path as written.
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
        let identity = with_server(identity, server);
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
    /// The configured path contains something else.
    pub fn load<I: SavedIndex>(&self) -> Result<Option<I>, DatasetError> {
        let keys = |index: &I| index.file().keys();
        let load = || self.place.load(&self.identity, &self.digest, I::open, keys);
        self.options.call("reading the index", &self.place.path, load)
    }

    /// The index of the previous daemon, the saved one if it is up to date, or a new one, which is saved.
    ///
    /// # Errors
    /// An error of one of the functions, or an index of another dataset.
    pub fn open<I: SavedIndex>(
        &self,
        storage: &dyn Storage,
        report: &mut IndexReport,
        is_fresh: impl Fn(&I) -> Result<bool, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<I, DatasetError> {
        let index = match self.previous::<I>()? {
            Some(Ok(index)) => {
                report.reused = true;
                read_revision_of(storage, index.file());
                index
            }
            other => {
                if other.is_some() {
                    report.warnings.push(
                        "the index of the daemon before was changed in place or cut off: the data is looked at anew"
                            .to_owned(),
                    );
                }
                self.load_or_make(storage, report, is_fresh, make)?
            }
        };
        report.samples = index.samples();
        report.bytes = index.bytes().len() as u64;
        let is_mapped = matches!(index.bytes(), IndexBytes::Mapped(_));
        report.path = is_mapped.then(|| self.place.path.clone());
        Ok(index)
    }

    /// Whether the files of an index are the files that are found now, with the same sizes and times.
    ///
    /// # Errors
    /// The storage is unavailable.
    pub fn are_unchanged<I: SavedIndex>(
        &self,
        storage: &dyn Storage,
        index: &I,
        found: &[Vec<u8>],
    ) -> Result<bool, DatasetError> {
        let count = index.files().count();
        // With a limit that is reached, the last files were not scanned.
        let is_full = self.config.limit.is_some_and(|limit| index.samples() >= limit);
        let is_cut = is_full && count < found.len();
        let are_same = index.files().zip(found).all(|((path, _), found)| path == found);
        if !(count == found.len() || is_cut) || !are_same {
            return Ok(false);
        }
        let read_at = index.file().scan_started_seconds();
        for (place, (_, known)) in (0..).zip(index.files()) {
            if !is_unchanged(storage, index, FileId(place), known, read_at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The index of the previous daemon: `None` if there is none, `Some(Err)` if its bytes are not valid.
    fn previous<I: SavedIndex>(&self) -> Result<Option<Result<I, ()>>, DatasetError> {
        let Some(file) = self.options.previous_index else { return Ok(None) };
        let Ok(bytes) = file.try_clone().and_then(index_bytes::take_in) else {
            return Ok(Some(Err(())));
        };
        match I::open(bytes) {
            Ok(index) if index.file().keys()[0] == self.identity => Ok(Some(Ok(index))),
            Ok(_) => Err(DatasetError::KeptIndex { path: self.config.path.clone() }),
            Err(_) => Ok(Some(Err(()))),
        }
    }

    fn load_or_make<I: SavedIndex>(
        &self,
        storage: &dyn Storage,
        report: &mut IndexReport,
        is_fresh: impl Fn(&I) -> Result<bool, DatasetError>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Vec<u8>, DatasetError>,
    ) -> Result<I, DatasetError> {
        let mut warnings = Vec::new();
        let rescans = self.options.lists_anew && storage.remote_root().is_some();
        let load = || {
            let loaded = self.load::<I>()?;
            // A new listing is of what the branch is now.
            if let Some(index) = loaded.as_ref().filter(|_| !rescans) {
                read_revision_of(storage, index.file());
            }
            Ok(match loaded {
                Some(index) if is_fresh(&index)? => Saved::Fresh(index),
                Some(index) => Saved::Stale(index),
                None => Saved::Nothing,
            })
        };
        let make = |warnings: &mut Vec<String>| {
            let bytes = with_revision_of(storage, make(warnings)?);
            self.place.save_warnings(&bytes, warnings);
            Ok(bytes)
        };
        let loaded = self.place.load_or_make(self.options, rescans, &mut warnings, load, make)?;
        if let Loaded::Saved(index) = &loaded {
            report.reused = true;
            read_revision_of(storage, index.file());
            warnings.extend(self.place.saved_warnings(index.bytes()));
        }
        let by_blocks = self.options.by_blocks;
        report.warnings.extend(warnings.iter().filter_map(|warning| {
            match warning.strip_prefix(EXCEPT_BY_BLOCKS) {
                Some(rest) => (!by_blocks).then(|| rest.to_owned()),
                None => Some(warning.clone()),
            }
        }));
        match loaded {
            Loaded::Saved(index) => Ok(index),
            Loaded::New { bytes, before } => {
                let index = I::open(bytes).map_err(|fault| self.place.unreadable(fault))?;
                report.changes = before.map(|before| {
                    let files = changes::of_files(before.files(), index.files());
                    changes::with_revisions(before.file(), index.file(), files)
                });
                Ok(index)
            }
        }
    }

    /// The error for a dataset without samples.
    pub fn no_samples(&self, reason: impl Into<String>) -> DatasetError {
        DatasetError::NoSamples { path: self.config.path.clone(), reason: reason.into() }
    }

    /// Refuses a limit of 0.
    ///
    /// # Errors
    /// The limit is 0.
    pub fn check_limit(&self) -> Result<(), DatasetError> {
        match self.config.limit {
            Some(0) => Err(self.no_samples("dataset.limit is 0; leave it out or raise it")),
            _ => Ok(()),
        }
    }
}

/// The current time in seconds since 1970.
pub fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}

/// Whether a file is unchanged since it was read. A file that changed within the clock's tick before the reading began
/// counts as changed.
///
/// # Errors
/// The storage is unavailable.
pub fn is_unchanged(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    known: FileStamp,
    read_at_seconds: i64,
) -> Result<bool, DatasetError> {
    // Then the index is rebuilt, which unpacks the file.
    if !storage.is_at_hand(&files.path(file)) {
        return Ok(false);
    }
    let found = match storage.status(files, file) {
        Ok(status) => FileStamp::of(&status),
        Err(error) if error.is_transient() => return Err(error.into()),
        Err(_) => return Ok(false),
    };
    Ok(known == found && is_settled(found, read_at_seconds))
}

/// Whether a file last changed before the clock's tick in which a reading began: it would have another time if it had
/// changed during the reading.
pub fn is_settled(stamp: FileStamp, read_at_seconds: i64) -> bool {
    stamp.modified_seconds < read_at_seconds - CLOCK_TICK_SECONDS
}

/// Converts the error for a vanished file into the error for a path that does not exist.
pub fn tell_missing(error: DatasetError) -> DatasetError {
    match error {
        DatasetError::Storage(forebay_storage::StorageError::Vanished { path }) => {
            DatasetError::Missing { path }
        }
        error => error,
    }
}

/// Opens a file of the dataset, which has to exist.
///
/// # Errors
/// The file does not exist, or the storage is unavailable.
pub fn open_file<'s>(
    storage: &'s dyn Storage,
    path: &'s [u8],
) -> Result<StoredFile<'s>, DatasetError> {
    StoredFile::new(storage, path).map_err(|error| tell_missing(error.into()))
}

/// Refuses duplicate files.
///
/// # Errors
/// A file occurs twice; the error has its path.
pub fn refuse_twice(storage: &dyn Storage, files: &[Vec<u8>]) -> Result<(), DatasetError> {
    let mut sorted: Vec<&Vec<u8>> = files.iter().collect();
    sorted.sort_unstable();
    let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) else { return Ok(()) };
    let reason = "the pattern names it twice; a sample is used once an epoch".to_owned();
    Err(DatasetError::BrokenFile { path: storage.full_path(twice[0]), reason })
}

/// Refuses a file if the format reads a folder or files with certain names.
///
/// # Errors
/// The path is a file; the error has what the format expects.
pub fn refuse_other_file(
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
