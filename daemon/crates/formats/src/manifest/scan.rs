//! Reads manifests for an index.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;

use super::Manifest;
use super::paths::Paths;
use super::read::Reading;
use super::rules::{SeenColumn, infer_rules, settle_forms};
use super::source::unpacked;
use super::table::{Kind, Table};
use super::tabular::{self, Lines, RowsCallback, Wanted};
use crate::columns::{ColumnRule, Source, read_rules};
use crate::fields::rules_text;
use crate::indexed::{Format, Opening};
use crate::selection::{open_indexed, too_few_rows};
use forebay_columnar::Reads;
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::{FilesRead, ScanProgress};
use forebay_dataset::{FileColumn, VisitColumns};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::{now_seconds, open_file};
use forebay_index::stored_file::StoredFile;
use forebay_protocol::ids::SampleId;
use forebay_select::{Type, Value};
use forebay_storage::{Storage, StorageError, codec_of};

/// The number of rows from which column types are inferred.
pub(super) const SEEN_ROWS: usize = 100;
/// The number of pictures whose existence is checked.
const LOOKED_FOR: usize = 4;
const LOCAL_WINDOW: usize = 1 << 20;
const REMOTE_WINDOW: usize = 8 << 20;

/// The number of bytes per read of a list.
pub(super) fn window(lists: &dyn Storage) -> usize {
    if lists.remote_root().is_some() { REMOTE_WINDOW } else { LOCAL_WINDOW }
}

fn reads(lists: &dyn Storage) -> Reads {
    Reads { piece: window(lists) as u64, is_local: lists.remote_root().is_none() }
}

/// The rows of a manifest.
///
/// # Errors
/// As [`Table::of`] and [`Lines::read`].
fn open_table<'f>(
    file: &'f StoredFile<'f>,
    path: &[u8],
    lists: &dyn Storage,
    wanted: Wanted<'_>,
    progress: RowsCallback<'_>,
) -> Result<Table<'f>, DatasetError> {
    let window = window(lists);
    if let Some(format) = tabular::format_of(path) {
        let lines = Lines::read(file, format, reads(lists), wanted, progress)?;
        return Table::of(Box::new(lines), Kind::Json, window);
    }
    let kind = Kind::of(path);
    match codec_of(path) {
        None => Table::new(file, kind, window),
        Some(codec) => Table::of(unpacked(file, codec, window)?, kind, window),
    }
}

/// The first rows, which are too few for a report of progress.
const HEAD: Wanted<'_> = Wanted { columns: None, rows: Some(SEEN_ROWS as u64) };
const UNREPORTED: RowsCallback<'_> = &|_| ControlFlow::Continue(());

/// The columns of the first manifest, with the values of its first rows.
fn look(lists: &dyn Storage, path: &[u8]) -> Result<Vec<SeenColumn>, DatasetError> {
    let file = open_file(lists, path)?;
    seen_columns(open_table(&file, path, lists, HEAD, UNREPORTED)?)
}

/// The columns of a table, with the values of its first rows.
pub(super) fn seen_columns(mut table: Table<'_>) -> Result<Vec<SeenColumn>, DatasetError> {
    let mut seen: Vec<SeenColumn> = Vec::new();
    for _ in 0..SEEN_ROWS {
        let is_row = table.next(true)?;
        for name in table.columns().iter().skip(seen.len()) {
            seen.push(SeenColumn { name: name.clone(), values: Vec::new(), lists: 0 });
        }
        if !is_row {
            break;
        }
        for (place, column) in seen.iter_mut().enumerate() {
            let cell = table.cell(place).filter(|cell| !cell.is_empty());
            column.lists += usize::from(cell.is_some() && table.is_list(place));
            column.values.extend(cell.map(<[u8]>::to_vec));
        }
    }
    Ok(seen)
}

/// A column of a table that contains picture paths.
pub(crate) struct NamedPictures {
    pub(crate) column: String,
    /// The value in the first row.
    pub(crate) example: String,
    /// Whether the first pictures are found without `dataset.root`.
    pub(crate) are_there: bool,
}

