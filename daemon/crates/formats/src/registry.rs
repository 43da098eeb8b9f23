//! The formats by name, and the opening of datasets. A new format is one file and one line in `FORMATS`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Keys, Section, Table, nearest};

use crate::array_record::ArrayRecord;
use crate::arrow::Arrow;
use crate::audio_folder::AudioFolderKeys;
use crate::draft::{Draft, Seen};
use crate::indexed;
use crate::labels::{Labels, Voc, Yolo};
use crate::lance::Lance;
use crate::lerobot::LeRobot;
use crate::manifest::Manifest;
use crate::manifest::coco::Coco;
use crate::mds::Mds;
use crate::object::ObjectKeys;
use crate::parquet::Parquet;
use crate::records::{self, RecordKeys, Records};
use crate::selection;
use crate::storages;
use crate::tables::{TableKind, Tables};
use crate::tfrecord::TfRecord;
use crate::video_fields::with_videos;
use crate::video_folder::VideoFolderKeys;
use crate::webdataset::WebDataset;
use crate::windows::{self, Hdf5Rows, NpyRows, RowFormat, Windows, ZarrRows};
use crate::{audio_folder, image_folder, litdata, npy, npz, object, texts, tokens, video_folder};
use forebay_cache::{UnpackedFiles, UnpackedStorage};
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions, Opened, OpenedFormat};
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::runs::{in_blocks, in_runs};
use forebay_index::folder::names::split_extension;
use forebay_index::folder::scan::FolderFormat;
use forebay_index::folder::{self, FolderKeys};
use forebay_storage::{
    self, PatientStorage, RetryClass, Storage, StorageError, UnpackingStorage, WithoutUnpacking,
};

/// The `dataset.format` that requests detection of the format.
pub(super) const AUTO: &str = "auto";

/// Formats of windows only.
pub(super) const OF_WINDOWS: [&str; 2] = [ZarrRows::FORMAT.name, Hdf5Rows::FORMAT.name];

