//! Opening a set of tables: which they are, whether the saved index is still true of them, and making a new one.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use super::{
    Bytes, Cell, FileRows, PackedCell, Stored, TableColumn, TableField, TableKeys, TableSamples,
    parse_fields, refuse,
};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{Form, Missing, begins_as_picture};
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::folder::select::Listed;
use crate::dataset::opening::{IndexReport, OpenOptions, OpenedFormat, read_sample};
use crate::dataset::records::{Column, Encoding, RecordRule, infer, read_rules, settle};
use crate::dataset::row_index::{RowDraft, RowIndex, append_name};
use crate::dataset::saved_index::{
    Asked, Request, is_unchanged, now_seconds, refuse_other_file, refuse_twice, tell_missing,
};
use crate::dataset::shards::{self, Pace};
use crate::dataset::stored_file::StoredFile;
use crate::dataset::{Dataset, Defect, Field, FieldValue, shard_paths};
use crate::location::{FileId, SampleBytes};
use crate::storage::{Storage, UnpackingStorage};

/// Rows between two questions whether the making was stopped.
const ROWS_PER_QUESTION: u64 = 4096;

/// Takes a row's number and its cells, in the order of the columns that were asked for.
pub(in crate::dataset) type Visit<'v> =
    &'v mut dyn FnMut(u64, &[Cell]) -> Result<ControlFlow<()>, DatasetError>;

/// The files that something in a folder lists.
type List = fn(&dyn Storage, &DatasetConfig) -> Result<Option<Vec<Vec<u8>>>, DatasetError>;
/// Walks over rows.
type Walk = fn(&dyn Bytes, &[usize], u64, Visit<'_>) -> Result<(), DatasetError>;

/// A format of tables.
#[derive(Clone, Copy)]
pub(in crate::dataset) struct TableFormat {
    pub(in crate::dataset) format: FolderFormat,
    /// What `dataset.path` may be, for messages.
    pub(in crate::dataset) expected: &'static str,
    /// The files of a folder, relative to it, where something in it lists them; `None`: all of the extension are read.
    pub(in crate::dataset) listed: List,
    /// A file's columns.
    pub(in crate::dataset) columns: fn(&dyn Bytes) -> Result<Vec<TableColumn>, DatasetError>,
    /// Walks over a file's rows: the columns by their places among [`columns`](Self::columns), and how many bytes are
    /// read at once.
    pub(in crate::dataset) rows: Walk,
}

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok((_, request)) = request(config, format, options) else { return false };
    request.load::<RowIndex>().is_ok_and(|index| index.is_some())
}

fn request<'a>(
    config: &'a DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'a>,
) -> Result<(Option<Vec<RecordRule>>, Request<'a>), DatasetError> {
    let keys = TableKeys::of(config)?;
    let rules = keys.fields.as_deref().map(|entries| read_rules(entries, true)).transpose()?;
    // Words and names alone: writing them cannot fail.
    let own = serde_json::to_string(&rules).unwrap_or_default();
    let (root, pattern) = shard_paths::split(&config.path, format.extensions);
    let asked = Asked { format: format.name, root, pattern, is_listed: false };
    Ok((rules, Request::of(config, options, asked, &own)?))
}

/// Opens tables: those that the path names, or those of a folder.
pub(in crate::dataset) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
    format: TableFormat,
) -> OpenedFormat {
    let started = Instant::now();
    let (_, pattern) = shard_paths::split(&config.path, format.format.extensions);
    if pattern.is_none() {
        let words = ("a file of another name", format.format.name, format.expected);
        refuse_other_file(storage, &config.path, words, options)?;
    }
    let (rules, request) = request(config, format.format, options)?;
    let task = Task { request, rules, storage, format, pattern };
    let mut report = IndexReport::default();
    let index = task.request.open(
        storage,
        &mut report,
        |index| task.is_true(index),
        |warnings| task.make(warnings),
    )?;
    let dataset = task.dataset(index)?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok((Arc::new(dataset), report))
}

/// One opening.
struct Task<'a> {
    request: Request<'a>,
    rules: Option<Vec<RecordRule>>,
    storage: &'a dyn Storage,
    format: TableFormat,
    pattern: Option<&'a str>,
}

