//! Values that pages have by their differences, or in pieces: the encodings of Parquet's second version.
//!
//! `DELTA_BINARY_PACKED` has numbers, `DELTA_LENGTH_BYTE_ARRAY` the lengths of texts and then the texts, which stay where
//! they lie, `DELTA_BYTE_ARRAY` what each has in common with the one before, and the rest; `BYTE_STREAM_SPLIT` the first
//! bytes of all numbers, then the second ones.

use super::delta::{bytes_of_lengths, read, read_lengths};
use super::footer::BYTE_ARRAY;
use super::pages::{KEPT_VALUE_BYTES, Pages, Source, remedy};
use crate::dataset::error::DatasetError;
use crate::dataset::tables::Cell;

const DELTA_BINARY_PACKED: i64 = 5;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const BYTE_STREAM_SPLIT: i64 = 9;
/// Bytes of a fixed length.
const FIXED: i64 = 7;

impl Pages<'_, '_> {
    /// Whether values of the column may have this encoding, which is one of these.
    pub(super) fn is_by_differences(&self, encoding: i64) -> bool {
        match encoding {
            DELTA_BINARY_PACKED => matches!(self.leaf.stored, 1 | 2),
            DELTA_LENGTH_BYTE_ARRAY => self.leaf.stored == BYTE_ARRAY,
            DELTA_BYTE_ARRAY => matches!(self.leaf.stored, BYTE_ARRAY | FIXED),
            BYTE_STREAM_SPLIT => matches!(self.leaf.stored, 1 | 2 | 4 | 5),
            _ => false,
        }
    }

    /// The values of a page.
    pub(super) fn by_differences(
        &mut self,
        encoding: i64,
        source: &Source,
        count: usize,
    ) -> Result<Vec<Cell>, DatasetError> {
        match encoding {
            DELTA_BINARY_PACKED => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let (numbers, _) = read(&bytes, count).map_err(|why| self.fault(why.to_owned()))?;
                let width = self.number_bytes();
                Ok(numbers.into_iter().map(|n| Cell::number(&n.to_le_bytes()[..width])).collect())
            }
            BYTE_STREAM_SPLIT => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let width = self.number_bytes();
                if count.checked_mul(width) != Some(bytes.len()) {
                    return Err(self.fault("a page ends before its values do".to_owned()));
                }
                let cell = |place: usize| {
                    let value: Vec<u8> =
                        (0..width).map(|byte| bytes[byte * count + place]).collect();
                    Cell::number(&value)
                };
                Ok((0..count).map(cell).collect())
            }
            DELTA_LENGTH_BYTE_ARRAY => self.behind_lengths(source, count),
            _ => self.with_prefixes(source, count),
        }
    }

    /// The bytes of a number.
    const fn number_bytes(&self) -> usize {
        if matches!(self.leaf.stored, 1 | 4) { 4 } else { 8 }
    }

    /// Texts or bytes one behind the other, and all lengths in front of them.
    fn behind_lengths(&mut self, source: &Source, count: usize) -> Result<Vec<Cell>, DatasetError> {
        let page_bytes = match source {
            Source::File(start, end) => end - start,
            Source::Memory(bytes, _) => bytes.len() as u64,
        };
        // Of a page in the file the lengths alone are read, as a rule.
        let most = bytes_of_lengths(count as u64).min(page_bytes);
        let mut head = self.bytes(source, 0, most)?;
        if read_lengths(&head, count).is_err() && most < page_bytes {
            head = self.bytes(source, 0, u64::MAX)?;
        }
        let found = read_lengths(&head, count).map_err(|why| self.fault(why.to_owned()))?;
        let (lengths, mut at) = (found.0, (head.len() - found.1.len()) as u64);
        let cut = |pages: &Self| pages.fault("a page ends before its values do".to_owned());
        let mut cells = Vec::with_capacity(count);
        for length in lengths {
            let end = at.checked_add(length).filter(|end| *end <= page_bytes);
            let end = end.ok_or_else(|| cut(self))?;
            cells.push(match source {
                Source::File(start, _) => Cell::At { offset: start + at, length },
                Source::Memory(bytes, place) => {
                    // Both are within the page.
                    let narrow = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
                    let (from, until) = (narrow(at), narrow(end));
                    match place.filter(|_| self.is_bytes() && until - from > KEPT_VALUE_BYTES) {
                        Some(place) => place.cell(from, until - from),
                        None => {
                            self.keep(length + 4)?;
                            Cell::Value(bytes[from..until].to_vec())
                        }
                    }
                }
            });
            at = end;
        }
        Ok(cells)
    }

    /// Texts or bytes that begin as the one before does: how long each does so, then the rest of each. They are put
    /// together here; long ones lie nowhere as a whole.
    fn with_prefixes(&mut self, source: &Source, count: usize) -> Result<Vec<Cell>, DatasetError> {
        let bytes = self.bytes(source, 0, u64::MAX)?;
        let fail = |pages: &Self, why: &str| pages.fault(why.to_owned());
        let (prefixes, rest) = read_lengths(&bytes, count).map_err(|why| fail(self, why))?;
        let (lengths, mut rest) = read_lengths(rest, count).map_err(|why| fail(self, why))?;
        let cut = "a page ends before its values do";
        let (mut cells, mut before) = (Vec::with_capacity(count), Vec::new());
        for (prefix, length) in prefixes.into_iter().zip(lengths) {
            let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let (own, behind) =
                rest.split_at_checked(narrow(length)).ok_or_else(|| fail(self, cut))?;
            rest = behind;
            if narrow(prefix) > before.len() {
                return Err(fail(self, "a value begins as more than the one before it has"));
            }
            before.truncate(narrow(prefix));
            before.extend_from_slice(own);
            let is_long = before.len() > KEPT_VALUE_BYTES && self.is_bytes();
            if is_long || (self.leaf.stored == FIXED && before.len() as u64 != self.leaf.length) {
                return Err(self.fault(format!(
                    "its values have the encoding DELTA_BYTE_ARRAY, in which long ones lie nowhere as a whole; {}",
                    remedy(&self.leaf.column.column.name)
                )));
            }
            self.keep(before.len() as u64 + 4)?;
            cells.push(match self.leaf.stored {
                FIXED => Cell::number(&before),
                _ => Cell::Value(before.clone()),
            });
        }
        Ok(cells)
    }
}
