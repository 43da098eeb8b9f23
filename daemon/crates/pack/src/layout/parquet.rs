//! `parquet`: tables, plainly encoded, for pyarrow, pandas, Polars, DuckDB and `datasets`.
//!
//! Pictures, sounds, bytes and `.npy` files of arrays are not compressed, so that a reader can locate each by its offset;
//! texts are compressed with Snappy in small pages. Columns are required, but for that of classes: Hugging Face's
//! declaration in the footer has the classes' names, and `datasets` uses it only for optional columns. The pages of a
//! row group wait in memory until it is written: see [`GROUP_BYTES`].

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use forebay_dataset::Field;
use serde_json::json;

use super::thrift::{Struct, push_varint};
use super::{Column, Layout, Shard, Stored, TableOf, columns_by_name, file_of, is_class};
use crate::names::KEY;
use crate::sample::{Sample, Value};

const MAGIC: &[u8] = b"PAR1";
/// The bytes of pages from which on a row group is written.
const GROUP_BYTES: u64 = 32 << 20;
/// The most rows of a row group.
const GROUP_ROWS: u64 = 1 << 20;
/// The bytes from which on a page ends; of texts, which are unpacked by pages, fewer.
const PAGE_BYTES: usize = 1 << 20;
const TEXT_PAGE_BYTES: usize = 64 << 10;
/// Sizes of pages are i32; the header takes few bytes.
const MAX_PAGE_BYTES: usize = (i32::MAX >> 1) as usize;

const BOOLEAN: i32 = 0;
const INT64: i32 = 2;
const FLOAT: i32 = 4;
const DOUBLE: i32 = 5;
const BYTE_ARRAY: i32 = 6;
const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;
const REPEATED: i32 = 2;
/// Converted types.
const UTF8: i32 = 0;
const CONVERTED_LIST: i32 = 3;
/// Encodings.
const PLAIN: i32 = 0;
const RLE: i32 = 3;
/// Codecs.
const UNCOMPRESSED: i32 = 0;
const SNAPPY: i32 = 1;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Parquet;

impl Layout for Parquet {
    fn word(&self) -> &'static str {
        "parquet"
    }

    fn format(&self) -> &'static str {
        "parquet"
    }

    fn needs_keys(&self) -> bool {
        false
    }

    fn max_shard_bytes(&self) -> u64 {
        u64::MAX
    }

    fn columns(&self, fields: &[Field]) -> Result<Vec<Column>, String> {
        columns_by_name(fields, |_, stored| {
            Ok(if stored == Stored::Array { Stored::NumPy } else { stored })
        })
    }

    fn file_name(&self, shard: u64) -> String {
        format!("shard-{shard:06}.parquet")
    }

    fn begin(&self, table: &TableOf, file: File, _path: &Path) -> io::Result<Box<dyn Shard>> {
        let mut columns = table.columns.clone();
        if table.has_names {
            let field = Field { name: KEY.to_owned(), kind: forebay_dataset::FieldKind::Text };
            columns.push(Column { field, from: vec![KEY.to_owned()], stored: Stored::Text });
        }
        let declaration = declaration(&columns, &table.classes);
        let pages = columns.iter().map(|_| Chunk::default()).collect();
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(MAGIC)?;
        let written = MAGIC.len() as u64;
        let (groups, rows) = (Vec::new(), 0);
        Ok(Box::new(Table { columns, chunks: pages, declaration, file, written, groups, rows }))
    }
}

/// Hugging Face's declaration of the columns, if there is one of classes: their names. Old versions of `datasets` need all
/// columns in it.
fn declaration(columns: &[Column], classes: &[String]) -> Option<String> {
    if classes.is_empty() || !columns.iter().any(|column| is_class(&column.field)) {
        return None;
    }
    let value = |dtype: &str| json!({ "dtype": dtype, "_type": "Value" });
    let feature = |column: &Column| match column.stored {
        Stored::Integer if is_class(&column.field) => {
            json!({ "names": classes, "_type": "ClassLabel" })
        }
        Stored::Integer => value("int64"),
        Stored::Float => value("float64"),
        Stored::Float32 => value("float32"),
        Stored::Bool => value("bool"),
        Stored::Text => value("string"),
        Stored::Pictures => json!([value("binary")]),
        _ => value("binary"),
    };
    let features = columns.iter().map(|column| (column.from[0].clone(), feature(column)));
    let features: serde_json::Map<_, _> = features.collect();
    Some(json!({ "info": { "features": features } }).to_string())
}

/// The column of a row group, in complete pages and one that is not.
#[derive(Debug, Default)]
struct Chunk {
    pages: Vec<u8>,
    /// The bytes of the pages with their headers, if they were not compressed.
    unpacked: u64,
    /// Values with an entry in a page: of lists also the empty ones.
    values: u64,
    page: Page,
}

/// A page that is being filled.
#[derive(Debug, Default)]
struct Page {
    values: Vec<u8>,
    /// The number of entries.
    count: u32,
    /// Of lists, for each entry: whether it goes on with the list before it, and whether there is a value.
    levels: Vec<(bool, bool)>,
}