impl Task<'_> {
    /// The files, in their order.
    fn files(&self) -> Result<Vec<Vec<u8>>, DatasetError> {
        let (config, extensions) = (self.request.config, self.format.format.extensions);
        let listed = match self.pattern {
            None => (self.format.listed)(self.storage, config)?,
            Some(_) => None,
        };
        let found = match listed {
            Some(listed) => listed,
            None => shard_paths::find(self.storage, &config.path, self.pattern, extensions)
                .map_err(tell_missing)?,
        };
        if found.is_empty() {
            let extensions = extensions.join(" or ");
            return Err(self.request.no_samples(format!("it has no {extensions} files")));
        }
        refuse_twice(self.storage, &found)?;
        Ok(found)
    }

    /// Whether the files are those that were read, of the same sizes and times. Behind a URL nobody can say so cheaply: a
    /// sample's read tells an object that changed.
    fn is_true(&self, index: &RowIndex) -> Result<bool, DatasetError> {
        if self.storage.remote_root().is_some() {
            return Ok(true);
        }
        let files = self.files()?;
        let are_same = |place: usize| index.manifest_path(place) == files[place];
        // With a limit the last ones were not looked at.
        let is_cut = self.request.config.limit.is_some() && index.manifests() < files.len();
        if !(index.manifests() == files.len() || is_cut) || !(0..index.manifests()).all(are_same) {
            return Ok(false);
        }
        for place in 0..index.manifests() {
            let (file, known) = (FileId(place as u64), index.manifest_stamp(place));
            if !is_unchanged(self.storage, index, file, known, index.started_seconds())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is read of a file at once, at least.
    fn piece(&self) -> u64 {
        if self.storage.remote_root().is_some() { 1 << 20 } else { 64 << 10 }
    }

    /// Has columns of bytes that nothing is said of, and that hold pictures in the first row, be pictures.
    fn find_pictures(
        &self,
        file: &StoredFile<'_>,
        columns: &mut [TableColumn],
    ) -> Result<(), DatasetError> {
        let is_named = |name: &str| {
            let mut rules = self.rules.iter().flatten();
            self.rules.is_none() || rules.any(|rule| rule.column() == name)
        };
        let unknown = columns.iter().enumerate().filter(|(_, column)| {
            let Column { name, encoding, .. } = &column.column;
            *encoding == Encoding::Bytes && !column.is_known && is_named(name)
        });
        let places: Vec<usize> = unknown.map(|(place, _)| place).collect();
        if places.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        let mut first = |_: u64, cells: &[Cell]| {
            found = cells.to_vec();
            Ok(ControlFlow::Break(()))
        };
        (self.format.rows)(file, &places, self.piece(), &mut first)?;
        let mut start = Vec::new();
        for (place, cell) in places.into_iter().zip(found) {
            match cell {
                Cell::At { offset, length } => file.read(offset, length.min(16), &mut start)?,
                Cell::Value(value) => start = value,
                Cell::Packed(PackedCell { offset, bytes, part }) => {
                    let mut packed = Vec::new();
                    file.read(offset, bytes, &mut packed)?;
                    let (first, length) = (part.start as usize, part.length as usize);
                    // It was unpacked a moment ago.
                    let sizes = (part.unpacked_bytes as usize, first + length);
                    part.codec.unpack(&packed, sizes, &mut start);
                    start.drain(..first.min(start.len()));
                }
                Cell::Null | Cell::Number { .. } => continue,
            }
            if begins_as_picture(&start) {
                columns[place].column.encoding = Encoding::Image;
            }
        }
        Ok(())
    }

    /// What the fields are made of, and the places of their columns.
    fn fields(
        &self,
        path: &[u8],
        columns: &[TableColumn],
        warnings: &mut Vec<String>,
    ) -> Result<(Vec<TableField>, Vec<usize>), DatasetError> {
        let plain: Vec<Column> = columns.iter().map(|column| column.column.clone()).collect();
        let rules = match &self.rules {
            Some(rules) => {
                let mut rules = rules.clone();
                let settled = settle(&mut rules, &plain);
                settled.map_err(|reason| refuse(self.storage.full_path(path), reason))?;
                rules
            }
            None => {
                let (mut rules, left_out) = infer(&plain);
                if !left_out.is_empty() {
                    warnings.push(format!(
                        "columns that no field was made of: {}",
                        left_out.join(", ")
                    ));
                }
                rename_single(&mut rules, "image", columns, |column| {
                    column.column.encoding == Encoding::Image
                });
                rename_single(&mut rules, "label", columns, |column| !column.classes.is_empty());
                rules
            }
        };
        if rules.is_empty() {
            return Err(self.request.no_samples("it has no columns that can be read"));
        }
        let place =
            |rule: &RecordRule| plain.iter().position(|column| column.name == rule.column());
        // Settled or made of these columns: each is there.
        let places: Vec<usize> = rules.iter().filter_map(place).collect();
        let fields = rules.into_iter().zip(&places).map(|(rule, place)| TableField {
            rule,
            encoding: plain[*place].encoding.clone(),
            classes: columns[*place].classes.clone(),
            page_bytes: 0,
        });
        Ok((fields.collect(), places))
    }

    /// Reads the tables' rows and lays out an index.
    fn make(&self, warnings: &mut Vec<String>) -> Result<Vec<u8>, DatasetError> {
        let started_seconds = now_seconds();
        let request = &self.request;
        request.check_limit()?;
        let paths = self.files()?;
        let (storage, format, piece) = (self.storage, self.format, self.piece());
        let first = open_file(storage, &paths[0])?;
        let mut columns = (format.columns)(&first)?;
        let said = columns.clone();
        self.find_pictures(&first, &mut columns)?;
        let (mut fields, places) = self.fields(&paths[0], &columns, warnings)?;
        let limit = request.config.limit.filter(|_| request.ids.is_none());
        let skips = fields.iter().any(|field| field.rule.rule().missing == Missing::Skip);
        let scan = |place: usize, pace: &dyn Pace| {
            let file = open_file(storage, &paths[place])?;
            let own = (format.columns)(&file)?;
            if own != said {
                return Err(file.fault(format!(
                    "its columns are {}, and those of {} are {}; name tables of one kind in dataset.path",
                    words(&own),
                    String::from_utf8_lossy(&paths[0]),
                    words(&said)
                )));
            }
            let mut rows = FileRows::default();
            let mut visit = |row: u64, cells: &[Cell]| {
                if row.is_multiple_of(ROWS_PER_QUESTION) && pace.is_stopped_at(0, 0) {
                    return Err(DatasetError::Cancelled);
                }
                rows.add(cells);
                // One file alone has enough; rows may be skipped, and then more are needed.
                Ok(match limit {
                    Some(limit) if !skips && row + 1 >= limit => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                })
            };
            (format.rows)(&file, &places, piece, &mut visit)?;
            Ok((rows, file.stamp))
        };
        let found =
            shards::scan(paths.len(), limit.filter(|_| !skips), request.options.progress, &scan)?;
        let mut draft =
            RowDraft::new(fields.len(), [&request.identity, &request.digest], Stored::length);
        let mut listed = request.ids.as_ref().map(Listed::new).transpose()?;
        let (mut skipped, mut lacking) = (0_u64, vec![0_u64; fields.len()]);
        let mut pages = vec![PagesRead::default(); fields.len()];
        let mut name = Vec::new();
        let is_full =
            |draft: &RowDraft| request.config.limit.is_some_and(|limit| draft.samples() >= limit);
        for (path, (rows, stamp)) in paths.iter().zip(&found) {
            if listed.is_none() && is_full(&draft) {
                break;
            }
            draft.begin(path, *stamp);
            rows.visit(fields.len(), |row, cells| {
                let lacks = |(field, cell): (&TableField, &Option<&[u8]>)| {
                    cell.is_none() && field.rule.rule().missing == Missing::Skip
                };
                if fields.iter().zip(cells).any(lacks) {
                    skipped += 1;
                    return Ok::<(), DatasetError>(());
                }
                if let Some(listed) = &mut listed {
                    name.clear();
                    append_name(path, row, &mut name);
                    if !listed.take(&name) {
                        return Ok(());
                    }
                }
                if !is_full(&draft) {
                    for (lacking, cell) in lacking.iter_mut().zip(cells) {
                        *lacking += u64::from(cell.is_none());
                    }
                    for (pages, cell) in pages.iter_mut().zip(cells) {
                        pages.add(*cell);
                    }
                    draft.add(row, cells.iter().copied());
                }
                Ok(())
            })?;
        }
        if let Some(listed) = listed {
            listed.finish(
                "a sample is named by its file and its row, as in data-00000-of-00001.arrow:17",
            )?;
        }
        if draft.samples() == 0 {
            return Err(request.no_samples(match &request.ids {
                Some(ids) => ids.lists_none(),
                None if skipped > 0 => format!(
                    "all {skipped} rows lack a value that dataset.fields has as missing = \"skip\""
                ),
                None => "it has no rows".to_owned(),
            }));
        }
        if skipped > 0 {
            warnings.push(format!(
                "{skipped} rows without a value that dataset.fields has as missing = \"skip\" are left out"
            ));
        }
        for (field, pages) in fields.iter_mut().zip(pages) {
            field.page_bytes = pages.most;
            // In blocks a page is read once.
            let by_blocks = request.options.by_blocks;
            warnings.extend(pages.warning(field.rule.column()).filter(|_| !by_blocks));
        }
        for (field, lacking) in fields.iter().zip(lacking) {
            let rule = field.rule.rule();
            if lacking > 0 && rule.missing == Missing::Error {
                warnings.push(format!(
                    "{lacking} rows have no {}, and are bad samples; set dataset.fields.{}.missing to \"skip\" to leave them out",
                    field.rule.column(),
                    rule.name
                ));
            }
        }
        let text = serde_json::to_string(&fields).unwrap_or_default();
        Ok(draft.build(started_seconds, &text))
    }

    /// The dataset over an index. The first sample says what arrays are.
    fn dataset(&self, index: RowIndex) -> Result<TableSamples, DatasetError> {
        let columns =
            parse_fields(index.rules()).filter(|columns| columns.len() == index.columns());
        let columns = columns.ok_or_else(|| {
            let path = self.request.place.path.clone();
            refuse(path, "its fields cannot be read back; remove the index")
        })?;
        let limit = self.request.config.limits.sample_bytes;
        let shared_limit = self.request.options.by_blocks.then_some(limit);
        let mut dataset = TableSamples { index, fields: Vec::new(), columns, shared_limit };
        let first = SampleId(0);
        let refuse_first = |reason: String| {
            let mut name = Vec::new();
            dataset.append_name(first, &mut name);
            DatasetError::FirstSample { path: self.storage.full_path(&name), reason }
        };
        let mut fields: Vec<Field> = Vec::new();
        if dataset.columns.iter().any(|column| column.rule.rule().form == Form::Array) {
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            let storage = UnpackingStorage::new(self.storage, 0);
            read_sample(&storage, &dataset, first, limit, &mut bytes, &mut ends).map_err(
                |error| match error.is_transient() {
                    true => error.into(),
                    false => refuse_first(error.to_string()),
                },
            )?;
            let mut columns = dataset.columns.iter();
            let take = |value: FieldValue<'_>| -> Result<(), Defect> {
                fields.extend(
                    columns.next().map(|column| column.rule.field(Some(&value))).transpose()?,
                );
                Ok(())
            };
            let values = dataset.values(first, SampleBytes::new(&bytes, &ends), take);
            values.map_err(|defect| refuse_first(defect.0))?;
        } else {
            let all: Result<Vec<Field>, _> =
                dataset.columns.iter().map(|column| column.rule.field(None)).collect();
            fields = all.map_err(|defect| refuse_first(defect.0))?;
        }
        dataset.fields = fields;
        Ok(dataset)
    }
}

