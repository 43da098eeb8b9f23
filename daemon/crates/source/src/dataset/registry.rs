//! The formats by name, and opening one. A further format is one file and one line in `FORMATS`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_config::{ConfigError, DatasetConfig, Keys, Section, Table, nearest};

use super::audio_folder::AudioFolderKeys;
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::folder::names::split_extension;
use super::folder::scan::FolderFormat;
use super::folder::{self, FolderKeys};
use super::manifest::coco::{self, CocoKeys};
use super::manifest::{self, ManifestKeys};
use super::opening::{IndexReport, OpenOptions, Opened, OpenedFormat};
use super::progress::ScanProgress;
use super::records::{self, RecordKeys};
use super::runs::in_runs;
use super::tables::{self, TableKeys};
use super::tfrecord::{self, TfRecordKeys};
use super::webdataset::{self, WebDatasetKeys};
use super::{arrow, audio_folder, image_folder, litdata, mds, npy, npz, parquet, tokens};
use crate::storage::{
    self, PatientStorage, RetryClass, Storage, StorageError, UnpackedFiles, UnpackedStorage,
    UnpackingStorage, WithoutUnpacking,
};

/// The `dataset.format` that stands for the one that reads what lies at the path.
pub(super) const AUTO: &str = "auto";

type DraftWriter = fn(&Seen) -> Draft;
type Opener = fn(&DatasetConfig, &dyn Storage, OpenOptions<'_>) -> OpenedFormat;

/// A format: its name, its own keys of `[dataset]`, how a dataset of it is opened, and what a first configuration says
/// of it.
pub(super) struct Format {
    pub(super) name: &'static str,
    folder: FolderFormat,
    /// Whether a file, or those that a pattern names, are of the format by the name.
    reads: fn(&FolderFormat, &[u8]) -> bool,
    /// The folder or file that holds everything that a path names; of most formats the path itself.
    root: fn(&Path) -> PathBuf,
    /// What samples are read from, where that is not the same.
    data_root: fn(&DatasetConfig) -> Option<PathBuf>,
    /// Names of files that the format alone has: where one lies at the top, the others do not count.
    pub(super) marks: &'static [&'static str],
    /// Whether an index of a dataset was saved: then its root has been there before.
    has_saved_index: fn(&DatasetConfig, FolderFormat, OpenOptions<'_>) -> bool,
    /// Whether files that are compressed as a whole are read, once the cache has them unpacked.
    unpacks: bool,
    keys: Table,
    resolve: fn(&mut Section) -> Result<(), ConfigError>,
    open: Opener,
    pub(super) draft: DraftWriter,
}

impl Format {
    /// Whether a file, or those that a pattern names, are of the format by the name.
    pub(super) fn reads(&self, name: &[u8]) -> bool {
        (self.reads)(&self.folder, name)
    }

    pub(super) fn extensions(&self) -> &'static [&'static str] {
        self.folder.extensions
    }

    fn samples_root(&self, config: &DatasetConfig) -> PathBuf {
        (self.data_root)(config).unwrap_or_else(|| (self.root)(&config.path))
    }
}

const fn format<T: Keys>(format: &FolderFormat, open: Opener, draft: DraftWriter) -> Format {
    Format {
        name: format.name,
        folder: *format,
        reads: |format, name| split_extension(name, format.extensions).is_some(),
        root: Path::to_path_buf,
        data_root: |_| None,
        marks: &[],
        has_saved_index: folder::has_saved_index,
        unpacks: false,
        keys: T::TABLE,
        resolve: Section::resolve::<T>,
        open,
        draft,
    }
}

static FORMATS: [Format; 13] = [
    format::<FolderKeys>(&image_folder::FORMAT, image_folder::open, image_folder::draft),
    format::<FolderKeys>(&npy::FORMAT, npy::open, npy::draft),
    format::<FolderKeys>(&npz::FORMAT, npz::open, npz::draft),
    Format {
        reads: |_, name| webdataset::is_archive(name),
        root: webdataset::root,
        has_saved_index: webdataset::has_saved_index,
        unpacks: true,
        ..format::<WebDatasetKeys>(&webdataset::FORMAT, webdataset::open, webdataset::draft)
    },
    Format {
        root: manifest::root,
        data_root: manifest::data_root,
        marks: &manifest::IN_FOLDERS,
        has_saved_index: manifest::has_saved_index,
        ..format::<ManifestKeys>(&manifest::FORMAT, manifest::open, manifest::draft)
    },
    Format {
        reads: |_, name| mds::is_shard(name),
        has_saved_index: records::has_saved_index,
        unpacks: true,
        ..format::<RecordKeys>(&mds::FORMAT, mds::open, records::draft)
    },
    Format {
        has_saved_index: records::has_saved_index,
        marks: &litdata::FIRST_CHUNKS,
        unpacks: true,
        ..format::<RecordKeys>(&litdata::FORMAT, litdata::open, records::draft)
    },
    Format {
        reads: |_, name| tfrecord::is_of_records(name),
        root: tfrecord::root,
        has_saved_index: tfrecord::has_saved_index,
        unpacks: true,
        ..format::<TfRecordKeys>(&tfrecord::FORMAT, tfrecord::open, tfrecord::draft)
    },
    Format {
        root: coco::root,
        data_root: coco::data_root,
        marks: &coco::IN_FOLDERS,
        has_saved_index: coco::has_saved_index,
        ..format::<CocoKeys>(&coco::FORMAT, coco::open, coco::draft)
    },
    Format {
        root: arrow::root,
        has_saved_index: tables::has_saved_index,
        marks: &arrow::IN_FOLDERS,
        ..format::<TableKeys>(&arrow::FORMAT, arrow::open, tables::draft)
    },
    Format {
        root: parquet::root,
        has_saved_index: tables::has_saved_index,
        ..format::<TableKeys>(&parquet::FORMAT, parquet::open, tables::draft)
    },
    Format {
        has_saved_index: audio_folder::has_saved_index,
        ..format::<AudioFolderKeys>(&audio_folder::FORMAT, audio_folder::open, audio_folder::draft)
    },
    format::<tokens::OwnKeys>(&tokens::FORMAT, tokens::open, tokens::draft),
];

