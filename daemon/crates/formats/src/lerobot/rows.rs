//! Rows of Parquet files, and lines of JSON, with the values of some columns.

use std::ops::ControlFlow;

use forebay_columnar::{Cell, Column, Encoding, Number, parquet};
use forebay_dataset::error::DatasetError;
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;

use super::BROKEN;
use crate::tables::{ColumnReader, reads};

/// The largest file of lines, in bytes.
const MAX_LINES_BYTES: u64 = 1 << 30;

/// The columns of a Parquet file by their names.
pub(super) struct Table<'f> {
    pub(super) file: &'f StoredFile<'f>,
    pub(super) columns: Vec<Column>,
}

/// The values of a row, in the order of the requested columns.
pub(super) struct Row<'r> {
    /// The number of the row in the file.
    pub(super) number: u64,
    columns: &'r [&'r Column],
    values: &'r [Option<&'r [u8]>],
}

impl<'f> Table<'f> {
    /// Reads which columns a file has.
    ///
    /// # Errors
    /// It is no Parquet file, or it cannot be read.
    pub(super) fn new(file: &'f StoredFile<'f>) -> Result<Self, DatasetError> {
        let found = (parquet::READER.columns)(file)?;
        Ok(Self { file, columns: found.into_iter().map(|column| column.column).collect() })
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The place of a column that must exist.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn required(&self, name: &str) -> Result<usize, DatasetError> {
        let missing = || self.file.fault(format!("it has no column {name:?}; {BROKEN}"));
        self.place(name).ok_or_else(missing)
    }

    /// Visits all rows.
    ///
    /// # Errors
    /// The file is malformed or cannot be read, or an error of `visit`.
    pub(super) fn visit(
        &self,
        storage: &dyn Storage,
        places: &[usize],
        mut visit: impl FnMut(Row<'_>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let columns: Vec<&Column> = places.iter().map(|place| &self.columns[*place]).collect();
        let mut readers: Vec<_> = columns.iter().map(|column| ColumnReader::new(column)).collect();
        let mut of_row = |number: u64, cells: &[Cell]| {
            for (reader, cell) in readers.iter_mut().zip(cells) {
                reader.load(self.file, cell)?;
            }
            let values: Result<Vec<_>, _> =
                readers.iter().zip(cells).map(|(reader, cell)| reader.bytes(cell)).collect();
            let values =
                values.map_err(|reason| self.file.fault(format!("row {number}: {reason}")))?;
            visit(Row { number, columns: &columns, values: &values })?;
            Ok(ControlFlow::Continue(()))
        };
        (parquet::READER.rows)(self.file, places, reads(storage), &mut of_row)
    }
}

impl<'r> Row<'r> {
    fn fault(&self, place: usize, what: &str) -> String {
        let name = self.columns.get(place).map_or("", |column| column.name.as_str());
        format!("row {}: the column {name:?} {what}; {BROKEN}", self.number)
    }

    /// The bytes of a value.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn bytes(&self, place: usize) -> Result<&'r [u8], String> {
        let value = self.values.get(place).copied().flatten();
        value.ok_or_else(|| self.fault(place, "has no value"))
    }

    fn number(&self, place: usize) -> Result<Number, String> {
        match self.columns.get(place).map(|column| &column.encoding) {
            Some(Encoding::Number(name)) => {
                Encoding::number(name, self.bytes(place)?).map_err(|why| self.fault(place, &why))
            }
            _ => Err(self.fault(place, "is not a number")),
        }
    }

    /// A whole number from 0.
    ///
    /// # Errors
    /// The value is none.
    pub(super) fn count(&self, place: usize) -> Result<u64, String> {
        let count = match self.number(place)? {
            Number::Integer(number) => u64::try_from(number).ok(),
            Number::Float(_) => None,
        };
        count.ok_or_else(|| self.fault(place, "is not a whole number from 0"))
    }

    /// A time.
    ///
    /// # Errors
    /// The value is no number.
    #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
    pub(super) fn seconds(&self, place: usize) -> Result<f64, String> {
        let seconds = match self.number(place)? {
            Number::Integer(number) => number as f64,
            Number::Float(number) => number,
        };
        let is_time = seconds.is_finite();
        is_time.then_some(seconds).ok_or_else(|| self.fault(place, "is not a time"))
    }

    /// A text.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub(super) fn text(&self, place: usize) -> Result<&'r str, String> {
        std::str::from_utf8(self.bytes(place)?).map_err(|_| self.fault(place, "is not UTF-8"))
    }
}

/// Visits the lines of a file of JSON lines.
///
/// # Errors
/// The file cannot be read, a line is not JSON of this form, or an error of `visit`.
pub(super) fn visit_lines<T: serde::de::DeserializeOwned>(
    file: &StoredFile<'_>,
    mut visit: impl FnMut(T) -> Result<(), String>,
) -> Result<(), DatasetError> {
    let bytes = file.read_whole(MAX_LINES_BYTES)?;
    for (line, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let value = serde_json::from_slice(text).map_err(|error| {
            file.fault_at(line, format!("it is not JSON as LeRobot writes it: {error}"))
        })?;
        visit(value).map_err(|message| file.fault_at(line, message))?;
    }
    Ok(())
}
