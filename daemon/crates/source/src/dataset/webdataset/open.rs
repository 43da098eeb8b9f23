//! Opening a set of archives: which they are, whether the saved index is still true of them, and making a new one.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use super::index::{Origin, ScannedShard, ShardStamp, TarIndex};
use super::members::{Members, StoredArchive, Window};
use super::names::{self, Name};
use super::request::{COMPRESSED, Request};
use super::scan::{self, Column, Counts};
use super::{FORMAT, MAX_COLUMNS, TarSamples};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{
    FieldRule, Form, IMAGES, Missing, infer_rules, parse_rules, rules_text,
};
use crate::dataset::folder::cache::{CLOCK_TICK_SECONDS, Loaded, Saved};
use crate::dataset::folder::index_bytes;
use crate::dataset::folder::select::Listed;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat};
use crate::dataset::{Dataset, Defect, Field, shard_paths};
use crate::location::{FileId, SampleBytes};
use crate::storage::{Storage, StorageError};

/// Samples that fields are inferred from, as many as Hugging Face's reader takes.
const INFERRED_FROM: usize = 5;

/// Opens archives: those that the path names, or those of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let task = Task::new(config, storage, options)?;
    let mut report = IndexReport::default();
    let index = match task.previous()? {
        Some(Ok(index)) => {
            report.reused = true;
            index
        }
        other => {
            if other.is_some() {
                report.warnings.push(
                    "the index of the daemon before was changed in place or cut off: the archives are looked at anew"
                        .to_owned(),
                );
            }
            task.index(&mut report)?
        }
    };
    report.samples = index.samples();
    report.bytes = index.bytes().len() as u64;
    report.path = index.is_mapped().then(|| task.request.place.path.clone());
    let dataset = task.dataset(index)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    storage: &'a dyn Storage,
}

impl<'a> Task<'a> {
    fn new(
        config: &'a DatasetConfig,
        storage: &'a dyn Storage,
        options: OpenOptions<'a>,
    ) -> Result<Self, DatasetError> {
        let path = &config.path;
        let is_file = || options.call("asking the status of", path, || path.is_file());
        let request = Request::of(config, options)?;
        if request.pattern.is_none() && (storage.root_is_file() || is_file()) {
            return Err(DatasetError::WrongKind {
                path: path.clone(),
                found: "a file that does not end in .tar",
                format: FORMAT.name,
                expected: "a .tar file, several by a pattern such as {000..099}.tar, or a folder of them",
            });
        }
        Ok(Self { request, storage })
    }

    /// The index of the daemon before: `None` where there is none, `Some(Err)` where its bytes are not sound.
    fn previous(&self) -> Result<Option<Result<TarIndex, ()>>, DatasetError> {
        let Some(file) = self.request.options.previous_index else { return Ok(None) };
        let Ok(bytes) = file.try_clone().and_then(index_bytes::take_in) else {
            return Ok(Some(Err(())));
        };
        match TarIndex::open(bytes) {
            Ok(index) if index.keys()[0] == self.request.identity => Ok(Some(Ok(index))),
            Ok(_) => Err(DatasetError::KeptIndex { path: self.request.config.path.clone() }),
            Err(_) => Ok(Some(Err(()))),
        }
    }

    fn index(&self, report: &mut IndexReport) -> Result<TarIndex, DatasetError> {
        let mut warnings = Vec::new();
        let is_anew = self.request.options.lists_anew && self.storage.remote_root().is_some();
        let loaded = self.request.place.load_or_make(
            self.request.options,
            is_anew,
            &mut warnings,
            || self.load(),
            |warnings| self.make(warnings),
        )?;
        report.warnings.append(&mut warnings);
        match loaded {
            Loaded::Saved(index) => {
                report.reused = true;
                Ok(index)
            }
            Loaded::New { bytes, .. } => {
                TarIndex::open(bytes).map_err(|fault| self.request.place.unreadable(fault))
            }
        }
    }

    fn load(&self) -> Result<Saved<TarIndex>, DatasetError> {
        Ok(match self.request.load()? {
            Some(index) if self.is_up_to_date(&index)? => Saved::True(index),
            Some(index) => Saved::Old(index),
            None => Saved::Nothing,
        })
    }

