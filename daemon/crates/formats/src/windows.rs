//! `[dataset.windows]`: a sample is a window of rows, of `.npy` files, Zarr arrays, HDF5 files and tables.
//!
//! `keys` is the configuration, `plan` makes of it the fields and the reads of a window, `index` has the episodes. What
//! differs between formats is where rows are and how they are unpacked ([`RowFormat`]); reading, cutting, padding and
//! the saved index are the same for all. An episode is a file, or with `by` a run of equal values in a column: no window
//! crosses its ends. Windows of tokens are in `tokens`: their files have no episodes and need no index.

mod chunks;
mod hdf5;
mod index;
mod keys;
mod npy;
mod plan;
mod rows;
mod tables;
mod zarr;

use std::borrow::Cow;

use forebay_config::DatasetConfig;
use forebay_keys::ConfigError;
use forebay_protocol::ids::SampleId;
use serde::{Deserialize, Serialize};

pub(super) use self::hdf5::Hdf5Rows;
use self::index::{Contents, Episode, Window, WindowIndex, build};
use self::keys::{FieldRows, Pad, WindowKeys};
pub(super) use self::keys::{OwnKeys, ask_for_length, of_windows, refuse_other};
pub(super) use self::npy::NpyRows;
use self::plan::{Column, Made, Plan, PlannedField, Read};
pub(super) use self::rows::RowFormat;
use self::rows::{Found, Parts, Rows, read_rows};
pub(super) use self::tables::{folder_of_all, open as open_tables};
pub(super) use self::zarr::ZarrRows;
use crate::draft::{Draft, Seen};
use crate::indexed::{Format, Opening, Take};
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::{ArrayValue, Defect, DirectRead, Field, FieldValue, IndexBytes};
use forebay_index::folder::scan::FolderFormat;
use forebay_index::saved_index::{SavedIndex, now_seconds, refuse_twice};
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, SampleBytes};
use forebay_storage::version::ObjectStamp;

/// The bytes of `by` that are read at once while an index is built.
const PIECE_BYTES: u64 = 4 << 20;
/// The parts of files that they are in, each of which is open meanwhile.
const PIECE_PLACES: u64 = 64;
/// The most parts of files that a window is in.
const MAX_PLACES: u64 = 1 << 16;
/// The most episodes, each of which has a record in the index.
const MAX_EPISODES: usize = 1 << 26;

/// Windows of the rows of a format.
#[derive(Debug)]
pub(super) struct Windows<S: RowFormat> {
    columns: Vec<Column<S::More>>,
    plan: Plan,
    direct_read: Option<DirectRead>,
    /// The memory of a window beside what is read.
    unpacked_bytes: u64,
    /// The number of episodes in the index, those that are too short, and their rows.
    counts: [u64; 3],
}

/// The definition of the fields, as the index has it.
#[derive(Debug, Serialize, Deserialize)]
struct Rules<E> {
    columns: Vec<Column<E>>,
    /// The keys as text.
    keys: String,
    /// See [`Windows::counts`].
    counts: [u64; 3],
}

impl<S: RowFormat> Windows<S> {
    fn plan(opening: &Opening<'_, Self>, columns: &[Column<S::More>]) -> Result<Plan, String> {
        let OwnKeys { windows, fields } = &opening.keys;
        let WindowKeys { length, pad, .. } = *windows;
        let by = by_column(opening, columns);
        let named = fields.clone().unwrap_or_else(|| {
            let all = columns.iter().enumerate().filter(|(place, _)| Some(*place) != by);
            all.map(|(_, column)| FieldRows::all_of(&column.name, length)).collect()
        });
        let place =
            |from: &str| columns.iter().position(|column| column.name == S::column_name(from));
        Plan::new(columns, &named, place, pad)
    }

    fn at<'i>(&'i self, index: &'i WindowIndex, window: Window, read: &Read) -> Rows<'i, S::More> {
        let Window { episode, start } = window;
        let (first, end) = read.clipped(start, episode.rows);
        let row = |row: i64| episode.first_row.saturating_add(row.unsigned_abs());
        let (set, place, columns) = (episode.set, read.column, &self.columns[..]);
        Rows { index, set, place, columns, rows: row(first)..row(end) }
    }

