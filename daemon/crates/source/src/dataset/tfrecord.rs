//! `tfrecord`: TensorFlow's record files, each record a `tf.train.Example`.
//!
//! The heads of the records are read once ([`frame`]) for an index that says where each lies ([`shards`]); then a sample is
//! one range of its file, so that the shuffle is exact. An Example is taken apart when it is read ([`example`]), after its
//! checksum was compared. Files are known by their [`names`], features become fields by [`rules`].

mod example;
mod frame;
mod fuzzed;
mod names;
mod open;
mod rules;

use forebay_config::{ConfigError, DatasetConfig, Keys, Located, Section, keys};
use forebay_protocol::ids::SampleId;

#[doc(hidden)]
pub(super) use self::fuzzed::{read_for_fuzzing, walk_for_fuzzing};
pub(super) use self::names::is_of_records;
pub(super) use self::open::{has_saved_index, open, root};
use super::columns::{self, ColumnRule, Labels};
use super::draft::{Draft, Seen};
use super::fields::{FieldsTable, Form};
use super::file_samples::check_type;
use super::folder::scan::FolderFormat;
use super::saved_index::SavedIndex;
use super::shards::{self, Extent, ShardIndex};
use super::{Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes};
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp, SampleBytes};

/// What is read.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "tfrecord", extensions: &names::EXTENSIONS, flat_is_valid: true };

keys! {
    /// The keys of TFRecords.
    pub(super) struct TfRecordKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [formats.md](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut TfRecordKeys, _section: &Section) -> Result<(), ConfigError> {
    let entries: &[(String, Located)] = keys.fields.as_deref().unwrap_or_default();
    rules::read_rules(entries).map(drop)
}

/// The rules of a configuration that has some.
fn configured_rules(config: &DatasetConfig) -> Result<Option<Vec<ColumnRule>>, ConfigError> {
    let keys = TfRecordKeys::read(&mut config.own.clone())?;
    keys.fields.as_deref().map(rules::read_rules).transpose()
}

/// The images decoded to one size, the rest as it is.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen)
}

/// Samples in record files.
#[derive(Debug)]
struct ExampleSamples {
    index: ShardIndex,
    fields: Vec<Field>,
    /// By field.
    rules: Vec<ColumnRule>,
    /// By field.
    labels: Vec<Labels>,
}

impl ExampleSamples {
    fn new(index: ShardIndex, rules: Vec<ColumnRule>) -> Self {
        let labels = rules.iter().map(|rule| Labels::new(rule.classes.as_ref())).collect();
        Self { index, fields: Vec::new(), rules, labels }
    }

    fn extent(&self, id: SampleId) -> Extent {
        self.index.member(id, 0).unwrap_or(Extent { offset: 0, bytes: 0 })
    }

    /// Calls `take` with the value of each field of a frame.
    fn values<'a>(
        &self,
        frame: &'a [u8],
        mut take: impl FnMut(FieldValue<'a>) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let data = frame::data(frame).map_err(|reason| Defect(reason.to_owned()))?;
        let found = rules::find(&self.rules, data);
        let found = found.map_err(|fault| Defect(fault.words().to_owned()))?;
        for ((rule, labels), feature) in self.rules.iter().zip(&self.labels).zip(found) {
            take(rules::value(rule, labels, feature)?)?;
        }
        Ok(())
    }
}

impl FileTable for ExampleSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

impl Dataset for ExampleSamples {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let file = FileId(self.index.shard_of(id) as u64);
        let Extent { offset, bytes } = self.extent(id);
        let range = ByteRange { offset, length: Some(bytes) };
        locations.push(Location { range, ..Location::whole(file) });
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let (frame, expected) = (bytes.all(), self.extent(id).bytes);
        if frame.len() as u64 != expected {
            return Err(Defect(format!(
                "{expected} bytes of its file were to be read, and {} were",
                frame.len()
            )));
        }
        let mut fields = self.fields.iter();
        self.values(frame, |value| {
            if let (FieldValue::Array(array), Some(field)) = (&value, fields.next()) {
                check_type(field, array)?;
            }
            values.push(value);
            Ok(())
        })
    }

    /// Lists of numbers are put together.
    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        if self.rules.iter().all(|rule| rule.rule.form != Form::Array) {
            return 0;
        }
        let found =
            frame::data(bytes.all()).ok().and_then(|data| rules::find(&self.rules, data).ok());
        let features = found.iter().flatten().zip(&self.rules);
        let arrays = features.filter(|(_, rule)| rule.rule.form == Form::Array);
        arrays
            .filter_map(|(feature, _)| feature.as_ref())
            .map(example::Feature::unpacked_bytes)
            .sum()
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.bytes())
    }

    fn field_rules(&self) -> String {
        columns::table(&self.rules)
    }

    /// The file's path and the record's number in it.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        shards::append_name(&self.index, id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let is_of_bytes =
            matches!(self.fields.get(field)?.kind, FieldKind::Bytes | FieldKind::Text);
        // A value is shorter than the longest record.
        is_of_bytes.then(|| self.index.longest(0).max(1))
    }

    fn classes(&self) -> &[String] {
        columns::classes(&self.rules)
    }
}

#[cfg(test)]
mod tests;
