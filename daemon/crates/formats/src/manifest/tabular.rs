//! Tables whose columns name files, as manifests: `.parquet` and `.arrow` files, with each row as a line of JSON.
//!
//! The formats `parquet` and `arrow` read only values in the table. Here a column may name picture files, as in tables
//! that `to_parquet` of Hugging Face's `datasets` writes without embedding them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::source::Source;
use crate::tables::{ROWS_PER_QUESTION, TableFormat};
use crate::{arrow, parquet};
use forebay_columnar::{Cell, Encoding, Inferred, Number, Reads, TableColumn};
use forebay_dataset::ArrayValue;
use forebay_dataset::error::DatasetError;
use forebay_index::shard_paths::has_extension;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::{Window, WindowSize};

/// The minimum size of the pieces in which a column's values are read.
const MIN_WINDOW_BYTES: u64 = 4 << 10;
/// The maximum length of a file's rows as text.
const MAX_TEXT_BYTES: usize = 1 << 30;

/// The format of a table, by the file's name.
pub(crate) fn format_of(path: &[u8]) -> Option<&'static TableFormat> {
    [&parquet::TABLES, &arrow::TABLES]
        .into_iter()
        .find(|table| has_extension(path, table.format.extensions))
}

/// The requested part of a table.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted<'w> {
    /// The columns by name; `None`: all.
    pub(crate) columns: Option<&'w [&'w str]>,
    /// The number of first rows; `None`: all.
    pub(crate) rows: Option<u64>,
}

/// Receives the number of rows read so far, at intervals; `Break` stops the scan.
pub(super) type RowsCallback<'r> = &'r dyn Fn(u64) -> ControlFlow<()>;

/// A table's rows as lines of JSON.
pub(crate) struct Lines<'f> {
    file: &'f StoredFile<'f>,
    text: Vec<u8>,
    at: usize,
    /// Whether a column contains bytes, such as pictures.
    pub(crate) has_bytes: bool,
}

/// A column and the key of its values.
struct Used<'c> {
    key: String,
    column: &'c TableColumn,
    /// Its index among the columns that are read; for a path, also the index of the bytes that it replaces.
    place: usize,
    bytes: Option<usize>,
}

impl<'f> Lines<'f> {
    /// # Errors
    /// The file is damaged or too long, the storage fails, or `progress` stops the scan.
    pub(super) fn read(
        file: &'f StoredFile<'f>,
        format: &TableFormat,
        reads: Reads,
        wanted: Wanted<'_>,
        progress: RowsCallback<'_>,
    ) -> Result<Self, DatasetError> {
        let columns = (format.reader.columns)(file)?;
        let mut places = Vec::new();
        let used = used(&columns, wanted.columns, &mut places);
        let bytes_columns: Vec<usize> = (0..places.len())
            .filter(|read| {
                let encoding = &columns[places[*read]].column.encoding;
                matches!(encoding, Encoding::Bytes | Encoding::Image)
            })
            .collect();
        // Values of different columns are far from each other, so each has its window.
        let size =
            WindowSize::fixed((reads.piece / used.len().max(1) as u64).max(MIN_WINDOW_BYTES));
        let mut windows: Vec<_> = used.iter().map(|_| Window::new(file, size)).collect();
        let (mut text, mut has_bytes) = (Vec::new(), false);
        let mut visit = |row: u64, cells: &[Cell]| {
            if row.is_multiple_of(ROWS_PER_QUESTION) && progress(row).is_break() {
                return Err(DatasetError::Cancelled);
            }
            let is_there = |cell: Option<&Cell>| {
                cell.is_some_and(|cell| !matches!(cell, Cell::Null | Cell::Unread(_)))
            };
            has_bytes |= bytes_columns.iter().any(|place| is_there(cells.get(*place)));
            text.push(b'{');
            for (number, Used { key, column, place, bytes }) in used.iter().enumerate() {
                text.extend_from_slice(if number > 0 { b"," } else { b"" });
                write_json(&mut text, key);
                text.push(b':');
                let cell = cells.get(*place);
                let is_embedded = bytes.is_some_and(|bytes| is_there(cells.get(bytes)));
                match cell.filter(|_| !is_embedded) {
                    Some(cell) => write_cell(&mut text, cell, column, &mut windows[number])?,
                    None => text.extend_from_slice(b"null"),
                }
            }
            text.extend_from_slice(b"}\n");
            if text.len() > MAX_TEXT_BYTES {
                return Err(file.fault(format!(
                    "its rows have more than {} MiB as text; name fewer columns in dataset.fields",
                    MAX_TEXT_BYTES >> 20
                )));
            }
            Ok(match wanted.rows {
                Some(rows) if row + 1 >= rows => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        };
        (format.reader.rows)(file, &places, reads, &mut visit)?;
        Ok(Self { file, text, at: 0, has_bytes })
    }
}

/// The columns whose values fit a line of JSON. Adds to `places` the columns to read, and for paths the column of
/// bytes.
fn used<'c>(
    columns: &'c [TableColumn],
    wanted: Option<&[&str]>,
    places: &mut Vec<usize>,
) -> Vec<Used<'c>> {
    let mut used: BTreeMap<String, Used<'c>> = BTreeMap::new();
    let mut order = Vec::new();
    let mut read = |place: usize| {
        places.iter().position(|other| *other == place).unwrap_or_else(|| {
            places.push(place);
            places.len() - 1
        })
    };
    for (place, column) in columns.iter().enumerate() {
        let name = &column.column.name;
        let is_value = matches!(
            column.column.encoding,
            Encoding::Text | Encoding::Json | Encoding::Number(_) | Encoding::Array(_)
        );
        let key = match column.is_path {
            true => name.strip_suffix(".path").unwrap_or(name),
            false => name,
        };
        let is_inferred = column.inferred == Inferred::Field;
        let is_wanted = wanted.map_or(is_inferred, |wanted| wanted.contains(&key));
        if !is_value && wanted.is_none() && !matches!(column.column.encoding, Encoding::Unread(_)) {
            read(place);
        }
        if !is_value || !is_wanted || used.contains_key(key) {
            continue;
        }
        let is_bytes = |other: &&TableColumn| column.is_path && other.column.name == key;
        let bytes = columns.iter().position(|other| is_bytes(&other)).map(&mut read);
        let one = Used { key: key.to_owned(), column, place: read(place), bytes };
        // A path takes the position of the picture's column, which precedes all paths.
        let rank = columns.iter().position(|other| other.column.name == key).unwrap_or(place);
        order.push((rank, key.to_owned()));
        used.insert(key.to_owned(), one);
    }
    order.sort_unstable();
    order.iter().filter_map(|(_, key)| used.remove(key)).collect()
}