    /// The rows of a field, from those that were read for it.
    fn field<'a>(
        &'a self,
        field: &PlannedField,
        (window, read, rows): (Window, Read, &mut Cow<'a, [u8]>),
        fill: Option<&[u8]>,
    ) -> Result<FieldValue<'a>, Defect> {
        let broken = || Defect("a window of an impossible size".to_owned());
        let column = &self.columns[read.column];
        let row_bytes = column.row_bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let (row_bytes, dtype) = row_bytes.zip(column.dtype()).ok_or_else(broken)?;
        let (first, end) = read.clipped(window.start, window.episode.rows);
        let start = window.start.saturating_add(field.start);
        let length = i64::try_from(field.length).map_err(|_| broken())?;
        let shape = [&[field.length], &column.shape[..]].concat();
        let place = |row: i64| usize::try_from(row - first).ok()?.checked_mul(row_bytes);
        let bytes = if start >= first && start.saturating_add(length) <= end {
            let range = place(start).zip(place(start + length)).ok_or_else(broken)?;
            // Unpacked rows of a single field are moved.
            let is_whole = matches!(rows, Cow::Owned(all) if range == (0, all.len()));
            if is_whole && self.plan.is_only(field) {
                std::mem::take(rows)
            } else {
                match &*rows {
                    Cow::Borrowed(rows) => rows.get(range.0..range.1).ok_or_else(broken)?.into(),
                    Cow::Owned(rows) => {
                        rows.get(range.0..range.1).ok_or_else(broken)?.to_vec().into()
                    }
                }
            }
        } else {
            let mut bytes = Vec::with_capacity(
                row_bytes.saturating_mul(usize::try_from(field.length).map_err(|_| broken())?),
            );
            let is_there = |row: i64| row >= 0 && row.unsigned_abs() < window.episode.rows;
            for row in start..start + length {
                let nearest = row.clamp(first, end - 1);
                let row = match fill.filter(|_| !is_there(row)) {
                    Some(fill) => fill,
                    None => place(nearest)
                        .and_then(|place| rows.get(place..)?.get(..row_bytes))
                        .ok_or_else(broken)?,
                };
                bytes.extend_from_slice(row);
            }
            bytes.into()
        };
        let big_endian = column.big_endian;
        Ok(FieldValue::Array(ArrayValue { big_endian, ..ArrayValue::new(dtype, shape, bytes) }))
    }

    /// The definition of the fields that an index has; `None`: it is malformed.
    fn rules(index: &WindowIndex) -> Option<Rules<S::More>> {
        let rules: Rules<S::More> = serde_json::from_str(index.rules()).ok()?;
        let are_sound = rules.columns.iter().all(|column| column.row_bytes().is_some());
        (are_sound && rules.columns.len() == index.columns()).then_some(rules)
    }

    fn contents<'c>(
        opening: &'c Opening<'_, Self>,
        found: &'c Found<S::More>,
        rules: &'c str,
        scan_started_seconds: i64,
    ) -> Contents<'c> {
        Contents {
            files: &found.files,
            sets: &found.sets,
            columns: found.columns.len(),
            rules,
            keys: [&opening.request.identity, &opening.request.digest],
            scan_started_seconds,
        }
    }
}

/// Which rows of a window exist.
fn mask<'a>(field: &PlannedField, window: Window) -> FieldValue<'a> {
    let start = window.start.saturating_add(field.start);
    let rows = i64::try_from(window.episode.rows).unwrap_or(i64::MAX);
    let length = i64::try_from(field.length).unwrap_or(0);
    let bits: Vec<u8> =
        (start..start + length).map(|row| (0..rows).contains(&row).into()).collect();
    FieldValue::Array(ArrayValue::new(
        forebay_protocol::tensor::DType::Bool,
        vec![field.length],
        bits,
    ))
}

