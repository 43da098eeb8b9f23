//! Reads tables for an index.

use std::ops::ControlFlow;

use forebay_config::DatasetConfig;
use forebay_storage::version::FileStamp;

use super::{FileRows, Stored, TableField, Tables, refuse};
use crate::columns::{ColumnRule, Source, read_rules};
use crate::fields::{Form, Missing, begins_as_picture};
use crate::indexed::{Format, Opening};
use crate::records::{first_names, first_of, infer, settle, with_reason};
use forebay_columnar::{Cell, Column, Encoding, Inferred, PackedCell, Reader, Reads, TableColumn};
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::FolderFormat;
use forebay_index::folder::select::Listed;
use forebay_index::row_index::{RowDraft, append_name};
use forebay_index::saved_index::{EXCEPT_BY_BLOCKS, Request, now_seconds, open_file};
use forebay_index::shards::{self, Pace};
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;

/// The number of rows between two checks whether the scan was stopped.
pub(crate) const ROWS_PER_QUESTION: u64 = 4096;

/// The files that a file of the folder lists.
type List = fn(&dyn Storage, &DatasetConfig) -> Result<Option<Vec<Vec<u8>>>, DatasetError>;

/// The rows that were deleted from files without rewriting them: by file, in ascending order.
pub(crate) type DeletedRows = Vec<Vec<u64>>;

/// Finds the deleted rows of files.
type FindDeleted = fn(&dyn Storage, &[Vec<u8>]) -> Result<DeletedRows, DatasetError>;

/// A format of tables.
#[derive(Clone, Copy)]
pub(crate) struct TableFormat {
    pub(crate) format: FolderFormat,
    /// As [`Format::MARKS`].
    pub(crate) marks: &'static [&'static str],
    /// Names the expected contents of `dataset.path` in messages.
    pub(crate) expected: &'static str,
    /// The files of a folder, relative to it, if a file there lists them; `None`: all files of the extension are read.
    pub(crate) listed: List,
    /// The deleted rows of such files; empty: there are none.
    pub(crate) deleted: FindDeleted,
    pub(crate) reader: Reader,
    /// The word for a part of the file that is compressed as a whole, for messages.
    pub(crate) part: &'static str,
    /// How to write such a file without compression, for messages.
    pub(crate) uncompressed: &'static str,
    /// Why files have other columns than the first one, and the remedy, if the format knows it.
    pub(crate) differing: Option<&'static str>,
}

/// The type of a format of tables.
pub(crate) trait TableKind: std::fmt::Debug + Send + Sync + 'static {
    /// The format.
    const TABLES: TableFormat;
    /// The version of how values are read; saved indexes of another version are rebuilt.
    const READING: &'static str = "";
    /// Whether a dataset is a folder with an extension.
    const IS_FOLDER: bool = false;
}

/// For formats whose files have all of their rows.
#[expect(clippy::unnecessary_wraps, reason = "other formats read files")]
pub(crate) fn none_deleted(_: &dyn Storage, _: &[Vec<u8>]) -> Result<DeletedRows, DatasetError> {
    Ok(Vec::new())
}

pub(crate) fn reads(storage: &dyn Storage) -> Reads {
    let is_local = storage.remote_root().is_none();
    Reads { piece: if is_local { 64 << 10 } else { 1 << 20 }, is_local }
}

/// Treats undeclared binary columns as images if the first row contains an image. Gives whether there is a row.
fn find_pictures<T: TableKind>(
    opening: &Opening<'_, Tables<T>>,
    file: &StoredFile<'_>,
    columns: &mut [TableColumn],
) -> Result<bool, DatasetError> {
    let rules = read_rules(opening.keys.fields.as_deref(), Source::Tables)?;
    let is_named = |name: &str| {
        rules.as_ref().is_none_or(|rules| rules.iter().any(|rule| rule.column() == name))
    };
    let unknown = columns.iter().enumerate().filter(|(_, column)| {
        let Column { name, encoding, .. } = &column.column;
        *encoding == Encoding::Bytes && !column.is_known && is_named(name)
    });
    let places: Vec<usize> = unknown.map(|(place, _)| place).collect();
    if places.is_empty() {
        return Ok(true);
    }
    let mut found = Vec::new();
    let mut first = |_: u64, cells: &[Cell]| {
        found = cells.to_vec();
        Ok(ControlFlow::Break(()))
    };
    (T::TABLES.reader.rows)(file, &places, reads(opening.storage), &mut first)?;
    let has_rows = !found.is_empty();
    let mut start = Vec::new();
    for (place, cell) in places.into_iter().zip(found) {
        match cell {
            Cell::At { offset, length } => file.read(offset, length.min(16), &mut start)?,
            Cell::Value(value) => start = value,
            Cell::Packed(PackedCell { offset, bytes, part }) => {
                let mut packed = Vec::new();
                file.read(offset, bytes, &mut packed)?;
                let (first, length) = (part.start as usize, part.length as usize);
                // The scan just unpacked the same page without error.
                let sizes = (part.unpacked_bytes as usize, first + length);
                part.codec.unpack(&packed, sizes, &mut start);
                start.drain(..first.min(start.len()));
            }
            Cell::Null | Cell::Number { .. } | Cell::List(_) | Cell::Unread(_) => continue,
        }
        if begins_as_picture(&start) {
            columns[place].column.encoding = Encoding::Image;
        }
    }
    Ok(has_rows)
}

