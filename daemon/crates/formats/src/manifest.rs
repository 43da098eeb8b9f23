//! `manifest`: samples from a table with a row per sample: `.csv`, `.tsv` or `.jsonl`, including the `metadata.csv` and
//! `metadata.jsonl` of Hugging Face's image folders.
//!
//! Columns contain paths of files or values, as `[dataset.fields]` declares ([`rules`]). The manifests are read once
//! ([`table`], `read`) for an index of each row's cells ([`RowIndex`]). A sample's files are then known without a
//! search, and edits of a manifest have no effect during a run. [`paths`] limits where paths may lead.

pub(super) mod coco;
mod fuzzed;
mod path_lists;
mod paths;
mod read;
mod rules;
mod scan;
mod source;
mod table;
pub(super) mod tabular;

use std::path::{Path, PathBuf};

use forebay_keys::{ConfigError, DataPath, Section, keys};
use forebay_protocol::ids::SampleId;

#[doc(hidden)]
pub(super) use self::fuzzed::{check_index, read_for_fuzzing};
pub(super) use self::scan::{NamedPictures, named_pictures};
use crate::columns::{self, ColumnRule, Source, parse_rules, read_rules};
use crate::draft::{Draft, Seen};
use crate::fields::{FieldsTable, Form, rules_text};
use crate::indexed::{Format, Opening, Take};
use crate::number_lists::ListForm;
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field, FieldKind, FieldValue, FileColumn, VisitColumns};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::{SavedIndex, refuse_twice, tell_missing};
use forebay_index::shard_paths;
use forebay_storage::Storage;
use forebay_storage::listing::EntryKind;
use forebay_storage::location::{FileId, Location, SampleBytes};
use path_lists::{files_of, paths_of};

/// The manifests that a folder may contain.
const IN_FOLDERS: [&str; 5] =
    ["metadata.jsonl", "metadata.csv", "metadata.tsv", "metadata.jsonl.gz", "metadata.csv.gz"];

keys! {
    /// The keys of manifests.
    pub(super) struct ManifestKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
        /// the folder or URL that the paths in the manifest start at
        pub(super) root: DataPath, "", absent("the manifest's folder");
    }
}

fn check_keys(keys: &mut ManifestKeys, _section: &Section) -> Result<(), ConfigError> {
    read_rules(keys.fields.as_deref(), Source::Names).map(drop)
}

/// The fields of manifests.
#[derive(Debug)]
pub(super) struct Manifest {
    /// By field, which is the order of columns.
    rules: Vec<ColumnRule>,
    /// By field: the number of its first file among those that a sample may have.
    first_files: Vec<u64>,
    /// The files that a sample may have: their numbers do not depend on other samples.
    files_each: u64,
}

impl Manifest {
    fn of_rules(rules: Vec<ColumnRule>) -> Self {
        let (mut first_files, mut files_each) = (Vec::with_capacity(rules.len()), 0_u64);
        for rule in &rules {
            first_files.push(files_each);
            files_each = files_each.saturating_add(rule.most_files().max(1));
        }
        Self { rules, first_files, files_each: files_each.max(1) }
    }

    /// The cell of each field; for a field of files, also the index of its first file among the sample's files.
    fn cells<'i>(
        &self,
        index: &'i RowIndex,
        id: SampleId,
    ) -> impl Iterator<Item = (Option<&'i [u8]>, Option<usize>)> {
        let mut files = 0;
        index.cells(id).zip(&self.rules).map(move |(cell, rule)| {
            let file = cell.filter(|_| rule.is_file()).map(|_| files);
            files += match (file, rule.longest_paths) {
                (Some(_), Some(_)) => files_of(cell.unwrap_or_default()),
                (file, _) => usize::from(file.is_some()),
            };
            (cell, file)
        })
    }

    /// The pictures of a list, of whose files the first is a part of the sample's bytes.
    fn pictures<'a>(
        rule: &ColumnRule,
        list: &[u8],
        first: usize,
        bytes: SampleBytes<'a>,
    ) -> Result<FieldValue<'a>, Defect> {
        let mut parts = first..;
        let picture = |(number, path): (usize, &[u8])| {
            let of_list = || format!("image {} of `{}`", number + 1, rule.rule.name);
            let part = match path.is_empty() {
                true => return Err(Defect(format!("{} is null or has no path", of_list()))),
                false => parts.next().and_then(|part| bytes.part(part)),
            };
            match part {
                Some(part) if !part.is_empty() => Ok(part),
                _ => Err(Defect(format!(
                    "{} is empty: {}",
                    of_list(),
                    String::from_utf8_lossy(path)
                ))),
            }
        };
        let pictures = paths_of(list).enumerate().map(picture).collect::<Result<_, _>>()?;
        Ok(FieldValue::EncodedImages(pictures))
    }
}

