//! The rows of a manifest in order: CSV, tab-separated values, or a JSON object per line.
//!
//! The file is read through a window, so its size does not matter. A row is kept in memory and has a maximum size,
//! because an unclosed quote makes one row of the rest of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::source::{Plain, Source};
use forebay_dataset::error::DatasetError;
use forebay_index::window::Bytes;
use forebay_storage::codec_of;

/// The maximum length of a row.
const MAX_ROW_BYTES: usize = 16 << 20;
/// The maximum number of columns.
const MAX_COLUMNS: usize = 10_000;
/// The maximum number of entries of an object in a JSON row, including its enclosing and nested objects.
const MAX_ENTRIES: usize = 1 << 18;

/// The syntax of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Cells separated by this byte; the first row names the columns.
    Delimited(u8),
    /// An object per line.
    Json,
}

impl Kind {
    /// By the file's name, without the extension of a compression.
    pub(super) fn of(path: &[u8]) -> Self {
        let dot = path.iter().rposition(|byte| *byte == b'.').filter(|_| codec_of(path).is_some());
        let path = &path[..dot.unwrap_or(path.len())];
        let ends = |extension: &str| {
            let start = path.len().saturating_sub(extension.len());
            path[start..].eq_ignore_ascii_case(extension.as_bytes())
        };
        match (ends(".jsonl"), ends(".tsv")) {
            (true, _) => Self::Json,
            (_, true) => Self::Delimited(b'\t'),
            _ => Self::Delimited(b','),
        }
    }
}

/// The rows of one manifest.
pub(super) struct Table<'a> {
    text: Text<'a>,
    kind: Kind,
    /// The columns of the header, or the JSON keys that are requested.
    columns: Vec<String>,
    row: Row,
}

/// A row's cells, one after the other.
#[derive(Default)]
struct Row {
    bytes: Vec<u8>,
    /// By column: the cell's range; `None`: it is absent or null. Cells after the last column are only counted.
    cells: Vec<Option<std::ops::Range<usize>>>,
    /// By column: whether it is a JSON list.
    lists: Vec<bool>,
    /// The number of cells of delimited text.
    count: usize,
    line: usize,
    /// For each cell of delimited text: its column in the line in characters, counted from 1.
    places: Vec<usize>,
}