/// The chosen fields.
struct Chosen {
    fields: Vec<TableField>,
    /// By field: the index of its column.
    places: Vec<usize>,
    /// Columns without a field; `None`: the configuration names its columns, and all of them are required.
    left_out: Option<Vec<String>>,
}

impl Chosen {
    fn new<T: TableKind>(
        opening: &Opening<'_, Tables<T>>,
        path: &[u8],
        columns: &[TableColumn],
    ) -> Result<Self, DatasetError> {
        let plain: Vec<Column> = columns.iter().map(|column| column.column.clone()).collect();
        let (rules, left_out) = match read_rules(opening.keys.fields.as_deref(), Source::Tables)? {
            Some(mut rules) => {
                let settled = settle(&mut rules, &plain);
                settled.map_err(|reason| refuse(opening.storage.full_path(path), reason))?;
                (rules, None)
            }
            None => {
                let is_field =
                    |column: &&TableColumn| !column.is_path && column.inferred == Inferred::Field;
                let own = columns.iter().filter(is_field);
                let own: Vec<Column> = own.map(|column| column.column.clone()).collect();
                let (rules, mut left_out) = infer(&own);
                left_out.extend(columns.iter().filter_map(|column| match &column.inferred {
                    Inferred::LeftOut(why) => Some(with_reason(&column.column.name, why)),
                    Inferred::Field | Inferred::Unmentioned => None,
                }));
                (rules, Some(left_out))
            }
        };
        let place =
            |rule: &ColumnRule| plain.iter().position(|column| column.name == rule.column());
        // The rules were settled or inferred from these columns, so each is found.
        let places: Vec<usize> = rules.iter().filter_map(place).collect();
        let fields = rules.into_iter().zip(&places).map(|(rule, place)| TableField {
            rule,
            encoding: plain[*place].encoding.clone(),
            classes: columns[*place].classes.to_vec(),
            page_bytes: 0,
        });
        let chosen = Self { fields: fields.collect(), places, left_out };
        chosen.check(opening)?;
        Ok(chosen)
    }

    /// Refuses a table without readable columns.
    fn check<T: TableKind>(&self, opening: &Opening<'_, Tables<T>>) -> Result<(), DatasetError> {
        if !self.fields.is_empty() {
            return Ok(());
        }
        let why = self.left_out_names().map_or(String::new(), |names| format!(": {names}"));
        Err(opening.request.no_samples(format!("it has no columns that can be read{why}")))
    }

    fn left_out_names(&self) -> Option<String> {
        Some(first_of(self.left_out.iter().flatten())).filter(|names| !names.is_empty())
    }

    /// Leaves out the columns whose values are not supported. Gives by former column whether it is kept.
    fn leave_out(&mut self, rows: &[&FileRows]) -> Vec<bool> {
        let why = |place: usize| rows.iter().find_map(|rows| rows.unread(place));
        let unread: Vec<_> = (0..self.fields.len()).map(why).collect();
        let all = self.left_out.get_or_insert_default();
        for (field, why) in self.fields.iter().zip(&unread) {
            all.extend(why.map(|why| with_reason(field.rule.column(), why)));
        }
        let stays: Vec<bool> = unread.iter().map(Option::is_none).collect();
        let mut of = stays.iter();
        self.fields.retain(|_| of.next().copied().unwrap_or(true));
        let mut of = stays.iter();
        self.places.retain(|_| of.next().copied().unwrap_or(true));
        stays
    }

