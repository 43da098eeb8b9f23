//! Opening a folder of shards of records: its description, whether the saved index is still true, and making a new one.

use std::sync::Arc;
use std::time::Instant;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use super::description::{Describe, Described, DescribedShard};
use super::rules::{RecordRule, infer, read_rules, settle};
use super::{Layout, RecordKeys, RecordSamples, refuse};
use crate::dataset::error::DatasetError;
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use crate::dataset::saved_index::{
    Asked, Request, now_seconds, refuse_other_file, refuse_twice, tell_missing,
};
use crate::dataset::shards::{self, Extent, Origin, Pace, ScannedShard, ShardIndex};
use crate::dataset::stored_file::StoredFile;
use crate::dataset::{Dataset, Defect, Field, FieldValue};
use crate::location::SampleBytes;
use crate::storage::{Storage, StorageError};

/// The file that describes the shards.
const DESCRIPTION: &str = "index.json";
/// A description of millions of shards is smaller.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 30;
/// Numbers of a table that are read at once.
const TABLE_STEP: u64 = 1 << 18;
/// What a sample's name looks like.
const NAME_FORM: &str = "a sample is named by its shard, relative to the dataset's folder, and its number in it, as in shard.00000.mds/17";

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok((_, request)) = request(config, format, options) else { return false };
    request.load::<ShardIndex>().is_ok_and(|index| index.is_some())
}

fn request<'a>(
    config: &'a DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'a>,
) -> Result<(Option<Vec<RecordRule>>, Request<'a>), DatasetError> {
    let keys = RecordKeys::of(config)?;
    let rules = keys.fields.as_deref().map(|entries| read_rules(entries, false)).transpose()?;
    // Words and names alone: writing them cannot fail.
    let own = serde_json::to_string(&rules).unwrap_or_default();
    let asked =
        Asked { format: format.name, root: config.path.clone(), pattern: None, is_listed: false };
    Ok((rules, Request::of(config, options, asked, &own)?))
}

/// Opens the shards of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
    format: FolderFormat,
    describe: Describe,
) -> OpenedFormat {
    let started = Instant::now();
    let words = ("a file", format.name, "the folder of an index.json and its shards");
    refuse_other_file(storage, &config.path, words, options)?;
    let (rules, request) = request(config, format, options)?;
    let task = Task { request, rules, storage, describe };
    let mut report = IndexReport::default();
    let index = task.request.open(
        storage,
        &mut report,
        |index| {
            let find = || Ok(task.shards(&task.describe()?)?.0);
            shards::are_unchanged(&task.request, storage, index, find)
        },
        |warnings| task.make(warnings),
    )?;
    let dataset = task.dataset(index)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    rules: Option<Vec<RecordRule>>,
    storage: &'a dyn Storage,
    describe: Describe,
}