impl<'a> Table<'a> {
    /// The rows of an uncompressed file.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn new(
        bytes: &'a dyn Bytes,
        kind: Kind,
        window: usize,
    ) -> Result<Self, DatasetError> {
        Self::of(Box::new(Plain::new(bytes)), kind, window)
    }

    /// Reads the header. JSON has none: all keys are taken until [`take_columns`](Self::take_columns).
    ///
    /// # Errors
    /// The header is missing, or names a column twice.
    pub(super) fn of(
        source: Box<dyn Source + 'a>,
        kind: Kind,
        window: usize,
    ) -> Result<Self, DatasetError> {
        let mut text = Text::new(source, window);
        text.skip_mark()?;
        let mut table = Self { text, kind, columns: Vec::new(), row: Row::default() };
        if let Kind::Delimited(separator) = kind {
            if !table.text.record(separator, MAX_COLUMNS, &mut table.row)? {
                return Err(table.text.source.fault_at(
                    1,
                    "the file is empty; its first line names the columns".to_owned(),
                ));
            }
            if table.row.count > MAX_COLUMNS {
                return Err(table.fault(format!(
                    "the header names {} columns, and at most {MAX_COLUMNS} are read",
                    table.row.count
                )));
            }
            for place in 0..table.row.cells.len() {
                let name = std::str::from_utf8(table.cell(place).unwrap_or_default());
                let name = name.map_err(|_| {
                    table.fault("the header is no UTF-8; save the file as UTF-8".to_owned())
                })?;
                if table.columns.iter().any(|other| other == name) && !name.is_empty() {
                    return Err(table.fault(format!(
                        "the header names the column {name:?} twice; rename one of the two"
                    )));
                }
                table.columns.push(name.to_owned());
            }
        }
        Ok(table)
    }

    /// The columns; for JSON the keys of the rows so far, unless columns were requested.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Requests the columns for the following rows. Gives their indices in the table; `None`: not in the header.
    pub(super) fn take_columns(&mut self, wanted: &[&str]) -> Vec<Option<usize>> {
        if self.kind == Kind::Json {
            self.columns.clear();
            for name in wanted {
                if !self.columns.iter().any(|column| column == name) {
                    self.columns.push((*name).to_owned());
                }
            }
        }
        wanted.iter().map(|name| self.columns.iter().position(|column| column == name)).collect()
    }

    /// Reads the next row. False: the end.
    ///
    /// # Errors
    /// The row is malformed; the error names line and column.
    pub(super) fn next(&mut self, takes_all: bool) -> Result<bool, DatasetError> {
        match self.kind {
            Kind::Delimited(separator) => {
                let expected = self.columns.len();
                if !self.text.record(separator, expected, &mut self.row)? {
                    return Ok(false);
                }
                let found = self.row.count;
                if found != expected {
                    return Err(self.fault(format!(
                        "the row has {found} cells, and the header {expected}; put cells with a separator or a line's end into double quotes"
                    )));
                }
                Ok(true)
            }
            Kind::Json => self.object(takes_all),
        }
    }

    fn object(&mut self, takes_all: bool) -> Result<bool, DatasetError> {
        let mut line = Vec::new();
        loop {
            self.row.line = self.text.line;
            if !self.text.line(&mut line)? {
                return Ok(false);
            }
            if !line.trim_ascii().is_empty() {
                break;
            }
        }
        let Row { bytes, cells, lists, .. } = &mut self.row;
        bytes.clear();
        cells.clear();
        cells.resize(self.columns.len(), None);
        lists.clear();
        lists.resize(self.columns.len(), false);
        let entries = MAX_ENTRIES;
        let object = Object { columns: &mut self.columns, bytes, cells, lists, takes_all, entries };
        let mut json = serde_json::Deserializer::from_slice(&line);
        let read = object.deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|error| {
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            self.fault(format!("column {}: it is no JSON object: {what}", error.column()))
        })?;
        Ok(true)
    }

    /// A cell of the row; `None` if JSON has none or null, or if the column does not exist.
    pub(super) fn cell(&self, column: usize) -> Option<&[u8]> {
        self.row.bytes.get(self.row.cells.get(column)?.clone()?)
    }

    /// Whether a cell is a JSON list.
    pub(super) fn is_list(&self, column: usize) -> bool {
        self.row.lists.get(column).copied().unwrap_or(false)
    }

    /// Whether an empty cell may be an empty text: JSON has null for missing values.
    pub(super) fn has_nulls(&self) -> bool {
        self.kind == Kind::Json
    }

    /// The line where the row begins, counted from 1.
    pub(super) fn line(&self) -> usize {
        self.row.line
    }

    /// The error for a fault of the row.
    pub(super) fn fault(&self, message: String) -> DatasetError {
        self.text.source.fault_at(self.row.line, message)
    }

    /// The error for a fault of a cell.
    pub(super) fn fault_in(&self, column: usize, message: &str) -> DatasetError {
        let name = self.columns.get(column).map_or("", String::as_str);
        let place =
            self.row.places.get(column).map_or(String::new(), |place| format!("column {place}: "));
        self.fault(format!("{place}`{name}` {message}"))
    }
}

/// Reads a text file byte by byte.
struct Text<'a> {
    source: Box<dyn Source + 'a>,
    window: usize,
    buffer: Vec<u8>,
    at: usize,
    /// The position of the next byte, counted from 1.
    line: usize,
    column: usize,
}

impl<'a> Text<'a> {
    fn new(source: Box<dyn Source + 'a>, window: usize) -> Self {
        Self { source, window, buffer: Vec::new(), at: 0, line: 1, column: 1 }
    }