    /// Chooses the columns and names the fields after the rows were read. Gives by former column whether it is kept.
    fn settle<T: TableKind>(
        &mut self,
        opening: &Opening<'_, Tables<T>>,
        rows: &[&FileRows],
        columns: &[TableColumn],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<bool>, DatasetError> {
        if self.left_out.is_none() {
            return Ok(vec![true; self.fields.len()]);
        }
        let stays = self.leave_out(rows);
        self.check(opening)?;
        self.rename(columns);
        let left_out = self.left_out_names();
        warnings
            .extend(left_out.map(|names| format!("columns that no field was made of: {names}")));
        Ok(stays)
    }

    /// Renames a single column of images to `image`, and a single column of classes to `label`.
    fn rename(&mut self, columns: &[TableColumn]) {
        let columns: Vec<_> = self.places.iter().map(|place| &columns[*place]).collect();
        let is_image = |column: &TableColumn| column.column.encoding == Encoding::Image;
        rename_single(&mut self.fields, "image", &columns, is_image);
        rename_single(&mut self.fields, "label", &columns, |column| !column.classes.is_empty());
    }
}

/// What is read of each table.
struct TableScan<'a> {
    storage: &'a dyn Storage,
    format: &'a TableFormat,
    paths: &'a [Vec<u8>],
    /// The columns of the first table, as its file describes them.
    described: &'a [TableColumn],
    chosen: &'a Chosen,
    /// The number of rows after which no more of a file are needed.
    limit: Option<u64>,
}

impl TableScan<'_> {
    /// Reads the rows of a table.
    fn rows(&self, place: usize, pace: &dyn Pace) -> Result<(FileRows, FileStamp), DatasetError> {
        let file = open_file(self.storage, &self.paths[place])?;
        let own = (self.format.reader.columns)(&file)?;
        if own != self.described {
            let first = String::from_utf8_lossy(&self.paths[0]);
            let difference = || difference(&own, &first, self.described);
            return Err(file.fault(self.format.differing.map_or_else(difference, str::to_owned)));
        }
        let Chosen { fields, places, left_out } = self.chosen;
        let mut rows = FileRows::default();
        let mut visit = |row: u64, cells: &[Cell]| {
            if row.is_multiple_of(ROWS_PER_QUESTION) && pace.is_stopped_at(0, 0) {
                return Err(DatasetError::Cancelled);
            }
            rows.add(cells);
            if let Some((place, why)) = rows.first_unread().filter(|_| left_out.is_none()) {
                let name = fields[place].rule.column();
                return Err(
                    file.fault(format!("column {name}: {why}, or leave it out of dataset.fields"))
                );
            }
            Ok(match self.limit {
                Some(limit) if row + 1 >= limit => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        };
        (self.format.reader.rows)(&file, places, reads(self.storage), &mut visit)?;
        Ok((rows, file.stamp))
    }
}

/// The rows of the index, and what is counted of them.
struct KeptRows<'a> {
    fields: &'a [TableField],
    limit: Option<u64>,
    draft: RowDraft,
    listed: Option<Listed<'a>>,
    skipped: u64,
    /// By field: the rows without a value.
    lacking: Vec<u64>,
    /// By field.
    pages: Vec<PagesRead>,
    /// The name of a row, in one allocation for all of them.
    name: Vec<u8>,
}

impl<'a> KeptRows<'a> {
    fn new(request: &'a Request<'_>, fields: &'a [TableField]) -> Result<Self, DatasetError> {
        let keys = [&request.identity, &request.digest];
        Ok(Self {
            fields,
            limit: request.config.limit,
            draft: RowDraft::new(fields.len(), keys, Stored::length),
            listed: request.ids.as_ref().map(Listed::new).transpose()?,
            skipped: 0,
            name: Vec::new(),
            lacking: vec![0; fields.len()],
            pages: vec![PagesRead::default(); fields.len()],
        })
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.draft.samples() >= limit)
    }

    /// Adds a row, if it has the required values and the configuration selects it.
    fn add(&mut self, path: &[u8], row: u64, cells: &[Option<&[u8]>]) {
        let lacks = |(field, cell): (&TableField, &Option<&[u8]>)| {
            cell.is_none() && field.rule.rule.missing == Missing::Skip
        };
        if self.fields.iter().zip(cells).any(lacks) {
            self.skipped += 1;
            return;
        }
        if let Some(listed) = &mut self.listed {
            self.name.clear();
            append_name(path, row, &mut self.name);
            if !listed.take(&self.name) {
                return;
            }
        }
        if self.is_full() {
            return;
        }
        for ((lacking, pages), cell) in self.lacking.iter_mut().zip(&mut self.pages).zip(cells) {
            *lacking += u64::from(cell.is_none());
            pages.add(*cell);
        }
        self.draft.add(row, cells.iter().copied());
    }
}