impl<S: RowFormat> Format for Windows<S> {
    const FORMAT: FolderFormat = S::FORMAT;
    const EXPECTED: &'static str = S::EXPECTED;
    const MARKS: &'static [&'static str] = S::MARKS;
    // Otherwise rows are in files that the index does not list, and a reader does not know what they were.
    const IS_COMPARED_REMOTELY: bool = !S::STORES_ROWS;

    type Keys = OwnKeys;
    type Index = WindowIndex;

    fn reads(name: &[u8]) -> bool {
        S::reads(name)
    }

    fn draft(seen: &Seen) -> Draft {
        Draft::of_arrays("copy", seen)
    }

    fn digested(keys: &OwnKeys) -> Result<String, ConfigError> {
        Ok(keys.text())
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let files = S::files(opening)?;
        refuse_twice(opening.storage, &files)?;
        Ok(files)
    }

    fn is_complete(index: &WindowIndex, opening: &Opening<'_, Self>) -> Result<bool, DatasetError> {
        match Self::rules(index) {
            Some(rules) => S::is_complete(index, &rules.columns, opening),
            None => Ok(false),
        }
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        let scan_started_seconds = now_seconds();
        let request = &opening.request;
        request.check_limit()?;
        let path = || request.config.path.clone();
        if request.config.ids.is_some() {
            let reason = "dataset.ids names samples, and windows have no names; leave it out, or use dataset.limit";
            return Err(DatasetError::ArrayFile { path: path(), reason: reason.to_owned() });
        }
        let found = S::scan(opening, warnings)?;
        let refuse = |reason: String| DatasetError::ArrayFile { path: path(), reason };
        let OwnKeys { windows, .. } = &opening.keys;
        let keys = opening.keys.text();
        let mut rules = Rules { columns: found.columns.clone(), keys, counts: [0; 3] };
        if let Some(column) = rules.columns.iter().find(|column| column.row_bytes().is_none()) {
            return Err(refuse(format!("the rows of `{}` have no elements", column.name)));
        }
        let plan = Self::plan(opening, &rules.columns).map_err(refuse)?;
        check_size::<S>(&plan, &rules.columns, request.config).map_err(refuse)?;
        let cut = plan.cut(windows.stride(), windows.pad);
        let mut episodes: Vec<Episode> = (0..)
            .zip(&found.sets)
            .map(|(set, found)| Episode { set, first_row: 0, rows: found.rows })
            .collect();
        let by = by_column(opening, &rules.columns);
        if let (None, Some(named)) = (by, &windows.by) {
            return Err(refuse(format!(
                "dataset.windows.by is {named:?}, and the data has the single array `{}`; leave it out, or set dataset.path to \
                 the folder of both",
                rules.columns[0].name
            )));
        }
        if let Some(by) = by {
            // An index without windows, to read the column.
            let (text, none) = (text_of(&rules), std::iter::empty());
            let contents = Self::contents(opening, &found, &text, scan_started_seconds);
            let sets = WindowIndex::open(IndexBytes::Owned(build(&contents, none, cut, 0)))
                .map_err(|fault| refuse(format!("its index is unusable: {fault:?}")))?;
            episodes = runs::<S>(opening, &sets, &rules.columns, by)?;
        }
        let short = |episode: &&Episode| cut.windows(episode.rows) == 0;
        let left_out = episodes
            .iter()
            .filter(short)
            .fold([0, 0], |[count, rows], episode| [count + 1, rows + episode.rows]);
        let all = episodes.len() as u64;
        rules.counts = [all, left_out[0], left_out[1]];
        let needs = cut.needs.unwrap_or(1);
        if left_out[0] == all {
            let longest = episodes.iter().map(|episode| episode.rows).max().unwrap_or(0);
            return Err(request.no_samples(format!(
                "a window needs {needs} rows, and the longest of {all} episodes has {longest}; make \
                 dataset.windows.length smaller, or set dataset.windows.pad"
            )));
        }
        if left_out[0] > 0 {
            warnings.push(format!(
                "{} of {all} episodes, with {} rows, are shorter than the {needs} rows of a window, and are left out; \
                 dataset.windows.pad keeps them",
                left_out[0], left_out[1]
            ));
        }
        let text = text_of(&rules);
        let contents = Self::contents(opening, &found, &text, scan_started_seconds);
        let limit = request.config.limit.unwrap_or(u64::MAX);
        Ok(build(&contents, episodes.into_iter(), cut, limit))
    }

    fn of_index(index: &WindowIndex, opening: &Opening<'_, Self>) -> Option<Self> {
        let Rules { columns, counts, keys } = Self::rules(index)?;
        // The episodes are cut by them.
        if keys != opening.keys.text() {
            return None;
        }
        let plan = Self::plan(opening, &columns).ok()?;
        let direct_read = direct_read::<S>(&plan, &columns, opening.keys.windows.pad);
        let unpacked_bytes = unpacked_bytes::<S>(&plan, &columns);
        Some(Self { columns, plan, direct_read, unpacked_bytes, counts })
    }

    fn fields(&self, _: &WindowIndex, _: Option<SampleBytes<'_>>) -> Result<Vec<Field>, Defect> {
        Ok(self.plan.declared(&self.columns))
    }

    fn locate(&self, index: &WindowIndex, id: SampleId, locations: &mut Vec<Location>) {
        let window = index.window(id);
        for read in &self.plan.reads {
            S::locate(self.at(index, window, read), locations);
        }
        if locations.is_empty() {
            // Nothing of the window is stored; a sample has a location.
            let range = ByteRange { offset: 0, length: Some(1) };
            locations.push(Location { range, ..Location::whole(FileId(0)) });
        }
    }

    fn values<'a>(
        &'a self,
        index: &'a WindowIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let window = index.window(id);
        let mut parts = Parts::new(bytes);
        let mut found = Vec::with_capacity(self.plan.reads.len());
        for read in &self.plan.reads {
            found.push(S::values(self.at(index, window, read), &mut parts)?);
        }
        for field in &self.plan.fields {
            take(match &field.made {
                Made::Mask => mask(field, window),
                Made::Rows { read, fill } => {
                    let rows = (window, self.plan.reads[*read], &mut found[*read]);
                    self.field(field, rows, fill.as_deref())?
                }
            })?;
        }
        Ok(())
    }

    fn append_path(&self, index: &WindowIndex, file: FileId, path: &mut Vec<u8>) {
        match file.0 < index.file_count() {
            true => index.append_path(file, path),
            false => S::append_path(&self.columns, index, file, path),
        }
    }

    fn stamp(&self, index: &WindowIndex, file: FileId) -> Option<ObjectStamp> {
        index.stamp(file)
    }

    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        self.unpacked_bytes
    }

    fn rows_differ(&self, _: &WindowIndex, _field: usize) -> Option<bool> {
        Some(false)
    }

    fn shares_units(&self) -> bool {
        S::shares_units(&self.columns)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.direct_read.as_ref()
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let [all, short, rows] = self.counts;
        let rest = match short {
            0 => String::new(),
            _ => format!(", {short} of which, with {rows} rows, are too short and left out"),
        };
        vec![("windows", format!("of {all} episodes{rest}"))]
    }
}