    /// The rest of the buffer, which is refilled if it is used up; empty at the file's end.
    fn rest(&mut self) -> Result<&[u8], DatasetError> {
        if self.at == self.buffer.len() {
            self.at = 0;
            self.source.next(self.window, &mut self.buffer)?;
        }
        Ok(self.buffer.get(self.at..).unwrap_or_default())
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<u8>, DatasetError> {
        if let Some(byte) = self.buffer.get(self.at) {
            return Ok(Some(*byte));
        }
        Ok(self.rest()?.first().copied())
    }

    #[inline]
    fn advance(&mut self, byte: u8) {
        self.at += 1;
        self.column += 1;
        if byte == b'\n' {
            (self.line, self.column) = (self.line + 1, 1);
        }
    }

    /// Skips the end of a line: a line feed, a carriage return, or both.
    fn end_line(&mut self, byte: u8) -> Result<(), DatasetError> {
        self.advance(byte);
        if byte == b'\r' {
            match self.peek()? {
                Some(b'\n') => self.advance(b'\n'),
                _ => (self.line, self.column) = (self.line + 1, 1),
            }
        }
        Ok(())
    }

    /// Skips a UTF-8 byte order mark, and refuses a UTF-16 one.
    fn skip_mark(&mut self) -> Result<(), DatasetError> {
        let rest = self.rest()?;
        if rest.starts_with(b"\xff\xfe") || rest.starts_with(b"\xfe\xff") {
            return Err(self.source.fault_at(1, "the file is UTF-16; save it as UTF-8".to_owned()));
        }
        if rest.starts_with(b"\xef\xbb\xbf") {
            self.at += 3;
        }
        Ok(())
    }

    /// Replaces `line` by the next line, without its end. False: the end of the file.
    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool, DatasetError> {
        line.clear();
        let begin = self.line;
        loop {
            let rest = self.rest()?;
            if rest.is_empty() {
                return Ok(!line.is_empty());
            }
            let end = rest.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            let taken = end.map_or(rest.len(), |end| end + 1);
            self.at += taken;
            if line.len() > MAX_ROW_BYTES {
                return Err(self
                    .source
                    .fault_at(begin, "the line has more than 16 MiB".to_owned()));
            }
            if end.is_some() {
                self.line += 1;
                return Ok(true);
            }
        }
    }

    /// Replaces `row` by the next record, as in RFC 4180, and skips empty lines. Cells after the first `columns` are
    /// only counted: for 16 MiB of separators they would take 32 times as much. False: the end of the file.
    fn record(
        &mut self,
        separator: u8,
        columns: usize,
        row: &mut Row,
    ) -> Result<bool, DatasetError> {
        row.bytes.clear();
        row.count = 0;
        row.cells.clear();
        row.places.clear();
        while let Some(byte @ (b'\n' | b'\r')) = self.peek()? {
            self.end_line(byte)?;
        }
        if self.peek()?.is_none() {
            return Ok(false);
        }
        row.line = self.line;
        loop {
            let start = row.bytes.len();
            let is_kept = row.count < columns;
            row.count += 1;
            if is_kept {
                row.places.push(self.column);
            }
            if self.peek()? == Some(b'"') {
                self.quoted(row)?;
                if !matches!(self.peek()?, None | Some(b'\n' | b'\r'))
                    && self.peek()? != Some(separator)
                {
                    return Err(self.source.fault_at(self.line, format!(
                        "column {}: text follows a closing quote; write a quote in a quoted cell twice",
                        self.column
                    )));
                }
            } else {
                while let Some(byte) = self.peek()? {
                    if byte == separator || byte == b'\n' || byte == b'\r' {
                        break;
                    }
                    row.bytes.push(byte);
                    self.advance(byte);
                }
            }
            if row.bytes.len() > MAX_ROW_BYTES || row.count > MAX_ROW_BYTES {
                return Err(self
                    .source
                    .fault_at(row.line, "the row has more than 16 MiB".to_owned()));
            }
            if is_kept {
                row.cells.push(Some(start..row.bytes.len()));
            }
            match self.peek()? {
                Some(byte) if byte == separator => self.advance(byte),
                Some(byte) => {
                    self.end_line(byte)?;
                    return Ok(true);
                }
                None => return Ok(true),
            }
        }
    }

    /// Appends a quoted cell; a quote in it is doubled.
    fn quoted(&mut self, row: &mut Row) -> Result<(), DatasetError> {
        let (line, column) = (self.line, self.column);
        let open = |what: &str| format!("column {column}: a quote is opened and {what}");
        self.advance(b'"');
        loop {
            match self.peek()? {
                Some(b'"') => {
                    self.advance(b'"');
                    if self.peek()? != Some(b'"') {
                        return Ok(());
                    }
                    self.advance(b'"');
                    row.bytes.push(b'"');
                }
                Some(byte) => {
                    self.advance(byte);
                    row.bytes.push(byte);
                    if row.bytes.len() > MAX_ROW_BYTES {
                        return Err(self.source.fault_at(line, open("not closed within 16 MiB")));
                    }
                }
                None => return Err(self.source.fault_at(line, open("never closed"))),
            }
        }
    }
}

/// Reads the columns' values from an object.
struct Object<'r> {
    columns: &'r mut Vec<String>,
    bytes: &'r mut Vec<u8>,
    cells: &'r mut Vec<Option<std::ops::Range<usize>>>,
    lists: &'r mut Vec<bool>,
    /// Whether unknown keys become columns.
    takes_all: bool,
    /// The maximum number of entries of objects in it.
    entries: usize,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let mut column = self.columns.iter().position(|column| *column == key);
            if column.is_none() && self.takes_all && self.columns.len() < MAX_COLUMNS {
                column = Some(self.columns.len());
                self.columns.push(key.into_owned());
                self.cells.push(None);
                self.lists.push(false);
            }
            let Some(column) = column else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let start = self.bytes.len();
            let mut is_list = false;
            let value = JsonValue {
                bytes: self.bytes,
                entries: &mut self.entries,
                is_nested: false,
                is_list: &mut is_list,
            };
            let is_there = map.next_value_seed(value)?;
            // If a key occurs twice, the last value counts, as in Python.
            self.cells[column] = is_there.then_some(start..self.bytes.len());
            self.lists[column] = is_there && is_list;
        }
        Ok(())
    }
}