/// The column of picture paths, by the first rows, of a table that contains no binary columns.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn named_pictures(
    storage: &dyn Storage,
    root: &Path,
    path: &[u8],
) -> Result<Option<NamedPictures>, DatasetError> {
    let Some(format) = tabular::format_of(path) else { return Ok(None) };
    let file = open_file(storage, path)?;
    let lines = Lines::read(&file, format, reads(storage), HEAD, UNREPORTED)?;
    if lines.has_bytes {
        return Ok(None);
    }
    let seen = seen_columns(Table::of(Box::new(lines), Kind::Json, window(storage))?)?;
    // A manifest's paths are not URLs.
    let is_url = |value: &Vec<u8>| value.windows(3).any(|part| part == b"://");
    let has_paths =
        |column: &&SeenColumn| column.names_pictures() && !column.values.iter().any(is_url);
    let Some(column) = seen.iter().find(has_paths) else { return Ok(None) };
    let folder = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let paths = Paths::new(root, &path[..folder], storage.remote_root().is_some());
    let mut are_there = true;
    let mut resolved = Vec::new();
    for value in column.values.iter().take(LOOKED_FOR) {
        are_there &= paths.resolve(value, &mut resolved).is_ok()
            && match StoredFile::if_there(storage, &resolved) {
                Ok(found) => found.is_some(),
                // A missing folder of a path is not an outage here.
                Err(StorageError::Away { .. } | StorageError::Dangling { .. }) => false,
                Err(error) => return Err(error.into()),
            };
    }
    let example = column.values.first().map(|value| String::from_utf8_lossy(value).into_owned());
    let (column, example) = (column.name.clone(), example.unwrap_or_default());
    Ok(Some(NamedPictures { column, example, are_there }))
}

/// The rules of the configuration, or rules inferred from the first rows.
fn rules(
    opening: &Opening<'_, Manifest>,
    path: &[u8],
    warnings: &mut Vec<String>,
) -> Result<Vec<ColumnRule>, DatasetError> {
    let seen = look(opening.lists, path)?;
    if let Some(mut rules) = read_rules(opening.keys.fields.as_deref(), Source::Names)? {
        settle_forms(&mut rules, &seen);
        return Ok(rules);
    }
    let (rules, left_out) = infer_rules(&seen);
    let lists = seen.iter().filter(|column| column.lists_pictures());
    warnings.extend(lists.map(|column| {
        format!(
            "`{name}` has lists of paths of pictures, and is text; to read the pictures, set dataset.fields.{name} to \
             {{ from = {name:?}, as = \"images\" }}",
            name = column.name
        )
    }));
    if !left_out.is_empty() {
        warnings.push(format!(
            "columns that no field was made of, since they are empty or their names cannot be a field's: {}; name them in \
             dataset.fields",
            left_out.join(", ")
        ));
    }
    match rules.is_empty() {
        true => Err(opening.request.no_samples("it has no rows with values")),
        false => Ok(rules),
    }
}

/// The columns of the first manifest. A value is what it is compared with: the files do not say, or not the same for each row.
pub(super) fn columns(
    index: &RowIndex,
    lists: &dyn Storage,
) -> Result<Vec<FileColumn>, DatasetError> {
    let written = |seen: SeenColumn| FileColumn { name: seen.name, values: Ok(Type::Written) };
    Ok(look(lists, index.manifest_path(0))?.into_iter().map(written).collect())
}

