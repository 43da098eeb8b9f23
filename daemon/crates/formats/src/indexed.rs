//! The common part of formats with a saved index. A format defines its files, the contents of its index, and how the
//! bytes of a sample are split ([`Format`], and [`ShardFormat`] for files that contain many samples each). This module
//! opens datasets, checks whether the index is fresh, reads the first sample, and implements the dataset ([`Indexed`]).

mod shards;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Keys, is_url};
use forebay_protocol::counted::counted;
use forebay_protocol::ids::SampleId;
use forebay_storage::version::ObjectStamp;

pub(super) use self::shards::{ShardFormat, ShardPlan, locate_whole, make_of_shards, whole_bytes};
use crate::draft::{Draft, Seen};
use crate::file_samples::check_type;
use crate::storages;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use forebay_dataset::{
    Dataset, Defect, Description, DirectRead, Field, FieldValue, FileColumn, IndexBytes,
    SampleBlocks, VisitColumns,
};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::folder::select::Listed;
use forebay_index::saved_index::{
    Asked, Request, SavedIndex, refuse_other_file, refuse_twice, tell_missing,
};
use forebay_index::shard_paths;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};
use forebay_storage::{PatientStorage, Storage, StorageError, UnpackingStorage};

/// Receives the values of a sample's fields, one after the other.
pub(super) type Take<'t, 'a> = &'t mut dyn FnMut(FieldValue<'a>) -> Result<(), Defect>;

