//! Pages of large values, one after the other in the file: each is located, and is read without the others.

use std::sync::Arc;

use super::Trouble;
use super::fsst::Symbols;
use super::layout::{Compression, FullZip, Width};
use super::values::{Damaged, all_set, size_bytes, unpacked_size};
use crate::{Cell, PackedCell};
use forebay_index::window::Window;
use forebay_storage::codec::Codec;
use forebay_storage::location::Packed;

/// How the values of a page are stored.
#[derive(Debug)]
enum Stored {
    /// As they are, in the same number of bytes each; before each one the validities of so many items, by list.
    Fixed { bytes: u64, validities: Vec<u64> },
    /// As they are, after their length.
    Variable { length_bytes: u64 },
    /// Each packed by a codec, after the length of the packed value.
    Packed { length_bytes: u64, codec: Codec },
    /// As symbols, after their length.
    Symbols { length_bytes: u64, symbols: Symbols },
}

/// The rest of a page.
#[derive(Debug)]
pub(super) struct FullZips {
    stored: Stored,
    control_bytes: u64,
    /// The place of the values, and their bytes.
    values: (u64, u64),
    /// The offsets of values that differ in length, and the bytes of an offset.
    offsets: (Vec<u8>, usize),
    row: u64,
    rows: u64,
}

impl FullZips {
    /// `None`: values are stored in a way that is not supported.
    pub(super) fn open(
        layout: FullZip,
        buffers: &[(u64, u64)],
        rows: u64,
        window: &mut Window<'_>,
    ) -> Result<Option<Self>, Trouble> {
        let values = *buffers.first().ok_or(Damaged)?;
        let FullZip { control_bytes, width, values: compression, .. } = layout;
        let (stored, offsets) = match width {
            Width::Fixed(bytes) => {
                let Some((items, validities)) = fixed(compression) else { return Ok(None) };
                let before = validities.iter().map(|items| items.div_ceil(8)).sum::<u64>();
                if before.checked_add(items) != Some(bytes) || bytes == 0 {
                    return Err(Damaged.into());
                }
                let all = bytes.checked_add(control_bytes).and_then(|one| one.checked_mul(rows));
                if all.is_none_or(|all| all > values.1) {
                    return Err(Damaged.into());
                }
                (Stored::Fixed { bytes: items, validities }, (Vec::new(), 0))
            }
            Width::Stored(length_bytes) => {
                let Some(stored) = variable(compression, length_bytes) else { return Ok(None) };
                let (place, length) = *buffers.get(1).ok_or(Damaged)?;
                let bytes = rows.checked_add(1).map_or(0, |offsets| length / offsets);
                let bytes = usize::try_from(bytes).ok().filter(|bytes| matches!(bytes, 1..=8));
                (stored, (window.get(place, length)?.to_vec(), bytes.ok_or(Damaged)?))
            }
        };
        Ok(Some(Self { stored, control_bytes, values, offsets, row: 0, rows }))
    }

