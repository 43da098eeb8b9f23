//! The rows of a manifest, one after the other: CSV, tab-separated values, or a JSON object a line.
//!
//! The file is read through a window, so that its size does not matter; a row is held whole, and has a largest size, since
//! a quote that is not closed makes one row of all that follows.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::dataset::error::DatasetError;
use crate::dataset::stored_file::StoredFile;

/// What a row may be at most.
const MAX_ROW_BYTES: usize = 16 << 20;
/// Columns that a header may name.
const MAX_COLUMNS: usize = 10_000;

/// How the rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Cells with this byte between them; the first row names the columns.
    Delimited(u8),
    /// An object a line.
    Json,
}

impl Kind {
    /// By the file's name.
    pub(super) fn of(path: &[u8]) -> Self {
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

/// Where the bytes of a manifest come from.
pub(super) trait Bytes {
    /// All bytes that there are.
    fn length(&self) -> u64;
    /// Replaces the buffer by a part.
    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError>;
    /// The error for what is wrong in a line.
    fn fault(&self, line: usize, message: String) -> DatasetError;
}

impl Bytes for StoredFile<'_> {
    fn length(&self) -> u64 {
        self.stamp.bytes
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        Self::read(self, offset, length, buffer)
    }

    fn fault(&self, line: usize, message: String) -> DatasetError {
        self.fault_at(line, message)
    }
}

/// The rows of one manifest.
pub(super) struct Table<'a> {
    text: Text<'a>,
    kind: Kind,
    /// Those of the header, or of the JSON keys that are asked for.
    columns: Vec<String>,
    row: Row,
}

/// A row's cells, one behind the other.
#[derive(Default)]
struct Row {
    bytes: Vec<u8>,
    /// By column: where the cell lies; `None`: there is none, or null.
    cells: Vec<Option<std::ops::Range<usize>>>,
    line: usize,
    /// Of the cells of delimited text: the characters before each in its line, counted from 1.
    places: Vec<usize>,
}

impl<'a> Table<'a> {
    /// Reads the header. Of JSON, which has none, all keys are taken until [`take_columns`](Self::take_columns).
    ///
    /// # Errors
    /// No header, or one that names a column twice.
    pub(super) fn new(
        source: &'a dyn Bytes,
        kind: Kind,
        window: usize,
    ) -> Result<Self, DatasetError> {
        let mut text = Text::new(source, window);
        text.skip_mark()?;
        let mut table = Self { text, kind, columns: Vec::new(), row: Row::default() };
        if let Kind::Delimited(separator) = kind {
            if !table.text.record(separator, &mut table.row)? {
                return Err(table
                    .text
                    .source
                    .fault(1, "the file is empty; its first line names the columns".to_owned()));
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
                if place >= MAX_COLUMNS {
                    return Err(
                        table.fault(format!("the header names more than {MAX_COLUMNS} columns"))
                    );
                }
                table.columns.push(name.to_owned());
            }
        }
        Ok(table)
    }

    /// The columns: of JSON those that the rows so far have, unless they were given.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Takes these columns of the rows to come. Their places among the table's: `None` for one that the header has not.
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

    /// Reads the next row. False: there is none.
    ///
    /// # Errors
    /// It is broken; names line and column.
    pub(super) fn next(&mut self, takes_all: bool) -> Result<bool, DatasetError> {
        match self.kind {
            Kind::Delimited(separator) => {
                if !self.text.record(separator, &mut self.row)? {
                    return Ok(false);
                }
                let (found, expected) = (self.row.cells.len(), self.columns.len());
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
        let Row { bytes, cells, .. } = &mut self.row;
        bytes.clear();
        cells.clear();
        cells.resize(self.columns.len(), None);
        let object = Object { columns: &mut self.columns, bytes, cells, takes_all };
        let mut json = serde_json::Deserializer::from_slice(&line);
        let read = object.deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|error| {
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            self.fault(format!("column {}: it is no JSON object: {what}", error.column()))
        })?;
        Ok(true)
    }

    /// A cell of the row; `None` where JSON has none or null, or there is no such column.
    pub(super) fn cell(&self, column: usize) -> Option<&[u8]> {
        self.row.bytes.get(self.row.cells.get(column)?.clone()?)
    }

    /// Whether an empty cell may be an empty text: JSON has null for what is missing.
    pub(super) fn has_nulls(&self) -> bool {
        self.kind == Kind::Json
    }

    /// Where the row begins, counted from 1.
    pub(super) fn line(&self) -> usize {
        self.row.line
    }

    /// The error for what is wrong with the row.
    pub(super) fn fault(&self, message: String) -> DatasetError {
        self.text.source.fault(self.row.line, message)
    }

    /// The error for what is wrong with a cell.
    pub(super) fn fault_in(&self, column: usize, message: &str) -> DatasetError {
        let name = self.columns.get(column).map_or("", String::as_str);
        let place =
            self.row.places.get(column).map_or(String::new(), |place| format!("column {place}: "));
        self.fault(format!("{place}`{name}` {message}"))
    }
}

/// A text file byte by byte.
struct Text<'a> {
    source: &'a dyn Bytes,
    window: usize,
    buffer: Vec<u8>,
    at: usize,
    /// Of the file: where the buffer ends.
    end: u64,
    /// Of the next byte, counted from 1.
    line: usize,
    column: usize,
}