/// Reads the tables' rows and builds an index.
pub(super) fn make<T: TableKind>(
    opening: &Opening<'_, Tables<T>>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let started_seconds = now_seconds();
    let request = &opening.request;
    request.check_limit()?;
    let paths = Tables::files(opening)?;
    let (storage, format) = (opening.storage, &T::TABLES);
    let first = open_file(storage, &paths[0])?;
    let described = (format.reader.columns)(&first)?;
    let mut columns = described.clone();
    // Files may have no rows.
    for path in &paths {
        if find_pictures(opening, &open_file(storage, path)?, &mut columns)? {
            break;
        }
    }
    let deleted = (format.deleted)(storage, &paths)?;
    let mut chosen = Chosen::new(opening, &paths[0], &columns)?;
    // One file can reach the limit; if rows may be left out, more are needed.
    let skips = chosen.fields.iter().any(|field| field.rule.rule.missing == Missing::Skip);
    let skips = skips || !deleted.is_empty();
    let limit = request.config.limit.filter(|_| request.ids.is_none() && !skips);
    let scan =
        TableScan { storage, format, paths: &paths, described: &described, chosen: &chosen, limit };
    let scan_table = |place: usize, pace: &dyn Pace| scan.rows(place, pace);
    let found = shards::scan(paths.len(), limit, request.options.progress, &scan_table)?;
    let rows: Vec<_> = found.iter().map(|(rows, _)| rows).collect();
    let stays = chosen.settle(opening, &rows, &columns, warnings)?;
    let mut kept = KeptRows::new(request, &chosen.fields)?;
    for (place, (path, (rows, stamp))) in paths.iter().zip(found).enumerate() {
        // All names of a list of ids are searched.
        if kept.listed.is_none() && kept.is_full() {
            break;
        }
        kept.draft.begin(path, stamp);
        let mut gone = deleted.get(place).into_iter().flatten().peekable();
        rows.visit(&stays, |row, cells| match gone.next_if_eq(&&row) {
            Some(_) => {}
            None => kept.add(path, row, cells),
        });
    }
    let KeptRows { draft, listed, skipped, lacking, pages, .. } = kept;
    let form = "a sample is named by its file and its row, as in data-00000-of-00001.arrow:17";
    opening.conclude_rows(listed, form, (draft.samples(), skipped), warnings)?;
    let fields = &mut chosen.fields;
    for (field, pages) in fields.iter_mut().zip(pages) {
        field.page_bytes = pages.most;
        let is_list = matches!(field.encoding, Encoding::Images | Encoding::ByteLists);
        warnings.extend(pages.warning(field.rule.column(), is_list, format));
    }
    let lacking = fields.iter().zip(lacking);
    warnings
        .extend(lacking.filter_map(|(field, rows)| lacking_warning(field, rows, draft.samples())));
    let text = serde_json::to_string(fields).unwrap_or_default();
    Ok(draft.build(started_seconds, &text))
}

/// A warning about a field without a value in some rows.
fn lacking_warning(field: &TableField, lacking: u64, samples: u64) -> Option<String> {
    let rule = &field.rule.rule;
    if lacking == 0 || lacking < samples || rule.form != Form::Image {
        return rule.lacking_warning(lacking, "row");
    }
    Some(format!(
        "no row holds the bytes of a picture in {}: the writer stored the paths alone, as `to_parquet` of Hugging Face does. \
         Read the files that they name with dataset.format = \"manifest\" (dataset.root: the folder that the paths start \
         at); or store the pictures, too, as `save_to_disk` and `push_to_hub` do",
        field.rule.column()
    ))
}

/// Renames the field of the only column that `is_it` accepts, unless another field has the name.
fn rename_single(
    fields: &mut [TableField],
    name: &str,
    columns: &[&TableColumn],
    is_it: impl Fn(&TableColumn) -> bool,
) {
    let mut those = columns.iter().zip(0..).filter(|(column, _)| is_it(column));
    let (Some((_, place)), None) = (those.next(), those.next()) else { return };
    if fields.iter().all(|field| field.rule.rule.name != name) {
        name.clone_into(&mut fields[place].rule.rule.name);
    }
}

