//! The cells of rows: what a format finds, and how the index keeps it.

use crate::codec::Codec;
use crate::dataset::row_index::{push_cell, take_cell};
use crate::dataset::shards::Scanned;
use crate::location::Packed;

/// What a row has in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dataset) enum Cell {
    /// No value.
    Null,
    /// A value of at most 8 bytes.
    Number { bytes: [u8; 8], length: u8 },
    /// A value that cannot be read alone in its file, or is not worth a read of its own.
    Value(Vec<u8>),
    /// A value's place in its file.
    At { offset: u64, length: u64 },
    /// A value's place in what a part of its file unpacks to.
    Packed(PackedCell),
}

/// A part of a file, and a value's place in what it unpacks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) struct PackedCell {
    pub(in crate::dataset) offset: u64,
    pub(in crate::dataset) bytes: u64,
    pub(in crate::dataset) part: Packed,
}

impl PackedCell {
    /// What unpacking takes: the part of the file, what it unpacks to, and as much again for a decoder's history.
    pub(in crate::dataset) fn page_bytes(&self) -> u64 {
        self.bytes.saturating_add(2 * u64::from(self.part.unpacked_bytes))
    }
}

impl Cell {
    /// A number's bytes, at most 8.
    pub(in crate::dataset) fn number(value: &[u8]) -> Self {
        let mut bytes = [0; 8];
        match bytes.get_mut(..value.len()) {
            Some(room) => {
                room.copy_from_slice(value);
                let length = u8::try_from(value.len()).unwrap_or(8);
                Self::Number { bytes, length }
            }
            None => Self::Value(value.to_vec()),
        }
    }
}

const VALUE: u8 = 0;
const AT: u8 = 1;
const PACKED: u8 = 2;

/// A cell as the index has it: a byte that tells the kind, then the value; or offset and length; or the codec's number and
/// of the part of the file where it begins, its bytes and those that it unpacks to, of the value its start and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored<'r> {
    Value(&'r [u8]),
    At { offset: u64, length: u64 },
    Packed(PackedCell),
}

impl<'r> Stored<'r> {
    /// Takes a cell apart; what cannot be a place is a value.
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
            _ => Self::Value(cell.get(1..).unwrap_or_default()),
        }
    }

    /// The bytes of a cell's value.
    pub(super) fn length(cell: &[u8]) -> u64 {
        Stored::of(cell).value_bytes()
    }

    /// The value's bytes.
    pub(super) fn value_bytes(self) -> u64 {
        match self {
            Stored::Value(value) => value.len() as u64,
            Stored::At { length, .. } => length,
            Stored::Packed(packed) => packed.part.length.into(),
        }
    }
}

/// The rows of one file, one cell behind the other.
#[derive(Debug, Default)]
pub(super) struct FileRows {
    bytes: Vec<u8>,
    rows: usize,
    scratch: Vec<u8>,
}

impl Scanned for FileRows {
    fn samples(&self) -> usize {
        self.rows
    }
}

impl FileRows {
    pub(super) fn add(&mut self, cells: &[Cell]) {
        self.rows += 1;
        for cell in cells {
            self.scratch.clear();
            match cell {
                Cell::Null => {
                    push_cell(&mut self.bytes, None);
                    continue;
                }
                Cell::Number { bytes, length } => {
                    self.scratch.push(VALUE);
                    self.scratch.extend_from_slice(&bytes[..usize::from(*length).min(8)]);
                }
                Cell::Value(value) => {
                    self.scratch.push(VALUE);
                    self.scratch.extend_from_slice(value);
                }
                Cell::At { offset, length } => {
                    self.scratch.push(AT);
                    self.scratch.extend_from_slice(&offset.to_le_bytes());
                    self.scratch.extend_from_slice(&length.to_le_bytes());
                }
                Cell::Packed(packed) => {
                    let PackedCell { offset, bytes, part } = packed;
                    self.scratch.extend_from_slice(&[PACKED, part.codec.number()]);
                    for number in [*offset, *bytes] {
                        self.scratch.extend_from_slice(&number.to_le_bytes());
                    }
                    for number in [part.unpacked_bytes, part.start, part.length] {
                        self.scratch.extend_from_slice(&number.to_le_bytes());
                    }
                }
            }
            push_cell(&mut self.bytes, Some(&self.scratch));
        }
    }

    /// Calls `visit` with each row's cells.
    ///
    /// # Errors
    /// Those of `visit`.
    pub(super) fn visit<E>(
        &self,
        columns: usize,
        mut visit: impl FnMut(u64, &[Option<&[u8]>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = self.bytes.as_slice();
        let mut cells = Vec::with_capacity(columns);
        for row in 0..self.rows {
            cells.clear();
            cells.extend((0..columns).map(|_| take_cell(&mut rest)));
            visit(row as u64, &cells)?;
        }
        Ok(())
    }
}
