//! Files of columns: `arrow`, `parquet` and `lance`. A row is a sample; fields are made of columns.
//!
//! A format finds its files; the crate `columnar` locates the values of their rows. Rows are read once for an index
//! ([`scan`]); then a sample is one range of its file per value, so the shuffle is exact.

mod blocks;
mod cells;
mod conditions;
mod scan;
mod stretches;

use std::marker::PhantomData;

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Section, keys};
use forebay_protocol::ids::SampleId;
use forebay_storage::version::ObjectStamp;
use serde::{Deserialize, Serialize};

use self::cells::{FileRows, Stored};
pub(super) use self::conditions::ColumnReader;
pub(super) use self::scan::{
    DeletedRows, ROWS_PER_QUESTION, TableFormat, TableKind, none_deleted, reads,
};
use self::stretches::{Found, Stretches};
use crate::columns::{self, ColumnRule, Source, read_rules};
use crate::draft::{Draft, Seen};
use crate::fields::{FieldsTable, Form};
use crate::indexed::{Format, Opening, Take, fields_of};
use crate::records::{kept_type, value};
use forebay_columnar::{Encoding, PackedCell};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field, FieldValue, FileColumn, SampleBlocks, VisitColumns};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::{SavedIndex, refuse_twice, tell_missing};
use forebay_index::shard_paths;
use forebay_storage::Storage;
use forebay_storage::location::{
    ByteRange, FileId, Location, Packed, SampleBytes, Transform, Unit,
};

keys! {
    /// The keys of formats whose samples are rows of columns.
    pub(super) struct TableKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut TableKeys, _section: &Section) -> Result<(), ConfigError> {
    read_rules(keys.fields.as_deref(), Source::Tables).map(drop)
}

/// A field and its column, as the index stores them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TableField {
    rule: ColumnRule,
    encoding: Encoding,
    classes: Vec<String>,
    /// The maximum memory to unpack a value; 0: no value is packed.
    #[serde(default, skip_serializing_if = "is_zero")]
    page_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Parses the fields of an index.
fn parse_fields(text: &str) -> Option<Vec<TableField>> {
    let fields: Vec<TableField> = serde_json::from_str(text).ok()?;
    let is_sound = fields.iter().all(|field| field.rule.rule.from.len() == 1);
    (is_sound && !fields.is_empty()).then_some(fields)
}

/// The fields of a set of tables.
#[derive(Debug)]
pub(super) struct Tables<T> {
    /// By field, which is the order of cells.
    columns: Vec<TableField>,
    /// The limit of a sample's values in pages, if samples share pages; `None`: each value is read alone.
    shared_limit: Option<u64>,
    kind: PhantomData<T>,
}