/// A format of samples that share files, or that a file lists. A value of the type is the field definition of one
/// dataset.
pub(super) trait Format: Debug + Send + Sync + Sized + 'static {
    /// Its name, and the extensions of its files.
    const FORMAT: FolderFormat;
    /// The accepted values of `dataset.path`, for messages.
    const EXPECTED: &'static str;
    /// The description of a file of another format, for messages.
    const OTHER_FILE: &'static str = "a file of another name";
    /// Paths in a folder that only this format has: a folder with one has this format, whatever else is in it.
    const MARKS: &'static [&'static str] = &[];
    /// Whether files that are compressed as a whole are supported, after the cache has unpacked them.
    const UNPACKS: bool = false;
    /// Whether the folder is listed for files; if so, the index must not be inside it.
    const IS_LISTED: bool = false;
    /// Whether the files are compared with a saved index also for a URL. If the files contain the samples, reading them
    /// detects a changed object, and a request per file would cost more.
    const IS_COMPARED_REMOTELY: bool = false;

    /// Its keys of `[dataset]`.
    type Keys: Keys;
    /// Its saved index.
    type Index: SavedIndex + Debug + 'static;

    /// Whether a file name belongs to the format. Also accepts patterns.
    fn reads(name: &[u8]) -> bool {
        shard_paths::has_extension(name, Self::FORMAT.extensions)
    }

    /// The folder of a path's files, and the pattern or the file that it names.
    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        shard_paths::split_named(path, Self::reads)
    }

    /// The root of the samples, if it is not the folder of the files.
    fn data_root(_keys: &Self::Keys) -> Option<PathBuf> {
        None
    }

    /// Proposes a configuration.
    fn draft(seen: &Seen) -> Draft;

    /// The keys that determine the contents of the index, as text.
    ///
    /// # Errors
    /// A key is unusable.
    fn digested(keys: &Self::Keys) -> Result<String, ConfigError>;

    /// The files that contain or list the samples, in their order.
    ///
    /// # Errors
    /// The files cannot be found, or one occurs twice.
    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, lists, .. } = opening;
        let (path, extensions) = (&request.config.path, Self::FORMAT.extensions);
        let files = shard_paths::find(*lists, path, *pattern, extensions).map_err(tell_missing)?;
        refuse_twice(*lists, &files)?;
        Ok(files)
    }

    /// Whether an index whose files are unchanged also has all that belongs to them, such as files that it does not list.
    ///
    /// # Errors
    /// A folder cannot be listed.
    fn is_complete(
        _index: &Self::Index,
        _opening: &Opening<'_, Self>,
    ) -> Result<bool, DatasetError> {
        Ok(true)
    }

    /// Scans the files and lays out an index.
    ///
    /// # Errors
    /// The files cannot be read, are broken, or have no samples.
    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError>;

    /// Reads the field definition from the index; `None`: it is malformed.
    fn of_index(index: &Self::Index, opening: &Opening<'_, Self>) -> Option<Self>;

    /// Whether the first sample is needed to determine the fields.
    fn needs_first(&self) -> bool {
        false
    }

    /// The fields; `first` contains the first sample's bytes if it is [needed](Self::needs_first).
    ///
    /// # Errors
    /// The defect of the first sample.
    fn fields(
        &self,
        index: &Self::Index,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect>;

    /// As [`Dataset::locate`].
    fn locate(&self, index: &Self::Index, id: SampleId, locations: &mut Vec<Location>);

    /// Splits a sample's bytes into the values of its fields, which are passed to `take`.
    ///
    /// # Errors
    /// The bytes are defective, or an error of `take`.
    fn values<'a>(
        &'a self,
        index: &'a Self::Index,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect>;

    /// As [`FileTable::append_path`].
    fn append_path(&self, index: &Self::Index, file: FileId, path: &mut Vec<u8>) {
        index.append_path(file, path);
    }

    /// As [`FileTable::stamp`].
    fn stamp(&self, index: &Self::Index, file: FileId) -> Option<ObjectStamp> {
        index.stamp(file)
    }

    /// As [`Dataset::unpacked_bytes`].
    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        0
    }

    /// As [`Dataset::direct_read`]; the sample has no other field.
    fn direct_read(&self) -> Option<&DirectRead> {
        None
    }

    /// See `Description::field_rules`.
    fn field_rules(&self) -> String {
        String::new()
    }

    /// See `Description::output`.
    fn output(&self) -> String {
        String::new()
    }

    /// As [`Dataset::max_row_bytes`].
    fn max_row_bytes(&self, _index: &Self::Index, _place: usize, _field: &Field) -> Option<u64> {
        None
    }

    /// As [`Dataset::rows_differ`].
    fn rows_differ(&self, _index: &Self::Index, _field: usize) -> Option<bool> {
        None
    }

    /// As [`Dataset::label`].
    fn label(&self, _index: &Self::Index, _id: SampleId) -> Option<Result<i64, Defect>> {
        None
    }

    /// As [`Dataset::classes`].
    fn classes(&self) -> &[String] {
        &[]
    }

    /// As [`Dataset::append_key`].
    fn append_key(&self, _index: &Self::Index, _id: SampleId, _key: &mut Vec<u8>) -> bool {
        false
    }

    /// As [`Dataset::columns`]. `files`: the storage of the files that contain or list the samples.
    ///
    /// # Errors
    /// A file cannot be read.
    fn columns(
        &self,
        _index: &Self::Index,
        _files: &dyn Storage,
    ) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        Ok(None)
    }

    /// As [`Dataset::visit_columns`], with the storage of the files.
    ///
    /// # Errors
    /// As [`Dataset::visit_columns`].
    fn visit_columns(
        &self,
        _index: &Self::Index,
        _files: &dyn Storage,
        _columns: &[usize],
        _visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        Ok(())
    }

    /// See `Description::notes`.
    fn notes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// As [`Dataset::page_bytes`].
    fn page_bytes(&self) -> Option<u64> {
        None
    }

    /// As [`Dataset::shares_units`].
    fn shares_units(&self) -> bool {
        false
    }

    /// As [`Dataset::blocks`].
    fn blocks(&self, _index: &Self::Index) -> Option<SampleBlocks> {
        None
    }
}

/// The [`fields`](Format::fields) of a format that derives them from rules and from all values of the first sample.
///
/// # Errors
/// The defect of the first sample.
pub(super) fn fields_of<F: Format, R>(
    format: &F,
    index: &F::Index,
    first: Option<SampleBytes<'_>>,
    mut rules: impl Iterator<Item = R>,
    field: impl Fn(R, Option<&FieldValue<'_>>) -> Result<Field, Defect>,
) -> Result<Vec<Field>, Defect> {
    let Some(bytes) = first else { return rules.map(|rule| field(rule, None)).collect() };
    let mut fields = Vec::new();
    format.values(index, SampleId(0), bytes, &mut |value| {
        fields.extend(rules.next().map(|rule| field(rule, Some(&value))).transpose()?);
        Ok(())
    })?;
    Ok(fields)
}

/// The inputs of the opening.
pub(super) struct Opening<'a, F: Format> {
    pub(super) request: Request<'a>,
    pub(super) keys: F::Keys,
    /// The pattern or the file that the path names, relative to its folder.
    pub(super) pattern: Option<&'a str>,
    /// The storage of the samples.
    pub(super) storage: &'a dyn Storage,
    /// The storage of the files: the same one, unless they list samples in another folder.
    pub(super) lists: &'a dyn Storage,
    /// The root of the samples.
    pub(super) data_root: PathBuf,
}