type DraftWriter = fn(&Seen) -> Draft;
type Opener = fn(&DatasetConfig, &dyn Storage, OpenOptions<'_>) -> OpenedFormat;

/// A format: its name, its keys of `[dataset]`, and its functions that open a dataset and propose a configuration.
pub(super) struct Format {
    pub(super) name: &'static str,
    folder: FolderFormat,
    /// Whether a file name belongs to the format. Also accepts patterns.
    reads: fn(&FolderFormat, &[u8]) -> bool,
    /// The folder or file that contains everything that a path names; for most formats the path itself.
    root: fn(&Path) -> PathBuf,
    /// The folder or file that samples are read from, if it differs.
    data_root: fn(&DatasetConfig) -> Option<PathBuf>,
    /// Paths below the root that only this format has: if one is there, other files do not count.
    pub(super) marks: &'static [&'static str],
    /// Whether an index of a dataset is saved. If so, its root has existed before.
    has_saved_index: fn(&DatasetConfig, FolderFormat, OpenOptions<'_>) -> bool,
    /// Whether a saved index has the version of each file, so that a changed file is noticed.
    pub(super) has_versions: bool,
    /// Whether files that are compressed as a whole are supported, after the cache has unpacked them.
    unpacks: bool,
    keys: Table,
    resolve: fn(&mut Section) -> Result<(), ConfigError>,
    open: Open,
    pub(super) draft: DraftWriter,
}

/// How a dataset of a format is opened.
#[derive(Clone, Copy)]
enum Open {
    /// Its samples are in the files of its path.
    Files(Opener),
    /// Its samples are in files that are made of those of its path.
    Made(fn(&DatasetConfig, OpenOptions<'_>) -> Result<Opened, DatasetError>),
}

impl Format {
    /// Whether a file name belongs to the format. Also accepts patterns.
    pub(super) fn reads(&self, name: &[u8]) -> bool {
        (self.reads)(&self.folder, name)
    }

    pub(super) fn extensions(&self) -> &'static [&'static str] {
        self.folder.extensions
    }

    fn samples_root(&self, config: &DatasetConfig) -> PathBuf {
        let config = texts::source(config);
        (self.data_root)(&config).unwrap_or_else(|| (self.root)(&config.path))
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
        has_versions: false,
        unpacks: false,
        keys: T::TABLE,
        resolve: Section::resolve::<T>,
        open: Open::Files(open),
        draft,
    }
}

/// The entry of a format with a saved index of many samples per file.
const fn indexed<F: indexed::Format>() -> Format {
    Format {
        reads: |_, name| F::reads(name),
        root: |path| F::split(path).0,
        data_root: |config| F::data_root(&<F::Keys as Keys>::read(&mut config.own.clone()).ok()?),
        marks: F::MARKS,
        has_saved_index: |config, _, options| indexed::has_saved_index::<F>(config, options),
        has_versions: true,
        unpacks: F::UNPACKS,
        ..format::<F::Keys>(&F::FORMAT, indexed::open::<F>, F::draft)
    }
}

/// The entry of windows of a format of tables.
const fn windows_of_tables<K: TableKind>() -> Format {
    Format {
        reads: |_, name| <Tables<K> as indexed::Format>::reads(name),
        root: |path| <Tables<K> as indexed::Format>::split(path).0,
        has_saved_index: |_, _, _| false,
        has_versions: true,
        marks: K::TABLES.marks,
        folder: K::TABLES.format,
        name: K::TABLES.format.name,
        open: Open::Made(windows::open_tables::<K>),
        ..indexed::<Windows<NpyRows>>()
    }
}

static FORMATS: [Format; 22] = [
    format::<FolderKeys>(&image_folder::FORMAT, image_folder::open, image_folder::draft),
    format::<FolderKeys>(&npy::FORMAT, npy::open, npy::draft),
    format::<FolderKeys>(&npz::FORMAT, npz::open, npz::draft),
    indexed::<WebDataset>(),
    indexed::<Manifest>(),
    indexed::<Records<Mds>>(),
    Format {
        has_saved_index: litdata::has_saved_index,
        has_versions: true,
        marks: &litdata::FIRST_CHUNKS,
        unpacks: true,
        ..format::<RecordKeys>(&litdata::FORMAT, litdata::open, records::draft)
    },
    indexed::<TfRecord>(),
    indexed::<ArrayRecord>(),
    indexed::<Coco>(),
    indexed::<Labels<Voc>>(),
    indexed::<Labels<Yolo>>(),
    indexed::<Tables<Arrow>>(),
    indexed::<Tables<Parquet>>(),
    indexed::<Tables<Lance>>(),
    Format {
        has_saved_index: audio_folder::has_saved_index,
        ..format::<AudioFolderKeys>(&audio_folder::FORMAT, audio_folder::open, audio_folder::draft)
    },
    Format {
        has_saved_index: video_folder::has_saved_index,
        ..format::<VideoFolderKeys>(&video_folder::FORMAT, video_folder::open, video_folder::draft)
    },
    indexed::<LeRobot>(),
    indexed::<Windows<ZarrRows>>(),
    indexed::<Windows<Hdf5Rows>>(),
    format::<tokens::OwnKeys>(&tokens::FORMAT, tokens::open, tokens::draft),
    Format {
        has_saved_index: |_, _, _| false,
        ..format::<ObjectKeys>(&object::FORMAT, object::open, object::draft)
    },
];

/// The formats of a configuration with `[dataset.windows]`.
static WINDOWED: [Format; 5] = [
    indexed::<Windows<NpyRows>>(),
    indexed::<Windows<ZarrRows>>(),
    indexed::<Windows<Hdf5Rows>>(),
    windows_of_tables::<Arrow>(),
    windows_of_tables::<Parquet>(),
];

/// Formats of tests, which are not in the reference.
static TEST_FORMATS: &[Format] = &[
    #[cfg(any(test, feature = "testing"))]
    format::<FolderKeys>(
        &crate::testing::BlockFolder::FORMAT,
        crate::testing::open_blocks,
        |seen| Draft::of_arrays("copy", seen),
    ),
    #[cfg(any(test, feature = "testing"))]
    indexed::<crate::testing::Fixed>(),
];

/// The formats in the reference, in its order.
pub(super) fn formats() -> &'static [Format] {
    &FORMATS
}

pub(super) fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().chain(TEST_FORMATS).find(|format| format.name == name)
}

