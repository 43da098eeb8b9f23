//! Nested columns of a batch as JSON: structs, and lists of anything. The index has the text, because the file has it
//! nowhere as a whole.

use super::batch::{Batch, Bits, Fault};
use super::packed::Budget;
use super::schema::{Field, Kind};
use crate::{Cell, json};
use forebay_dataset::error::DatasetError;
use forebay_index::window::Window;

/// The maximum bytes of buffers that are loaded at once. Rows with more are loaded in halves.
const LOADED_BYTES: u64 = 32 << 20;

/// The elements of a field from an index on.
struct Loaded<'f> {
    /// Which elements are not null; `None`: all.
    valid: Option<Bits>,
    low: u64,
    values: Values<'f>,
}

enum Values<'f> {
    Null,
    Bool(Bits),
    Numbers { name: &'static str, width: usize, bytes: Vec<u8> },
    Texts { offsets: Vec<u64>, bytes: Vec<u8> },
    Struct(Vec<(&'f str, Loaded<'f>)>),
    List { offsets: Vec<u64>, elements: Box<Loaded<'f>> },
    FixedList { size: u64, elements: Box<Loaded<'f>> },
}

/// A row's JSON is longer than [`json::MAX_BYTES`].
struct TooLong;

impl Batch<'_> {
    /// Appends the cells of a field for the rows `low` to `high`. `number`: the field's number; `is_there`: whether the
    /// structs around each row's value are not null.
    ///
    /// # Errors
    /// The buffers do not match the rows, a value is too long, or the storage fails.
    pub(super) fn json_cells(
        &self,
        window: &mut Window<'_>,
        (field, number): (&Field, usize),
        (low, high): (u64, u64),
        (is_there, budget): (&[bool], &Budget),
        cells: &mut Vec<Cell>,
        fault: Fault<'_>,
    ) -> Result<(), DatasetError> {
        let (mut next, mut left) = (number, LOADED_BYTES);
        let Some(loaded) = self.load(window, field, &mut next, (low, high), &mut left, fault)?
        else {
            let middle = low + (high - low) / 2;
            if middle == low {
                return Err(fault(format!(
                    "row {low} of a batch has more than {LOADED_BYTES} bytes, which are not read as JSON"
                )));
            }
            let split = usize::try_from(middle - low).unwrap_or(0).min(is_there.len());
            let (first, second) = is_there.split_at(split);
            let field = (field, number);
            self.json_cells(window, field, (low, middle), (first, budget), cells, fault)?;
            return self.json_cells(window, field, (middle, high), (second, budget), cells, fault);
        };
        let mut text = Vec::new();
        for (row, is_there) in (low..high).zip(is_there) {
            if !is_there || loaded.is_null(row) {
                cells.push(Cell::Null);
                continue;
            }
            text.clear();
            loaded.write(row, &mut text).map_err(|TooLong| {
                fault(format!(
                    "row {row} of a batch has more than {} bytes as JSON, which are not read",
                    json::MAX_BYTES
                ))
            })?;
            if !budget.keeps(text.len() as u64) {
                return Err(fault(
                    "its JSON is too long to be kept in the index; leave it out of dataset.fields, or write it into several files"
                        .to_owned(),
                ));
            }
            cells.push(Cell::Value(text.clone()));
        }
        Ok(())
    }

    /// Loads elements of the field `next`, which becomes the number of the field behind it and its children. `None`: they
    /// take more than `left` bytes.
    fn load<'f>(
        &self,
        window: &mut Window<'_>,
        field: &'f Field,
        next: &mut usize,
        (low, high): (u64, u64),
        left: &mut u64,
        fault: Fault<'_>,
    ) -> Result<Option<Loaded<'f>>, DatasetError> {
        let number = *next;
        *next += 1;
        let mut takes = |bytes: Option<u64>| {
            let fits = bytes.and_then(|bytes| left.checked_sub(bytes));
            fits.inspect(|rest| *left = *rest).is_some()
        };
        let count = high - low;
        let bits = count / 8 + 2;
        let span = [Some((low, high))];
        let mut valid = None;
        if field.kind != Kind::Null && self.may_have_nulls(number).map_err(fault)? {
            if !takes(Some(bits)) {
                return Ok(None);
            }
            valid = Some(self.bits(window, number, 0, &span, fault)?);
        }
        let values = match &field.kind {
            Kind::Bool => {
                if !takes(Some(bits)) {
                    return Ok(None);
                }
                Values::Bool(self.bits(window, number, 1, &span, fault)?)
            }
            Kind::Fixed(width, Some(name)) => {
                if !takes(count.checked_mul(*width)) {
                    return Ok(None);
                }
                let (_, bytes) = self.elements(window, number, *width, &span, 0, fault)?;
                let width = usize::try_from(*width).unwrap_or(8);
                Values::Numbers { name, width, bytes }
            }
            Kind::Bytes { is_text: true, is_large } => {
                if !takes(count.checked_mul(8)) {
                    return Ok(None);
                }
                let offsets = self.rising(window, number, *is_large, (low, high), fault)?;
                let (start, end) = ends(&offsets);
                if !takes(Some(end - start)) {
                    return Ok(None);
                }
                let bytes = self.text(window, number, (start, end), fault)?;
                Values::Texts { offsets, bytes }
            }
            Kind::Struct => {
                let mut fields = Vec::with_capacity(field.children.len());
                for child in &field.children {
                    let loaded = self.load(window, child, next, (low, high), left, fault)?;
                    let Some(loaded) = loaded else { return Ok(None) };
                    fields.push((child.name.as_str(), loaded));
                }
                Values::Struct(fields)
            }
            Kind::List { is_large } => {
                if !takes(count.checked_mul(8)) {
                    return Ok(None);
                }
                let offsets = self.rising(window, number, *is_large, (low, high), fault)?;
                let child = field
                    .children
                    .first()
                    .map(|child| self.load(window, child, next, ends(&offsets), left, fault));
                let Some(elements) = child.transpose()?.flatten() else { return Ok(None) };
                Values::List { offsets, elements: Box::new(elements) }
            }
            Kind::FixedList(size) => {
                let ends = low.checked_mul(*size).zip(high.checked_mul(*size));
                let ends = ends.ok_or_else(|| fault("its lists are too long".to_owned()))?;
                let child = field
                    .children
                    .first()
                    .map(|child| self.load(window, child, next, ends, left, fault));
                let Some(elements) = child.transpose()?.flatten() else { return Ok(None) };
                Values::FixedList { size: *size, elements: Box::new(elements) }
            }
            // The schema has refused a column with others.
            _ => Values::Null,
        };
        Ok(Some(Loaded { valid, low, values }))
    }

    /// The offsets of elements, which rise.
    fn rising(
        &self,
        window: &mut Window<'_>,
        number: usize,
        is_large: bool,
        (low, high): (u64, u64),
        fault: Fault<'_>,
    ) -> Result<Vec<u64>, DatasetError> {
        let width = if is_large { 8 } else { 4 };
        let (_, bytes) = self.elements(window, number, width, &[Some((low, high))], 1, fault)?;
        let of = |bytes: &[u8]| match bytes {
            [a, b, c, d] => u64::try_from(i32::from_le_bytes([*a, *b, *c, *d])).ok(),
            _ => u64::try_from(i64::from_le_bytes(*bytes.first_chunk()?)).ok(),
        };
        let chunks = bytes.chunks_exact(usize::try_from(width).unwrap_or(8));
        let offsets: Option<Vec<u64>> = chunks.map(of).collect();
        let offsets = offsets.filter(|offsets| offsets.is_sorted());
        offsets.ok_or_else(|| fault(format!("its offsets from row {low} on do not rise")))
    }
}

