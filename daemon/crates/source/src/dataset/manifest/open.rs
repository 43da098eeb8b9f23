//! Opening manifests: which they are, whether the saved index is still true of them, and making a new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_config::{DatasetConfig, Keys, is_url};
use forebay_protocol::ids::SampleId;

use super::paths::Paths;
use super::read::Reading;
use super::rules::{SeenColumn, infer_rules, settle_forms};
use super::table::{Kind, Table};
use super::{FORMAT, ManifestKeys, ManifestSamples};
use crate::dataset::columns::{ColumnRule, parse_rules, read_rules, rules_text};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{Form, Missing};
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use crate::dataset::row_index::RowIndex;
use crate::dataset::saved_index::{
    Asked, Request, is_unchanged, now_seconds, refuse_other_file, refuse_twice, tell_missing,
};
use crate::dataset::shard_paths;
use crate::dataset::stored_file::StoredFile;
use crate::location::{FileId, SampleBytes};
use crate::storage::listing::EntryKind;
use crate::storage::{self, PatientStorage, Storage, StorageError};

/// The manifests that a folder may have.
pub(in crate::dataset) const IN_FOLDERS: [&str; 3] =
    ["metadata.jsonl", "metadata.csv", "metadata.tsv"];
/// Rows that columns are judged by.
const SEEN_ROWS: usize = 100;
/// What is read of a manifest at once.
const LOCAL_WINDOW: usize = 1 << 20;
const REMOTE_WINDOW: usize = 8 << 20;

fn split(path: &Path) -> (PathBuf, Option<&str>) {
    shard_paths::split(path, FORMAT.extensions)
}

/// The folder that a path's manifests lie in.
pub(in crate::dataset) fn root(path: &Path) -> PathBuf {
    split(path).0
}

/// What samples are read from, where that is not the manifests' folder.
pub(in crate::dataset) fn data_root(config: &DatasetConfig) -> Option<PathBuf> {
    ManifestKeys::read(&mut config.own.clone()).ok()?.root
}

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    _format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok((_, request)) = request(config, options) else { return false };
    request.load::<RowIndex>().is_ok_and(|index| index.is_some())
}

fn request<'a>(
    config: &'a DatasetConfig,
    options: OpenOptions<'a>,
) -> Result<(ManifestKeys, Request<'a>), DatasetError> {
    let keys = ManifestKeys::read(&mut config.own.clone())?;
    let rules = keys.fields.as_deref().map(read_rules).transpose()?;
    let rules = rules.as_deref().map(rules_text).unwrap_or_default();
    let data_root = keys.root.clone().unwrap_or_default();
    let (root, pattern) = split(&config.path);
    let asked = Asked { format: FORMAT.name, root, pattern, is_listed: false };
    Ok((keys, Request::of(config, options, asked, &format!("{}\0{rules}", data_root.display()))?))
}

/// Opens manifests: those that the path names, or that of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let (keys, request) = request(config, options)?;
    let (root, pattern) = split(&config.path);
    let lists = open_lists(config, keys.root.as_deref(), &root, options)?;
    let patient = lists
        .as_ref()
        .zip(options.patience)
        .map(|(lists, patience)| PatientStorage { storage: lists.as_ref(), patience });
    let lists: &dyn Storage = match (&patient, &lists) {
        (Some(patient), _) => patient,
        (None, Some(lists)) => lists.as_ref(),
        (None, None) => storage,
    };
    if pattern.is_none() {
        let expected =
            "a .csv, .tsv or .jsonl file, or a folder with a metadata.csv or metadata.jsonl";
        let words = ("a file of another name", FORMAT.name, expected);
        refuse_other_file(lists, &config.path, words, options)?;
    }
    let data_root = keys.root.as_deref().map_or_else(|| root.clone(), Path::to_owned);
    let task = Task { request, keys: &keys, pattern, storage, lists, data_root };
    let mut report = IndexReport::default();
    let index = task.request.open(
        lists,
        &mut report,
        |index| task.is_true(index),
        |warnings| task.make(warnings),
    )?;
    let dataset = task.dataset(index)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// The storage of manifests in a folder whose data lies elsewhere; `None`: it is the data's.