impl Task<'_> {
    fn describe(&self) -> Result<Described, DatasetError> {
        let file = StoredFile::new(self.storage, DESCRIPTION.as_bytes());
        let file = file.map_err(|error| tell_missing(error.into()))?;
        let text = file.read_whole(MAX_DESCRIPTION_BYTES)?;
        let described = (self.describe)(&text).map_err(|reason| file.fault(reason))?;
        let packed = described.shards.iter().filter_map(|shard| shard.compression.as_ref());
        let packed = packed.filter_map(|compression| compression.path.as_ref());
        for path in described.shards.iter().map(|shard| &shard.path).chain(packed) {
            let mut parts = path.split('/');
            if path.contains('\0') || parts.any(|part| matches!(part, "" | "." | "..")) {
                return Err(file.fault(format!(
                    "it names the shard {path:?}, which is no path within its folder"
                )));
            }
        }
        if described.shards.is_empty() || described.columns.is_empty() {
            return Err(self
                .request
                .no_samples(format!("its {DESCRIPTION} lists no shards or no columns")));
        }
        Ok(described)
    }

    /// Whether a shard lies there decompressed.
    fn is_there(&self, path: &[u8]) -> bool {
        StoredFile::new(self.storage, path).is_ok()
    }

    /// The shards' paths and how many samples each has.
    fn shards(&self, described: &Described) -> Result<(Vec<Vec<u8>>, Vec<u64>), DatasetError> {
        let path = |shard: &DescribedShard| {
            let packed = shard.compression.as_ref().and_then(|packed| packed.path.as_ref());
            match packed.filter(|packed| self.storage.unpacks(packed.as_bytes())) {
                Some(packed) if !self.is_there(shard.path.as_bytes()) => {
                    packed.clone().into_bytes()
                }
                _ => shard.path.clone().into_bytes(),
            }
        };
        let shards = described.shards.iter();
        let shards: (Vec<_>, Vec<_>) = shards.map(|shard| (path(shard), shard.samples)).unzip();
        refuse_twice(self.storage, &shards.0)?;
        Ok(shards)
    }

    /// Reads the shards' tables and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = now_seconds();
        let request = &self.request;
        request.check_limit()?;
        let described = self.describe()?;
        let (paths, samples) = self.shards(&described)?;
        let description = || self.storage.full_path(DESCRIPTION.as_bytes());
        let rules = match &self.rules {
            Some(rules) => {
                let mut rules = rules.clone();
                settle(&mut rules, &described.columns)
                    .map_err(|reason| refuse(description(), reason))?;
                rules
            }
            None => {
                let (rules, left_out) = infer(&described.columns);
                if !left_out.is_empty() {
                    warnings.push(format!(
                        "columns that no field was made of: {}",
                        left_out.join(", ")
                    ));
                }
                rules
            }
        };
        if rules.is_empty() {
            return Err(request.no_samples("it has no columns that can be read"));
        }
        let limit = request.config.limit.filter(|_| request.ids.is_none());
        let storage = self.storage;
        let scan = |place: usize, pace: &dyn Pace| {
            let found = scan_shard(storage, &paths[place], samples[place], pace);
            let compression = described.shards[place].compression.as_ref();
            found.map_err(|error| match (error, compression) {
                (DatasetError::Storage(StorageError::Vanished { path }), Some(compression)) => refuse(
                    path,
                    format!(
                        "the shard is compressed ({}), and a sample of it cannot be read alone; name a folder in cache.path, \
                         where shards of zstd and gz are unpacked once, or decompress the shards \
                         beside the compressed ones, and those are read: {}",
                        compression.name, compression.remedy
                    ),
                ),
                (error, _) => tell_missing(error),
            })
        };
        let mut found = shards::scan(paths.len(), limit, request.options.progress, &scan)?;
        shards::select(request, &mut found, 1, NAME_FORM)?;
        if found.iter().all(|shard| shard.samples() == 0) {
            return Err(request.no_samples(match &request.ids {
                Some(ids) => ids.lists_none(),
                None => "its shards have no samples".to_owned(),
            }));
        }
        let layout = Layout { columns: described.columns, rules };
        let rules = serde_json::to_string(&layout).unwrap_or_default();
        let (identity, options) = (request.identity, request.digest);
        let origin = Origin { identity, options, scan_started_seconds, rules: &rules };
        Ok(ShardIndex::build(&found, 1, &origin))
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: ShardIndex) -> Result<RecordSamples, DatasetError> {
        let layout = Layout::parse(index.rules()).filter(|_| index.columns() == 1);
        let layout = layout.ok_or_else(|| {
            refuse(
                self.request.place.path.clone(),
                "its fields cannot be read back; remove the index",
            )
        })?;
        let mut dataset = RecordSamples { index, fields: Vec::new(), layout };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut fields = Vec::new();
        let first = SampleId(0);
        let refuse_first = |reason: String| {
            let mut name = Vec::new();
            dataset.append_name(first, &mut name);
            DatasetError::FirstSample { path: self.storage.full_path(&name), reason }
        };
        let mut rules = dataset.layout.rules.iter();
        if dataset.layout.rules.iter().any(RecordRule::is_array) {
            let limit = self.request.config.limits.sample_bytes;
            read_sample(self.storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => refuse_first(error.to_string()),
                },
            )?;
            let record = SampleBytes::new(&bytes, &ends).all();
            let take = |value: FieldValue<'_>| -> Result<(), Defect> {
                fields.extend(rules.next().map(|rule| rule.field(Some(&value))).transpose()?);
                Ok(())
            };
            dataset.values(record, take).map_err(|defect| refuse_first(defect.0))?;
        } else {
            let all: Result<Vec<Field>, _> = rules.map(|rule| rule.field(None)).collect();
            fields = all.map_err(|defect| refuse_first(defect.0))?;
        }
        dataset.fields = fields;
        Ok(dataset)
    }
}

