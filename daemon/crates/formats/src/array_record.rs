//! `arrayrecord`: the files that Google's `ArrayRecord` writes, for TensorFlow Datasets and Grain; each record a
//! `tf.train.Example`, or one value.
//!
//! A file ends with a list of its chunks ([`footer`]). A chunk has one record or several, which are compressed together
//! ([`parts`]); a sample is one range of its file, so the shuffle is exact.

mod footer;
mod fuzzed;

use forebay_keys::{ConfigError, Section, keys, words};
use forebay_protocol::ids::SampleId;
use forebay_storage::codec::Codec;
use forebay_storage::riegeli;
use serde::{Deserialize, Serialize};

use self::footer::{Chunks, slice};
#[doc(hidden)]
pub(super) use self::fuzzed::walk_for_fuzzing;
use crate::columns::{ColumnRule, parse_rules};
use crate::draft::{Draft, Seen};
use crate::examples::{self, Examples, Fault, INFERRED_FROM, SeenKeys, features, rules};
use crate::fields::{FieldsTable, rules_text};
use crate::indexed::{Format, Opening, ShardFormat, ShardPlan, Take, fields_of, make_of_shards};
use crate::parts::{self, PartKind, Parts, PartsRead};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field, SampleBlocks};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::{SavedIndex, open_file, refuse_twice, tell_missing};
use forebay_index::shard_paths::{self, has_extension, numbered_stem};
use forebay_index::shards::{Extent, Pace, ScannedShard, ShardIndex};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;
use forebay_storage::Storage;
use forebay_storage::location::{Location, SampleBytes};

const EXTENSIONS: [&str; 2] = [".array_record", ".arrayrecord"];

/// The number of chunks between two checks whether the scan was stopped.
const CHUNKS_PER_CHECK: usize = 4096;

/// The value that a record without features is.
const WHOLE: &str = "record";

words! {
    /// What a record is.
    pub(super) enum RecordKind {
        /// A `tf.train.Example`.
        Examples = "examples",
        /// One value: the file of a picture, a text, bytes.
        Values = "values",
    }
}

keys! {
    /// The keys of `ArrayRecord`'s files.
    pub(super) struct ArrayRecordKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
        /// what a record is: a `tf.train.Example`, or one value, which is `record`
        pub(super) records: RecordKind, "", absent("what the first ones are");
    }
}

fn check_keys(keys: &mut ArrayRecordKeys, _section: &Section) -> Result<(), ConfigError> {
    rules::read_rules(keys.fields.as_deref()).map(drop)
}

/// A chunk of records.
const CHUNK: PartKind = PartKind {
    name: "chunk",
    remedy: "group_size:1",
    // The remainder has 16 bits.
    codec: |place| Codec::Riegeli {
        start: u16::try_from(place.offset % riegeli::BLOCK_BYTES).unwrap_or(0),
    },
    // With its block headers, and without.
    stored_copies: 2,
};

/// The fields of a dataset, as the index stores them.
#[derive(Serialize, Deserialize)]
struct Rules {
    are_examples: bool,
    rules: Vec<ColumnRule>,
}

/// A dataset of files.
#[derive(Debug)]
pub(super) struct ArrayRecord {
    are_examples: bool,
    examples: Examples,
    parts: Parts,
    /// Whether a chunk has several records.
    are_together: bool,
    /// The length of the longest record.
    longest_bytes: u64,
}

impl Format for ArrayRecord {
    const FORMAT: FolderFormat =
        FolderFormat { name: "arrayrecord", extensions: &EXTENSIONS, loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str = "a .array_record file, several by a pattern such as train.array_record-{00000..00099}-of-00100, or a folder of them";
    const IS_LISTED: bool = true;

    type Keys = ArrayRecordKeys;
    type Index = ShardIndex;

    fn reads(name: &[u8]) -> bool {
        let is_one = |name: &[u8]| has_extension(name, &EXTENSIONS);
        is_one(name) || numbered_stem(name).is_some_and(is_one)
    }

    /// Decodes images to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        Draft::of_members(seen, false)
    }