impl Format for Manifest {
    const FORMAT: FolderFormat = FolderFormat {
        name: "manifest",
        extensions: &[
            ".csv",
            ".tsv",
            ".jsonl",
            ".csv.gz",
            ".tsv.gz",
            ".jsonl.gz",
            ".csv.zst",
            ".tsv.zst",
            ".jsonl.zst",
        ],
        loose: LooseFiles::NoFolders,
    };
    const EXPECTED: &'static str = "a .csv, .tsv or .jsonl file, also with .gz or .zst, or a folder with a metadata.csv or metadata.jsonl";
    const MARKS: &'static [&'static str] = &IN_FOLDERS;
    const IS_COMPARED_REMOTELY: bool = true;

    type Keys = ManifestKeys;
    type Index = RowIndex;

    /// Tables are manifests, too, if the configuration says so.
    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        shard_paths::split_named(path, |name| {
            Self::reads(name) || tabular::format_of(name).is_some()
        })
    }

    fn data_root(keys: &ManifestKeys) -> Option<PathBuf> {
        keys.root.clone()
    }

    /// Decodes images to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        Draft::of_members(seen, true)
    }

    fn digested(keys: &ManifestKeys) -> Result<String, ConfigError> {
        let listed = read_rules(keys.fields.as_deref(), Source::Names)?;
        let rules = listed.as_deref().map(rules_text).unwrap_or_default();
        // Earlier indexes have lists of numbers as text.
        let root = keys.root.clone().unwrap_or_default();
        let mut digested = format!("{}\0{rules}\0lists", root.display());
        // Earlier ones have a list of pictures as one path.
        if listed.iter().flatten().any(|rule| rule.rule.form == Form::Images) {
            digested += "\0paths";
        }
        Ok(digested)
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, lists, .. } = opening;
        let path = &request.config.path;
        if pattern.is_some() {
            let found = shard_paths::find(*lists, path, *pattern, Self::FORMAT.extensions)
                .map_err(tell_missing)?;
            refuse_twice(*lists, &found)?;
            if found.is_empty() {
                return Err(request.no_samples("no file has such a name"));
            }
            return Ok(found);
        }
        let mut found = Vec::new();
        let listed = lists.list(b"", &mut |name, kind| {
            let is_file = matches!(kind, EntryKind::File | EntryKind::Object(_));
            let is_one = IN_FOLDERS.iter().any(|known| known.as_bytes() == name);
            // A listing may contain a name twice.
            if is_file && is_one && !found.iter().any(|known| known == name) {
                found.push(name.to_vec());
            }
        });
        listed.map_err(|error| tell_missing(error.into()))?;
        match found.len() {
            1 => Ok(found),
            0 => Err(request.no_samples(format!(
                "it is a folder without {}; name the manifest in dataset.path, such as train.csv",
                IN_FOLDERS.join(", ")
            ))),
            _ => Err(request
                .no_samples("it is a folder with several manifests; name one in dataset.path")),
        }
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        scan::make(opening, warnings)
    }

    fn of_index(index: &RowIndex, _opening: &Opening<'_, Self>) -> Option<Self> {
        let rules = parse_rules(index.rules()).filter(|rules| rules.len() == index.columns())?;
        Some(Self::of_rules(rules))
    }

    fn needs_first(&self) -> bool {
        self.rules.iter().any(|rule| rule.rule.form == Form::Array && rule.list.is_none())
    }

    fn fields(
        &self,
        index: &RowIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        let first = first.unwrap_or(SampleBytes::new(&[], &[]));
        let rules = self.cells(index, SampleId(0)).zip(&self.rules);
        rules
            .map(|((cell, file), rule)| match &rule.list {
                Some(list) => {
                    let kind =
                        FieldKind::Array { dtype: list.dtype(), shape: list.first_shape(cell) };
                    Ok(Field { name: rule.rule.name.clone(), kind })
                }
                None => rule.rule.field(file.and_then(|file| first.part(file))),
            })
            .collect()
    }

    fn locate(&self, index: &RowIndex, id: SampleId, locations: &mut Vec<Location>) {
        // A row without files is not looked up: a work thread reads its cells anyway.
        if !self.rules.iter().any(ColumnRule::is_file) {
            return;
        }
        let first_of_sample = id.0.saturating_mul(self.files_each);
        let mut add = |file: u64| {
            let file = FileId(first_of_sample.saturating_add(file));
            locations.push(Location::whole(file));
        };
        for (((cell, file), rule), first) in
            self.cells(index, id).zip(&self.rules).zip(&self.first_files)
        {
            let Some(cell) = cell.filter(|_| file.is_some()) else { continue };
            match rule.longest_paths {
                None => add(*first),
                Some(_) => {
                    let named = paths_of(cell).zip(*first..).filter(|(path, _)| !path.is_empty());
                    named.for_each(|(_, file)| add(file));
                }
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
        for (rule, (cell, file)) in self.rules.iter().zip(self.cells(index, id)) {
            let lost =
                || Defect(format!("the file of the field `{}` was not read", rule.rule.name));
            let data = match file {
                Some(first) if rule.longest_paths.is_some() => {
                    take(Self::pictures(rule, cell.unwrap_or_default(), first, bytes)?)?;
                    continue;
                }
                Some(part) => Some(bytes.part(part).ok_or_else(lost)?),
                None => cell,
            };
            take(rule.value(data)?)?;
        }
        Ok(())
    }

    /// A file's number is derived from its sample and field, and its place in a list.
    fn append_path(&self, index: &RowIndex, file: FileId, path: &mut Vec<u8>) {
        let in_sample = file.0 % self.files_each;
        let column = self.first_files.partition_point(|first| *first <= in_sample) - 1;
        let cell = index.cells(SampleId(file.0 / self.files_each)).nth(column).flatten();
        let cell = cell.unwrap_or_default();
        let place = usize::try_from(in_sample - self.first_files[column]).unwrap_or(usize::MAX);
        path.extend_from_slice(match self.rules[column].longest_paths {
            Some(_) => paths_of(cell).nth(place).unwrap_or_default(),
            None => cell,
        });
    }

    fn field_rules(&self) -> String {
        columns::table(&self.rules)
    }

    fn max_row_bytes(&self, index: &RowIndex, place: usize, field: &Field) -> Option<u64> {
        match self.rules.get(place).and_then(|rule| rule.list.as_ref()) {
            Some(list) => Some(list.longest_bytes().max(1)),
            None => (field.kind == FieldKind::Text).then(|| index.longest(place).max(1)),
        }
    }

    /// For lists of numbers; arrays in files are not checked.
    fn rows_differ(&self, _index: &RowIndex, field: usize) -> Option<bool> {
        self.rules.get(field)?.list.as_ref().map(ListForm::rows_differ)
    }

    /// The bytes of the arrays made from lists.
    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        let lists = self.rules.iter().filter_map(|rule| rule.list.as_ref());
        lists.map(ListForm::longest_bytes).fold(0, u64::saturating_add)
    }

    fn label(&self, index: &RowIndex, id: SampleId) -> Option<Result<i64, Defect>> {
        let is_label = |rule: &ColumnRule| rule.rule.form == Form::Integer;
        let place = self.rules.iter().position(is_label)?;
        let (cell, _) = self.cells(index, id).nth(place)?;
        match self.rules[place].value(cell) {
            Ok(FieldValue::Integer(label)) => Some(Ok(label)),
            Ok(_) => None,
            Err(defect) => Some(Err(defect)),
        }
    }

    fn classes(&self) -> &[String] {
        columns::classes(&self.rules)
    }

    /// The path of the first file: a line's number is its place among others.
    fn append_key(&self, index: &RowIndex, id: SampleId, key: &mut Vec<u8>) -> bool {
        let of_files =
            self.cells(index, id).zip(&self.rules).filter(|((_, file), _)| file.is_some());
        let mut paths = of_files.filter_map(|((cell, _), rule)| match rule.longest_paths {
            Some(_) => paths_of(cell?).find(|path| !path.is_empty()),
            None => cell,
        });
        let path = paths.next();
        key.extend_from_slice(path.unwrap_or_default());
        path.is_some()
    }

    fn columns(
        &self,
        index: &RowIndex,
        files: &dyn Storage,
    ) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        scan::columns(index, files).map(Some)
    }

    fn visit_columns(
        &self,
        index: &RowIndex,
        files: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        scan::visit_columns(index, files, columns, visit)
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let files = self.rules.iter().filter(|rule| rule.rule.form != Form::Text && rule.is_file());
        let named = |rule: &ColumnRule| {
            let most = rule.longest_paths.map(|most| format!(" (up to {most} a row)"));
            rule.rule.from.join("|") + &most.unwrap_or_default()
        };
        let names: Vec<_> = files.map(named).collect();
        match names.is_empty() {
            true => Vec::new(),
            false => vec![("files", format!("named by {}", names.join(", ")))],
        }
    }
}

#[cfg(test)]
mod tests;