fn open_file<'f>(storage: &'f dyn Storage, path: &'f [u8]) -> Result<StoredFile<'f>, DatasetError> {
    StoredFile::new(storage, path).map_err(|error| tell_missing(error.into()))
}

/// Has the field of the one column that is so go by a name, unless another does.
fn rename_single(
    rules: &mut [RecordRule],
    name: &str,
    columns: &[TableColumn],
    is_it: impl Fn(&TableColumn) -> bool,
) {
    let mut those = columns.iter().filter(|column| is_it(column));
    let (Some(one), None) = (those.next(), those.next()) else { return };
    if rules.iter().all(|rule| rule.rule().name != name) {
        let of_it = |rule: &&mut RecordRule| rule.column() == one.column.name;
        rules.iter_mut().filter(of_it).for_each(|rule| rule.rename(name));
    }
}

/// What is read for a column whose values lie in compressed pages.
#[derive(Debug, Clone, Copy, Default)]
struct PagesRead {
    /// What unpacking one takes at most.
    most: u64,
    values: u64,
    /// Of all values, and of the pages that are read for them.
    value_bytes: u64,
    page_bytes: u64,
}

impl PagesRead {
    fn add(&mut self, cell: Option<&[u8]>) {
        if let Some(Stored::Packed(packed)) = cell.map(Stored::of) {
            self.most = self.most.max(packed.page_bytes());
            self.values += 1;
            self.value_bytes = self.value_bytes.saturating_add(packed.part.length.into());
            self.page_bytes = self.page_bytes.saturating_add(packed.bytes);
        }
    }

    /// What it costs, where it costs something.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn warning(&self, column: &str) -> Option<String> {
        let values = self.values.max(1);
        (self.page_bytes / 2 > self.value_bytes).then(|| {
            format!(
                "the values of {column} lie in compressed pages, and a page is read and unpacked for each: {} KiB for {} KiB, \
                 {:.1} bytes read for each one used; order.shuffle = \"blocks\" reads each page once, a cache ([cache]) keeps \
                 the values alone, or write the files with \
                 compression=\"none\" and use_dictionary=False",
                (self.page_bytes / values).div_ceil(1024),
                (self.value_bytes / values).div_ceil(1024),
                self.page_bytes as f64 / self.value_bytes.max(1) as f64
            )
        })
    }
}

/// Columns for a message.
fn words(columns: &[TableColumn]) -> String {
    let names: Vec<_> = columns.iter().take(20).map(|column| column.column.name.as_str()).collect();
    names.join(", ")
}