    fn digested(keys: &ArrayRecordKeys) -> Result<String, ConfigError> {
        let rules = rules::read_rules(keys.fields.as_deref())?;
        let rules = rules.as_deref().map(rules_text).unwrap_or_default();
        Ok(format!("{:?} {rules}", keys.records))
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, storage, .. } = opening;
        let path = &request.config.path;
        let files = shard_paths::find_named(*storage, path, *pattern, &Self::reads);
        let files = files.map_err(tell_missing)?;
        if files.is_empty() {
            return Err(request.no_samples("there is no .array_record file in it"));
        }
        refuse_twice(*storage, &files)?;
        Ok(files)
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        make_of_shards(opening, warnings)
    }

    fn of_index(index: &ShardIndex, opening: &Opening<'_, Self>) -> Option<Self> {
        let Rules { are_examples, rules } = serde_json::from_str(index.rules()).ok()?;
        let rules =
            parse_rules(&rules_text(&rules)).filter(|_| index.columns() == parts::COLUMNS)?;
        let are_together = index.longest_value(0)? > 1;
        let request = &opening.request;
        let is_shared = are_together && request.options.by_blocks;
        let shared_limit = is_shared.then_some(request.config.limits.sample_bytes);
        let parts = Parts::new(CHUNK, index, shared_limit);
        let longest_bytes = index.longest(0);
        Some(Self {
            are_examples,
            examples: Examples { rules },
            parts,
            are_together,
            longest_bytes,
        })
    }

    fn needs_first(&self) -> bool {
        self.examples.needs_first()
    }

    fn fields(
        &self,
        index: &ShardIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        fields_of(self, index, first, self.examples.rules.iter(), Examples::field)
    }

    fn locate(&self, index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
        self.parts.locate(index, id, locations);
    }

    fn values<'a>(
        &'a self,
        index: &'a ShardIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let record = self.parts.record(index, id, bytes)?;
        if self.are_examples {
            return self.examples.values(record, take);
        }
        self.examples
            .rules
            .iter()
            .try_for_each(|rule| take(rules::bytes_value(rule, Some(record))?))
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        match self.are_examples && self.needs_first() {
            // The numbers of a record have at least a byte each.
            true => bytes.length_bytes().min(self.longest_bytes).saturating_mul(8),
            false => 0,
        }
    }

    fn field_rules(&self) -> String {
        self.examples.table()
    }

    fn max_row_bytes(&self, index: &ShardIndex, _place: usize, field: &Field) -> Option<u64> {
        Examples::max_row_bytes(index, field)
    }

    fn classes(&self) -> &[String] {
        self.examples.classes()
    }

    fn page_bytes(&self) -> Option<u64> {
        Some(self.parts.memory_bytes)
    }

    fn shares_units(&self) -> bool {
        self.parts.shared_limit.is_some()
    }

    fn blocks(&self, index: &ShardIndex) -> Option<SampleBlocks> {
        self.are_together.then(|| self.parts.blocks(index))
    }
}

impl ShardFormat for ArrayRecord {
    const NAME_FORM: &'static str = "a sample is named by its file, relative to the dataset's folder, and its number in it, as in train.array_record/17";

    type Scan = ();
    type Counts = PartsRead;