/// Appends a value: strings and numbers as they are, booleans as numbers, lists and objects as JSON. A tree of values
/// is not built, because it would take 32 bytes for two of the file's. Gives whether the value is not null.
struct JsonValue<'r> {
    bytes: &'r mut Vec<u8>,
    /// The remaining number of entries of objects.
    entries: &'r mut usize,
    /// Whether it is in a list or an object, which is written as JSON.
    is_nested: bool,
    /// Set for a list.
    is_list: &'r mut bool,
}

impl JsonValue<'_> {
    fn inner(&mut self) -> JsonValue<'_> {
        JsonValue {
            bytes: self.bytes,
            entries: self.entries,
            is_nested: true,
            is_list: self.is_list,
        }
    }

    fn write<E: Error>(self, value: impl Serialize) -> Result<bool, E> {
        serde_json::to_writer(self.bytes, &value).map_err(E::custom)?;
        Ok(true)
    }
}

impl<'de> DeserializeSeed<'de> for JsonValue<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonValue<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        if self.is_nested { self.write(()) } else { Ok(false) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        if self.is_nested { self.write(value) } else { self.write(u8::from(value)) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        if self.is_nested {
            return self.write(value);
        }
        self.bytes.extend_from_slice(value.as_bytes());
        Ok(true)
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut elements: S) -> Result<bool, S::Error> {
        *self.is_list |= !self.is_nested;
        self.bytes.push(b'[');
        let start = self.bytes.len();
        loop {
            let before = self.bytes.len();
            if before > start {
                self.bytes.push(b',');
            }
            if elements.next_element_seed(self.inner())?.is_none() {
                self.bytes.truncate(before);
                break;
            }
        }
        self.bytes.push(b']');
        Ok(true)
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<bool, M::Error> {
        // If a key occurs twice, the last value counts, at the position of the first.
        let mut entries: Vec<(Cow<'de, str>, Vec<u8>)> = Vec::new();
        let mut places = HashMap::new();
        let left = *self.entries;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            *self.entries = self.entries.checked_sub(1).ok_or_else(|| {
                M::Error::custom(format!("an object in it has more than {MAX_ENTRIES} entries"))
            })?;
            let mut value = Vec::new();
            let nested = JsonValue { bytes: &mut value, ..self.inner() };
            map.next_value_seed(nested)?;
            match places.get(&key) {
                Some(place) => {
                    let (_, held): &mut (_, Vec<u8>) = &mut entries[*place];
                    *held = value;
                }
                None => {
                    places.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
        }
        *self.entries = left;
        for (place, (key, value)) in entries.into_iter().enumerate() {
            self.bytes.push(if place == 0 { b'{' } else { b',' });
            serde_json::to_writer(&mut *self.bytes, &key).map_err(M::Error::custom)?;
            self.bytes.push(b':');
            self.bytes.extend_from_slice(&value);
        }
        if places.is_empty() {
            self.bytes.push(b'{');
        }
        self.bytes.push(b'}');
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use forebay_index::window::InMemory;

    use super::*;

    #[test]
    fn cells_after_the_header_are_counted_and_not_kept() {
        let text = [b"a,b\n1,2\n", &b",".repeat(15_000_000)[..], b"\n"].concat();
        let text = InMemory(&text);
        let mut table = Table::new(&text, Kind::Delimited(b','), 1 << 16).unwrap();
        assert!(table.next(false).unwrap());
        let message = table.next(false).unwrap_err().to_string();
        assert!(message.contains("the row has 15000001 cells, and the header 2"), "{message}");
        assert!(table.row.cells.capacity() < 100 && table.row.places.capacity() < 100);
        let header = b",".repeat(15_000_000);
        let message = match Table::new(&InMemory(&header), Kind::Delimited(b','), 1 << 16) {
            Ok(_) => panic!("15,000,001 columns were taken"),
            Err(error) => error.to_string(),
        };
        assert!(
            message.contains("the header names 15000001 columns, and at most 10000"),
            "{message}"
        );
    }

    fn cell_of(value: &str) -> Result<Vec<u8>, DatasetError> {
        let line = format!("{{\"x\": {value}}}\n");
        let text = InMemory(line.as_bytes());
        let mut table = Table::new(&text, Kind::Json, 1 << 16)?;
        assert!(table.next(true)?);
        Ok(table.cell(0).map(<[u8]>::to_vec).unwrap_or_default())
    }

    #[test]
    fn nested_values_are_written_as_serde_json_writes_a_tree() {
        for value in [
            "[]",
            "[[], [1, -2, 3.50, 1e3, 1E400000000, null, true, \"a\\u00e4\\n\"]]",
            "{}",
            "[{}, {\"b\": {\"z\": [1 , 2]}, \"a\": \"\\\"\", \"b\": null}]",
            "123456789012345678901234567890",
            "18446744073709551615",
            "-0.0",
            "{\"a\": [{\"b\": 1}], \"\\u0001\": {}}",
        ] {
            let Ok(tree) = serde_json::from_str::<serde_json::Value>(value) else {
                cell_of(value).unwrap_err();
                continue;
            };
            let cell = cell_of(value).unwrap();
            assert_eq!(String::from_utf8(cell).unwrap(), tree.to_string(), "{value}");
        }
    }

    #[test]
    fn row_of_nested_values_takes_at_most_the_memory_of_its_text() {
        let list = format!("[{}[]]", "[],".repeat(5_000_000));
        let cell = cell_of(&list).unwrap();
        assert_eq!(cell, list.as_bytes());
        assert!(cell.capacity() <= 1 << 25);
        let object = format!("{{{}\"a\":1}}", "\"a\":1,".repeat(MAX_ENTRIES));
        let message = cell_of(&object).unwrap_err().to_string();
        assert!(message.contains("an object in it has more than 262144 entries"), "{message}");
        let objects = format!("[{}{{}}]", "{\"a\":1},".repeat(MAX_ENTRIES + 1));
        assert_eq!(cell_of(&objects).unwrap(), objects.as_bytes());
        // Objects that are not a column are skipped.
        let text = format!("{{\"x\":1,\"y\":{object}}}\n");
        let text = InMemory(text.as_bytes());
        let mut table = Table::new(&text, Kind::Json, 1 << 16).unwrap();
        table.take_columns(&["x"]);
        assert!(table.next(false).unwrap());
        assert_eq!(table.cell(0), Some(&b"1"[..]));
    }
}
