//! Files of columns: `arrow` and `parquet`. A row is a sample, a column is what a field is made of.
//!
//! A format knows its files: which there are, their columns, and of each row where a value lies in the file or, where that
//! is short or packed, the value itself ([`Cell`]). Rows are read once for an index ([`open()`]); then a sample is one range
//! of its file for each value that lies there, so that the shuffle is exact. [`features`] is what Hugging Face's writers say
//! of columns.

mod blocks;
mod cells;
mod features;
mod fuzzed;
mod open;
mod window;

use forebay_config::{ConfigError, DatasetConfig, Keys, Located, Section, keys};
use forebay_protocol::ids::SampleId;
use serde::{Deserialize, Serialize};

pub(super) use self::cells::{Cell, PackedCell};
use self::cells::{FileRows, Stored};
pub(super) use self::features::{Feature, Features, HUGGINGFACE};
#[doc(hidden)]
pub(super) use self::fuzzed::read_for_fuzzing;
#[cfg(test)]
pub(super) use self::fuzzed::{InMemory, read_in_memory};
pub(super) use self::open::{TableFormat, Visit, has_saved_index, open};
pub(super) use self::window::{Bytes, MAX_PART_BYTES, Window};
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::fields::{FieldsTable, fields_table};
use super::file_samples::check_type;
use super::records::{Column, Encoding, RecordRule, read_rules};
use super::row_index::RowIndex;
use super::saved_index::SavedIndex;
use super::{Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes, SampleBlocks};
use crate::location::{
    ByteRange, FileId, FileTable, Location, ObjectStamp, Packed, SampleBytes, Transform, Unit,
};

keys! {
    /// The keys of formats whose samples are rows of columns.
    pub(super) struct TableKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [formats.md](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut TableKeys, _section: &Section) -> Result<(), ConfigError> {
    let entries: &[(String, Located)] = keys.fields.as_deref().unwrap_or_default();
    read_rules(entries, true).map(drop)
}

impl TableKeys {
    fn of(config: &DatasetConfig) -> Result<Self, ConfigError> {
        Self::read(&mut config.own.clone())
    }
}

/// The images decoded to one size, the rest as it is.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen)
}

/// A column as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableColumn {
    /// Its name, with those of the structs around it, and how its values are written.
    pub(super) column: Column,
    /// The names that its numbers stand for.
    pub(super) classes: Vec<String>,
    /// Whether a writer has said what its bytes are.
    pub(super) is_known: bool,
}

impl TableColumn {
    pub(super) fn new(name: &str, encoding: Encoding) -> Self {
        let column = Column { name: name.to_owned(), encoding, bytes: None };
        Self { column, classes: Vec::new(), is_known: false }
    }
}

/// A field and the column that it is made of, as the index keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TableField {
    rule: RecordRule,
    encoding: Encoding,
    classes: Vec<String>,
    /// What unpacking a value takes at most; 0: none is packed.
    #[serde(default, skip_serializing_if = "is_zero")]
    page_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The fields of an index.
fn parse_fields(text: &str) -> Option<Vec<TableField>> {
    let fields: Vec<TableField> = serde_json::from_str(text).ok()?;
    let is_sound = fields.iter().all(|field| field.rule.is_sound());
    (is_sound && !fields.is_empty()).then_some(fields)
}

/// The rows of a set of files.
#[derive(Debug)]
struct TableSamples {
    index: RowIndex,
    fields: Vec<Field>,
    /// By field, which is by cell.
    columns: Vec<TableField>,
    /// What a sample's values in pages may have, where samples share these; `None`: each value is read by itself.
    shared_limit: Option<u64>,
}

