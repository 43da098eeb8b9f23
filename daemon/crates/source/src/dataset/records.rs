//! Shards of records: files that begin with a table of where each of their samples lies, as MosaicML Streaming (`mds`) and
//! LitData (`litdata`) write them. A record is the sizes of its columns and then their bytes.
//!
//! A format is its description of a folder ([`Described`]), read from the folder's `index.json`: which shards there are, and
//! the columns with their encodings ([`encoding`]). The shards' tables are read once for an index ([`open()`]); then a sample
//! is one range of its shard, so that the shuffle is exact.

mod description;
mod encoding;
mod fuzzed;
mod half;
mod open;
mod rules;

use forebay_config::{ConfigError, DatasetConfig, Keys, Located, Section, keys};
use forebay_protocol::ids::SampleId;
use serde::{Deserialize, Serialize};

pub(super) use self::description::{Column, Compression, Described, DescribedShard};
pub(super) use self::encoding::{ArrayForm, Encoding, lit_dtype, lit_tensor_dtype};
#[doc(hidden)]
pub(super) use self::fuzzed::{read_for_fuzzing, read_table_for_fuzzing};
pub(super) use self::open::{has_saved_index, open};
pub(super) use self::rules::{RecordRule, infer, read_rules, settle};
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::fields::{FieldsTable, fields_table};
use super::file_samples::check_type;
use super::saved_index::SavedIndex;
use super::shards::{self, Extent, ShardIndex};
use super::{Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes};
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp, SampleBytes};

keys! {
    /// The keys of formats whose samples have named columns.
    pub(super) struct RecordKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [formats.md](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut RecordKeys, _section: &Section) -> Result<(), ConfigError> {
    let entries: &[(String, Located)] = keys.fields.as_deref().unwrap_or_default();
    read_rules(entries, false).map(drop)
}

impl RecordKeys {
    fn of(config: &DatasetConfig) -> Result<Self, ConfigError> {
        Self::read(&mut config.own.clone())
    }
}

/// The images decoded to one size, the rest as it is.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen)
}

/// The columns of a dataset and the fields made of them, as the index keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    columns: Vec<Column>,
    rules: Vec<RecordRule>,
}

impl Layout {
    /// The values of a record, by column.
    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<&'a [u8]>, Defect> {
        let defect = |what: String| Defect(format!("its record {what}; write the shard again"));
        let sized = self.columns.iter().filter(|column| column.bytes.is_none()).count();
        let (sizes, mut rest) = record.split_at_checked(4 * sized).ok_or_else(|| {
            defect(format!(
                "has {} bytes, and the sizes of its columns take {}",
                record.len(),
                4 * sized
            ))
        })?;
        let mut sizes = sizes.chunks_exact(4);
        let mut values = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let size = column.bytes.unwrap_or_else(|| {
                let size = sizes.next().and_then(<[u8]>::first_chunk);
                size.map_or(0, |size| u64::from(u32::from_le_bytes(*size)))
            });
            let value = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
            let (value, behind) = value.ok_or_else(|| {
                defect(format!("ends before the {size} bytes of `{}` do", column.name))
            })?;
            values.push(value);
            rest = behind;
        }
        match rest.len() {
            0 => Ok(values),
            left => Err(defect(format!("has {left} bytes behind its last column"))),
        }
    }

    /// The column of a rule.
    fn column(&self, rule: &RecordRule) -> Option<(usize, &Column)> {
        let name = rule.column();
        self.columns.iter().enumerate().find(|(_, column)| column.name == name)
    }

    fn parse(text: &str) -> Option<Self> {
        let layout: Self = serde_json::from_str(text).ok()?;
        let is_sound =
            layout.rules.iter().all(|rule| rule.is_sound() && layout.column(rule).is_some());
        (is_sound && !layout.rules.is_empty()).then_some(layout)
    }
}

/// Samples in shards of records.
#[derive(Debug)]
struct RecordSamples {
    index: ShardIndex,
    fields: Vec<Field>,
    layout: Layout,
}

impl RecordSamples {
    fn extent(&self, id: SampleId) -> Extent {
        self.index.member(id, 0).unwrap_or(Extent { offset: 0, bytes: 0 })
    }

    /// The values of the fields of a record.
    fn values<'a>(
        &self,
        record: &'a [u8],
        mut take: impl FnMut(FieldValue<'a>) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let parts = self.layout.split(record)?;
        for rule in &self.layout.rules {
            // Checked when the layout was taken.
            let Some((place, column)) = self.layout.column(rule) else { continue };
            take(rule.value(&column.encoding, parts[place])?)?;
        }
        Ok(())
    }
}

impl FileTable for RecordSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

impl Dataset for RecordSamples {
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
        let (record, expected) = (bytes.all(), self.extent(id).bytes);
        if record.len() as u64 != expected {
            return Err(Defect(format!(
                "{expected} bytes of its shard were to be read, and {} were",
                record.len()
            )));
        }
        let mut fields = self.fields.iter();
        self.values(record, |value| {
            if let (FieldValue::Array(array), Some(field)) = (&value, fields.next()) {
                check_type(field, array)?;
            }
            values.push(value);
            Ok(())
        })
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.bytes())
    }

    fn field_rules(&self) -> String {
        fields_table(self.layout.rules.iter().map(|rule| (rule.rule(), String::new())))
    }

    /// The shard's path and the record's number in it.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        shards::append_name(&self.index, id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let is_of_bytes =
            matches!(self.fields.get(field)?.kind, FieldKind::Bytes | FieldKind::Text);
        // A value is shorter than the longest record.
        is_of_bytes.then(|| self.index.longest(0).max(1))
    }
}

/// Whether a type of numbers is read.
pub(super) fn is_number(name: &str) -> bool {
    encoding::dtype(name).is_some()
}

/// The error for a description that cannot be used.
fn refuse(path: std::path::PathBuf, reason: impl Into<String>) -> DatasetError {
    DatasetError::BrokenFile { path, reason: reason.into() }
}

#[cfg(test)]
mod tests;