///
/// # Errors
/// The manifest lies behind a URL and the data does not, or the folder cannot be opened.
pub(super) fn open_lists(
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
            let opened = options.call("opening", root, || storage::open(root, &config.storage));
            let opened = opened.map_err(|error| match error {
                StorageError::Vanished { .. } => DatasetError::Missing { path: root.to_owned() },
                error => error.into(),
            })?;
            Ok(Some(opened))
        }
        None => Ok(None),
    }
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    keys: &'a ManifestKeys,
    pattern: Option<&'a str>,
    /// Of the samples.
    storage: &'a dyn Storage,
    /// Of the manifests.
    lists: &'a dyn Storage,
    data_root: PathBuf,
}

impl Task<'_> {
    /// The manifests, in their order.
    fn manifests(&self) -> Result<Vec<Vec<u8>>, DatasetError> {
        let path = &self.request.config.path;
        if self.pattern.is_some() {
            let found = shard_paths::find(self.lists, path, self.pattern, FORMAT.extensions)
                .map_err(tell_missing)?;
            refuse_twice(self.lists, &found)?;
            if found.is_empty() {
                return Err(self.request.no_samples("no file has such a name"));
            }
            return Ok(found);
        }
        let mut found = Vec::new();
        let listed = self.lists.list(b"", &mut |name, kind| {
            let is_file = matches!(kind, EntryKind::File | EntryKind::Object(_));
            if is_file && IN_FOLDERS.iter().any(|known| known.as_bytes() == name) {
                found.push(name.to_vec());
            }
        });
        listed.map_err(|error| tell_missing(error.into()))?;
        match found.len() {
            1 => Ok(found),
            0 => Err(self.request.no_samples(format!(
                "it is a folder without {}; name the manifest in dataset.path, such as train.csv",
                IN_FOLDERS.join(", ")
            ))),
            _ => Err(self
                .request
                .no_samples("it is a folder with several manifests; name one in dataset.path")),
        }
    }

    /// Whether the manifests are those that were read.
    fn is_true(&self, index: &RowIndex) -> Result<bool, DatasetError> {
        let manifests = self.manifests()?;
        let are_same = |place: usize| index.manifest_path(place) == manifests[place];
        let is_cut = self.request.config.limit.is_some() && index.manifests() < manifests.len();
        if !(index.manifests() == manifests.len() || is_cut)
            || !(0..index.manifests()).all(are_same)
        {
            return Ok(false);
        }
        for place in 0..index.manifests() {
            let (file, known) = (FileId(place as u64), index.manifest_stamp(place));
            if !is_unchanged(self.lists, index, file, known, index.started_seconds())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn window(&self) -> usize {
        if self.lists.remote_root().is_some() { REMOTE_WINDOW } else { LOCAL_WINDOW }
    }

    fn file<'f>(&'f self, path: &'f [u8]) -> Result<StoredFile<'f>, DatasetError> {
        StoredFile::new(self.lists, path).map_err(|error| tell_missing(error.into()))
    }

    /// The columns of the first manifest, with the values of its first rows.
    fn look(&self, path: &[u8]) -> Result<Vec<SeenColumn>, DatasetError> {
        let file = self.file(path)?;
        let mut table = Table::new(&file, Kind::of(path), self.window())?;
        let mut seen: Vec<SeenColumn> = Vec::new();
        for _ in 0..SEEN_ROWS {
            let is_row = table.next(true)?;
            for name in table.columns().iter().skip(seen.len()) {
                seen.push(SeenColumn { name: name.clone(), values: Vec::new() });
            }
            if !is_row {
                break;
            }
            for (place, column) in seen.iter_mut().enumerate() {
                let cell = table.cell(place).filter(|cell| !cell.is_empty());
                column.values.extend(cell.map(<[u8]>::to_vec));
            }
        }
        Ok(seen)
    }

    /// The rules of the configuration, or those that the first rows have.
    fn rules(
        &self,
        path: &[u8],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<ColumnRule>, DatasetError> {
        let seen = self.look(path)?;
        if let Some(entries) = self.keys.fields.as_deref() {
            let mut rules = read_rules(entries)?;
            settle_forms(&mut rules, &seen);
            return Ok(rules);
        }
        let (rules, left_out) = infer_rules(&seen);
        if !left_out.is_empty() {
            warnings.push(format!(
                "columns that no field was made of, since they are empty or their names cannot be a field's: {}; name them in \
                 dataset.fields",
                left_out.join(", ")
            ));
        }
        match rules.is_empty() {
            true => Err(self.request.no_samples("it has no rows with values")),
            false => Ok(rules),
        }
    }

    /// Reads the manifests and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let started_seconds = now_seconds();
        self.request.check_limit()?;
        let manifests = self.manifests()?;
        let mut rules = self.rules(&manifests[0], warnings)?;
        let mut reading = Reading::new(&self.request, &rules)?;
        for path in &manifests {
            if reading.is_over() {
                break;
            }
            let file = self.file(path)?;
            let table = Table::new(&file, Kind::of(path), self.window())?;
            let end = match self.keys.root {
                Some(_) => 0,
                None => path.iter().rposition(|byte| *byte == b'/').unwrap_or(0),
            };
            let is_contained = self.storage.remote_root().is_some();
            let paths = Paths::new(&self.data_root, &path[..end], is_contained);
            reading.read(path, file.stamp, table, &paths)?;
        }
        let Reading { found, draft, listed, skipped, missing, .. } = reading;
        if let Some(listed) = listed {
            listed.finish("a sample is named by its manifest and its line, as in train.csv:17")?;
        }
        if draft.samples() == 0 {
            return Err(self.request.no_samples(match &self.request.ids {
                Some(ids) => ids.lists_none(),
                None if skipped > 0 => format!(
                    "all {skipped} rows lack a value that dataset.fields has as missing = \"skip\""
                ),
                None => "it has no rows".to_owned(),
            }));
        }
        if skipped > 0 {
            warnings.push(format!(
                "{skipped} rows without a value that dataset.fields has as missing = \"skip\" are left out"
            ));
        }
        for (rule, missing) in rules.iter_mut().zip(missing) {
            let name = &rule.rule.name;
            if missing > 0 && rule.rule.missing == Missing::Error {
                warnings.push(format!(
                    "{missing} rows have no {}, and are bad samples; set dataset.fields.{name}.missing to \"skip\" to leave \
                     them out",
                    rule.rule.from.join(" or ")
                ));
            }
        }
        for (rule, found) in rules.iter_mut().zip(found) {
            if let Some(classes) = rule.classes.as_mut().filter(|classes| classes.are_sorted) {
                classes.names = found.into_names();
            }
        }
        Ok(draft.build(started_seconds, &rules_text(&rules)))
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: RowIndex) -> Result<ManifestSamples, DatasetError> {
        let rules = parse_rules(index.rules()).filter(|rules| rules.len() == index.columns());
        let rules = rules.ok_or_else(|| DatasetError::BrokenFile {
            path: self.request.place.path.clone(),
            reason: "its fields cannot be read back; remove the index".to_owned(),
        })?;
        let mut dataset = ManifestSamples::new(index, rules);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let first = SampleId(0);
        if dataset.rules.iter().any(|rule| rule.rule.form == Form::Array) {
            let limit = self.request.config.limits.sample_bytes;
            read_sample(self.storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => self.refuse_first(&dataset, error.to_string()),
                },
            )?;
        }
        let read = SampleBytes::new(&bytes, &ends);
        let fields: Result<Vec<_>, _> = dataset
            .cells(first)
            .zip(&dataset.rules)
            .map(|((_, file), rule)| rule.rule.field(file.and_then(|file| read.part(file))))
            .collect();
        let fields = fields.map_err(|defect| self.refuse_first(&dataset, defect.0))?;
        dataset.fields = fields;
        Ok(dataset)
    }

    fn refuse_first(&self, dataset: &ManifestSamples, reason: String) -> DatasetError {
        let mut name = Vec::new();
        dataset.index.append_name(SampleId(0), &mut name);
        DatasetError::FirstSample { path: self.lists.full_path(&name), reason }
    }
}