    fn plan(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<()>, DatasetError> {
        let files = Self::files(opening)?;
        let rules = settle(opening, &files, warnings)?;
        let rules = serde_json::to_string(&rules).unwrap_or_default();
        Ok(ShardPlan { files, columns: parts::COLUMNS, rules, scan: () })
    }

    /// Reads the list of a file's chunks, and of chunks of several records the sizes.
    fn scan(
        storage: &dyn Storage,
        _scan: &(),
        (_place, path): (usize, &[u8]),
        pace: &dyn Pace,
    ) -> Result<(ScannedShard, PartsRead), DatasetError> {
        let file = StoredFile::new(storage, path)?;
        let mut shard = ScannedShard::new(path, &file);
        let mut chunks = Chunks::of(&file, WindowSize::for_storage(storage))?;
        let (mut number, mut most) = (0, 0);
        while let Some(chunk) = chunks.next()? {
            let whole = Extent { offset: 0, bytes: chunk.unpacked_bytes };
            most = most.max(chunk.records.len() as u64);
            for record in &chunk.records {
                shard.push_numbered(*record, &file)?;
                shard.members.extend([Some(chunk.place), Some(whole)]);
            }
            number += 1;
            if number % CHUNKS_PER_CHECK == 1
                && pace.is_stopped_at(chunk.place.offset, file.stamp.bytes)
            {
                return Err(DatasetError::Cancelled);
            }
        }
        // The most records of a chunk.
        shard.longest_values = vec![most];
        let read = if most > 1 { PartsRead::of(&shard) } else { PartsRead::default() };
        Ok((shard, read))
    }

    fn conclude(_: &(), read: Vec<PartsRead>, warnings: &mut Vec<String>) -> String {
        warnings.extend(PartsRead::warning(&read, CHUNK));
        "its files have no records".to_owned()
    }
}

/// The rules of the configuration, or those that follow from the first records.
fn settle(
    opening: &Opening<'_, ArrayRecord>,
    files: &[Vec<u8>],
    warnings: &mut Vec<String>,
) -> Result<Rules, DatasetError> {
    let (mut records, mut path) = (Vec::new(), &[][..]);
    for file in files {
        path = file;
        records = first_records(opening, file)?;
        if !records.is_empty() {
            break;
        }
    }
    let mut seen = SeenKeys::default();
    let are_examples = add_examples(&records, opening.keys.records, &mut seen);
    let are_examples = are_examples.map_err(|reason| DatasetError::BrokenFile {
        path: opening.storage.full_path(path),
        reason,
    })?;
    if !are_examples {
        seen = SeenKeys::default();
        records.iter().for_each(|record| seen.add_whole(WHOLE, record));
    }
    let configured = rules::read_rules(opening.keys.fields.as_deref())?;
    let rules = examples::settle(opening, configured, (&seen, path), warnings)?;
    let other = rules.iter().flat_map(|rule| &rule.rule.from).find(|from| *from != WHOLE);
    match other.filter(|_| !are_examples) {
        Some(from) => Err(opening.request.no_samples(format!(
            "its records are single values and no tf.train.Examples, and dataset.fields has one from {from:?}; the value \
             is \"{WHOLE}\""
        ))),
        None => Ok(Rules { are_examples, rules }),
    }
}

/// Whether the first records are Examples, which are then added to those seen.
///
/// # Errors
/// They are not, against the configuration, or some of them are.
fn add_examples(
    records: &[Vec<u8>],
    configured: Option<RecordKind>,
    seen: &mut SeenKeys,
) -> Result<bool, String> {
    if configured == Some(RecordKind::Values) {
        return Ok(false);
    }
    let faults: Vec<_> = records.iter().map(|record| fault_of(record, seen)).collect();
    let first = faults.iter().enumerate().find_map(|(number, fault)| Some((number, (*fault)?)));
    let Some((number, fault)) = first else { return Ok(true) };
    let are_mixed = faults.iter().any(Option::is_none) || fault == Fault::Sequence;
    if configured.is_none() && !are_mixed {
        return Ok(false);
    }
    Err(format!(
        "its record {number}: {}; if records are values of another kind, set dataset.records to \"values\"",
        fault.words()
    ))
}

/// Why a record is no Example with features; otherwise it is added to those seen.
fn fault_of(record: &[u8], seen: &mut SeenKeys) -> Option<Fault> {
    let mut has_features = false;
    match features(record, |_, _| has_features = true) {
        Ok(()) if has_features => seen.add(record).err(),
        Ok(()) => Some(Fault::Empty),
        Err(fault) => Some(fault),
    }
}

/// The first records of a file.
fn first_records(
    opening: &Opening<'_, ArrayRecord>,
    path: &[u8],
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let file = open_file(opening.storage, path)?;
    let mut chunks = Chunks::of(&file, WindowSize::for_storage(opening.storage))?;
    let limit = opening.request.config.limits.sample_bytes;
    let (mut records, mut stored, mut unpacked) = (Vec::new(), Vec::new(), Vec::new());
    while records.len() < INFERRED_FROM {
        let Some(chunk) = chunks.next()? else { break };
        let first = &chunk.records[..chunk.records.len().min(INFERRED_FROM - records.len())];
        if let Some(large) = first.iter().find(|record| record.bytes > limit) {
            return Err(file.fault(format!(
                "a record has {} bytes, more than limits.sample_bytes ({limit})",
                large.bytes
            )));
        }
        file.read(chunk.place.offset, chunk.place.bytes, &mut stored)?;
        chunk.unpack(&stored, &mut unpacked).map_err(|reason| file.fault(reason))?;
        records.extend(first.iter().filter_map(|at| slice(&unpacked, *at).map(<[u8]>::to_vec)));
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