impl<F: Format> Opening<'_, F> {
    /// Whether an index matches the current files.
    fn is_fresh(&self, index: &F::Index) -> Result<bool, DatasetError> {
        let is_compared = F::IS_COMPARED_REMOTELY || self.request.options.compares_files;
        if self.lists.remote_root().is_some() && !is_compared {
            return Ok(true);
        }
        let are_unchanged = self.request.are_unchanged(self.lists, index, &F::files(self)?)?;
        Ok(are_unchanged && F::is_complete(index, self)?)
    }

    /// The end of a scan of rows, of which `samples` were kept and `skipped` left out; `form` describes a sample's name.
    ///
    /// # Errors
    /// A listed name does not belong to a sample, or no row is left.
    pub(super) fn conclude_rows(
        &self,
        listed: Option<Listed>,
        form: &str,
        (samples, skipped): (u64, u64),
        warnings: &mut Vec<String>,
    ) -> Result<(), DatasetError> {
        listed.map_or(Ok(()), |listed| listed.finish(form))?;
        if samples == 0 {
            return Err(self.request.no_samples(match &self.request.ids {
                Some(ids) => ids.lists_none(),
                None if skipped > 0 => format!(
                    "none of {} has the value that dataset.fields has as missing = \"skip\"",
                    counted(skipped, "row")
                ),
                None => "it has no rows".to_owned(),
            }));
        }
        if skipped > 0 {
            warnings.push(format!(
                "left out: {} without a value that dataset.fields has as missing = \"skip\"",
                counted(skipped, "row")
            ));
        }
        Ok(())
    }

    /// The dataset of an index.
    fn dataset(&self, index: F::Index) -> Result<Indexed<F>, DatasetError> {
        let format = F::of_index(&index, self).ok_or_else(|| DatasetError::BrokenFile {
            path: self.request.place.path.clone(),
            reason: "its fields cannot be read back, or keys of the format have changed since it was made; remove the index"
                .to_owned(),
        })?;
        let mut dataset = Indexed { index, fields: Vec::new(), format, lists: None };
        let first = SampleId(0);
        let refuse = |reason: String| {
            let mut name = Vec::new();
            dataset.append_name(first, &mut name);
            DatasetError::FirstSample { path: self.lists.full_path(&name), reason }
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let is_needed = dataset.format.needs_first();
        if is_needed {
            let limit = self.request.config.limits.sample_bytes;
            let storage = UnpackingStorage::new(self.storage, 0);
            read_sample(&storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => refuse(error.to_string()),
                },
            )?;
        }
        let read = is_needed.then(|| SampleBytes::new(&bytes, &ends));
        let fields = dataset.format.fields(&dataset.index, read);
        let fields = fields.map_err(|defect| refuse(defect.0))?;
        dataset.fields = fields;
        Ok(dataset)
    }
}

fn request<'a, F: Format>(
    config: &'a DatasetConfig,
    server: Option<&str>,
    options: OpenOptions<'a>,
) -> Result<(F::Keys, Request<'a>), DatasetError> {
    let keys = F::Keys::read(&mut config.own.clone())?;
    let digested = F::digested(&keys)?;
    let (root, pattern) = F::split(&config.path);
    let asked = Asked { format: F::FORMAT.name, root, server, pattern, is_listed: F::IS_LISTED };
    Ok((keys, Request::of(config, options, asked, &digested)?))
}

/// Whether an index of this dataset is saved. If so, its folder has existed before.
pub(super) fn has_saved_index<F: Format>(config: &DatasetConfig, options: OpenOptions<'_>) -> bool {
    // The saved index of a URL is used without a look at the root, so this is asked of file systems alone.
    let Ok((_, request)) = request::<F>(config, None, options) else { return false };
    request.load::<F::Index>().is_ok_and(|index| index.is_some())
}