    /// Whether the archives are those that were scanned, of the same sizes and times. One that changed within the clock's
    /// tick before the scan counts as changed.
    /// Behind a URL nobody can say so cheaply: a sample's read tells an object that changed.
    fn is_up_to_date(&self, index: &TarIndex) -> Result<bool, DatasetError> {
        if self.storage.remote_root().is_some() {
            return Ok(true);
        }
        let shards = self.shards()?;
        // With a limit the last ones were not looked at.
        let are_same =
            |count: usize| (0..count).all(|place| index.shard_path(place) == shards[place]);
        let is_cut = self.request.config.limit.is_some() && index.shards() < shards.len();
        if !(index.shards() == shards.len() || is_cut) || !are_same(index.shards()) {
            return Ok(false);
        }
        for place in 0..index.shards() {
            let found = match self.storage.status(index, FileId(place as u64)) {
                Ok(status) => ShardStamp::of(&status),
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(_) => return Ok(false),
            };
            let known = index.shard(place).map(|shard| shard.stamp);
            let is_settled =
                found.changed_seconds < index.scan_started_seconds() - CLOCK_TICK_SECONDS;
            if known != Some(found) || !is_settled {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The archives, in their order.
    fn shards(&self) -> Result<Vec<Vec<u8>>, DatasetError> {
        let find = |extensions| {
            shard_paths::find(
                self.storage,
                &self.request.config.path,
                self.request.pattern,
                extensions,
            )
            .map_err(|error| self.tell_missing(error))
        };
        let shards = find(&[".tar"])?;
        let compressed = match self.request.pattern {
            None if shards.is_empty() => find(&COMPRESSED)?,
            None => Vec::new(),
            Some(_) => shards.clone(),
        };
        let is_compressed = |name: &&Vec<u8>| shard_paths::has_extension(name, &COMPRESSED);
        if let Some(name) = compressed.iter().find(is_compressed) {
            return Err(DatasetError::BrokenFile {
                path: self.storage.full_path(name),
                reason: "a compressed archive cannot be read at a place of its own; decompress it (gunzip, unzstd), which \
                         costs little: pictures hardly compress"
                    .to_owned(),
            });
        }
        if shards.is_empty() {
            let reason = "there is no .tar file in it".to_owned();
            return Err(DatasetError::NoSamples { path: self.request.config.path.clone(), reason });
        }
        if shards.len() > 1 {
            let mut sorted: Vec<&Vec<u8>> = shards.iter().collect();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                let path = self.storage.full_path(twice[0]);
                let reason =
                    "the pattern names it twice; a sample is used once an epoch".to_owned();
                return Err(DatasetError::BrokenFile { path, reason });
            }
        }
        Ok(shards)
    }

    /// Scans the archives and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok())
            .unwrap_or(0);
        let shards = self.shards()?;
        let rules = match &self.request.rules {
            Some(rules) => rules.clone(),
            None => self.infer(&shards, warnings)?,
        };
        let columns = columns(&rules);
        let limit = self.request.config.limit.filter(|_| self.request.ids.is_none());
        let progress = self.request.options.progress;
        let (mut found, counts) = scan::scan(self.storage, &shards, &columns, limit, progress)
            .map_err(|error| self.tell_missing(error))?;
        self.select(&mut found, columns.len())?;
        warnings.extend(sentences(&counts, &rules, &columns));
        let none = |reason| {
            Err(DatasetError::NoSamples { path: self.request.config.path.clone(), reason })
        };
        if self.request.config.limit == Some(0) {
            return none("dataset.limit is 0; leave it out or raise it".to_owned());
        }
        if found.iter().all(|shard| shard.samples() == 0) {
            let left: u64 = counts.skipped + counts.foreign;
            let names: Vec<_> = columns.iter().map(|column| column.from.join("|")).collect();
            return none(match &self.request.ids {
                Some(ids) => ids.lists_none(),
                None => format!(
                    "none of its {left} samples has what dataset.fields names ({})",
                    names.join(", ")
                ),
            });
        }
        let text = rules_text(&rules);
        let (identity, options) = (self.request.identity, self.request.digest);
        let origin = Origin { identity, options, scan_started_seconds, rules: &text };
        Ok(TarIndex::build(&found, columns.len(), &origin))
    }

    /// A file that the pattern names and that is not there.
    fn tell_missing(&self, error: DatasetError) -> DatasetError {
        match error {
            DatasetError::Storage(StorageError::Vanished { path }) => {
                DatasetError::Missing { path }
            }
            error => error,
        }
    }

    /// Applies `dataset.ids` and `dataset.limit`.
    fn select(&self, found: &mut [ScannedShard], columns: usize) -> Result<(), DatasetError> {
        if let Some(ids) = &self.request.ids {
            let mut listed = Listed::new(ids)?;
            for shard in &mut *found {
                shard.retain(columns, |path, key| listed.take(&[path, key].join(&b'/')));
            }
            listed.finish(
                "a sample is named by its archive, relative to the dataset's folder, and its key, as in train-000.tar/KEY",
            )?;
        }
        if let Some(limit) = self.request.config.limit {
            let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
            for shard in found {
                shard.truncate(left, columns);
                left -= shard.samples();
            }
        }
        Ok(())
    }

    /// The fields that the first samples have.
    fn infer(
        &self,
        shards: &[Vec<u8>],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<FieldRule>, DatasetError> {
        let (mut members, mut has_several) = (Vec::<String>::new(), false);
        let (mut key, mut samples, mut images) = (Vec::new(), 0, 0);
        for path in shards {
            let archive = StoredArchive::new(self.storage, path);
            let archive = archive.map_err(|error| self.tell_missing(error.into()))?;
            let window = Window::for_storage(self.storage);
            let mut walk = Members::new(&archive, archive.stamp.bytes, window);
            while let Some(member) = walk.next()? {
                let Name::Field { key: next, field } = names::split(member.name) else { continue };
                if key != next {
                    (samples, images) = (samples + 1, 0);
                    key = next.to_vec();
                }
                if samples > INFERRED_FROM {
                    break;
                }
                let field = String::from_utf8_lossy(field).to_lowercase();
                images += u64::from(IMAGES.contains(&field.as_str()));
                has_several |= images > 1;
                if !field.is_empty() && !members.contains(&field) && members.len() < MAX_COLUMNS {
                    members.push(field);
                }
            }
            if samples > 0 {
                break;
            }
        }
        let (rules, left_out) = infer_rules(&members, has_several);
        if !left_out.is_empty() {
            warnings.push(format!(
                "members that no field was made of: {}. Pickles and code in data are never run; other members can be named \
                 in dataset.fields",
                left_out.join(", ")
            ));
        }
        if rules.is_empty() {
            let reason = "its first samples have no members that can be read".to_owned();
            return Err(DatasetError::NoSamples { path: self.request.config.path.clone(), reason });
        }
        Ok(rules)
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: TarIndex) -> Result<TarSamples, DatasetError> {
        let rules = parse_rules(index.rules()).ok_or_else(|| DatasetError::BrokenFile {
            path: self.request.place.path.clone(),
            reason: "its fields cannot be read back; remove the index".to_owned(),
        })?;
        let of = columns(&rules);
        let column_of =
            |rule: &FieldRule| of.iter().position(|column| column.from == rule.from).unwrap_or(0);
        let columns: Vec<usize> = rules.iter().map(column_of).collect();
        let has_arrays = rules.iter().any(|rule| rule.form == Form::Array);
        let mut dataset = TarSamples { index, fields: Vec::new(), rules, columns };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let first = SampleId(0);
        if has_arrays {
            let (mut locations, mut opened) = (Vec::new(), Vec::new());
            dataset.locate(first, &mut locations);
            let limit = self.request.config.limits.sample_bytes;
            let read = self
                .storage
                .open_all(&dataset, &locations, limit, &mut opened)
                .and_then(|_| self.storage.read_all(&dataset, &mut opened, &mut bytes, &mut ends));
            if let Err(error) = read {
                return Err(if error.is_transient() {
                    error.into()
                } else {
                    self.refuse_first(&dataset, &error.to_string())
                });
            }
        }
        let spans = dataset.spans(first);
        let field = |(rule, column): (&FieldRule, &usize)| -> Result<Field, Defect> {
            let member = dataset.index.member(first, *column).filter(|_| rule.form == Form::Array);
            let read = SampleBytes::new(&bytes, &ends);
            rule.field(member.map(|member| TarSamples::data(&spans, read, member)).transpose()?)
        };
        let fields: Result<Vec<_>, _> =
            dataset.rules.iter().zip(&dataset.columns).map(field).collect();
        let fields = fields.map_err(|defect| self.refuse_first(&dataset, &defect.0))?;
        dataset.fields = fields;
        Ok(dataset)
    }

    fn refuse_first(&self, dataset: &TarSamples, reason: &str) -> DatasetError {
        let mut name = Vec::new();
        dataset.append_name(SampleId(0), &mut name);
        DatasetError::FirstSample { path: self.storage.full_path(&name), reason: reason.to_owned() }
    }
}

/// The columns of the rules: fields of the same members share one.
fn columns(rules: &[FieldRule]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for rule in rules {
        let skips = rule.missing == Missing::Skip;
        match columns.iter_mut().find(|column| column.from == rule.from) {
            Some(column) => column.skips |= skips,
            None => columns.push(Column { from: rule.from.clone(), skips }),
        }
    }
    columns
}

/// What the user should know of a scan, a sentence each.
fn sentences(counts: &Counts, rules: &[FieldRule], columns: &[Column]) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut tell = |count: u64, words: &str| {
        if count > 0 {
            sentences.push(format!("{count} {words}"));
        }
    };
    tell(counts.hidden, "hidden members, such as those that macOS adds, are left out");
    tell(
        counts.skipped,
        "samples without a member that dataset.fields has as missing = \"skip\" are left out",
    );
    tell(counts.foreign, "samples without any member that dataset.fields names are left out");
    tell(
        counts.unmarked,
        "archives end without the blocks that mark an archive's end: they may have been cut off; compare their sizes with \
         those of the originals",
    );
    for (column, missing) in
        columns.iter().zip(&counts.missing).filter(|(_, missing)| **missing > 0)
    {
        let is_error =
            |rule: &&FieldRule| rule.from == column.from && rule.missing == Missing::Error;
        if let Some(rule) = rules.iter().find(is_error) {
            sentences.push(format!(
                "{missing} samples have no {}, and are bad samples; set dataset.fields.{}.missing to \"skip\" to leave them out",
                rule.from.join(" or "),
                rule.name
            ));
        }
    }
    sentences
}
