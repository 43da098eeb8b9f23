//! The encodings of Parquet's second version.
//!
//! `DELTA_BINARY_PACKED` has numbers. `DELTA_LENGTH_BYTE_ARRAY` has the lengths of texts and then the texts, which stay
//! in the file. `DELTA_BYTE_ARRAY` has the length of the prefix shared with the preceding text, and the suffix.
//! `BYTE_STREAM_SPLIT` has the first bytes of all numbers, then the second bytes, and so on.

use super::delta::{bytes_of_lengths, read, read_lengths};
use super::pages::{KEPT_VALUE_BYTES, Pages, REWRITE, Source};
use super::runs::Runs;
use super::schema::{BYTE_ARRAY, FIXED};
use crate::Cell;
use forebay_dataset::error::DatasetError;

const DELTA_BINARY_PACKED: i64 = 5;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const BYTE_STREAM_SPLIT: i64 = 9;

impl Pages<'_, '_> {
    /// Whether `encoding` is one of these and allowed for the column.
    pub(super) fn is_by_differences(&self, encoding: i64) -> bool {
        match encoding {
            DELTA_BINARY_PACKED => matches!(self.leaf.stored, 1 | 2),
            DELTA_LENGTH_BYTE_ARRAY => self.leaf.stored == BYTE_ARRAY,
            DELTA_BYTE_ARRAY => matches!(self.leaf.stored, BYTE_ARRAY | FIXED),
            BYTE_STREAM_SPLIT => matches!(self.leaf.stored, 1 | 2 | 4 | 5),
            _ => false,
        }
    }

    /// Adds the values of a page.
    pub(super) fn by_differences(
        &mut self,
        encoding: i64,
        source: &Source,
        count: usize,
        values: &mut Runs,
    ) -> Result<(), DatasetError> {
        match encoding {
            DELTA_BINARY_PACKED => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let (numbers, _) = read(&bytes, count).map_err(|why| self.fault(why.to_owned()))?;
                let width = self.number_bytes();
                let mut all = numbers.into_iter().map(|n| Cell::number(&n.to_le_bytes()[..width]));
                all.try_for_each(|cell| values.push(cell, 1)).map_err(|full| self.full(full))
            }
            BYTE_STREAM_SPLIT => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let width = self.number_bytes();
                if count.checked_mul(width) != Some(bytes.len()) {
                    return Err(self.cut_off());
                }
                let cell = |place: usize| {
                    let value: Vec<u8> =
                        (0..width).map(|byte| bytes[byte * count + place]).collect();
                    Cell::number(&value)
                };
                let mut all = (0..count).map(cell);
                all.try_for_each(|cell| values.push(cell, 1)).map_err(|full| self.full(full))
            }
            DELTA_LENGTH_BYTE_ARRAY => self.behind_lengths(source, count, values),
            _ => self.with_prefixes(source, count, values),
        }
    }

    /// The length of a number.
    const fn number_bytes(&self) -> usize {
        if matches!(self.leaf.stored, 1 | 4) { 4 } else { 8 }
    }

    /// Adds texts or bytes that follow all of their lengths.
    fn behind_lengths(
        &mut self,
        source: &Source,
        count: usize,
        values: &mut Runs,
    ) -> Result<(), DatasetError> {
        let page_bytes = match source {
            Source::File(start, end) => end - start,
            Source::Memory(bytes, _) => bytes.len() as u64,
        };
        // From a page in the file, usually only the lengths are read.
        let most = bytes_of_lengths(count as u64).min(page_bytes);
        let mut head = self.bytes(source, 0, most)?;
        if read_lengths(&head, count).is_err() && most < page_bytes {
            head = self.bytes(source, 0, u64::MAX)?;
        }
        let found = read_lengths(&head, count).map_err(|why| self.fault(why.to_owned()))?;
        let (lengths, mut at) = (found.0, (head.len() - found.1.len()) as u64);
        for length in lengths {
            let end = at.checked_add(length).filter(|end| *end <= page_bytes);
            let end = end.ok_or_else(|| self.cut_off())?;
            let cell = match source {
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
            };
            values.push(cell, 1).map_err(|full| self.full(full))?;
            at = end;
        }
        Ok(())
    }

    /// Adds texts or bytes stored as prefix lengths and suffixes. Values are assembled here, because they are not
    /// contiguous in the page.
    fn with_prefixes(
        &mut self,
        source: &Source,
        count: usize,
        values: &mut Runs,
    ) -> Result<(), DatasetError> {
        let bytes = self.bytes(source, 0, u64::MAX)?;
        let fail = |pages: &Self, why: &str| pages.fault(why.to_owned());
        let (prefixes, rest) = read_lengths(&bytes, count).map_err(|why| fail(self, why))?;
        let (lengths, mut rest) = read_lengths(rest, count).map_err(|why| fail(self, why))?;
        let mut before = Vec::new();
        for (prefix, length) in prefixes.into_iter().zip(lengths) {
            let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let (own, behind) =
                rest.split_at_checked(narrow(length)).ok_or_else(|| self.cut_off())?;
            rest = behind;
            if narrow(prefix) > before.len() {
                return Err(fail(self, "a value begins as more than the one before it has"));
            }
            before.truncate(narrow(prefix));
            before.extend_from_slice(own);
            let is_long = before.len() > KEPT_VALUE_BYTES && self.is_bytes();
            if is_long || (self.leaf.stored == FIXED && before.len() as u64 != self.leaf.length) {
                return Err(self.not_read(format!(
                    "it is {}, whose values have the encoding DELTA_BYTE_ARRAY here, in which long ones lie nowhere as a \
                     whole; {REWRITE}",
                    self.leaf.type_name()
                )));
            }
            self.keep(before.len() as u64 + 4)?;
            let cell = match self.leaf.stored {
                FIXED => Cell::number(&before),
                _ => Cell::Value(before.clone()),
            };
            values.push(cell, 1).map_err(|full| self.full(full))?;
        }
        Ok(())
    }
}