/// Refuses `[dataset.windows]` of a format that has no rows.
///
/// # Errors
/// It has none.
pub(super) fn refuse_other_windows(config: &DatasetConfig) -> Result<(), DatasetError> {
    windows::refuse_other(config, WINDOWED.iter().map(|format| format.name))
}

/// The format of a configuration that names it.
pub(super) fn named(config: &DatasetConfig) -> Option<&'static Format> {
    match windows::of_windows(config) {
        true => WINDOWED.iter().find(|format| format.name == config.format),
        false => find(&config.format),
    }
}

/// The format of a configuration; if it is to be detected, the one whose pattern the path is.
fn configured(config: &DatasetConfig) -> Option<&'static Format> {
    match config.format.as_str() {
        AUTO => of_pattern(&config.path),
        _ => named(config),
    }
}

/// The format whose file or pattern of files with several samples a path is; `None` for folders.
pub(super) fn of_pattern(path: &Path) -> Option<&'static Format> {
    let name = path.as_os_str().as_encoded_bytes();
    formats().iter().find(|format| (format.root)(path) != path && format.reads(name))
}

/// Each format's name and keys, for the reference.
pub fn format_tables() -> impl Iterator<Item = (&'static str, Table)> {
    // Those of windows only are among the formats.
    let windowed = WINDOWED.iter().filter(|format| !OF_WINDOWS.contains(&format.name));
    FORMATS.iter().chain(windowed).map(|format| (format.name, format.keys))
}

/// Reads and resolves the format's keys of `[dataset]` and the keys of `[storage]`: sets defaults and makes paths
/// absolute. The keys of an unknown format are not read; [`open`] reports the format.
///
/// # Errors
/// An unknown key or an invalid value.
pub fn resolve_keys(config: &mut DatasetConfig) -> Result<(), ConfigError> {
    storages::resolve_keys(config)?;
    let Some(format) = named(config) else { return Ok(()) };
    let tokens = texts::take_keys(config)?;
    (format.resolve)(&mut config.own)?;
    texts::put_back(config, tokens);
    Ok(())
}

/// The folder or file that samples are read from: the dataset's path, except for patterns of several files, and for
/// formats with another root.
pub fn root_of(config: &DatasetConfig) -> PathBuf {
    configured(config).map_or_else(|| config.path.clone(), |format| format.samples_root(config))
}

/// The root, the folder or file that lists the samples, and the folder of the files that are made of them.
pub fn roots_of(config: &DatasetConfig) -> Vec<PathBuf> {
    let listed = configured(config).map(|format| (format.root)(&config.path));
    let made = match texts::of_texts(config) {
        true => Some(texts::folder_of_all(config)),
        false => makes_files(config).then(|| windows::folder_of_all(config)),
    };
    [root_of(config)].into_iter().chain(listed).chain(made).collect()
}

/// Whether files are made of a dataset's samples, which are then read in their place.
pub fn makes_files(config: &DatasetConfig) -> bool {
    let is_made = |format: &Format| matches!(format.open, Open::Made(_));
    texts::of_texts(config) || named(config).is_some_and(is_made)
}

/// The valid values of `dataset.format`.
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
    if let Some(selected) = &opened.report.selected {
        tracing::info!(path = %config.path.display(), "{selected}");
    }
    if let Some(changes) = &opened.report.changes {
        tracing::info!(path = %config.path.display(), "{changes}");
    }
    for warning in &opened.report.warnings {
        tracing::warn!(path = %config.path.display(), "{warning}");
    }
    Ok(opened)
}