/// The first and the last offset.
fn ends(offsets: &[u64]) -> (u64, u64) {
    (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0))
}

impl Loaded<'_> {
    fn is_null(&self, place: u64) -> bool {
        matches!(self.values, Values::Null)
            || self.valid.as_ref().is_some_and(|bits| !bits.is_set(place))
    }

    /// Writes the element at an index, which is among the loaded ones.
    fn write(&self, place: u64, out: &mut Vec<u8>) -> Result<(), TooLong> {
        if out.len() > json::MAX_BYTES {
            return Err(TooLong);
        }
        let null = |out: &mut Vec<u8>| out.extend_from_slice(b"null");
        let at = usize::try_from(place.saturating_sub(self.low)).unwrap_or(usize::MAX);
        if self.is_null(place) {
            null(out);
            return Ok(());
        }
        match &self.values {
            Values::Null => null(out),
            Values::Bool(bits) => {
                json::write_number(out, "bool", &[u8::from(bits.is_set(place))]);
            }
            Values::Numbers { name, width, bytes } => {
                let value =
                    at.checked_mul(*width).and_then(|start| bytes.get(start..)?.get(..*width));
                if !value.is_some_and(|value| json::write_number(out, name, value)) {
                    null(out);
                }
            }
            Values::Texts { offsets, bytes } => {
                let (first, _) = ends(offsets);
                let offset = |at: usize| usize::try_from(offsets.get(at)? - first).ok();
                let range = offset(at).zip(offset(at.saturating_add(1)));
                let text = range.and_then(|(start, end)| bytes.get(start..end));
                json::write_text(out, text.unwrap_or_default());
            }
            Values::Struct(fields) => {
                out.push(b'{');
                for (number, (name, field)) in fields.iter().enumerate() {
                    json::write_key(out, name, number == 0);
                    field.write(place, out)?;
                }
                out.push(b'}');
            }
            Values::List { offsets, elements } => {
                let offset = |at: usize| offsets.get(at).copied().unwrap_or(0);
                elements.write_all((offset(at), offset(at.saturating_add(1))), out)?;
            }
            Values::FixedList { size, elements } => {
                let start = place.saturating_mul(*size);
                elements.write_all((start, start.saturating_add(*size)), out)?;
            }
        }
        if out.len() > json::MAX_BYTES {
            return Err(TooLong);
        }
        Ok(())
    }

    fn write_all(&self, (start, end): (u64, u64), out: &mut Vec<u8>) -> Result<(), TooLong> {
        out.push(b'[');
        for place in start..end {
            if place > start {
                out.push(b',');
            }
            self.write(place, out)?;
        }
        out.push(b']');
        Ok(())
    }
}