impl Page {
    fn bytes(&self) -> usize {
        self.values.len() + self.levels.len() / 4
    }

    fn add_bytes(&mut self, value: &[u8]) -> io::Result<()> {
        let fits = value.len() <= MAX_PAGE_BYTES - self.values.len().min(MAX_PAGE_BYTES);
        let length = u32::try_from(value.len()).ok().filter(|_| fits).ok_or_else(|| {
            io::Error::other(format!("a value of {} bytes does not fit into a page", value.len()))
        })?;
        self.values.extend_from_slice(&length.to_le_bytes());
        self.values.extend_from_slice(value);
        Ok(())
    }

    /// Adds a bit of a page of booleans.
    fn add_bit(&mut self, bit: bool) {
        let place = self.count % 8;
        if place == 0 {
            self.values.push(0);
        }
        if let Some(last) = self.values.last_mut() {
            *last |= u8::from(bit) << place;
        }
    }
}

impl Chunk {
    fn add(&mut self, column: &Column, value: &Value) -> io::Result<()> {
        let page = &mut self.page;
        let mut entries = 1;
        match (column.stored, value) {
            (Stored::Integer, Value::Integer(value)) => {
                page.values.extend_from_slice(&value.to_le_bytes());
            }
            (Stored::Float, Value::Float(value)) => {
                page.values.extend_from_slice(&value.to_le_bytes());
            }
            (Stored::Float32, Value::Array(array)) => page.values.extend_from_slice(&array.bytes),
            (Stored::Bool, Value::Array(array)) => page.add_bit(array.bytes.first() == Some(&1)),
            (Stored::Pictures, Value::Files(files)) => {
                for (place, file) in files.iter().enumerate() {
                    page.levels.push((place > 0, true));
                    page.add_bytes(file)?;
                }
                if files.is_empty() {
                    page.levels.push((false, false));
                }
                entries = u32::try_from(files.len().max(1)).map_err(io::Error::other)?;
            }
            _ => page.add_bytes(&file_of(column, value)?)?,
        }
        page.count += entries;
        self.values += u64::from(entries);
        let most = if column.stored == Stored::Text { TEXT_PAGE_BYTES } else { PAGE_BYTES };
        if page.bytes() >= most { self.end_page(column) } else { Ok(()) }
    }

    fn end_page(&mut self, column: &Column) -> io::Result<()> {
        let stored = column.stored;
        let Page { values, count, levels } = std::mem::take(&mut self.page);
        if count == 0 {
            return Ok(());
        }
        let mut data = Vec::new();
        if stored == Stored::Pictures {
            push_levels(&mut data, levels.iter().map(|(goes_on, _)| *goes_on));
            push_levels(&mut data, levels.iter().map(|(_, has_value)| *has_value));
        }
        if repetition(column) == OPTIONAL {
            push_levels(&mut data, (0..count).map(|_| true));
        }
        data.extend_from_slice(&values);
        let unpacked = data.len();
        if codec(stored) == SNAPPY {
            data = snap::raw::Encoder::new().compress_vec(&data).map_err(io::Error::other)?;
        }
        let size = |bytes: usize| i32::try_from(bytes).map_err(io::Error::other);
        let header = Struct::default()
            .i32(1, 0)
            .i32(2, size(unpacked)?)
            .i32(3, size(data.len())?)
            .structure(
                5,
                Struct::default()
                    .i32(1, i32::try_from(count).map_err(io::Error::other)?)
                    .i32(2, PLAIN)
                    .i32(3, RLE)
                    .i32(4, RLE),
            )
            .finish();
        self.unpacked += (header.len() + unpacked) as u64;
        self.pages.extend(header);
        self.pages.extend(data);
        Ok(())
    }
}

/// Levels of 0 and 1 as runs of equal ones, after their length in bytes.
fn push_levels(data: &mut Vec<u8>, levels: impl Iterator<Item = bool>) {
    let mut runs = Vec::new();
    let mut push = |level: bool, count: u64| {
        push_varint(&mut runs, count << 1);
        runs.push(u8::from(level));
    };
    let mut run: Option<(bool, u64)> = None;
    for level in levels {
        run = Some(match run {
            Some((same, count)) if same == level => (same, count + 1),
            Some((other, count)) => {
                push(other, count);
                (level, 1)
            }
            None => (level, 1),
        });
    }
    if let Some((level, count)) = run {
        push(level, count);
    }
    // A page is shorter than an i32.
    data.extend_from_slice(&u32::try_from(runs.len()).unwrap_or(u32::MAX).to_le_bytes());
    data.extend(runs);
}

const fn physical(stored: Stored) -> i32 {
    match stored {
        Stored::Integer => INT64,
        Stored::Float => DOUBLE,
        Stored::Float32 => FLOAT,
        Stored::Bool => BOOLEAN,
        _ => BYTE_ARRAY,
    }
}

const fn codec(stored: Stored) -> i32 {
    if matches!(stored, Stored::Text) { SNAPPY } else { UNCOMPRESSED }
}

