//! Opening a set of archives: which they are, whether the saved index is still true of them, and making a new one.

use std::sync::Arc;
use std::time::Instant;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use super::members::Members;
use super::names::{self, Name};
use super::request::{COMPRESSED, Request};
use super::scan::{self, Column, Counts};
use super::{FORMAT, MAX_COLUMNS, TarSamples};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{
    FieldRule, Form, IMAGES, Missing, infer_rules, parse_rules, rules_text,
};
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use crate::dataset::saved_index::{now_seconds, refuse_other_file, refuse_twice, tell_missing};
use crate::dataset::shards::{Origin, Pace, ShardIndex};
use crate::dataset::stored_file::StoredFile;
use crate::dataset::window::WindowSize;
use crate::dataset::{Dataset, Defect, Field, shard_paths, shards};
use crate::location::SampleBytes;
use crate::storage::Storage;

/// Samples that fields are inferred from, as many as Hugging Face's reader takes.
const INFERRED_FROM: usize = 5;

/// What a sample's name looks like.
const NAME_FORM: &str = "a sample is named by its archive, relative to the dataset's folder, and its key, as in train-000.tar/KEY";

/// Opens archives: those that the path names, or those of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let task = Task::new(config, storage, options)?;
    let mut report = IndexReport::default();
    let index = task.request.index.open(
        storage,
        &mut report,
        |index| shards::are_unchanged(&task.request.index, storage, index, || task.shards()),
        |warnings| task.make(warnings),
    )?;
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
        let request = Request::of(config, options)?;
        if request.pattern.is_none() {
            let expected =
                "a .tar file, several by a pattern such as {000..099}.tar, or a folder of them";
            let words = ("a file that does not end in .tar", FORMAT.name, expected);
            refuse_other_file(storage, &config.path, words, options)?;
        }
        Ok(Self { request, storage })
    }

    /// The archives, in their order.
    fn shards(&self) -> Result<Vec<Vec<u8>>, DatasetError> {
        let find = |extensions| {
            shard_paths::find(
                self.storage,
                &self.request.index.config.path,
                self.request.pattern,
                extensions,
            )
            .map_err(tell_missing)
        };
        let mut shards = find(&[".tar"])?;
        let compressed = match self.request.pattern {
            None if shards.is_empty() => {
                shards = find(&COMPRESSED)?;
                shards.clone()
            }
            None => Vec::new(),
            Some(_) => shards.clone(),
        };
        let is_compressed = |name: &&Vec<u8>| shard_paths::has_extension(name, &COMPRESSED);
        let is_refused = |name: &&Vec<u8>| is_compressed(name) && !self.storage.unpacks(name);
        if let Some(name) = compressed.iter().find(is_refused) {
            return Err(DatasetError::BrokenFile {
                path: self.storage.full_path(name),
                reason: "a compressed archive cannot be read at a place of its own; decompress it (gunzip, unzstd), which \
                         costs little: pictures hardly compress. Or name a folder in cache.path, where archives of gzip and \
                         zstd are unpacked once"
                    .to_owned(),
            });
        }
        if shards.is_empty() {
            return Err(self.request.index.no_samples("there is no .tar file in it"));
        }
        refuse_twice(self.storage, &shards)?;
        Ok(shards)
    }

    /// Scans the archives and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = now_seconds();
        let shards = self.shards()?;
        let rules = match &self.request.rules {
            Some(rules) => rules.clone(),
            None => self.infer(&shards, warnings)?,
        };
        let columns = columns(&rules);
        let request = &self.request.index;
        request.check_limit()?;
        let limit = request.config.limit.filter(|_| request.ids.is_none());
        let scan_shard = |place: usize, pace: &dyn Pace| {
            scan::scan_shard(self.storage, &shards[place], &columns, pace)
        };
        let scanned = shards::scan(shards.len(), limit, request.options.progress, &scan_shard);
        let (mut found, counted): (Vec<_>, Vec<_>) =
            scanned.map_err(tell_missing)?.into_iter().unzip();
        let mut counts = Counts::default();
        counted.iter().for_each(|more| counts.add(more));
        shards::select(request, &mut found, columns.len(), NAME_FORM)?;
        warnings.extend(sentences(&counts, &rules, &columns));
        if found.iter().all(|shard| shard.samples() == 0) {
            let left: u64 = counts.skipped + counts.foreign;
            let names: Vec<_> = columns.iter().map(|column| column.from.join("|")).collect();
            return Err(request.no_samples(match &request.ids {
                Some(ids) => ids.lists_none(),
                None => format!(
                    "none of its {left} samples has what dataset.fields names ({})",
                    names.join(", ")
                ),
            }));
        }
        let text = rules_text(&rules);
        let (identity, options) = (request.identity, request.digest);
        let origin = Origin { identity, options, scan_started_seconds, rules: &text };
        Ok(ShardIndex::build(&found, columns.len(), &origin))
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
            let archive = StoredFile::new(self.storage, path);
            let archive = archive.map_err(|error| tell_missing(error.into()))?;
            let window = WindowSize::for_storage(self.storage);
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
            let reason = "its first samples have no members that can be read";
            return Err(self.request.index.no_samples(reason));
        }
        Ok(rules)
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: ShardIndex) -> Result<TarSamples, DatasetError> {
        let rules = parse_rules(index.rules()).ok_or_else(|| DatasetError::BrokenFile {
            path: self.request.index.place.path.clone(),
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
            let limit = self.request.index.config.limits.sample_bytes;
            read_sample(self.storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => self.refuse_first(&dataset, &error.to_string()),
                },
            )?;
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
    if let Some(first) = counts.distrusted.first() {
        tell(
            counts.distrusted.len() as u64,
            &format!(
                "of the archives have an .idx that is not used, and were read through instead; {first}. Make it again \
                 with DALI's wds2idx, or remove it"
            ),
        );
    }
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
