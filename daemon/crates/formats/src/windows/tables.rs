//! Windows of rows of tables: Parquet and Arrow files.
//!
//! Values of a table are packed by column, so a window of a few rows would unpack a page of thousands for each column.
//! The columns are therefore written once as arrays ([`files`]) into the cache, by all cores, a table after the other; the
//! arrays are then the dataset, with windows as of `.npy` files. One process writes them while it holds a lock, and others
//! wait for it; it continues where an earlier one stopped.
//!
//! The folder's name derives from the tables as they are now and from the columns, so a changed table gives another folder.
//! The arrays are in a folder whose name derives from what is equal on all hosts, and is part of the fingerprint.

mod columns;
mod files;

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Instant;

use forebay_config::{CacheConfig, DatasetConfig};
use forebay_keys::{Keys, Section, Value};
use serde::{Deserialize, Serialize};

use self::columns::{Columns, open_unchanged};
use self::files::{Array, EPISODE, Made, MadeRows, RowFiles};
use super::index::WindowIndex;
use super::keys::{FieldRows, OwnKeys, TABLE, WindowKeys};
use super::plan::{Column, Plan};
use super::{NpyRows, check_size};
use crate::in_order::{Give, Pass};
use crate::indexed::Format;
use crate::made_files::{self, Look};
use crate::npy;
use crate::registry;
use crate::tables::{TableFormat, TableKind, Tables, table_files};
use forebay_dataset::error::DatasetError;
use forebay_dataset::index_bytes;
use forebay_dataset::opening::{OpenOptions, Opened};
use forebay_dataset::progress::{FilesRead, ScanProgress};
use forebay_index::folder::cache::{IndexPlace, Loaded, Saved};
use forebay_index::saved_index::{
    SavedIndex, is_settled, now_seconds, open_file, refuse_other_file,
};
use forebay_index::shard_paths;
use forebay_storage::location::{FileId, FileTable};
use forebay_storage::version::FileStamp;
use forebay_storage::{PatientStorage, Storage};

/// The name of the folder with the arrays of all datasets.
const FOLDER: &str = "rows";
/// The file that says that a folder is complete.
const SUMMARY: &str = "rows.json";

/// The folder that has those of all datasets.
pub(crate) fn folder_of_all(config: &DatasetConfig) -> PathBuf {
    made_files::folder_of_all(config, FOLDER)
}

