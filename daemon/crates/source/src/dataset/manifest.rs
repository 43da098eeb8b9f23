//! `manifest`: samples that a table lists, a row each: `.csv`, `.tsv` or `.jsonl`, also `metadata.csv` and `metadata.jsonl`
//! beside images as Hugging Face's image folders have them.
//!
//! Columns are paths of files or values; `[dataset.fields]` says which ([`rules`]). The manifests are read once ([`table`],
//! `read`) for an index that holds each row's cells ([`RowIndex`]); then a sample's files are known at once, and a manifest
//! that is edited during a run changes nothing in it. Where paths may lead is [`paths`]' part.

pub(super) mod coco;
mod fuzzed;
mod open;
mod paths;
mod read;
mod rules;
mod table;

use forebay_config::{ConfigError, DataPath, Located, Section, keys};
use forebay_protocol::ids::SampleId;

#[doc(hidden)]
pub(super) use self::fuzzed::{check_index, read_for_fuzzing};
pub(super) use self::open::{IN_FOLDERS, data_root, has_saved_index, open, root};
use super::columns::{self, ColumnRule, Labels, read_rules};
use super::draft::{Draft, Seen};
use super::fields::{FieldsTable, Form};
use super::file_samples::check_type;
use super::folder::scan::FolderFormat;
use super::row_index::RowIndex;
use super::saved_index::SavedIndex;
use super::{Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes};
use crate::location::{FileId, FileTable, Location, SampleBytes};

/// What is read.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "manifest", extensions: &[".csv", ".tsv", ".jsonl"], flat_is_valid: true };

keys! {
    /// The keys of manifests.
    pub(super) struct ManifestKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [formats.md](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
        /// the folder or URL that the paths in the manifest start at
        pub(super) root: DataPath, "", absent("the manifest's folder");
    }
}

fn check_keys(keys: &mut ManifestKeys, _section: &Section) -> Result<(), ConfigError> {
    let entries: &[(String, Located)] = keys.fields.as_deref().unwrap_or_default();
    read_rules(entries).map(drop)
}

/// The images decoded to one size, the rest as it is.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen)
}

/// The rows of manifests.
#[derive(Debug)]
struct ManifestSamples {
    index: RowIndex,
    fields: Vec<Field>,
    /// By field, which is by column.
    rules: Vec<ColumnRule>,
    /// By field.
    labels: Vec<Labels>,
}

impl ManifestSamples {
    fn new(index: RowIndex, rules: Vec<ColumnRule>) -> Self {
        let labels = rules.iter().map(|rule| Labels::new(rule.classes.as_ref())).collect();
        Self { index, fields: Vec::new(), rules, labels }
    }

    /// Of each field the cell, and of a field of files the number of the file among the sample's.
    fn cells(&self, id: SampleId) -> impl Iterator<Item = (Option<&[u8]>, Option<usize>)> {
        let mut files = 0;
        self.index.cells(id).zip(&self.rules).map(move |(cell, rule)| {
            let file = cell.filter(|_| rule.is_file()).map(|_| files);
            files += usize::from(file.is_some());
            (cell, file)
        })
    }
}

/// A file's number is that of its sample and field.
impl FileTable for ManifestSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let columns = self.index.columns() as u64;
        let column = usize::try_from(file.0 % columns).unwrap_or(usize::MAX);
        let cell = self.index.cells(SampleId(file.0 / columns)).nth(column);
        path.extend_from_slice(cell.flatten().unwrap_or_default());
    }
}

impl Dataset for ManifestSamples {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let first = id.0.saturating_mul(self.index.columns() as u64);
        let files = self.cells(id).zip(0_u64..).filter(|((_, file), _)| file.is_some());
        locations.extend(files.map(|(_, column)| Location::whole(FileId(first + column))));
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let rows = self.rules.iter().zip(&self.labels).zip(&self.fields);
        for (((rule, labels), field), (cell, file)) in rows.zip(self.cells(id)) {
            let lost = || Defect(format!("the file of the field `{}` was not read", field.name));
            let data = match file {
                Some(part) => Some(bytes.part(part).ok_or_else(lost)?),
                None => cell,
            };
            let value = rule.value(data, labels)?;
            if let FieldValue::Array(array) = &value {
                check_type(field, array)?;
            }
            values.push(value);
        }
        Ok(())
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

    /// The manifest's path and the row's line.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        self.index.append_name(id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let is_text = self.fields.get(field)?.kind == FieldKind::Text;
        is_text.then(|| self.index.longest(field).max(1))
    }

    fn classes(&self) -> &[String] {
        columns::classes(&self.rules)
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let files = self.rules.iter().filter(|rule| rule.rule.form != Form::Text && rule.is_file());
        let names: Vec<_> = files.map(|rule| rule.rule.from.join("|")).collect();
        match names.is_empty() {
            true => Vec::new(),
            false => vec![("files", format!("named by {}", names.join(", ")))],
        }
    }
}

#[cfg(test)]
mod tests;