fn write_json(text: &mut Vec<u8>, value: &str) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(text, value);
}

fn write_number(text: &mut Vec<u8>, number: Number) {
    let _ = match number {
        Number::Integer(value) => serde_json::to_writer(text, &value),
        Number::Float(value) if value.is_finite() => serde_json::to_writer(text, &value),
        // JSON has neither NaN nor infinity.
        Number::Float(value) => serde_json::to_writer(text, &value.to_string()),
    };
}

fn write_cell(
    text: &mut Vec<u8>,
    cell: &Cell,
    column: &TableColumn,
    window: &mut Window<'_>,
) -> Result<(), DatasetError> {
    let file = window.file;
    let name = &column.column.name;
    let value = match cell {
        Cell::Number { bytes, length } => &bytes[..usize::from(*length).min(8)],
        Cell::Value(value) => value,
        Cell::At { length: 0, .. } => &[],
        Cell::At { offset, length } => window.get(*offset, *length)?,
        // To unpack a buffer for each value would take long, and to keep one for each column too much memory.
        Cell::Packed(_) => {
            return Err(file.fault(format!(
                "column {name} has long values in compressed buffers, which a manifest does not read; write the table \
                 without compression, name other columns in dataset.fields, or set dataset.format to its own"
            )));
        }
        Cell::List(_) => {
            return Err(file.fault(format!(
                "column {name} is a list of bytes, which a manifest does not read; set dataset.format to the table's own"
            )));
        }
        Cell::Null | Cell::Unread(_) => {
            text.extend_from_slice(b"null");
            return Ok(());
        }
    };
    let fault = |reason: String| file.fault(format!("column {name}: {reason}"));
    match &column.column.encoding {
        Encoding::Number(name) => {
            write_number(text, Encoding::number(name, value).map_err(fault)?);
        }
        Encoding::Array(form) => {
            let array = form.read(value).map_err(|defect| fault(defect.0))?;
            write_array(text, &array, &array.shape, 0).map_err(fault)?;
        }
        _ => {
            let value = std::str::from_utf8(value);
            write_json(text, value.map_err(|_| fault("a text is not valid UTF-8".to_owned()))?);
        }
    }
    Ok(())
}

/// Writes an array of a shape, beginning at an element; gives the index after the last one.
fn write_array(
    text: &mut Vec<u8>,
    array: &ArrayValue<'_>,
    shape: &[u64],
    mut at: usize,
) -> Result<usize, String> {
    let Some((count, rest)) = shape.split_first() else {
        let width = usize::try_from(array.dtype.size_bytes()).unwrap_or(1);
        let element = array.bytes.get(at * width..).and_then(|bytes| bytes.get(..width));
        let element = element.ok_or("a list ends before its elements do")?;
        write_number(text, Encoding::number(array.dtype.name(), element)?);
        return Ok(at + 1);
    };
    text.push(b'[');
    for number in 0..*count {
        if text.len() > MAX_TEXT_BYTES {
            return Err("its lists are too long".to_owned());
        }
        text.extend_from_slice(if number > 0 { b"," } else { b"" });
        at = write_array(text, array, rest, at)?;
    }
    text.push(b']');
    Ok(at)
}

impl Source for Lines<'_> {
    fn next(&mut self, window: usize, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        let end = self.text.len().min(self.at + window);
        buffer.clear();
        buffer.extend_from_slice(&self.text[self.at..end]);
        self.at = end;
        Ok(())
    }

    fn fault_at(&self, line: usize, message: String) -> DatasetError {
        self.file.fault_at(line, message)
    }
}

#[cfg(test)]
mod tests;