fn text_of<E: Serialize>(rules: &Rules<E>) -> String {
    // Cannot fail: words and numbers only.
    serde_json::to_string(rules).unwrap_or_default()
}

/// Refuses windows that no sample may have.
fn check_size<S: RowFormat>(
    plan: &Plan,
    columns: &[Column<S::More>],
    config: &DatasetConfig,
) -> Result<(), String> {
    let sum = |of: &dyn Fn(&Column<S::More>, u64) -> u64| {
        let of = |read: &Read| {
            of(&columns[read.column], read.end.saturating_sub(read.start).unsigned_abs())
        };
        plan.reads.iter().map(of).fold(0, u64::saturating_add)
    };
    let places = sum(&S::places);
    if places > MAX_PLACES {
        return Err(format!(
            "a window is in {places} chunks, and at most {MAX_PLACES} are read; make dataset.windows.length smaller, or \
             write larger chunks"
        ));
    }
    let bytes = sum(&|column, rows| column.row_bytes().unwrap_or(u64::MAX).saturating_mul(rows));
    let limit = config.limits.sample_bytes;
    match bytes > limit {
        true => Err(format!(
            "a window has {bytes} bytes, and limits.sample_bytes is {limit}; make dataset.windows.length smaller, or \
             raise the limit"
        )),
        false => Ok(()),
    }
}

/// The memory of a window beside what is read: unpacked rows, and fields that are copied.
fn unpacked_bytes<S: RowFormat>(plan: &Plan, columns: &[Column<S::More>]) -> u64 {
    let of = |read: &Read| {
        let rows = read.end.saturating_sub(read.start).unsigned_abs();
        S::unpacked_bytes(&columns[read.column], rows)
    };
    let unpacked = plan.reads.iter().map(of).fold(0, u64::saturating_add);
    unpacked.saturating_add(plan.copied_bytes(columns, !S::STORES_ROWS))
}