/// Opens windows of tables, and makes their arrays if they do not exist.
///
/// # Errors
/// The tables cannot be read, or have no such windows.
pub(crate) fn open<K: TableKind>(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let started = Instant::now();
    let keys = OwnKeys::read(&mut config.own.clone())?;
    refuse_selection(config)?;
    if let Some(opened) = handed_over(config, &keys, options)? {
        return Ok(opened);
    }
    let tables = &K::TABLES;
    let is_one = |name: &[u8]| shard_paths::has_extension(name, tables.format.extensions);
    let (root, pattern) = shard_paths::split_named(&config.path, is_one);
    let storage = registry::open_storage(&root, &config.storage, options)?;
    let patient =
        options.patience.map(|patience| PatientStorage { storage: storage.as_ref(), patience });
    let storage: &dyn Storage = match &patient {
        Some(patient) => patient,
        None => storage.as_ref(),
    };
    if pattern.is_none() {
        let words = (Tables::<K>::OTHER_FILE, tables.format.name, tables.expected);
        refuse_other_file(storage, &config.path, words, options)?;
    }
    let paths = table_files(tables, storage, config, pattern)?;
    let stamps = paths.iter().map(|path| open_file(storage, path).map(|file| file.stamp));
    let stamps = stamps.collect::<Result<Vec<_>, _>>()?;
    let named = keys.fields.as_ref().map(|fields| {
        let mut names: Vec<String> = fields.iter().map(|field| field.from.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    });
    let by = keys.windows.by.as_deref();
    let columns = Columns::choose((tables, storage), &paths, named.as_deref(), by)?;
    check_plan(config, &keys, &columns.chosen)?;
    let arrays = columns.arrays();
    let reading = K::READING;
    let making = Making {
        config,
        tables,
        reading,
        root,
        columns,
        arrays,
        storage,
        paths,
        stamps,
        by,
        options,
    };
    let mut warnings = Vec::new();
    let (folder, made, reused) = making.folder(&mut warnings)?;
    if made.rows == 0 {
        let reason = "its tables have no rows".to_owned();
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    let of_arrays = config_of_arrays(config, &keys, &making.columns.names(), folder);
    let mut opened = registry::open_silently(&of_arrays, options)?;
    if !making.columns.left_out.is_empty() {
        warnings.push(format!(
            "columns without windows: {}; name the others in dataset.windows.fields",
            making.columns.left_out.join(", ")
        ));
    }
    if config.index.is_some() {
        let reason = "dataset.index is not used: windows of tables have their arrays and index in the cache (cache.path)";
        warnings.push(reason.to_owned());
    }
    warnings.extend(making.future());
    opened.report.warnings.extend(warnings);
    opened.report.reused &= reused;
    opened.report.seconds = started.elapsed().as_secs_f64();
    Ok(opened)
}

/// The dataset of the daemon before, which this one continues, whatever has become of the tables. `None`: there was none, or its
/// arrays are gone.
///
/// # Errors
/// The arrays cannot be opened now.
fn handed_over(
    config: &DatasetConfig,
    keys: &OwnKeys,
    options: OpenOptions<'_>,
) -> Result<Option<Opened>, DatasetError> {
    let Some(stem) = options.previous_index.and_then(stem_of) else { return Ok(None) };
    let Ok(folders) = fs::read_dir(folder_of_all(config)) else { return Ok(None) };
    // Several if the same tables were written again.
    let folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    let is_usable = |folder: &PathBuf| folder.join(&stem).is_dir() && made_files::is_own(folder);
    for folder in folders.filter(is_usable) {
        let Some(Summary { columns, .. }) = summary_of(&folder) else { continue };
        let of_arrays = config_of_arrays(config, keys, &columns, folder);
        match registry::open_silently(&of_arrays, options) {
            // The index is of another of the folders.
            Err(DatasetError::KeptIndex { .. }) => {}
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

/// The folder of the arrays of an index.
fn stem_of(index: &File) -> Option<String> {
    let bytes = index_bytes::take_in(index.try_clone().ok()?).ok()?;
    let path = WindowIndex::open(bytes).ok()?.path(FileId(0));
    Some(std::str::from_utf8(&path).ok()?.split('/').next()?.to_owned())
}

/// Refuses what the arrays would be refused for, before they are made.
fn check_plan(
    config: &DatasetConfig,
    keys: &OwnKeys,
    chosen: &[(String, Array)],
) -> Result<(), DatasetError> {
    let column = |(name, array): &(String, Array)| Column {
        name: name.clone(),
        dtype: array.dtype.name().to_owned(),
        shape: array.shape.clone(),
        big_endian: false,
        more: (),
    };
    let columns: Vec<Column<()>> = chosen.iter().map(column).collect();
    let fields = fields_of(keys, chosen.iter().map(|(name, _)| &name[..]));
    let place = |from: &str| chosen.iter().position(|(name, _)| name == from);
    let plan = Plan::new(&columns, &fields, place, keys.windows.pad);
    let checked = plan.and_then(|plan| check_size::<NpyRows>(&plan, &columns, config));
    checked.map_err(|reason| DatasetError::ArrayFile { path: config.path.clone(), reason })
}

/// The fields of windows: those of the configuration, or all columns.
fn fields_of<'c>(keys: &OwnKeys, columns: impl Iterator<Item = &'c str>) -> Vec<FieldRows> {
    let all = || columns.map(|name| FieldRows::all_of(name, keys.windows.length)).collect();
    keys.fields.clone().unwrap_or_else(all)
}

/// The dataset of the arrays in a folder. `columns`: their names in the tables, and their arrays.
fn config_of_arrays(
    config: &DatasetConfig,
    keys: &OwnKeys,
    columns: &[(String, String)],
    folder: PathBuf,
) -> DatasetConfig {
    let array_of = |column: &str| columns.iter().find(|(name, _)| name == column);
    let fields = fields_of(keys, columns.iter().map(|(name, _)| &name[..])).into_iter();
    let fields = fields.map(|field| {
        let from = array_of(&field.from).map_or_else(String::new, |(_, array)| array.clone());
        (field.name.clone(), FieldRows { from, ..field }.to_value().into())
    });
    let windows = WindowKeys { by: Some(EPISODE.to_owned()), fields: None, ..keys.windows.clone() };
    let mut entries: Vec<(String, _)> =
        windows.entries().into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    entries.push(("fields".to_owned(), Value::Table(fields.collect()).into()));
    let windows = Value::Table(entries);
    let options = blake3::hash(format!("{} {:?}", windows.to_json(), config.limit).as_bytes());
    let mut own = Section::default();
    own.put(TABLE, windows);
    DatasetConfig {
        format: npy::FORMAT.name.to_owned(),
        index: Some(folder.join(format!("{}.index", &options.to_hex()[..16]))),
        path: folder,
        own,
        storage: Section::default(),
        cache: CacheConfig::default(),
        ..config.clone()
    }
}

/// Refuses keys that select samples: they would be asked of the arrays.
fn refuse_selection(config: &DatasetConfig) -> Result<(), DatasetError> {
    let given = [
        ("where", config.condition.is_some()),
        ("split", config.split.is_some()),
        ("ids", config.ids.is_some()),
    ];
    let Some((key, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let message = format!(
        "`dataset.{key}` selects rows of a table, and with `dataset.windows` a sample is several rows; write the tables of \
         each part to a folder, and leave `{key}` out"
    );
    Err(config.own.error(message).into())
}

/// What the arrays are made of.
struct Making<'a> {
    config: &'a DatasetConfig,
    tables: &'a TableFormat,
    /// The version of how values are read.
    reading: &'static str,
    /// The folder of the tables.
    root: PathBuf,
    columns: Columns,
    arrays: Vec<Array>,
    storage: &'a dyn Storage,
    paths: Vec<Vec<u8>>,
    stamps: Vec<FileStamp>,
    by: Option<&'a str>,
    options: OpenOptions<'a>,
}

impl Making<'_> {
    /// The folder with the arrays, what is in them, and whether they existed.
    fn folder(&self, warnings: &mut Vec<String>) -> Result<(PathBuf, Made, bool), DatasetError> {
        let all = made_files::place_of_all(self.config, FOLDER);
        let on_all_hosts = self.digest_on_all_hosts();
        let folder = all.path.join(&self.digest_on_this_host(on_all_hosts).to_hex()[..32]);
        let place = IndexPlace { path: folder.join(SUMMARY), ..all };
        let stem = on_all_hosts.to_hex()[..16].to_owned();
        let look = Look::of(self.options);
        let saved = || self.saved(&folder, &stem, look);
        if let Err(error) = made_files::make_folder(self.options, &place, "rows of tables") {
            // A cache that was prepared may be read alone.
            let is_own = made_files::is_own(&folder);
            return match saved().filter(|_| is_own) {
                Some(made) => Ok((folder, made, true)),
                None => Err(error),
            };
        }
        let load = || Ok(saved().map_or(Saved::Nothing, Saved::Fresh));
        let make = |_: &mut Vec<String>| {
            let summary =
                Summary { made: self.make(&folder, &stem)?, columns: self.columns.names() };
            // Numbers and names: serialization cannot fail.
            Ok(serde_json::to_vec(&summary).unwrap_or_default())
        };
        match place.load_or_make(self.options, false, warnings, load, make)? {
            Loaded::Saved(made) => Ok((folder, made, true)),
            Loaded::New { bytes, .. } => match serde_json::from_slice::<Summary>(&bytes) {
                Ok(Summary { made, .. }) => Ok((folder, made, false)),
                Err(error) => Err(DatasetError::System {
                    path: place.path,
                    action: "reading back",
                    source: error.into(),
                }),
            },
        }
    }

    /// What is in a complete folder, which is of these tables.
    fn saved(&self, folder: &Path, stem: &str, look: Look) -> Option<Made> {
        let Summary { made, .. } = summary_of(folder)?;
        let is_there = self.are_settled(&made)
            && files::are_all_there(folder, stem, &self.arrays, &made, look);
        is_there.then_some(made)
    }

    /// A warning about a table whose time is in the future: each start makes the arrays again.
    fn future(&self) -> Option<String> {
        let now = now_seconds();
        let is_later = |stamp: &FileStamp| stamp.modified_seconds > now;
        let place = self.stamps.iter().position(is_later)?;
        Some(format!(
            "{} has a time in the future, so that each start reads all tables again; correct it, as by `touch`",
            self.storage.full_path(&self.paths[place]).display()
        ))
    }

    /// Whether the tables had last changed long enough before they were read.
    fn are_settled(&self, made: &Made) -> bool {
        self.stamps.iter().all(|stamp| is_settled(*stamp, made.started_seconds))
    }

    /// Everything that determines the arrays, but the contents of the tables.
    fn digest_on_all_hosts(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(b"forebay rows of tables 1");
        add(self.reading.as_bytes());
        add(&[u8::from(self.by.is_some())]);
        add(self.by.unwrap_or_default().as_bytes());
        add(&(self.paths.len() as u64).to_le_bytes());
        for (path, stamp) in self.paths.iter().zip(&self.stamps) {
            add(path);
            add(&stamp.bytes.to_le_bytes());
        }
        for (name, Array { dtype, shape, .. }) in &self.columns.chosen {
            add(name.as_bytes());
            add(dtype.name().as_bytes());
            shape.iter().for_each(|side| add(&side.to_le_bytes()));
        }
        hasher.finalize()
    }

    /// As [`digest_on_all_hosts`](Self::digest_on_all_hosts), with the place and the versions of the tables.
    fn digest_on_this_host(&self, on_all_hosts: blake3::Hash) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(on_all_hosts.as_bytes());
        // Without a slash at its end.
        let root: PathBuf = self.root.components().collect();
        hasher.update(root.as_os_str().as_encoded_bytes());
        for stamp in &self.stamps {
            let FileStamp { modified_seconds, modified_nanoseconds, status_changed, tag, .. } =
                *stamp;
            hasher.update(&modified_seconds.to_le_bytes());
            hasher.update(&modified_nanoseconds.to_le_bytes());
            hasher.update(&status_changed.to_le_bytes());
            hasher.update(&tag.to_le_bytes());
        }
        hasher.finalize()
    }

    /// Makes the arrays, or the rest of them.
    fn make(&self, folder: &Path, stem: &str) -> Result<Made, DatasetError> {
        let is_usable = |made: &Made| self.are_settled(made);
        let mut files = RowFiles::resume(folder, stem, &self.arrays, is_usable)?;
        let (from, all) = (files.made().tables, self.paths.len() as u64);
        let is_stopped = AtomicBool::new(false);
        let (source, columns) = ((self.tables, self.storage), &self.columns);
        let (paths, stamps) = (&self.paths, &self.stamps);
        let worker = || {
            let is_stopped = || is_stopped.load(Ordering::Relaxed);
            move |tables: Range<u64>, give: Give<'_, MadeRows>| {
                let one = |table: u64| {
                    let place = usize::try_from(table).ok()?;
                    Some((&paths.get(place)?[..], *stamps.get(place)?))
                };
                tables
                    .filter_map(one)
                    .try_for_each(|table| columns.read(source, table, give, &is_stopped))
            }
        };
        let threads = available_parallelism().map_or(1, NonZeroUsize::get);
        let pass = Pass { starts: (from..=all.max(from)).collect(), threads };
        pass.run(worker, &mut |rows: Option<MadeRows>| {
            let added = rows.map_or(Ok(()), |rows| files.add(&rows));
            let Made { tables, rows, .. } = *files.made();
            let outcome = added.and_then(|()| self.report(tables, all, rows));
            if outcome.is_err() {
                // A thread that reads a long table notices. Relaxed: the flag orders no other memory.
                is_stopped.store(true, Ordering::Relaxed);
            }
            outcome
        })?;
        // A name may have led to another file for a while.
        for (path, stamp) in paths.iter().zip(stamps) {
            open_unchanged(self.storage, path, *stamp)?;
        }
        files.finish()
    }

    fn report(&self, done: u64, all: u64, rows: u64) -> Result<(), DatasetError> {
        let millionths = u32::try_from(done.saturating_mul(1_000_000) / all.max(1)).unwrap_or(0);
        let files = Some(FilesRead { done, all, millionths, ..FilesRead::default() });
        let seen = ScanProgress { samples: rows, files, ..ScanProgress::default() };
        match (self.options.progress)(seen).is_break() {
            true => Err(DatasetError::Cancelled),
            false => Ok(()),
        }
    }
}

fn summary_of(folder: &Path) -> Option<Summary> {
    serde_json::from_slice(&fs::read(folder.join(SUMMARY)).ok()?).ok()
}

/// The summary of a complete folder.
#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    #[serde(flatten)]
    made: Made,
    /// The names of the columns and of their arrays.
    columns: Vec<(String, String)>,
}

#[cfg(test)]
mod tests;