impl<'a> Text<'a> {
    fn new(source: &'a dyn Bytes, window: usize) -> Self {
        Self { source, window, buffer: Vec::new(), at: 0, end: 0, line: 1, column: 1 }
    }

    /// The rest of the buffer, refilled where it is used up; empty at the file's end.
    fn rest(&mut self) -> Result<&[u8], DatasetError> {
        if self.at == self.buffer.len() {
            let length = (self.source.length() - self.end).min(self.window as u64);
            self.at = 0;
            self.buffer.clear();
            if length > 0 {
                self.source.read(self.end, length, &mut self.buffer)?;
                self.end += length;
            }
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

    /// Goes behind the end of a line: a line feed, a carriage return, or both.
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

    /// Goes behind the mark of UTF-8 that some programs write, and refuses that of UTF-16.
    fn skip_mark(&mut self) -> Result<(), DatasetError> {
        let rest = self.rest()?;
        if rest.starts_with(b"\xff\xfe") || rest.starts_with(b"\xfe\xff") {
            return Err(self.source.fault(1, "the file is UTF-16; save it as UTF-8".to_owned()));
        }
        if rest.starts_with(b"\xef\xbb\xbf") {
            self.at += 3;
        }
        Ok(())
    }

    /// Replaces a line without its end. False: there is none.
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
                return Err(self.source.fault(begin, "the line has more than 16 MiB".to_owned()));
            }
            if end.is_some() {
                self.line += 1;
                return Ok(true);
            }
        }
    }

    /// Replaces a row by the next record, as RFC 4180 has it; lines without anything are passed over. False: there is none.
    fn record(&mut self, separator: u8, row: &mut Row) -> Result<bool, DatasetError> {
        row.bytes.clear();
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
            row.places.push(self.column);
            if self.peek()? == Some(b'"') {
                self.quoted(row)?;
                if !matches!(self.peek()?, None | Some(b'\n' | b'\r'))
                    && self.peek()? != Some(separator)
                {
                    return Err(self.source.fault(self.line, format!(
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
            row.cells.push(Some(start..row.bytes.len()));
            if row.bytes.len() > MAX_ROW_BYTES || row.cells.len() > MAX_ROW_BYTES {
                return Err(self.source.fault(row.line, "the row has more than 16 MiB".to_owned()));
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

    /// Appends a quoted cell; a quote in it is written twice.
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
                        return Err(self.source.fault(line, open("not closed within 16 MiB")));
                    }
                }
                None => return Err(self.source.fault(line, open("never closed"))),
            }
        }
    }
}

/// An object's values, of the columns alone.
struct Object<'r> {
    columns: &'r mut Vec<String>,
    bytes: &'r mut Vec<u8>,
    cells: &'r mut Vec<Option<std::ops::Range<usize>>>,
    /// Whether keys that are no column become one.
    takes_all: bool,
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

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let mut column = self.columns.iter().position(|column| *column == key);
            if column.is_none() && self.takes_all && self.columns.len() < MAX_COLUMNS {
                column = Some(self.columns.len());
                self.columns.push(key.into_owned());
                self.cells.push(None);
            }
            let Some(column) = column else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let start = self.bytes.len();
            let is_there = match map.next_value::<serde_json::Value>()? {
                serde_json::Value::Null => false,
                serde_json::Value::String(text) => {
                    self.bytes.extend_from_slice(text.as_bytes());
                    true
                }
                serde_json::Value::Bool(value) => {
                    self.bytes.push(if value { b'1' } else { b'0' });
                    true
                }
                // Numbers as they are, lists and objects as their JSON.
                value => {
                    self.bytes.extend_from_slice(value.to_string().as_bytes());
                    true
                }
            };
            // Of a key that occurs twice the last value counts, as in Python.
            self.cells[column] = is_there.then_some(start..self.bytes.len());
        }
        Ok(())
    }
}