/// Visits the values of columns, by their places among [`columns`], in the order of ids.
pub(super) fn visit_columns(
    index: &RowIndex,
    lists: &dyn Storage,
    columns: &[usize],
    visit: VisitColumns<'_>,
) -> Result<(), DatasetError> {
    let all = look(lists, index.manifest_path(0))?;
    let names: Vec<_> =
        columns.iter().filter_map(|place| all.get(*place)).map(|seen| seen.name.as_str()).collect();
    for place in 0..index.manifests() {
        let samples = index.samples_of(place);
        if samples.is_empty() {
            continue;
        }
        let path = index.manifest_path(place);
        let file = open_indexed(index, place, lists)?;
        let wanted = Wanted { columns: Some(&names), rows: None };
        let mut table = open_table(&file, path, lists, wanted, UNREPORTED)?;
        let places = table.take_columns(&names);
        let mut next = samples.start;
        while next < samples.end && table.next(false)? {
            // The index leaves rows out.
            if (table.line() as u64) < index.line(SampleId(next)) {
                continue;
            }
            let value = |(column, name): (&Option<usize>, &&str)| {
                let cell = column.and_then(|column| table.cell(column));
                match cell.filter(|cell| table.has_nulls() || !cell.is_empty()) {
                    None => Ok(Value::Null),
                    Some(cell) => match std::str::from_utf8(cell) {
                        Ok(text) => Ok(Value::Text(text)),
                        Err(_) => Err(table.fault(format!("`{name}` is not valid UTF-8"))),
                    },
                }
            };
            let values = places.iter().zip(&names).map(value);
            let values = values.collect::<Result<Vec<_>, _>>()?;
            visit(SampleId(next), &values)?;
            next += 1;
        }
        if next < samples.end {
            return Err(too_few_rows(&file));
        }
    }
    Ok(())
}

/// Reads the manifests and builds an index.
pub(super) fn make(
    opening: &Opening<'_, Manifest>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let started_seconds = now_seconds();
    opening.request.check_limit()?;
    let manifests = Manifest::files(opening)?;
    let mut rules = rules(opening, &manifests[0], warnings)?;
    let (done, most) = (Cell::new(0_u64), Cell::new(0));
    let all = manifests.len() as u64;
    // The rows of a table are read twice: from its file, and as lines.
    let progress = |samples: u64| {
        most.set(samples.max(most.get()));
        let millionths = u32::try_from(done.get() * 1_000_000 / all).unwrap_or(u32::MAX);
        let files = Some(FilesRead { done: done.get(), all, bytes: 0, millionths });
        let seen = ScanProgress { samples: most.get(), files, ..ScanProgress::default() };
        (opening.request.options.progress)(seen)
    };
    let mut reading = Reading::new(&opening.request, &rules, &progress)?;
    for path in &manifests {
        if reading.is_over() {
            break;
        }
        let file = open_file(opening.lists, path)?;
        let names: Vec<_> =
            rules.iter().flat_map(|rule| &rule.rule.from).map(String::as_str).collect();
        let wanted = Wanted { columns: Some(&names), rows: reading.max_rows() };
        let before = reading.draft.samples();
        let table =
            open_table(&file, path, opening.lists, wanted, &|rows| progress(before + rows))?;
        let end = match opening.keys.root {
            Some(_) => 0,
            None => path.iter().rposition(|byte| *byte == b'/').unwrap_or(0),
        };
        let is_contained = opening.storage.remote_root().is_some();
        let paths = Paths::new(&opening.data_root, &path[..end], is_contained);
        reading.read(path, file.stamp, table, &paths)?;
        done.set(done.get() + 1);
    }
    let Reading { found, draft, listed, skipped, missing, lists, longest_paths, .. } = reading;
    let form = "a sample is named by its manifest and its line, as in train.csv:17";
    opening.conclude_rows(listed, form, (draft.samples(), skipped), warnings)?;
    let lacking = rules.iter().zip(missing);
    warnings.extend(lacking.filter_map(|(rule, rows)| rule.rule.lacking_warning(rows, "row")));
    for (rule, found) in rules.iter_mut().zip(found) {
        if let Some(Some(classes)) = &mut rule.classes
            && classes.are_sorted
        {
            classes.names = found.into_names();
        }
    }
    for (rule, (list, longest)) in rules.iter_mut().zip(lists.into_iter().zip(longest_paths)) {
        (rule.list, rule.longest_paths) = (list, longest);
    }
    Ok(draft.build(started_seconds, &rules_text(&rules)))
}
