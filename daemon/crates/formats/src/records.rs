//! Shards of records: files that begin with a table of their samples' offsets, as written by MosaicML Streaming (`mds`)
//! and LitData (`litdata`). A record consists of the sizes of its columns and then their bytes.
//!
//! A format describes a folder ([`Description`]) by the folder's `index.json`: its shards, and the columns with their
//! encodings. The shards' tables are read once for an index ([`scan`]); then a sample is one range of
//! its shard, so the shuffle is exact.

mod description;
mod forms;
mod fuzzed;
mod packed;
mod rules;
mod scan;

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use forebay_keys::{ConfigError, Section, keys};
use forebay_protocol::ids::SampleId;
use serde::{Deserialize, Serialize};

pub(super) use self::description::{Compression, Described, DescribedShard, Description, Packing};
pub(super) use self::forms::kept_type;
#[doc(hidden)]
pub(super) use self::fuzzed::{read_for_fuzzing, read_frames_for_fuzzing, read_table_for_fuzzing};
pub(super) use self::rules::{first_names, first_of, infer, settle, value, with_reason};
use self::scan::RecordScan;
use crate::columns::{self, ColumnRule, Source, read_rules};
use crate::draft::{Draft, Seen};
use crate::fields::{FieldsTable, Form};
use crate::indexed::{
    Format, Opening, ShardFormat, ShardPlan, Take, fields_of, locate_whole, make_of_shards,
    whole_bytes,
};
use crate::litdata::nested::most_text_bytes;
use crate::parts::{PartKind, Parts, PartsRead};
use forebay_columnar::{Column, Encoding, dtype};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field, FieldKind, SampleBlocks};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::saved_index::SavedIndex;
use forebay_index::shards::{Pace, ScannedShard, ShardIndex};
use forebay_storage::Storage;
use forebay_storage::location::{Location, SampleBytes};

keys! {
    /// The keys of formats whose samples have named columns.
    pub(super) struct RecordKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut RecordKeys, _section: &Section) -> Result<(), ConfigError> {
    read_rules(keys.fields.as_deref(), Source::Records).map(drop)
}

/// Decodes images to one size, and keeps the other fields.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen, false)
}

/// The columns of a dataset and the fields made of them, as the index stores them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    columns: Vec<Column>,
    rules: Vec<ColumnRule>,
    #[serde(default, skip_serializing_if = "Packing::is_plain")]
    packing: Packing,
}

impl Layout {
    /// The values of a record, by column.
    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<&'a [u8]>, Defect> {
        let defect = |what: String| Defect(format!("its record {what}; write the shard again"));
        let sized = self.sized();
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

    /// The number of columns whose sizes each record contains.
    fn sized(&self) -> usize {
        self.columns.iter().filter(|column| column.bytes.is_none()).count()
    }

    /// The minimum bytes of a record without the values of a column.
    fn beside(&self, place: usize) -> u64 {
        let others = self.columns.iter().enumerate().filter(|(other, _)| *other != place);
        let fixed = others.filter_map(|(_, column)| column.bytes).fold(0, u64::saturating_add);
        fixed.saturating_add(4 * self.sized() as u64)
    }

    /// Whether the scan must read the values' sizes, because the longest record bounds some field only loosely.
    fn needs_values(&self) -> bool {
        let needs = |rule: &ColumnRule| {
            let is_sized = self.column(rule).is_some_and(|(_, column)| column.bytes.is_none());
            is_sized && matches!(rule.rule.form, Form::Text | Form::Bytes | Form::Array)
        };
        self.sized() > 1 && self.rules.iter().any(needs)
    }

    /// The column of a rule.
    fn column(&self, rule: &ColumnRule) -> Option<(usize, &Column)> {
        let name = rule.column();
        self.columns.iter().enumerate().find(|(_, column)| column.name == name)
    }

    fn parse(text: &str) -> Option<Self> {
        let layout: Self = serde_json::from_str(text).ok()?;
        let is_sound =
            |rule: &ColumnRule| rule.rule.from.len() == 1 && layout.column(rule).is_some();
        let is_sound = layout.rules.iter().all(is_sound);
        (is_sound && !layout.rules.is_empty()).then_some(layout)
    }
}

/// The fields of shards of records.
#[derive(Debug)]
pub(super) struct Records<D> {
    layout: Layout,
    /// The zstd frames of compressed records.
    parts: Option<Parts>,
    /// The length of the longest record.
    longest_bytes: u64,
    description: PhantomData<D>,
}

/// The frames of records.
const FRAME: PartKind = PartKind {
    name: "zstd frame",
    remedy: "compression_level=\"sample\"",
    codec: |_| packed::CODEC,
    stored_copies: 1,
};

impl<D: Description> Format for Records<D> {
    const FORMAT: FolderFormat = D::FORMAT;
    const OTHER_FILE: &'static str = "a file";
    const EXPECTED: &'static str = "the folder of an index.json and its shards";
    const UNPACKS: bool = true;

    type Keys = RecordKeys;
    type Index = ShardIndex;

    fn reads(name: &[u8]) -> bool {
        D::reads(name)
    }

