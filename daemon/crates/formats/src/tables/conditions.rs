//! The values of columns for conditions on samples: of any columns of the files, also those without a field.
//!
//! The columns are read once from the start of each file to its end, as for an index; nothing of them is kept.

use std::ops::ControlFlow;

use forebay_columnar::{Cell, Column, Encoding, Number, PackedCell, Reader};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{FileColumn, VisitColumns};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_protocol::ids::SampleId;
use forebay_select::{Type, Value};
use forebay_storage::Storage;

use super::scan::reads;
use crate::selection::{open_indexed, too_few_rows};

/// The bytes that are read at once for values that lie in the file one after the other.
const PIECE_BYTES: u64 = 256 << 10;
/// The longest value that a condition uses, as the longest row of a manifest.
const MAX_VALUE_BYTES: u64 = 16 << 20;
/// Unpacked parts that are kept for a column: a dictionary, and the page after it.
const KEPT_PARTS: usize = 2;

/// The columns of the first file, which those of the others equal.
pub(super) fn columns(
    reader: Reader,
    index: &RowIndex,
    files: &dyn Storage,
) -> Result<Vec<FileColumn>, DatasetError> {
    let file = open_file(files, index.manifest_path(0))?;
    let found = (reader.columns)(&file)?.into_iter().map(|column| {
        let Column { name, encoding, .. } = column.column;
        FileColumn { values: type_of(&encoding), name }
    });
    Ok(found.collect())
}

fn type_of(encoding: &Encoding) -> Result<Type, String> {
    let what = match encoding {
        Encoding::Number(name) if name == "bool" => return Ok(Type::Boolean),
        Encoding::Number(_) | Encoding::IntegerText | Encoding::FloatText => {
            return Ok(Type::Number);
        }
        Encoding::Text | Encoding::Bytes | Encoding::Json => return Ok(Type::Text),
        Encoding::Image => "pictures",
        Encoding::Images | Encoding::ByteLists => "lists",
        Encoding::Array(_) => "arrays",
        Encoding::Nested => "nested values",
        Encoding::Unread(why) => return Err(why.clone()),
    };
    Err(format!("its values are {what}"))
}

