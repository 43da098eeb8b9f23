//! The values of rows, as a file has them: numbers and short values, and the places of others.

use std::sync::Arc;

use forebay_storage::location::Packed;

/// The value of a row in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// No value.
    Null,
    /// A value of at most 8 bytes.
    Number {
        /// The value, then zeros.
        bytes: [u8; 8],
        /// The length of the value in bytes.
        length: u8,
    },
    /// A value that cannot be read alone from its file, or is too short for a separate read.
    Value(Vec<u8>),
    /// A value's range in its file.
    At {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// A value's range in the unpacked bytes of a part of its file.
    Packed(PackedCell),
    /// The values of a list.
    List(Vec<Self>),
    /// A value that is not supported, and why: its column is left out, other columns are kept.
    Unread(Arc<str>),
}

/// A part of a file, and a value's range in its unpacked bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedCell {
    /// The offset of the part in the file.
    pub offset: u64,
    /// The length of the part in the file.
    pub bytes: u64,
    /// How it is packed, and the value's range.
    pub part: Packed,
}

impl PackedCell {
    /// The memory to unpack it: the part of the file, its unpacked bytes, and as much again for a decoder's history.
    pub fn page_bytes(&self) -> u64 {
        self.bytes.saturating_add(2 * u64::from(self.part.unpacked_bytes))
    }
}

impl Cell {
    /// A number of at most 8 bytes.
    pub fn number(value: &[u8]) -> Self {
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