    /// A path names the folder.
    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        (path.to_owned(), None)
    }

    fn draft(seen: &Seen) -> Draft {
        draft(seen)
    }

    fn digested(keys: &RecordKeys) -> Result<String, ConfigError> {
        let rules = read_rules(keys.fields.as_deref(), Source::Records)?;
        // Words and names only: serialization cannot fail.
        Ok(serde_json::to_string(&rules).unwrap_or_default() + D::READING)
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        scan::files(opening.storage, &scan::describe(opening)?)
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        make_of_shards(opening, warnings)
    }

    fn of_index(index: &ShardIndex, opening: &Opening<'_, Self>) -> Option<Self> {
        let layout = Layout::parse(index.rules())?;
        if layout.packing.columns() != index.columns() {
            return None;
        }
        let is_shared = layout.packing == Packing::ByFrame && opening.request.options.by_blocks;
        let shared_limit = is_shared.then_some(opening.request.config.limits.sample_bytes);
        let is_packed = layout.packing != Packing::Plain;
        let parts = is_packed.then(|| Parts::new(FRAME, index, shared_limit));
        let longest_bytes = index.longest(0);
        Some(Self { layout, parts, longest_bytes, description: PhantomData })
    }

    fn needs_first(&self) -> bool {
        self.layout.rules.iter().any(|rule| rule.rule.form == Form::Array)
    }

    fn fields(
        &self,
        index: &ShardIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        fields_of(self, index, first, self.layout.rules.iter(), |rule, first| {
            // Checked when the layout was parsed.
            let column = self.layout.column(rule);
            let kept = column.and_then(|(_, it)| kept_type(&it.encoding, rule.rule.form));
            rule.field(kept, first)
        })
    }

    fn locate(&self, index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
        match &self.parts {
            Some(parts) => parts.locate(index, id, locations),
            None => locate_whole(index, id, locations),
        }
    }

    fn values<'a>(
        &'a self,
        index: &'a ShardIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let record = match &self.parts {
            Some(parts) => parts.record(index, id, bytes)?,
            None => whole_bytes(index, id, bytes, "shard")?,
        };
        let parts = self.layout.split(record)?;
        for rule in &self.layout.rules {
            // Checked when the layout was parsed.
            let Some((place, column)) = self.layout.column(rule) else { continue };
            take(value(rule, &column.encoding, parts[place])?)?;
        }
        Ok(())
    }

    fn page_bytes(&self) -> Option<u64> {
        self.parts.as_ref().map(|parts| parts.memory_bytes)
    }

    fn shares_units(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.shared_limit.is_some())
    }

    fn blocks(&self, index: &ShardIndex) -> Option<SampleBlocks> {
        let parts = self.parts.as_ref().filter(|_| self.layout.packing == Packing::ByFrame);
        parts.map(|parts| parts.blocks(index))
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        let mut columns = self.layout.rules.iter().filter_map(|rule| self.layout.column(rule));
        match columns.any(|(_, column)| column.encoding == Encoding::Nested) {
            true => most_text_bytes(bytes.length_bytes().min(self.longest_bytes)),
            false => 0,
        }
    }

    fn field_rules(&self) -> String {
        columns::table(&self.layout.rules)
    }

    fn max_row_bytes(&self, index: &ShardIndex, place: usize, field: &Field) -> Option<u64> {
        let kind = &field.kind;
        let (place, column) = self.layout.column(self.layout.rules.get(place)?)?;
        let longest = column.bytes.or_else(|| {
            let before = self.layout.columns[..place].iter();
            index.longest_value(before.filter(|column| column.bytes.is_none()).count())
        });
        // A value is shorter than the longest record. An array in a dataset with images is far shorter.
        let of_record = || index.longest(0).saturating_sub(self.layout.beside(place));
        match kind {
            FieldKind::Bytes | FieldKind::Text if column.encoding == Encoding::Nested => {
                Some(most_text_bytes(longest.unwrap_or_else(of_record)))
            }
            FieldKind::Bytes | FieldKind::Text => Some(longest.unwrap_or_else(of_record).max(1)),
            _ if kind.is_of_any_length() => {
                let is_alone = self.layout.sized() == 1;
                longest.or_else(|| is_alone.then(of_record)).map(|bytes| bytes.max(1))
            }
            _ => None,
        }
    }
}

impl<D: Description> ShardFormat for Records<D> {
    const NAME_FORM: &'static str = "a sample is named by its shard, relative to the dataset's folder, and its number in it, as in shard.00000.mds/17";

    type Scan = RecordScan;
    type Counts = PartsRead;

    fn plan(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<RecordScan>, DatasetError> {
        let described = scan::describe(opening)?;
        let files = scan::files(opening.storage, &described)?;
        let packing = described.packing;
        let layout = scan::layout(opening, (described.columns, packing), warnings)?;
        // From a URL, reading each record's sizes would fetch all records.
        let looks = opening.storage.remote_root().is_none() && layout.needs_values();
        let sized = if looks { layout.sized() } else { 0 };
        let rules = serde_json::to_string(&layout).unwrap_or_default();
        let scan = RecordScan { shards: described.shards, sized, packing };
        Ok(ShardPlan { files, columns: packing.columns(), rules, scan })
    }

    fn scan(
        storage: &dyn Storage,
        scan: &RecordScan,
        (place, path): (usize, &[u8]),
        pace: &dyn Pace,
    ) -> Result<(ScannedShard, PartsRead), DatasetError> {
        let shard = scan.shard(storage, place, path, pace)?;
        let are_shared = scan.packing == Packing::ByFrame;
        let read = if are_shared { PartsRead::of(&shard) } else { PartsRead::default() };
        Ok((shard, read))
    }

    fn conclude(_: &RecordScan, read: Vec<PartsRead>, warnings: &mut Vec<String>) -> String {
        warnings.extend(PartsRead::warning(&read, FRAME));
        format!("its {} files have no samples", Self::FORMAT.name)
    }
}

/// Whether a number type is supported.
pub(super) fn is_number(name: &str) -> bool {
    dtype(name).is_some()
}

/// The error for an unusable description.
fn refuse(path: std::path::PathBuf, reason: impl Into<String>) -> DatasetError {
    DatasetError::BrokenFile { path, reason: reason.into() }
}

#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod tests;
