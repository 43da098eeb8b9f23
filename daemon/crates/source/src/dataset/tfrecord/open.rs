//! Opening a set of record files: which they are, whether the saved index is still true of them, and making a new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use super::frame::{self, Compression, Frames};
use super::names;
use super::rules::SeenKeys;
use super::{ExampleSamples, FORMAT, configured_rules};
use crate::dataset::columns::{ColumnRule, parse_rules, rules_text};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::Form;
use crate::dataset::file_samples::array_field;
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use crate::dataset::saved_index::{
    Asked, Request, now_seconds, refuse_other_file, refuse_twice, tell_missing,
};
use crate::dataset::shard_paths;
use crate::dataset::shards::{self, Origin, Pace, ScannedShard, ShardIndex};
use crate::dataset::stored_file::StoredFile;
use crate::dataset::window::WindowSize;
use crate::dataset::{Dataset, Defect, Field, FieldValue};
use crate::location::SampleBytes;
use crate::storage::Storage;

/// Records that fields are inferred from.
const INFERRED_FROM: usize = 5;
/// Records after which a thread asks whether the scan was stopped.
const RECORDS_PER_ASK: u64 = 4096;
/// What a sample's name looks like.
const NAME_FORM: &str = "a sample is named by its file, relative to the dataset's folder, and its number in it, as in train.tfrecord/17";

/// The folder that a path's files lie in.
pub(in crate::dataset) fn root(path: &Path) -> PathBuf {
    names::split(path).0
}

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    _format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok((_, request)) = request(config, options) else { return false };
    request.load::<ShardIndex>().is_ok_and(|index| index.is_some())
}

fn request<'a>(
    config: &'a DatasetConfig,
    options: OpenOptions<'a>,
) -> Result<(Option<Vec<ColumnRule>>, Request<'a>), DatasetError> {
    let rules = configured_rules(config)?;
    let own = rules.as_deref().map(rules_text).unwrap_or_default();
    let (root, pattern) = names::split(&config.path);
    let asked = Asked { format: FORMAT.name, root, pattern, is_listed: true };
    Ok((rules, Request::of(config, options, asked, &own)?))
}

/// Opens record files: those that the path names, or those of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let started = Instant::now();
    let (rules, request) = request(config, options)?;
    let pattern = names::split(&config.path).1;
    if pattern.is_none() {
        let expected = "a .tfrecord file, several by a pattern such as train-{00000..00099}-of-00100, or a folder of them";
        let words = ("a file of another name", FORMAT.name, expected);
        refuse_other_file(storage, &config.path, words, options)?;
    }
    let task = Task { request, rules, pattern, storage };
    let mut report = IndexReport::default();
    let index = task.request.open(
        storage,
        &mut report,
        |index| shards::are_unchanged(&task.request, storage, index, || task.shards()),
        |warnings| task.make(warnings),
    )?;
    let dataset = task.dataset(index)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    rules: Option<Vec<ColumnRule>>,
    pattern: Option<&'a str>,
    storage: &'a dyn Storage,
}