impl TableSamples {
    /// The values of a row's fields, one after the other.
    fn values<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        mut take: impl FnMut(FieldValue<'a>) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let (mut parts, mut own_bytes) = (0, 0);
        for (column, cell) in self.columns.iter().zip(self.index.cells(id)) {
            let value = match cell.map(Stored::of) {
                None => None,
                Some(Stored::Value(value)) => Some(value),
                Some(Stored::At { length: 0, .. }) => Some(&[][..]),
                Some(stored @ (Stored::At { .. } | Stored::Packed(_))) => {
                    let part = bytes.part(parts).unwrap_or_default();
                    parts += 1;
                    own_bytes += stored.value_bytes();
                    self.check_limit(own_bytes)?;
                    let (length, range) = match stored {
                        Stored::Packed(cell) if self.shared_limit.is_some() => {
                            let start = cell.part.start as usize;
                            let range = start..start + cell.part.length as usize;
                            (cell.part.unpacked_bytes.into(), range)
                        }
                        _ => (stored.value_bytes(), 0..part.len()),
                    };
                    let value = part.get(range).filter(|_| part.len() as u64 == length);
                    let missing = || {
                        Defect(format!(
                            "{length} bytes of `{}` were to be read, and {} were",
                            column.rule.rule().name,
                            part.len()
                        ))
                    };
                    Some(value.ok_or_else(missing)?)
                }
            };
            take(match value {
                Some(value) => column.rule.value(&column.encoding, value)?,
                None => column.rule.rule().value(None)?,
            })?;
        }
        Ok(())
    }
}

/// Pages that several values lie in.
impl TableSamples {
    fn unit_of(&self, part: Packed) -> Unit {
        let Packed { codec, unpacked_bytes: bytes, .. } = part;
        match self.shared_limit {
            Some(_) => Unit::Block(Transform::Unpacked { codec, bytes }),
            None => Unit::Packed(part),
        }
    }

    /// A storage holds a sample's own bytes against the limit, but knows no value of a page that is shared.
    fn check_limit(&self, bytes: u64) -> Result<(), Defect> {
        match self.shared_limit.filter(|limit| bytes > *limit) {
            None => Ok(()),
            Some(limit) => Err(Defect(format!(
                "it has {bytes} bytes to read, and limits.sample_bytes is {limit}"
            ))),
        }
    }
}

impl FileTable for TableSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let stamp = self.index.manifest_stamp(usize::try_from(file.0).ok()?)?;
        Some(stamp.object())
    }
}

impl Dataset for TableSamples {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let file = FileId(self.index.manifest_of(id) as u64);
        for cell in self.index.cells(id).flatten() {
            let (offset, length, unit) = match Stored::of(cell) {
                Stored::At { offset, length: length @ 1.. } => (offset, length, Unit::Sample),
                Stored::Packed(PackedCell { offset, bytes, part }) => {
                    (offset, bytes, self.unit_of(part))
                }
                Stored::At { .. } | Stored::Value(_) => continue,
            };
            locations.push(Location {
                file,
                range: ByteRange { offset, length: Some(length) },
                unit,
            });
        }
    }

    fn shares_units(&self) -> bool {
        self.shared_limit.is_some() && self.page_bytes().is_some()
    }

    fn blocks(&self) -> Option<SampleBlocks> {
        self.page_bytes().and_then(|_| self.find_blocks())
    }

    fn page_bytes(&self) -> Option<u64> {
        self.columns.iter().map(|column| column.page_bytes).max().filter(|bytes| *bytes > 0)
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let mut fields = self.fields.iter();
        self.values(id, bytes, |value| {
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
        fields_table(self.columns.iter().map(|column| (column.rule.rule(), String::new())))
    }

    /// The file's path and the row's number in it.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.index.append_name(id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let is_of_bytes =
            matches!(self.fields.get(field)?.kind, FieldKind::Bytes | FieldKind::Text);
        is_of_bytes.then(|| self.index.longest(field).max(1))
    }

    /// Those of the one field that has some.
    fn classes(&self) -> &[String] {
        let mut all = self.columns.iter().filter(|column| !column.classes.is_empty());
        match (all.next(), all.next()) {
            (Some(column), None) => &column.classes,
            _ => &[],
        }
    }
}

/// The error for what a file holds that is not read.
fn refuse(path: std::path::PathBuf, reason: impl Into<String>) -> DatasetError {
    DatasetError::BrokenFile { path, reason: reason.into() }
}