/// Those of tests, which are no part of the reference.
static TEST_FORMATS: &[Format] = &[
    #[cfg(any(test, feature = "testing"))]
    format::<FolderKeys>(
        &super::testing::BlockFolder::FORMAT,
        super::testing::open_blocks,
        |seen| Draft::of_arrays("copy", seen),
    ),
];

/// Those that the reference has, in its order.
pub(super) fn formats() -> &'static [Format] {
    &FORMATS
}

pub(super) fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().chain(TEST_FORMATS).find(|format| format.name == name)
}

/// The format of a configuration; of one that is to be found, that for which the path is a pattern.
fn configured(config: &DatasetConfig) -> Option<&'static Format> {
    match config.format.as_str() {
        AUTO => of_pattern(&config.path),
        name => find(name),
    }
}

/// The format for which a path is a file in which several samples lie, or a pattern of such files, and no folder.
pub(super) fn of_pattern(path: &Path) -> Option<&'static Format> {
    let name = path.as_os_str().as_encoded_bytes();
    formats().iter().find(|format| (format.root)(path) != path && format.reads(name))
}

/// Each format's name and its own keys, for the reference.
pub fn format_tables() -> impl Iterator<Item = (&'static str, Table)> {
    FORMATS.iter().map(|format| (format.name, format.keys))
}

/// Reads the keys of `[dataset]` that only the format knows and those of `[storage]`, and leaves them resolved: defaults
/// filled in and paths absolute. Of an unknown format nothing is read; [`open`] says that it is unknown.
///
/// # Errors
/// A key that the format does not know, or whose value it does not take.
pub fn resolve_keys(config: &mut DatasetConfig) -> Result<(), ConfigError> {
    storage::resolve_keys(config)?;
    match find(&config.format) {
        Some(format) => (format.resolve)(&mut config.own),
        None => Ok(()),
    }
}

/// The folder or file that samples are read from: a dataset's path, but for patterns that name several files, and for
/// formats that lead elsewhere.
pub fn root_of(config: &DatasetConfig) -> PathBuf {
    configured(config).map_or_else(|| config.path.clone(), |format| format.samples_root(config))
}

/// That, and the folder or file that says which samples there are.
pub fn roots_of(config: &DatasetConfig) -> Vec<PathBuf> {
    let listed = configured(config).map(|format| (format.root)(&config.path));
    [root_of(config)].into_iter().chain(listed).collect()
}

/// The names that `dataset.format` may have.
pub fn format_names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// Opens a dataset and its storage, and logs the report's warnings.
///
/// # Errors
/// An unknown format, or a dataset that cannot be used as configured.
pub(super) fn open(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let opened = open_silently(config, options)?;
    if let Some(changes) = &opened.report.changes {
        tracing::info!(path = %config.path.display(), "{changes}");
    }
    for warning in &opened.report.warnings {
        tracing::warn!(path = %config.path.display(), "{warning}");
    }
    Ok(opened)
}

