//! The cells of rows, as the index stores them.

use std::sync::Arc;

use super::stretches::StoredList;
use forebay_columnar::{Cell, PackedCell};
use forebay_index::row_index::{push_cell, take_cell};
use forebay_index::shards::Scanned;
use forebay_storage::codec::Codec;
use forebay_storage::location::Packed;

const VALUE: u8 = 0;
const AT: u8 = 1;
const PACKED: u8 = 2;
const LIST: u8 = 3;
/// The maximum number of values of a list: each may be a read.
const MAX_LIST_VALUES: usize = 4096;

/// A cell in the index: a type byte, then the value; or its offset and length; or the codec's number, the offset and
/// the bytes of the part of the file, its unpacked bytes, and the value's start and length in them. A list has the length
/// of each of its cells before it, 0 for null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored<'r> {
    Value(&'r [u8]),
    At { offset: u64, length: u64 },
    Packed(PackedCell),
    List(StoredList<'r>),
}

impl<'r> Stored<'r> {
    /// Parses a cell; malformed locations are taken as values.
    pub(super) fn of(cell: &'r [u8]) -> Self {
        let number = |start: usize| {
            cell.get(start..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        match cell.first() {
            Some(&AT) if cell.len() == 17 => Self::At { offset: number(1), length: number(9) },
            Some(&PACKED)
                if cell.len() == 30
                    && let Some(codec) = Codec::of_number(cell[1]) =>
            {
                let short = |start: usize| {
                    cell[start..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
                };
                let (unpacked_bytes, start, length) = (short(18), short(22), short(26));
                let part = Packed { codec, unpacked_bytes, start, length };
                Self::Packed(PackedCell { offset: number(2), bytes: number(10), part })
            }
            Some(&LIST) => Self::List(StoredList(cell.get(1..).unwrap_or_default())),
            _ => Self::Value(cell.get(1..).unwrap_or_default()),
        }
    }

    /// The length of a cell's value.
    pub(super) fn length(cell: &[u8]) -> u64 {
        Stored::of(cell).value_bytes()
    }

    /// The length of the value.
    pub(super) fn value_bytes(self) -> u64 {
        match self {
            Stored::Value(value) => value.len() as u64,
            Stored::At { length, .. } => length,
            Stored::Packed(packed) => packed.part.length.into(),
            Stored::List(list) => {
                list.values().flatten().map(Stored::value_bytes).fold(0, u64::saturating_add)
            }
        }
    }
}

/// The rows of one file, cell after cell.
#[derive(Debug, Default)]
pub(super) struct FileRows {
    bytes: Vec<u8>,
    rows: usize,
    scratch: Vec<u8>,
    /// By column: the reason why its values are not supported.
    unread: Vec<Option<Arc<str>>>,
}

impl Scanned for FileRows {
    fn samples(&self) -> usize {
        self.rows
    }
}

/// Appends a cell as the index stores it; nothing for null.
fn encode(cell: &Cell, out: &mut Vec<u8>) {
    match cell {
        Cell::Null | Cell::Unread(_) => {}
        Cell::Number { bytes, length } => {
            out.push(VALUE);
            out.extend_from_slice(&bytes[..usize::from(*length).min(8)]);
        }
        Cell::Value(value) => {
            out.push(VALUE);
            out.extend_from_slice(value);
        }
        Cell::At { offset, length } => {
            out.push(AT);
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
        }
        Cell::Packed(packed) => {
            let PackedCell { offset, bytes, part } = packed;
            out.extend_from_slice(&[PACKED, part.codec.number()]);
            for number in [*offset, *bytes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for number in [part.unpacked_bytes, part.start, part.length] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Cell::List(values) => {
            out.push(LIST);
            for value in values {
                let start = out.len() + 4;
                out.extend_from_slice(&[0; 4]);
                encode(value, out);
                // A cell is a few bytes, or a short value.
                let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
                out[start - 4..start].copy_from_slice(&length.to_le_bytes());
            }
        }
    }
}

impl FileRows {
    /// Adds a cell whose column is not supported.
    fn refuse(&mut self, columns: usize, place: usize, why: impl FnOnce() -> Arc<str>) {
        push_cell(&mut self.bytes, None);
        self.unread.resize(columns, None);
        self.unread[place].get_or_insert_with(why);
    }

    pub(super) fn add(&mut self, cells: &[Cell]) {
        self.rows += 1;
        for (place, cell) in cells.iter().enumerate() {
            self.scratch.clear();
            match cell {
                Cell::Null => {
                    push_cell(&mut self.bytes, None);
                    continue;
                }
                Cell::Unread(why) => {
                    self.refuse(cells.len(), place, || Arc::clone(why));
                    continue;
                }
                Cell::List(values) if values.len() > MAX_LIST_VALUES => {
                    let count = values.len();
                    let why = || {
                        format!("a list has {count} values, and at most {MAX_LIST_VALUES} are read")
                    };
                    self.refuse(cells.len(), place, || why().into());
                    continue;
                }
                cell => encode(cell, &mut self.scratch),
            }
            push_cell(&mut self.bytes, Some(&self.scratch));
        }
    }

    /// The reason why a column is not supported, if so.
    pub(super) fn unread(&self, column: usize) -> Option<&Arc<str>> {
        self.unread.get(column)?.as_ref()
    }

    /// The first column that is not supported, and the reason.
    pub(super) fn first_unread(&self) -> Option<(usize, &Arc<str>)> {
        self.unread.iter().enumerate().find_map(|(place, why)| Some((place, why.as_ref()?)))
    }

    /// Calls `visit` with the cells of each row, for the columns that are kept.
    pub(super) fn visit(&self, stays: &[bool], mut visit: impl FnMut(u64, &[Option<&[u8]>])) {
        let mut rest = self.bytes.as_slice();
        let mut cells = Vec::with_capacity(stays.len());
        for row in 0..self.rows {
            cells.clear();
            for stays in stays {
                let cell = take_cell(&mut rest);
                cells.extend(stays.then_some(cell));
            }
            visit(row as u64, &cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_too_many_values_is_refused_with_their_number() {
        let list = |values| [Cell::List(vec![Cell::Null; values])];
        let mut rows = FileRows::default();
        rows.add(&list(MAX_LIST_VALUES));
        assert_eq!(rows.unread(0), None);
        rows.add(&list(MAX_LIST_VALUES + 1));
        assert!(rows.unread(0).unwrap().contains("4097 values"));
    }
}