    /// The cell of the next row; `None`: there is none. `alone`: reads few bytes from each value; `window`: reads
    /// neighbours at once.
    pub(super) fn next(
        &mut self,
        window: &mut Window<'_>,
        alone: &mut Window<'_>,
    ) -> Result<Option<Cell>, Trouble> {
        if self.row == self.rows {
            return Ok(None);
        }
        let row = self.row;
        self.row += 1;
        if let Stored::Fixed { bytes, validities } = &self.stored {
            let before = validities.iter().map(|items| items.div_ceil(8)).sum::<u64>();
            let stride = self.control_bytes + before + bytes;
            let place = row.checked_mul(stride).and_then(|start| start.checked_add(self.values.0));
            let place = place.ok_or(Damaged)?;
            let head = self.control_bytes + before;
            if head > 0 {
                let head = alone.get(place, head)?;
                let control = usize::try_from(self.control_bytes).map_err(|_| Damaged)?;
                let (control, mut rest) = head.split_at_checked(control).ok_or(Damaged)?;
                if control.iter().any(|byte| *byte > 0) {
                    return Ok(Some(Cell::Null));
                }
                for items in validities {
                    let items = usize::try_from(*items).map_err(|_| Damaged)?;
                    let (own, after) = rest.split_at_checked(items.div_ceil(8)).ok_or(Damaged)?;
                    if !all_set(own, 0, items).ok_or(Damaged)? {
                        let why = "a list has an item without a value; write it without nulls";
                        return Ok(Some(Cell::Unread(Arc::from(why))));
                    }
                    rest = after;
                }
            }
            return Ok(Some(Cell::At { offset: place + head, length: *bytes }));
        }
        let Some((place, length)) = self.range(row)? else { return Ok(Some(Cell::Null)) };
        Ok(Some(match &self.stored {
            Stored::Fixed { .. } | Stored::Variable { .. } => Cell::At { offset: place, length },
            Stored::Packed { codec, .. } => {
                let before = size_bytes(*codec) as u64;
                let size = unpacked_size(*codec, alone.get(place, before.min(length))?);
                let size = size.and_then(|size| u32::try_from(size).ok()).ok_or(Damaged)?;
                if size == 0 {
                    return Ok(Some(Cell::Value(Vec::new())));
                }
                let part = Packed { codec: *codec, unpacked_bytes: size, start: 0, length: size };
                Cell::Packed(PackedCell { offset: place + before, bytes: length - before, part })
            }
            Stored::Symbols { symbols, .. } => {
                let mut text = Vec::new();
                symbols.unpack(window.get(place, length)?, &mut text).ok_or(Damaged)?;
                Cell::Value(text)
            }
        }))
    }

    /// The memory that it uses.
    pub(super) fn held(&self) -> u64 {
        self.offsets.0.len() as u64
    }

    /// The range of a value after its length; `None`: it is null, and has only the bytes that say so.
    fn range(&self, row: u64) -> Result<Option<(u64, u64)>, Damaged> {
        let (offsets, size) = &self.offsets;
        let start = usize::try_from(row).ok().and_then(|row| row.checked_mul(*size));
        let both = start.and_then(|start| offsets.get(start..)?.get(..2 * size)).ok_or(Damaged)?;
        let number = |bytes: &[u8]| {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(wide)
        };
        let (start, end) = both.split_at(both.len() / 2);
        let (start, end) = (number(start), number(end));
        let length = end.checked_sub(start).filter(|_| end <= self.values.1).ok_or(Damaged)?;
        if self.control_bytes > 0 && length == self.control_bytes {
            return Ok(None);
        }
        let before = self.control_bytes
            + match self.stored {
                Stored::Variable { length_bytes }
                | Stored::Packed { length_bytes, .. }
                | Stored::Symbols { length_bytes, .. } => length_bytes,
                Stored::Fixed { .. } => 0,
            };
        let length = length.checked_sub(before).ok_or(Damaged)?;
        let place = self.values.0.checked_add(start).and_then(|place| place.checked_add(before));
        Ok(Some((place.ok_or(Damaged)?, length)))
    }
}

/// The bytes of a value of fixed length, and by list the number of items with a validity.
fn fixed(compression: Compression) -> Option<(u64, Vec<u64>)> {
    let (mut of, mut items, mut validities) = (compression, 1_u64, Vec::new());
    loop {
        of = match of {
            Compression::Lists { items: own, has_validity, of } => {
                items = items.checked_mul(own)?;
                validities.extend(has_validity.then_some(items));
                *of
            }
            Compression::Flat { bits } if bits % 8 == 0 => {
                return Some((items.checked_mul(bits / 8)?, validities));
            }
            _ => return None,
        };
    }
}

fn variable(compression: Compression, length_bytes: u64) -> Option<Stored> {
    if !matches!(length_bytes, 1 | 2 | 4 | 8) {
        return None;
    }
    match compression {
        Compression::Variable { .. } => Some(Stored::Variable { length_bytes }),
        Compression::General(codec, of) if matches!(*of, Compression::Variable { .. }) => {
            Some(Stored::Packed { length_bytes, codec })
        }
        Compression::Symbols(symbols, of) if matches!(*of, Compression::Variable { .. }) => {
            Some(Stored::Symbols { length_bytes, symbols })
        }
        _ => None,
    }
}