fn repetition(column: &Column) -> i32 {
    if is_class(&column.field) { OPTIONAL } else { REQUIRED }
}

/// The names of the groups of a list and of its elements.
const LIST_PATH: [&str; 2] = ["list", "element"];

/// The elements of the schema of a column.
fn schema(column: &Column) -> Vec<Struct> {
    let name = column.from[0].as_str();
    let (stored, repetition) = (physical(column.stored), repetition(column));
    match column.stored {
        Stored::Pictures => vec![
            Struct::default().i32(3, repetition).text(4, name).i32(5, 1).i32(6, CONVERTED_LIST),
            Struct::default().i32(3, REPEATED).text(4, LIST_PATH[0]).i32(5, 1),
            Struct::default().i32(1, stored).i32(3, repetition).text(4, LIST_PATH[1]),
        ],
        Stored::Text => vec![
            Struct::default()
                .i32(1, stored)
                .i32(3, repetition)
                .text(4, name)
                .i32(6, UTF8)
                // The logical type of strings is an empty struct.
                .structure(10, Struct::default().structure(1, Struct::default())),
        ],
        _ => vec![Struct::default().i32(1, stored).i32(3, repetition).text(4, name)],
    }
}

/// A file.
struct Table {
    columns: Vec<Column>,
    chunks: Vec<Chunk>,
    declaration: Option<String>,
    file: BufWriter<File>,
    written: u64,
    /// The row groups that are written, and the number of rows of each.
    groups: Vec<(Struct, u64)>,
    /// The rows that wait.
    rows: u64,
}

impl Table {
    fn waiting_bytes(&self) -> u64 {
        let of = |chunk: &Chunk| (chunk.pages.len() + chunk.page.bytes()) as u64;
        self.chunks.iter().map(of).sum()
    }

    fn end_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut chunks = Vec::with_capacity(self.columns.len());
        let mut all = 0;
        let signed = |number: u64| i64::try_from(number).map_err(io::Error::other);
        for (column, chunk) in self.columns.iter().zip(&mut self.chunks) {
            chunk.end_page(column)?;
            let Chunk { pages, unpacked, values, .. } = std::mem::take(chunk);
            let mut path = vec![column.from[0].as_str()];
            if column.stored == Stored::Pictures {
                path.extend(LIST_PATH);
            }
            let start = signed(self.written)?;
            let about = Struct::default()
                .i32(1, physical(column.stored))
                .i32s(2, &[PLAIN, RLE])
                .texts(3, &path)
                .i32(4, codec(column.stored))
                .i64(5, signed(values)?)
                .i64(6, signed(unpacked)?)
                .i64(7, signed(pages.len() as u64)?)
                .i64(9, start);
            chunks.push(Struct::default().i64(2, start).structure(3, about));
            self.file.write_all(&pages)?;
            self.written += pages.len() as u64;
            all += unpacked;
        }
        let rows = std::mem::take(&mut self.rows);
        let group =
            Struct::default().structures(1, chunks).i64(2, signed(all)?).i64(3, signed(rows)?);
        self.groups.push((group, rows));
        Ok(())
    }
}

impl Shard for Table {
    fn add(&mut self, sample: &Sample) -> io::Result<()> {
        let mut values = sample.values.iter();
        for (column, chunk) in self.columns.iter().zip(&mut self.chunks) {
            match values.next() {
                Some(value) => chunk.add(column, value)?,
                // The last column has the names.
                None => chunk.add(column, &Value::Text(sample.key.clone()))?,
            }
        }
        self.rows += 1;
        if self.waiting_bytes() >= GROUP_BYTES || self.rows >= GROUP_ROWS {
            self.end_group()?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.written + self.waiting_bytes()
    }

    fn close(mut self: Box<Self>) -> io::Result<File> {
        self.end_group()?;
        let Self { columns, declaration, mut file, groups, .. } = *self;
        let count = i32::try_from(columns.len()).map_err(io::Error::other)?;
        let mut elements = vec![Struct::default().text(4, "schema").i32(5, count)];
        elements.extend(columns.iter().flat_map(schema));
        let rows: u64 = groups.iter().map(|(_, rows)| rows).sum();
        let features =
            declaration.map(|text| Struct::default().text(1, "huggingface").text(2, &text));
        let footer = Struct::default()
            .i32(1, 1)
            .structures(2, elements)
            .i64(3, i64::try_from(rows).map_err(io::Error::other)?)
            .structures(4, groups.into_iter().map(|(group, _)| group).collect())
            .structures(5, features.into_iter().collect())
            .text(6, concat!("forebay version ", env!("CARGO_PKG_VERSION")))
            .finish();
        file.write_all(&footer)?;
        let length = u32::try_from(footer.len()).map_err(io::Error::other)?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(MAGIC)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_runs_with_their_length() {
        let mut data = Vec::new();
        let levels = [vec![true; 3], vec![false; 200], vec![true]].concat();
        push_levels(&mut data, levels.into_iter());
        assert_eq!(data, [7, 0, 0, 0, 6, 1, 0x90, 0x03, 0, 2, 1]);
    }
}