/// As [`open`], for the index only.
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
    refuse_other_windows(config)?;
    let Some(format) = named(config) else {
        return Err(DatasetError::UnknownFormat {
            given: config.format.clone(),
            hint: nearest(&config.format, format_names())
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default(),
            known: format_names().collect::<Vec<_>>().join(", "),
        });
    };
    if let Some(keys) = texts::take_keys(&mut config.clone())? {
        return texts::open(config, &texts::source(config), &keys, options);
    }
    let Some(patience) = options.patience else {
        return open_once(format, config, options);
    };
    let mut retries = None;
    let mut furthest = 0;
    loop {
        let reached = AtomicU64::new(0);
        let progress = |seen: ScanProgress| {
            // The root has been listed. Relaxed, here and below: the count does not order other memory.
            reached.fetch_max(1 + seen.directories + seen.samples, Ordering::Relaxed);
            (options.progress)(seen)
        };
        let opened = open_once(format, config, OpenOptions { progress: &progress, ..options });
        let reached = reached.load(Ordering::Relaxed);
        if reached > furthest {
            // The attempt got further than the previous one, so the previous outage is over, and a new one has its full
            // timeout. An outage at the same point of each scan does not.
            (furthest, retries) = (reached, None);
        }
        let again = opened.as_ref().err().and_then(DatasetError::transient).filter(|error| {
            // Single calls are retried where they fail; this retries operations that cannot be.
            error.class() == RetryClass::Outage
                // A missing or empty root is an error in the configuration, unless it has existed with samples before.
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

/// Opens the storage of a dataset's path.
pub(super) fn open_storage(
    path: &Path,
    keys: &Section,
    options: OpenOptions<'_>,
) -> Result<Arc<dyn Storage>, DatasetError> {
    let opened = options.call("opening", path, || storages::open(path, keys));
    opened.map_err(|error| match error {
        StorageError::Vanished { .. } => DatasetError::Missing { path: path.to_owned() },
        error => error.into(),
    })
}

/// Opens a dataset in one attempt; single calls are retried if possible.
fn open_once(
    format: &Format,
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let open = match format.open {
        Open::Files(open) => open,
        Open::Made(open) => return open(config, options),
    };
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
    // Without a cache, or with an unusable one, which has been reported.
    let has_no_cache = format.unpacks && unpacked.is_none();
    let unpacking = unpacked.as_ref().map(|files| UnpackedStorage::new(source, Arc::clone(files)));
    let source: &dyn Storage = match &unpacking {
        Some(unpacking) => unpacking,
        None => source,
    };
    let options = OpenOptions { samples_root: Some(&root), ..options };
    let (dataset, mut report) = open(config, source, options)?;
    let (dataset, selected) =
        selection::select(config, dataset, source, report.path.as_deref(), options)?;
    report.selected = selected;
    report.classes = dataset.classes().len() as u64;
    let storage: Arc<dyn Storage> = match unpacked {
        Some(files) => Arc::new(UnpackedStorage::new(storage, files)),
        None if format.unpacks => Arc::new(WithoutUnpacking(storage)),
        None => storage,
    };
    let storage: Arc<dyn Storage> = match dataset.page_bytes() {
        Some(page_bytes) => Arc::new(UnpackingStorage::new(storage, page_bytes)),
        None => storage,
    };
    // The cached parts of a sample are usable in any order.
    let has_runs = config.cache.path.is_none() && storage.properties().requests.is_some();
    let limit_bytes = config.limits.sample_bytes;
    let dataset = match options.in_order {
        // Neighbours of kept samples may be samples that are not used.
        Some(batch) if has_runs && dataset.kept().is_none() => in_runs(dataset, batch, limit_bytes),
        None if has_runs && options.by_blocks => in_blocks(dataset, limit_bytes),
        _ => dataset,
    };
    let dataset = with_videos(config, dataset)?;
    // The index keeps the result of the opening, so the cache is only for reading samples.
    let storage = match has_no_cache {
        true => storage,
        false => storages::with_cache(storage, &config.cache),
    };
    Ok(Opened { dataset, storage, report })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use forebay_observe::Clock;

    use super::{open, open_silently};
    use crate::testing::{config_for, npy_bytes};
    use forebay_dataset::OpenOptions;
    use forebay_storage::Patience;

    #[test]
    fn each_outage_of_a_progressing_opening_has_a_full_timeout() {
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
            while !opening.is_finished() {
                clock.advance(Duration::from_millis(20));
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(opening.join().unwrap().report.samples, 1);
        });
    }

    #[test]
    fn error_for_an_unknown_format_names_the_nearest_and_all_formats() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config_for("image-foldr", folder.path());
        let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown dataset.format \"image-foldr\"; did you mean \"image-folder\"?; the formats are image-folder, npy, npz, webdataset, manifest, mds, litdata, tfrecord, arrayrecord, coco, voc, yolo, arrow, parquet, lance, audio-folder, video-folder, lerobot, zarr, hdf5, tokens, python"
        );
        config.format = "spreadsheet".to_owned();
        let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert!(!message.contains("did you mean"), "{message}");
    }
}