/// How the only field of windows is read into its row: its rows are the bytes of the file.
fn direct_read<S: RowFormat>(
    plan: &Plan,
    columns: &[Column<S::More>],
    pad: Pad,
) -> Option<DirectRead> {
    let ([field], [read]) = (&plan.fields[..], &plan.reads[..]) else { return None };
    let column = &columns[read.column];
    let is_native = !column.big_endian || cfg!(target_endian = "big");
    let elements_bytes = column.row_bytes()?.checked_mul(field.length)?;
    (S::STORES_ROWS && pad == Pad::None && is_native).then_some(DirectRead {
        field: 0,
        before: Vec::new(),
        elements_bytes,
    })
}

/// The column of `by`.
fn by_column<S: RowFormat>(
    opening: &Opening<'_, Windows<S>>,
    columns: &[Column<S::More>],
) -> Option<usize> {
    let by = S::column_name(opening.keys.windows.by.as_deref()?);
    columns.iter().position(|column| column.name == by)
}

/// The runs of equal values of a column, in each set.
fn runs<S: RowFormat>(
    opening: &Opening<'_, Windows<S>>,
    sets: &WindowIndex,
    columns: &[Column<S::More>],
    place: usize,
) -> Result<Vec<Episode>, DatasetError> {
    let table = Table { index: sets, columns, of: std::marker::PhantomData::<S> };
    let by = &columns[place];
    let row_bytes = by.row_bytes().unwrap_or(1);
    let limit = opening.request.config.limits.sample_bytes;
    // Chunks that are absent have a size as well: nothing else bounds a row.
    if row_bytes > limit / 2 {
        return Err(DatasetError::ArrayFile {
            path: opening.request.config.path.clone(),
            reason: format!(
                "dataset.windows.by is `{}`, whose rows have {row_bytes} bytes, and at most half of limits.sample_bytes, \
                 {limit}, is read; name a column of one value a row",
                by.name
            ),
        });
    }
    // Half of the limit: the ends of the rows may be in chunks that have more.
    let mut step = (PIECE_BYTES.min(limit / 2) / row_bytes).max(1);
    while step > 1 && S::places(by, step) > PIECE_PLACES {
        step /= 2;
    }
    let mut episodes = Vec::new();
    let mut done = 0;
    for set in 0..sets.sets() {
        let all = sets.set_rows(set).unwrap_or(0);
        let (mut first, mut before) = (0, Vec::new());
        let mut start = 0;
        while start < all {
            let rows = start..(start + step).min(all);
            let read = Rows { index: sets, set, place, columns, rows: rows.clone() };
            let values = read_rows::<S>(opening.storage, &table, read, limit)?;
            let each = usize::try_from(row_bytes).unwrap_or(usize::MAX);
            for (row, value) in rows.clone().zip(values.chunks_exact(each)) {
                if row > 0 && before != value {
                    episodes.push(Episode { set, first_row: first, rows: row - first });
                    first = row;
                }
                if before != value {
                    before.clear();
                    before.extend_from_slice(value);
                }
            }
            if episodes.len() > MAX_EPISODES {
                return Err(DatasetError::ArrayFile {
                    path: opening.request.config.path.clone(),
                    reason: format!(
                        "dataset.windows.by is `{}`, whose value changes more than {MAX_EPISODES} times; the rows of an \
                         episode must follow one another",
                        by.name
                    ),
                });
            }
            done += rows.end - rows.start;
            report::<S>(opening, set as u64, done)?;
            start = rows.end;
        }
        if all > 0 {
            episodes.push(Episode { set, first_row: first, rows: all - first });
        }
    }
    Ok(episodes)
}

/// Reports the progress of a scan.
///
/// # Errors
/// The scan was stopped.
fn report<S: RowFormat>(
    opening: &Opening<'_, Windows<S>>,
    directories: u64,
    samples: u64,
) -> Result<(), DatasetError> {
    let progress = ScanProgress { directories, samples, ..ScanProgress::default() };
    match (opening.request.options.progress)(progress).is_break() {
        true => Err(DatasetError::Cancelled),
        false => Ok(()),
    }
}

/// The files of an index that is being built.
struct Table<'i, S: RowFormat> {
    index: &'i WindowIndex,
    columns: &'i [Column<S::More>],
    of: std::marker::PhantomData<S>,
}

impl<S: RowFormat> FileTable for Table<'_, S> {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        match file.0 < self.index.file_count() {
            true => self.index.append_path(file, path),
            false => S::append_path(self.columns, self.index, file, path),
        }
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

#[cfg(test)]
mod tests;