impl<T: TableKind> Format for Tables<T> {
    const FORMAT: FolderFormat = T::TABLES.format;
    const EXPECTED: &'static str = T::TABLES.expected;
    const MARKS: &'static [&'static str] = T::TABLES.marks;

    type Keys = TableKeys;
    type Index = RowIndex;

    fn split(path: &std::path::Path) -> (std::path::PathBuf, Option<&str>) {
        match T::IS_FOLDER {
            true => (path.to_owned(), None),
            false => shard_paths::split_named(path, Self::reads),
        }
    }

    /// Decodes images to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        Draft::of_members(seen, false)
    }

    fn digested(keys: &TableKeys) -> Result<String, ConfigError> {
        let rules = read_rules(keys.fields.as_deref(), Source::Tables)?;
        // Words and names only: serialization cannot fail.
        Ok(serde_json::to_string(&rules).unwrap_or_default() + T::READING)
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, storage, .. } = opening;
        table_files(&T::TABLES, *storage, request.config, *pattern)
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        scan::make(opening, warnings)
    }

    fn of_index(index: &RowIndex, opening: &Opening<'_, Self>) -> Option<Self> {
        let columns = parse_fields(index.rules())?;
        let options = &opening.request.options;
        let limit = opening.request.config.limits.sample_bytes;
        let shared_limit = options.by_blocks.then_some(limit);
        (columns.len() == index.columns()).then_some(Self {
            columns,
            shared_limit,
            kind: PhantomData,
        })
    }

    fn needs_first(&self) -> bool {
        self.columns.iter().any(|column| column.rule.rule.form == Form::Array)
    }

    fn fields(
        &self,
        index: &RowIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        fields_of(self, index, first, self.columns.iter(), |column, first| {
            let TableField { rule, encoding, .. } = column;
            rule.field(kept_type(encoding, rule.rule.form), first)
        })
    }

    fn locate(&self, index: &RowIndex, id: SampleId, locations: &mut Vec<Location>) {
        let file = FileId(index.manifest_of(id) as u64);
        let mut add = |offset, length, unit| {
            let range = ByteRange { offset, length: Some(length) };
            locations.push(Location { file, range, unit });
        };
        for cell in index.cells(id).flatten() {
            match Stored::of(cell) {
                Stored::At { offset, length: length @ 1.. } => add(offset, length, Unit::Sample),
                Stored::Packed(PackedCell { offset, bytes, part }) => {
                    add(offset, bytes, self.unit_of(part));
                }
                Stored::List(list) => {
                    for place in list.stretches().places {
                        match place {
                            Stored::At { offset, length } => add(offset, length, Unit::Sample),
                            Stored::Packed(PackedCell { offset, bytes, part }) => {
                                add(offset, bytes, Unit::Packed(part));
                            }
                            Stored::Value(_) | Stored::List(_) => {}
                        }
                    }
                }
                Stored::At { .. } | Stored::Value(_) => {}
            }
        }
    }

    fn values<'a>(
        &'a self,
        index: &'a RowIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let (mut parts, mut own_bytes) = (0, 0);
        for (column, cell) in self.columns.iter().zip(index.cells(id)) {
            let found =
                match cell.map(Stored::of) {
                    None => None,
                    Some(Stored::Value(value)) => Some(value),
                    Some(Stored::At { length: 0, .. }) => Some(&[][..]),
                    Some(Stored::List(list)) => {
                        let Stretches { places, values } = list.stretches();
                        own_bytes += places.iter().map(|place| place.value_bytes()).sum::<u64>();
                        self.check_limit(own_bytes)?;
                        let mut files = Vec::with_capacity(values.len());
                        for (number, value) in values.iter().enumerate() {
                            let of_list =
                                || format!("image {} of `{}`", number + 1, column.rule.rule.name);
                            let file = match *value {
                                Found::Null => {
                                    return Err(Defect(format!(
                                        "{} has no bytes in the table",
                                        of_list()
                                    )));
                                }
                                Found::Value(value) => Some(value),
                                Found::In(stretch, start, length) => {
                                    let part = bytes.part(parts + stretch).unwrap_or_default();
                                    part_of(part, start, length)
                                }
                            };
                            files.push(file.ok_or_else(|| {
                                Defect(format!("{} was not read whole", of_list()))
                            })?);
                        }
                        parts += places.len();
                        take(FieldValue::EncodedImages(files))?;
                        continue;
                    }
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
                                column.rule.rule.name,
                                part.len()
                            ))
                        };
                        Some(value.ok_or_else(missing)?)
                    }
                };
            take(match found {
                Some(bytes) => value(&column.rule, &column.encoding, bytes)?,
                None => column.rule.value(None)?,
            })?;
        }
        Ok(())
    }

    fn stamp(&self, index: &RowIndex, file: FileId) -> Option<ObjectStamp> {
        let stamp = index.manifest_stamp(usize::try_from(file.0).ok()?)?;
        Some(stamp.object())
    }

    fn shares_units(&self) -> bool {
        self.shared_limit.is_some() && self.page_bytes().is_some()
    }

    fn blocks(&self, index: &RowIndex) -> Option<SampleBlocks> {
        self.page_bytes().and_then(|_| blocks::find(index))
    }

    fn page_bytes(&self) -> Option<u64> {
        self.columns.iter().map(|column| column.page_bytes).max().filter(|bytes| *bytes > 0)
    }

    fn field_rules(&self) -> String {
        columns::table(self.columns.iter().map(|column| &column.rule))
    }

    fn max_row_bytes(&self, index: &RowIndex, place: usize, field: &Field) -> Option<u64> {
        field.kind.is_of_any_length().then(|| index.longest(place).max(1))
    }

    fn rows_differ(&self, index: &RowIndex, field: usize) -> Option<bool> {
        // Other array columns contain files with headers.
        matches!(self.columns.get(field)?.encoding, Encoding::Array(_)).then(|| {
            let mut lengths = (0..index.samples()).filter_map(|id| {
                let cell = index.cells(SampleId(id)).nth(field).flatten();
                cell.map(Stored::length)
            });
            let first = lengths.next();
            lengths.any(|length| Some(length) != first)
        })
    }

    fn columns(
        &self,
        index: &RowIndex,
        files: &dyn Storage,
    ) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        conditions::columns(T::TABLES.reader, index, files).map(Some)
    }

    fn visit_columns(
        &self,
        index: &RowIndex,
        files: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        conditions::visit(T::TABLES.reader, index, files, columns, visit)
    }

    /// The classes, if exactly one field has some.
    fn classes(&self) -> &[String] {
        let mut all = self.columns.iter().filter(|column| !column.classes.is_empty());
        match (all.next(), all.next()) {
            (Some(column), None) => &column.classes,
            _ => &[],
        }
    }
}

/// The files of a format of tables, of which there is at least one. `pattern`: what the path names in its folder.
///
/// # Errors
/// The files cannot be found, there is none, or one occurs twice.
pub(super) fn table_files(
    tables: &TableFormat,
    storage: &dyn Storage,
    config: &DatasetConfig,
    pattern: Option<&str>,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let extensions = tables.format.extensions;
    let listed = match pattern {
        None => (tables.listed)(storage, config)?,
        Some(_) => None,
    };
    let found = match listed {
        Some(listed) => listed,
        None => {
            shard_paths::find(storage, &config.path, pattern, extensions).map_err(tell_missing)?
        }
    };
    if found.is_empty() {
        let reason = format!("it has no {} files", extensions.join(" or "));
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    refuse_twice(storage, &found)?;
    Ok(found)
}

/// Pages that contain several values.
impl<T> Tables<T> {
    fn unit_of(&self, part: Packed) -> Unit {
        let Packed { codec, unpacked_bytes: bytes, .. } = part;
        match self.shared_limit {
            Some(_) => Unit::Block(Transform::Unpacked { codec, bytes }),
            None => Unit::Packed(part),
        }
    }

    /// A storage limits the bytes of a sample that is read alone, but does not know the values of a shared page.
    fn check_limit(&self, bytes: u64) -> Result<(), Defect> {
        match self.shared_limit.filter(|limit| bytes > *limit) {
            None => Ok(()),
            Some(limit) => Err(Defect(format!(
                "it has {bytes} bytes to read, and limits.sample_bytes is {limit}; raise the limit if that is right"
            ))),
        }
    }
}

/// A part of bytes.
fn part_of(bytes: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    let (start, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
    bytes.get(start..)?.get(..length)
}

/// The error for contents that are not supported.
fn refuse(path: std::path::PathBuf, reason: impl Into<String>) -> DatasetError {
    DatasetError::BrokenFile { path, reason: reason.into() }
}

#[cfg(test)]
mod nested_tests;
#[cfg(test)]
mod pictured_tests;
#[cfg(test)]
mod tests;