/// As [`open`], for the index alone.
///
/// # Errors
/// As [`open`].
pub(super) fn build_index(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<IndexReport, DatasetError> {
    let options = OpenOptions { lists_anew: true, ..options };
    open_silently(config, options).map(|opened| opened.report)
}

pub(super) fn open_silently(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let Some(format) = find(&config.format) else {
        return Err(DatasetError::UnknownFormat {
            given: config.format.clone(),
            hint: nearest(&config.format, format_names())
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default(),
            known: format_names().collect::<Vec<_>>().join(", "),
        });
    };
    let Some(patience) = options.patience else {
        return open_once(format, config, options);
    };
    let mut retries = None;
    let mut furthest = 0;
    loop {
        let reached = AtomicU64::new(0);
        let progress = |seen: ScanProgress| {
            // The root is listed already. Relaxed, here and below: a count, nothing is ordered by it.
            reached.fetch_max(1 + seen.directories + seen.samples, Ordering::Relaxed);
            (options.progress)(seen)
        };
        let opened = open_once(format, config, OpenOptions { progress: &progress, ..options });
        let reached = reached.load(Ordering::Relaxed);
        if reached > furthest {
            // What it failed by before is over: another outage has its own time. One that a scan meets at the same
            // place each time has not.
            (furthest, retries) = (reached, None);
        }
        let again = opened.as_ref().err().and_then(DatasetError::transient).filter(|error| {
            // A single call is made again where it fails; this is for what cannot be.
            error.class() == RetryClass::Outage
                // A root that nobody has seen, or seen with samples, is a mistake in the configuration.
                && (!matches!(opened, Err(DatasetError::Missing { .. } | DatasetError::EmptyRoot(_)))
                    || patience.is_restart()
                    || (format.has_saved_index)(config, format.folder, options))
        });
        match again {
            Some(error) if patience.wait_after(&mut retries, &error) => {}
            _ => {
                if let (Ok(_), Some(retries)) = (&opened, &retries) {
                    retries.succeed();
                }
                return opened;
            }
        }
    }
}

/// Opens the storage that a dataset's path names.
pub(super) fn open_storage(
    path: &Path,
    keys: &Section,
    options: OpenOptions<'_>,
) -> Result<Arc<dyn Storage>, DatasetError> {
    let opened = options.call("opening", path, || storage::open(path, keys));
    opened.map_err(|error| match error {
        StorageError::Vanished { .. } => DatasetError::Missing { path: path.to_owned() },
        error => error.into(),
    })
}

/// Opens a dataset without beginning again; single calls are made again where that can be.
fn open_once(
    format: &Format,
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let root = format.samples_root(config);
    let storage = open_storage(&root, &config.storage, options)?;
    let patient =
        options.patience.map(|patience| PatientStorage { storage: storage.as_ref(), patience });
    let source: &dyn Storage = match &patient {
        Some(patient) => patient,
        None => storage.as_ref(),
    };
    let unpacked =
        format.unpacks.then(|| UnpackedFiles::open(storage.as_ref(), &config.cache)).flatten();
    let unpacking = unpacked.as_ref().map(|files| UnpackedStorage::new(source, Arc::clone(files)));
    let source: &dyn Storage = match &unpacking {
        Some(unpacking) => unpacking,
        None => source,
    };
    let (dataset, report) = (format.open)(config, source, options)?;
    let storage: Arc<dyn Storage> = match unpacked {
        Some(files) => Arc::new(UnpackedStorage::new(storage, files)),
        None if format.unpacks => Arc::new(WithoutUnpacking(storage)),
        None => storage,
    };
    let storage: Arc<dyn Storage> = match dataset.page_bytes() {
        Some(page_bytes) => Arc::new(UnpackingStorage::new(storage, page_bytes)),
        None => storage,
    };
    // What a cache keeps of a sample serves any order.
    let has_runs = config.cache.path.is_none() && storage.requests().is_some();
    let dataset = match options.in_order.filter(|_| has_runs) {
        Some(batch) => in_runs(dataset, batch, config.limits.sample_bytes),
        None => dataset,
    };
    // Opening reads what is kept in the index, not here.
    let storage = storage::with_cache(storage, &config.cache);
    Ok(Opened { dataset, storage, report })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use forebay_observe::Clock;

    use super::{open, open_silently};
    use crate::dataset::OpenOptions;
    use crate::dataset::testing::{config_for, npy_bytes};
    use crate::storage::Patience;

    #[test]
    fn each_outage_of_an_opening_that_gets_further_has_its_own_time() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let clock = Clock::manual();
        let patience = Patience::at_restart("train", TIMEOUT, clock.clone());
        let mut config = config_for("npy", &root);
        config.index = Some(folder.path().join("index"));
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let patience = Some(&patience);
                open_silently(&config, OpenOptions { patience, ..OpenOptions::default() }).unwrap()
            });
            let until = |end| {
                let begun = clock.now();
                while clock.elapsed(begun) < end && !opening.is_finished() {
                    clock.advance(Duration::from_millis(20));
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            until(TIMEOUT * 3 / 4);
            fs::create_dir(&root).unwrap();
            until(TIMEOUT * 3 / 4);
            let new = folder.path().join("new");
            fs::write(&new, npy_bytes("<i8", false, "(1,)", &[0; 8])).unwrap();
            fs::rename(new, root.join("0.npy")).unwrap();
            until(TIMEOUT);
            assert_eq!(opening.join().unwrap().report.samples, 1);
        });
    }

    #[test]
    fn an_unknown_format_names_the_nearest_and_all() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config_for("image-foldr", folder.path());
        let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown dataset.format \"image-foldr\"; did you mean \"image-folder\"?; the formats are image-folder, npy, npz, webdataset, manifest, mds, litdata, tfrecord, coco, arrow, parquet, audio-folder, tokens"
        );
        config.format = "spreadsheet".to_owned();
        let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert!(!message.contains("did you mean"), "{message}");
    }
}