impl Task<'_> {
    /// The files, in their order.
    fn shards(&self) -> Result<Vec<Vec<u8>>, DatasetError> {
        let path = &self.request.config.path;
        let find = |is_one: &dyn Fn(&[u8]) -> bool| {
            shard_paths::find_named(self.storage, path, self.pattern, is_one).map_err(tell_missing)
        };
        let mut shards = find(&names::is_record_file)?;
        if shards.is_empty() && self.pattern.is_none() {
            // Those that the storage does not unpack are refused when they are read.
            shards = find(&names::is_compressed)?;
        }
        if shards.is_empty() {
            return Err(self.request.no_samples(
                "there is no .tfrecord file in it; name files of other names by a pattern that ends in .tfrecord or in \
                 -of-00100",
            ));
        }
        refuse_twice(self.storage, &shards)?;
        Ok(shards)
    }

    /// Walks over the files and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = now_seconds();
        let request = &self.request;
        request.check_limit()?;
        let shards = self.shards()?;
        let rules = self.settle(&shards, warnings)?;
        let limit = request.config.limit.filter(|_| request.ids.is_none());
        let storage = self.storage;
        let scan = |place: usize, pace: &dyn Pace| {
            scan_shard(storage, &shards[place], pace).map_err(tell_missing)
        };
        let mut found = shards::scan(shards.len(), limit, request.options.progress, &scan)?;
        shards::select(request, &mut found, 1, NAME_FORM)?;
        if found.iter().all(|shard| shard.samples() == 0) {
            return Err(request.no_samples(match &request.ids {
                Some(ids) => ids.lists_none(),
                None => "its files have no records".to_owned(),
            }));
        }
        let rules = rules_text(&rules);
        let (identity, options) = (request.identity, request.digest);
        let origin = Origin { identity, options, scan_started_seconds, rules: &rules };
        Ok(ShardIndex::build(&found, 1, &origin))
    }

    /// The rules of the configuration, or those that the first records have.
    fn settle(
        &self,
        shards: &[Vec<u8>],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<ColumnRule>, DatasetError> {
        let (mut seen, mut path) = (SeenKeys::default(), Vec::new());
        for shard in shards {
            path.clone_from(shard);
            if self.look(shard, &mut seen)? > 0 {
                break;
            }
        }
        let refuse =
            |reason| DatasetError::BrokenFile { path: self.storage.full_path(&path), reason };
        if let Some(rules) = &self.rules {
            let mut rules = rules.clone();
            seen.settle(&mut rules).map_err(refuse)?;
            return Ok(rules);
        }
        let (rules, left_out) = seen.infer();
        if !left_out.is_empty() {
            warnings.push(format!(
                "features that no field was made of, since they are lists of bytes, empty, or not in each of the first \
                 records: {}; name them in dataset.fields",
                left_out.join(", ")
            ));
        }
        match rules.is_empty() {
            true => {
                Err(self.request.no_samples("its first records have no features that can be read"))
            }
            false => Ok(rules),
        }
    }

    /// Reads the first records of a file; gives how many.
    fn look(&self, path: &[u8], seen: &mut SeenKeys) -> Result<usize, DatasetError> {
        let file = StoredFile::new(self.storage, path);
        let file = file.map_err(|error| tell_missing(error.into()))?;
        let mut frames =
            Frames::new(&file, file.stamp.bytes, WindowSize::for_storage(self.storage));
        let mut bytes = Vec::new();
        for number in 0..INFERRED_FROM {
            let Some(extent) = frames.next(|compression| remedy(path, compression))? else {
                return Ok(number);
            };
            let limit = self.request.config.limits.sample_bytes;
            if extent.bytes > limit {
                return Err(file.fault(format!(
                    "its record {number} has {} bytes, more than limits.sample_bytes ({limit})",
                    extent.bytes
                )));
            }
            file.read(extent.offset, extent.bytes, &mut bytes)?;
            let example = frame::data(&bytes).map_err(str::to_owned);
            let added =
                example.and_then(|data| seen.add(data).map_err(|fault| fault.words().to_owned()));
            added.map_err(|reason| file.fault(format!("its record {number}: {reason}")))?;
        }
        Ok(INFERRED_FROM)
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: ShardIndex) -> Result<ExampleSamples, DatasetError> {
        let rules = parse_rules(index.rules()).filter(|_| index.columns() == 1);
        let rules = rules.ok_or_else(|| DatasetError::BrokenFile {
            path: self.request.place.path.clone(),
            reason: "its fields cannot be read back; remove the index".to_owned(),
        })?;
        let mut dataset = ExampleSamples::new(index, rules);
        let first = SampleId(0);
        let refuse_first = |reason: String| {
            let mut name = Vec::new();
            dataset.append_name(first, &mut name);
            DatasetError::FirstSample { path: self.storage.full_path(&name), reason }
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut fields = Vec::new();
        let mut rules = dataset.rules.iter();
        if dataset.rules.iter().any(|rule| rule.rule.form == Form::Array) {
            let limit = self.request.config.limits.sample_bytes;
            read_sample(self.storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => refuse_first(error.to_string()),
                },
            )?;
            let take = |value: FieldValue<'_>| -> Result<(), Defect> {
                let Some(rule) = rules.next() else { return Ok(()) };
                fields.push(match value {
                    FieldValue::Array(array) => array_field(rule.rule.name.clone(), &array),
                    _ => rule.rule.field(None)?,
                });
                Ok(())
            };
            let frame = SampleBytes::new(&bytes, &ends).all();
            dataset.values(frame, take).map_err(|defect| refuse_first(defect.0))?;
        } else {
            let all: Result<Vec<Field>, _> = rules.map(|rule| rule.rule.field(None)).collect();
            fields = all.map_err(|defect| refuse_first(defect.0))?;
        }
        dataset.fields = fields;
        Ok(dataset)
    }
}

/// What decompresses a file, to be pasted.
fn remedy(path: &[u8], compression: Compression) -> String {
    let path = String::from_utf8_lossy(path);
    let stem = [".gz", ".zz", ".zlib"].iter().find_map(|end| path.strip_suffix(end));
    let plain = stem.map_or_else(|| format!("plain/{path}"), str::to_owned);
    let (name, program) = match compression {
        Compression::Gzip => ("GZIP", "gzip -dc".to_owned()),
        Compression::Zlib => (
            "ZLIB",
            "python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'".to_owned(),
        ),
    };
    format!(
        "it is compressed ({name}), and a record of it cannot be read alone; name a folder in cache.path, where files of gzip \
         whose names end in .gz are unpacked once, or decompress it in the dataset's folder: \
         {program} < '{path}' > '{plain}'"
    )
}

/// Walks over the heads of a file's records.
fn scan_shard(
    storage: &dyn Storage,
    path: &[u8],
    pace: &dyn Pace,
) -> Result<ScannedShard, DatasetError> {
    let file = StoredFile::new(storage, path)?;
    let mut shard =
        ScannedShard { path: path.to_vec(), stamp: file.stamp, ..ScannedShard::default() };
    let mut frames = Frames::new(&file, file.stamp.bytes, WindowSize::for_storage(storage));
    let mut number = 0_u64;
    while let Some(extent) = frames.next(|compression| remedy(path, compression))? {
        shard.names.extend_from_slice(number.to_string().as_bytes());
        let end = u32::try_from(shard.names.len());
        shard.name_ends.push(end.map_err(|_| file.fault("it has too many records".to_owned()))?);
        shard.members.push(Some(extent));
        number += 1;
        if number % RECORDS_PER_ASK == 1 && pace.is_stopped_at(extent.offset, file.stamp.bytes) {
            return Err(DatasetError::Cancelled);
        }
    }
    Ok(shard)
}