/// See [`Dataset::visit_columns`](forebay_dataset::Dataset::visit_columns).
pub(super) fn visit(
    reader: Reader,
    index: &RowIndex,
    files: &dyn Storage,
    columns: &[usize],
    visit: VisitColumns<'_>,
) -> Result<(), DatasetError> {
    for place in 0..index.manifests() {
        let samples = index.samples_of(place);
        if samples.is_empty() {
            continue;
        }
        let file = open_indexed(index, place, files)?;
        let described = (reader.columns)(&file)?;
        let mut own: Vec<_> = columns
            .iter()
            .filter_map(|column| described.get(*column))
            .map(|column| ColumnReader::new(&column.column))
            .collect();
        let mut next = samples.start;
        let mut of_row = |row: u64, cells: &[Cell]| {
            // The index leaves rows out.
            if row < index.line(SampleId(next)) {
                return Ok(ControlFlow::Continue(()));
            }
            for (column, cell) in own.iter_mut().zip(cells) {
                column.load(&file, cell)?;
            }
            let values: Result<Vec<_>, _> =
                own.iter().zip(cells).map(|(column, cell)| column.value(cell)).collect();
            let values = values.map_err(|reason| file.fault(format!("row {row}: {reason}")))?;
            visit(SampleId(next), &values)?;
            next += 1;
            Ok(match next < samples.end {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        };
        (reader.rows)(&file, columns, reads(files), &mut of_row)?;
        if next < samples.end {
            return Err(too_few_rows(&file));
        }
    }
    Ok(())
}

/// Reads the values of one column.
pub(crate) struct ColumnReader<'c> {
    column: &'c Column,
    /// The value, if its cell does not have it.
    value: Vec<u8>,
    /// A piece of the file, and where it begins.
    piece: (u64, Vec<u8>),
    /// Unpacked parts by their offsets, the one used last at the end.
    parts: Vec<(u64, Vec<u8>)>,
}

impl<'c> ColumnReader<'c> {
    pub(crate) const fn new(column: &'c Column) -> Self {
        Self { column, value: Vec::new(), piece: (0, Vec::new()), parts: Vec::new() }
    }

    /// Reads what a cell only locates.
    pub(crate) fn load(&mut self, file: &StoredFile<'_>, cell: &Cell) -> Result<(), DatasetError> {
        let cut = || file.fault(format!("column {}: a value is cut off", self.column.name));
        let length = match cell {
            Cell::At { length, .. } => *length,
            Cell::Packed(packed) => packed.part.length.into(),
            _ => 0,
        };
        if length > MAX_VALUE_BYTES {
            return Err(file.fault(format!(
                "column {}: a value has {length} bytes, and values of at most {MAX_VALUE_BYTES} are read here",
                self.column.name
            )));
        }
        match cell {
            Cell::At { offset, length } => {
                let (start, bytes) = &mut self.piece;
                let is_in = *offset >= *start
                    && offset.saturating_add(*length) <= *start + bytes.len() as u64;
                if !is_in {
                    let rest = file.stamp.bytes.saturating_sub(*offset);
                    if *length > rest {
                        return Err(cut());
                    }
                    file.read(*offset, PIECE_BYTES.max(*length).min(rest), bytes)?;
                    *start = *offset;
                }
                let own = slice(bytes, *offset - *start, *length).ok_or_else(cut)?;
                self.value.clear();
                self.value.extend_from_slice(own);
            }
            Cell::Packed(PackedCell { offset, bytes, part }) => {
                match self.parts.iter().position(|(known, _)| known == offset) {
                    Some(place) => self.parts[place..].rotate_left(1),
                    None => {
                        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
                        file.read(*offset, *bytes, &mut packed)?;
                        let whole = part.unpacked_bytes as usize;
                        if !part.codec.unpack(&packed, (whole, whole), &mut unpacked) {
                            return Err(cut());
                        }
                        if self.parts.len() == KEPT_PARTS {
                            self.parts.remove(0);
                        }
                        self.parts.push((*offset, unpacked));
                    }
                }
                let known = self.parts.last().map_or(&[][..], |(_, bytes)| bytes);
                let own = slice(known, part.start.into(), part.length.into()).ok_or_else(cut)?;
                self.value.clear();
                self.value.extend_from_slice(own);
            }
            Cell::Null | Cell::Number { .. } | Cell::Value(_) | Cell::List(_) | Cell::Unread(_) => {
            }
        }
        Ok(())
    }

    /// The bytes of a cell that was [loaded](Self::load); `None`: it has no value.
    pub(crate) fn bytes<'v>(&'v self, cell: &'v Cell) -> Result<Option<&'v [u8]>, String> {
        Ok(Some(match cell {
            Cell::Null => return Ok(None),
            Cell::Number { bytes, length } => &bytes[..usize::from(*length).min(8)],
            Cell::Value(value) => value,
            Cell::At { .. } | Cell::Packed(_) => &self.value,
            Cell::List(_) => return Err(self.fault("its values are lists")),
            Cell::Unread(why) => return Err(self.fault(why)),
        }))
    }

    /// The value of a cell that was [loaded](Self::load).
    fn value<'v>(&'v self, cell: &'v Cell) -> Result<Value<'v>, String> {
        let Some(bytes) = self.bytes(cell)? else { return Ok(Value::Null) };
        let text = || std::str::from_utf8(bytes).map_err(|_| self.fault("a value is not UTF-8"));
        match &self.column.encoding {
            Encoding::Number(name) => {
                match Encoding::number(name, bytes).map_err(|why| self.fault(&why))? {
                    Number::Integer(value) if name == "bool" => Ok(Value::Boolean(value != 0)),
                    Number::Integer(value) => Ok(Value::Integer(value)),
                    Number::Float(value) => Ok(Value::Float(value)),
                }
            }
            Encoding::IntegerText => {
                let number = text()?.trim().parse().map(Value::Integer);
                number.map_err(|_| self.fault("a value is not a whole number"))
            }
            Encoding::FloatText => {
                let number = text()?.trim().parse().map(Value::Float);
                number.map_err(|_| self.fault("a value is not a number"))
            }
            _ => text().map(Value::Text),
        }
    }

    fn fault(&self, why: &str) -> String {
        format!("column {}: {why}", self.column.name)
    }
}

fn slice(bytes: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    let (start, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
    bytes.get(start..)?.get(..length)
}