/// The reads of a column whose values are in compressed pages.
#[derive(Debug, Clone, Copy, Default)]
struct PagesRead {
    /// The maximum memory to unpack a page.
    most: u64,
    values: u64,
    /// The sums of the values, and of the pages read for them.
    value_bytes: u64,
    page_bytes: u64,
}

impl PagesRead {
    fn add(&mut self, cell: Option<&[u8]>) {
        match cell.map(Stored::of) {
            Some(Stored::Packed(packed)) => self.add_page(packed),
            Some(Stored::List(list)) => {
                for place in list.stretches().places {
                    if let Stored::Packed(packed) = place {
                        self.add_page(packed);
                    }
                }
            }
            _ => {}
        }
    }

    fn add_page(&mut self, packed: PackedCell) {
        self.most = self.most.max(packed.page_bytes());
        self.values += 1;
        self.value_bytes = self.value_bytes.saturating_add(packed.part.length.into());
        self.page_bytes = self.page_bytes.saturating_add(packed.bytes);
    }

    /// A warning, if the reads are much larger than the values.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn warning(&self, column: &str, is_list: bool, format: &TableFormat) -> Option<String> {
        let TableFormat { part, uncompressed, .. } = format;
        let values = self.values.max(1);
        (self.page_bytes / 2 > self.value_bytes).then(|| {
            // Lists are read alone in any order.
            let (except, blocks) = match is_list {
                true => (String::new(), String::new()),
                false => (EXCEPT_BY_BLOCKS.to_string(), format!("order.shuffle = \"blocks\" reads each {part} once, ")),
            };
            format!(
                "{except}the values of {column} lie in compressed {part}s, and a {part} is read and unpacked for each: {} KiB \
                 for {} KiB, {:.1} bytes read for each one used; {blocks}a cache ([cache]) keeps the values alone, or write \
                 the files {uncompressed}",
                (self.page_bytes / values).div_ceil(1024),
                (self.value_bytes / values).div_ceil(1024),
                self.page_bytes as f64 / self.value_bytes.max(1) as f64
            )
        })
    }
}

/// The columns' names for a message.
fn words(columns: &[TableColumn]) -> String {
    first_names(columns.iter().map(|column| column.column.name.as_str()))
}

/// Says how a table's columns differ from those of the first one.
fn difference(own: &[TableColumn], first: &str, described: &[TableColumn]) -> String {
    let pairs = || own.iter().zip(described);
    let are_named_alike = own.len() == described.len()
        && pairs().all(|(own, other)| own.column.name == other.column.name);
    let Some((own, other)) = pairs().find(|(own, other)| own != other).filter(|_| are_named_alike)
    else {
        return format!(
            "its columns are {}, and those of {first} are {}; name tables of one kind in dataset.path",
            words(own),
            words(described)
        );
    };
    let name = &own.column.name;
    let (here, there) = match own.column.encoding == other.column.encoding {
        false => (own.column.encoding.words(), other.column.encoding.words()),
        true if own.classes != other.classes => (classes_of(own), classes_of(other)),
        true => ("values declared in another way".to_owned(), other.column.encoding.words()),
    };
    format!(
        "column {name} has {here}, and in {first} {there}; name tables of one kind in dataset.path, or write this one once \
         more with pyarrow's table.cast(first.schema), where `first` is the table of {first}"
    )
}

/// The classes of a column for a message.
fn classes_of(column: &TableColumn) -> String {
    match column.classes.is_empty() {
        true => "no names of classes".to_owned(),
        false => {
            format!("the classes {}", first_names(column.classes.iter().map(|name| &name[..])))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_differ_are_named_with_both_types() {
        let column = |encoding: Encoding, classes: &[&str]| TableColumn {
            column: Column { name: "label".to_owned(), encoding, bytes: None },
            classes: classes.iter().map(|name| (*name).to_owned()).collect(),
            is_known: true,
            is_path: false,
            inferred: Inferred::Field,
        };
        let number = |name: &str, classes| column(Encoding::Number(name.to_owned()), classes);
        let said = |own, other| difference(&[own], "a.parquet", &[other]);
        let types = said(number("int32", &[]), number("int64", &[]));
        assert!(
            types.starts_with(
                "column label has numbers (int32), and in a.parquet numbers (int64); "
            ),
            "{types}"
        );
        assert!(
            types.contains("table.cast(first.schema), where `first` is the table of a.parquet")
        );
        let classes = said(number("int64", &["cat"]), number("int64", &["cat", "dog"]));
        assert!(classes.contains("has the classes cat, and in a.parquet the classes cat, dog"));
    }
}