/// Reads a shard's table.
fn scan_shard(
    storage: &dyn Storage,
    path: &[u8],
    samples: u64,
    pace: &dyn Pace,
) -> Result<ScannedShard, DatasetError> {
    let file = StoredFile::new(storage, path)?;
    let mut shard =
        ScannedShard { path: path.to_vec(), stamp: file.stamp, ..ScannedShard::default() };
    let length = file.stamp.bytes;
    let read = |offset, length, buffer: &mut Vec<u8>| file.read(offset, length, buffer);
    read_table(length, samples, read, |extent| {
        if (shard.samples() as u64).is_multiple_of(TABLE_STEP)
            && pace.is_stopped_at(extent.offset, length)
        {
            return Err(DatasetError::Cancelled);
        }
        shard.names.extend_from_slice(shard.samples().to_string().as_bytes());
        let end = u32::try_from(shard.names.len());
        shard.name_ends.push(end.map_err(|_| file.fault("it has too many samples".to_owned()))?);
        shard.members.push(Some(extent));
        Ok(())
    })
    .map_err(|fault| match fault {
        TableFault::Read(error) => error,
        TableFault::Broken(reason) => file.fault(reason),
    })?;
    Ok(shard)
}

/// Why a table cannot be used.
#[derive(Debug)]
pub(super) enum TableFault {
    Read(DatasetError),
    Broken(String),
}

/// Reads the table that a shard of that many bytes begins with: the number of its samples, and where each begins; the last
/// number is where the last one ends.
///
/// # Errors
/// It is not of as many samples as are said, does not rise, or leads out of the file.
pub(super) fn read_table(
    length: u64,
    samples: u64,
    read: impl Fn(u64, u64, &mut Vec<u8>) -> Result<(), DatasetError>,
    mut visit: impl FnMut(Extent) -> Result<(), DatasetError>,
) -> Result<(), TableFault> {
    let broken = |reason: String| Err(TableFault::Broken(reason));
    let behind = samples.checked_add(2).and_then(|numbers| numbers.checked_mul(4));
    let Some(behind) = behind.filter(|behind| *behind <= length) else {
        return broken(format!(
            "it has {length} bytes, which is less than the table of its {samples} samples takes: it is cut off, or index.json \
             is another one's"
        ));
    };
    let number = |bytes: &[u8], place: usize| {
        bytes
            .get(4 * place..)
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
    };
    let mut buffer = Vec::new();
    read(0, 8, &mut buffer).map_err(TableFault::Read)?;
    let found = number(&buffer, 0);
    if found != samples {
        return broken(format!("it has {found} samples, and {samples} by index.json"));
    }
    let mut before = number(&buffer, 1);
    if before < behind {
        return broken(format!(
            "its first sample begins at byte {before}, within its table of {behind} bytes"
        ));
    }
    let mut sample = 0;
    while sample < samples {
        let step = TABLE_STEP.min(samples - sample);
        read(8 + 4 * sample, 4 * step, &mut buffer).map_err(TableFault::Read)?;
        for place in 0..usize::try_from(step).unwrap_or(0) {
            let end = number(&buffer, place);
            if end < before || end > length {
                return broken(format!(
                    "its sample {sample} lies from byte {before} to {end}, and the file has {length}: it is cut off or damaged"
                ));
            }
            visit(Extent { offset: before, bytes: end - before }).map_err(TableFault::Read)?;
            (before, sample) = (end, sample + 1);
        }
    }
    match before == length {
        true => Ok(()),
        false => broken(format!("its samples end at byte {before}, and the file has {length}")),
    }
}