/// Opens the dataset of a configuration: with the saved index if it is fresh, otherwise by a scan.
pub(super) fn open<F: Format>(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let (keys, request) = request::<F>(config, storage.server().as_deref(), options)?;
    let (root, pattern) = F::split(&config.path);
    let data = F::data_root(&keys);
    let other = open_lists(config, data.as_deref(), &root, options)?;
    let patient = other
        .as_ref()
        .zip(options.patience)
        .map(|(other, patience)| PatientStorage { storage: other.as_ref(), patience });
    let lists: &dyn Storage = match (&patient, &other) {
        (Some(patient), _) => patient,
        (None, Some(other)) => other.as_ref(),
        (None, None) => storage,
    };
    if pattern.is_none() {
        let words = (F::OTHER_FILE, F::FORMAT.name, F::EXPECTED);
        refuse_other_file(lists, &config.path, words, options)?;
    }
    let data_root = data.unwrap_or(root);
    let opening = Opening::<F> { request, keys, pattern, storage, lists, data_root };
    let mut report = IndexReport::default();
    let index = opening.request.open(
        lists,
        &mut report,
        |index| opening.is_fresh(index),
        |warnings| F::make(&opening, warnings),
    )?;
    let mut dataset = opening.dataset(index)?;
    dataset.lists = other;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// The storage of manifests if the data has another root; `None`: the data's storage is used.
///
/// # Errors
/// The manifest is remote but the data is local, or the folder cannot be opened.
fn open_lists(
    config: &DatasetConfig,
    data: Option<&Path>,
    root: &Path,
    options: OpenOptions<'_>,
) -> Result<Option<Arc<dyn Storage>>, DatasetError> {
    match data {
        Some(data) if config.is_remote() && !is_url(data) => {
            let reason = "a manifest behind a URL names no files of this machine; set dataset.root to a URL, or copy the manifest";
            Err(DatasetError::BrokenFile { path: config.path.clone(), reason: reason.to_owned() })
        }
        Some(_) => {
            let opened = options.call("opening", root, || storages::open(root, &config.storage));
            let opened = opened.map_err(|error| match error {
                StorageError::Vanished { .. } => DatasetError::Missing { path: root.to_owned() },
                error => error.into(),
            })?;
            Ok(Some(opened))
        }
        None => Ok(None),
    }
}

/// A dataset with a saved index.
#[derive(Debug)]
pub(super) struct Indexed<F: Format> {
    index: F::Index,
    fields: Vec<Field>,
    format: F,
    /// The storage of the files that list the samples, if it is not that of the samples.
    lists: Option<Arc<dyn Storage>>,
}

impl<F: Format> Indexed<F> {
    fn files<'s>(&'s self, samples: &'s dyn Storage) -> &'s dyn Storage {
        self.lists.as_deref().unwrap_or(samples)
    }
}

impl<F: Format> FileTable for Indexed<F> {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.format.append_path(&self.index, file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.format.stamp(&self.index, file)
    }
}

impl<F: Format> Dataset for Indexed<F> {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        self.format.locate(&self.index, id, locations);
    }

    fn shares_units(&self) -> bool {
        self.format.shares_units()
    }

    fn page_bytes(&self) -> Option<u64> {
        self.format.page_bytes()
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        self.format.blocks(&self.index)
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let mut fields = self.fields.iter();
        self.format.values(&self.index, id, bytes, &mut |value| {
            if let (FieldValue::Array(array), Some(field)) = (&value, fields.next()) {
                check_type(field, array)?;
            }
            values.push(value);
            Ok(())
        })
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.format.unpacked_bytes(bytes)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.format.direct_read()
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.bytes())
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.index.append_name(id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        self.format.max_row_bytes(&self.index, field, self.fields.get(field)?)
    }

    fn rows_differ(&self, field: usize) -> Option<bool> {
        self.format.rows_differ(&self.index, field)
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.format.label(&self.index, id)
    }

    fn description(&self) -> Description {
        Description {
            field_rules: self.format.field_rules(),
            output: self.format.output(),
            notes: self.format.notes(),
            ..Description::of_classes(self.classes())
        }
    }

    fn classes(&self) -> &[String] {
        self.format.classes()
    }

    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        self.format.append_key(&self.index, id, key)
    }

    fn columns(&self, storage: &dyn Storage) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        self.format.columns(&self.index, self.files(storage))
    }

    fn visit_columns(
        &self,
        storage: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        self.format.visit_columns(&self.index, self.files(storage), columns, visit)
    }
}
