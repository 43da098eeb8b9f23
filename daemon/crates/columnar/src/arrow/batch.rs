//! Locates the values of a batch of rows.
//!
//! A batch lists for each field, in the schema's order, its number of nulls (a node) and its buffers: validity (a bit
//! each), offsets, values. Lists and structs lead from a row to a range of elements; see [`Leaf`].

use std::cell::RefCell;
use std::sync::Arc;

use super::flatbuffer::{Broken, Table};
use super::packed::{Budget, Buffer, Unpacked};
use super::schema::{Field, Kind, Leaf, Schema, Step, Values};
use crate::Cell;
use crate::Encoding;
use forebay_dataset::error::DatasetError;
use forebay_index::window::Window;

/// The supported codec and method of buffer compression, by Arrow's numbers.
const ZSTD: u8 = 1;
const BY_BUFFER: u8 = 0;
/// The size of a node or a buffer record: two numbers.
const RECORD_BYTES: usize = 16;

/// The description of a batch.
#[derive(Debug)]
pub(super) struct Batch<'m> {
    pub(super) rows: u64,
    nodes: &'m [u8],
    buffers: &'m [u8],
    /// By field.
    first_buffers: Vec<usize>,
    /// The offset and the length of the buffers in the file.
    body: (u64, u64),
    /// The cache of unpacked buffers, if the batch is compressed.
    unpacked: Option<RefCell<Unpacked>>,
}

/// A range of elements, without its end; `None`: no value.
pub(super) type Span = Option<(u64, u64)>;

/// Makes the error for a fault of a column.
pub(super) type Fault<'f> = &'f dyn Fn(String) -> DatasetError;

impl<'m> Batch<'m> {
    /// Parses a description.
    ///
    /// # Errors
    /// Describes the fault, or an unsupported feature.
    pub(super) fn parse(
        table: &Table<'m>,
        schema: &Schema,
        body: (u64, u64),
    ) -> Result<Self, String> {
        let broken = |_: Broken| "the description of a batch of rows is damaged".to_owned();
        let compression = table.table(3).map_err(broken)?;
        if let Some(compression) = &compression
            && (compression.u8(0, 0).map_err(broken)?, compression.u8(1, 0).map_err(broken)?)
                != (ZSTD, BY_BUFFER)
        {
            return Err(
                "its rows are compressed by LZ4 or in another way than zstd; write it with compression=\"zstd\" or without: \
                 pyarrow.feather.write_feather(table, path, compression=\"uncompressed\"), or \
                 pyarrow.ipc.IpcWriteOptions(compression=None)"
                    .to_owned(),
            );
        }
        let unpacked = compression.map(|_| RefCell::default());
        let rows = u64::try_from(table.i64(0, 0).map_err(broken)?).map_err(|_| broken(Broken))?;
        // A row has at least a bit; otherwise a few bytes could announce any number of rows. Compressed rows have a
        // budget.
        if unpacked.is_none() && rows > body.1.saturating_mul(8) {
            return Err(format!("a batch says that it has {rows} rows, and has {} bytes", body.1));
        }
        let nodes = table.structs(1, RECORD_BYTES).map_err(broken)?;
        let buffers = table.structs(2, RECORD_BYTES).map_err(broken)?;
        let more = table.structs(4, 8).map_err(broken)?;
        let mut more = more.chunks_exact(8).map(|count| number(count, 0));
        let (mut first_buffers, mut next) = (Vec::new(), 0);
        for field in &schema.fields {
            let assigned = assign(field, &mut first_buffers, &mut next, &mut more);
            assigned.ok_or_else(|| broken(Broken))?;
        }
        if nodes.len() / RECORD_BYTES != first_buffers.len() || buffers.len() / RECORD_BYTES != next
        {
            return Err(format!(
                "a batch of rows has {} columns and {} buffers, and by its schema {} and {next}",
                nodes.len() / RECORD_BYTES,
                buffers.len() / RECORD_BYTES,
                first_buffers.len()
            ));
        }
        let mut batch = Self { rows, nodes, buffers, first_buffers, body, unpacked };
        // Each top-level column must have the rows of the batch.
        let mut field = 0;
        for top in &schema.fields {
            let (length, _) = batch.node(field);
            if length != rows {
                return Err(format!(
                    "a batch has {rows} rows, and its column {} {length}",
                    top.name
                ));
            }
            field += fields_of(top);
        }
        if schema.fields.is_empty() {
            batch.rows = 0;
        }
        Ok(batch)
    }

    /// The numbers of a field's elements and of its nulls.
    fn node(&self, field: usize) -> (u64, u64) {
        let record = self.nodes.get(field * RECORD_BYTES..).unwrap_or_default();
        (number(record, 0), number(record, 8))
    }

    pub(super) fn is_packed(&self) -> bool {
        self.unpacked.is_some()
    }

    pub(super) fn buffer(
        &self,
        window: &mut Window<'_>,
        field: usize,
        place: usize,
        fault: Fault<'_>,
    ) -> Result<Buffer, DatasetError> {
        let stored = self.stored(field, place).map_err(fault)?;
        match &self.unpacked {
            None => Ok(Buffer::plain(stored)),
            Some(_) => Buffer::packed(window, stored),
        }
    }

    /// A part of a buffer.
    fn part(
        &self,
        window: &mut Window<'_>,
        buffer: &Buffer,
        part: (u64, u64),
    ) -> Result<Vec<u8>, DatasetError> {
        buffer.part(window, self.unpacked.as_ref().unwrap_or(&RefCell::default()), part)
    }

    /// The offset and the length of a buffer in the file.
    fn stored(&self, field: usize, place: usize) -> Result<(u64, u64), String> {
        let record = self.first_buffers.get(field).and_then(|first| {
            self.buffers.get((first + place).checked_mul(RECORD_BYTES)?..)?.get(..RECORD_BYTES)
        });
        let (offset, length) =
            record.map_or((u64::MAX, 0), |record| (number(record, 0), number(record, 8)));
        let (start, bytes) = self.body;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= bytes);
        match is_inside {
            true => Ok((start + offset, length)),
            false => Err(format!(
                "a buffer of {length} bytes is to be at byte {offset} of the {bytes} of its batch"
            )),
        }
    }

    /// Appends the cells of a column for some rows.
    ///
    /// # Errors
    /// The buffers do not match the rows, or the storage fails.
    pub(super) fn cells(
        &self,
        window: &mut Window<'_>,
        (leaf, fields): (&Leaf, &[Field]),
        (rows, budget): (std::ops::Range<u64>, &Budget),
        cells: &mut Vec<Cell>,
    ) -> Result<(), DatasetError> {
        let (first, end) = (rows.start, rows.end);
        if leaf.values == Values::Unread {
            cells.extend(rows.map(|_| Cell::Null));
            return Ok(());
        }
        if let Values::ByteList { is_large } = leaf.values {
            return self.byte_list_cells(window, (leaf, is_large), (rows, budget), cells);
        }
        let mut spans: Vec<Span> = rows.map(|row| Some((row, row + 1))).collect();
        let mut is_in_list = false;
        let file = window.file;
        let name = &leaf.column.column.name;
        let fault = |reason: String| file.fault(format!("column {name}: {reason}"));
        for &(step, field) in &leaf.steps {
            if is_in_list && self.has_nulls(leaf, field, cells, spans.len()) {
                return Ok(());
            }
            if !is_in_list {
                self.drop_nulls(window, field, &mut spans, &fault)?;
            }
            match step {
                Step::Struct => continue,
                Step::FixedList(size) => {
                    for span in spans.iter_mut().flatten() {
                        let scaled = span.0.checked_mul(size).zip(span.1.checked_mul(size));
                        *span = scaled.ok_or_else(|| fault("its lists are too long".to_owned()))?;
                    }
                }
                Step::List { is_large } => {
                    self.follow_offsets(window, field, is_large, &mut spans, &fault)?;
                }
            }
            is_in_list = true;
        }
        if leaf.values == Values::Json {
            let is_there: Vec<bool> = spans.iter().map(Option::is_some).collect();
            // A leaf has the number of a field of its schema.
            let Some(field) = field_at(fields, leaf.field) else { return Ok(()) };
            let (field, rows) = ((field, leaf.field), (first, end));
            return self.json_cells(window, field, rows, (&is_there, budget), cells, &fault);
        }
        let before = leaf.path.map(|path| (path, spans.clone()));
        if is_in_list && self.has_nulls(leaf, leaf.field, cells, spans.len()) {
            return Ok(());
        }
        if !is_in_list {
            self.drop_nulls(window, leaf.field, &mut spans, &fault)?;
        }
        if let Some((path, mut named)) = before {
            named.iter_mut().zip(&spans).for_each(|(named, span)| {
                *named = named.filter(|_| span.is_none());
            });
            self.drop_nulls(window, path, &mut named, &fault)?;
            if let Some(row) = named.iter().position(Option::is_some) {
                let why: Arc<str> = format!(
                    "row {} of a batch names a file and holds no picture; read the files that it names with \
                     dataset.format = \"manifest\", or write the pictures into the dataset: \
                     ds.map(lambda row: row).save_to_disk(…) does so where the files are there",
                    first + row as u64
                )
                .into();
                cells.extend(spans.iter().map(|_| Cell::Unread(Arc::clone(&why))));
                return Ok(());
            }
        }
        match leaf.values {
            Values::Unread | Values::Json | Values::ByteList { .. } => {
                cells.extend(spans.iter().map(|_| Cell::Null))
            }
            Values::Bytes { is_large } => {
                let buffer = self.buffer(window, leaf.field, 2, &fault)?;
                self.follow_offsets(window, leaf.field, is_large, &mut spans, &fault)?;
                self.place_all(window, (&spans, 1), (&buffer, budget), cells, &fault)?;
            }
            Values::Fixed(width) if is_in_list || !is_number(&leaf.column.column.encoding) => {
                let buffer = self.buffer(window, leaf.field, 1, &fault)?;
                self.place_all(window, (&spans, width), (&buffer, budget), cells, &fault)?;
            }
            Values::Fixed(width) => {
                let part = self.elements(window, leaf.field, width, &spans, 0, &fault)?;
                let width = usize::try_from(width).unwrap_or(8);
                cells.extend(spans.iter().map(|span| {
                    let start = span.and_then(|span| usize::try_from(span.0 - part.0).ok());
                    let value = start.and_then(|start| part.1.get(start * width..)?.get(..width));
                    value.map_or(Cell::Null, Cell::number)
                }));
            }
            Values::Bool => {
                let bits = self.bits(window, leaf.field, 1, &spans, &fault)?;
                cells.extend(spans.iter().map(|span| match span {
                    Some((place, _)) => Cell::number(&[u8::from(bits.is_set(*place))]),
                    None => Cell::Null,
                }));
            }
        }
        Ok(())
    }

    /// Whether elements of lists are null. Then the column is unsupported in this batch.
    fn has_nulls(&self, leaf: &Leaf, field: usize, cells: &mut Vec<Cell>, rows: usize) -> bool {
        let nulls = self.node(field).1;
        if nulls == 0 {
            return false;
        }
        let of = leaf.column.column.encoding.element().unwrap_or("others");
        let why: Arc<str> = format!(
            "it is a list of {of} in which {nulls} elements of a batch are null, and arrays have none; fill or drop them"
        )
        .into();
        cells.extend((0..rows).map(|_| Cell::Unread(Arc::clone(&why))));
        true
    }

    /// Replaces spans of null elements by `None`.
    pub(super) fn drop_nulls(
        &self,
        window: &mut Window<'_>,
        field: usize,
        spans: &mut [Span],
        fault: Fault<'_>,
    ) -> Result<(), DatasetError> {
        if !self.may_have_nulls(field).map_err(fault)? {
            return Ok(());
        }
        let bits = self.bits(window, field, 0, spans, fault)?;
        for span in spans {
            *span = span.filter(|(place, _)| bits.is_set(*place));
        }
        Ok(())
    }

    /// Replaces spans of lists by the spans of their elements.
    pub(super) fn follow_offsets(
        &self,
        window: &mut Window<'_>,
        field: usize,
        is_large: bool,
        spans: &mut [Span],
        fault: Fault<'_>,
    ) -> Result<(), DatasetError> {
        let width = if is_large { 8 } else { 4 };
        let (first, part) = self.elements(window, field, width, spans, 1, fault)?;
        let offset = |place: u64| {
            let start = usize::try_from((place - first) * width).ok()?;
            let bytes = part.get(start..)?;
            match is_large {
                true => bytes
                    .first_chunk()
                    .and_then(|bytes| u64::try_from(i64::from_le_bytes(*bytes)).ok()),
                false => bytes
                    .first_chunk()
                    .and_then(|bytes| u64::try_from(i32::from_le_bytes(*bytes)).ok()),
            }
        };
        for span in spans.iter_mut().flatten() {
            if span.0 == span.1 {
                *span = (0, 0);
                continue;
            }
            let found = offset(span.0).zip(offset(span.1)).filter(|(start, end)| start <= end);
            *span =
                found.ok_or_else(|| fault(format!("its offsets at row {} do not rise", span.0)))?;
        }
        Ok(())
    }

    /// Whether elements of a field may be null.
    pub(super) fn may_have_nulls(&self, field: usize) -> Result<bool, String> {
        Ok(self.node(field).1 > 0 && self.stored(field, 0)?.1 > 0)
    }

    /// Bytes of texts.
    pub(super) fn text(
        &self,
        window: &mut Window<'_>,
        field: usize,
        (start, end): (u64, u64),
        fault: Fault<'_>,
    ) -> Result<Vec<u8>, DatasetError> {
        let buffer = self.buffer(window, field, 2, fault)?;
        if end > buffer.length {
            return Err(fault(format!(
                "its texts end at byte {end}, and their buffer has {} bytes",
                buffer.length
            )));
        }
        self.part(window, &buffer, (start, end.saturating_sub(start)))
    }

    /// Reads the elements in the spans from the second buffer, and `more` after them; gives the first one's index, too.
    pub(super) fn elements(
        &self,
        window: &mut Window<'_>,
        field: usize,
        width: u64,
        spans: &[Span],
        more: u64,
        fault: Fault<'_>,
    ) -> Result<(u64, Vec<u8>), DatasetError> {
        let Some((low, high)) = bounds(spans) else { return Ok((0, Vec::new())) };
        let buffer = self.buffer(window, field, 1, fault)?;
        let length = buffer.length;
        let end = high.checked_add(more).and_then(|end| end.checked_mul(width));
        if end.is_none_or(|end| end > length) {
            return Err(fault(format!(
                "its buffer of {length} bytes ends before element {high} of {width} bytes"
            )));
        }
        let part = self.part(window, &buffer, (low * width, (high + more - low) * width))?;
        Ok((low, part))
    }

    /// Reads the bits in the spans from a buffer.
    pub(super) fn bits(
        &self,
        window: &mut Window<'_>,
        field: usize,
        place: usize,
        spans: &[Span],
        fault: Fault<'_>,
    ) -> Result<Bits, DatasetError> {
        let Some((low, high)) = bounds(spans) else { return Ok(Bits::default()) };
        let buffer = self.buffer(window, field, place, fault)?;
        let length = buffer.length;
        let (first, end) = (low / 8, high.div_ceil(8));
        if end > length {
            return Err(fault(format!("its buffer of {length} bytes ends before bit {high}")));
        }
        Ok(Bits { first, bytes: self.part(window, &buffer, (first, end - first))? })
    }

    /// Appends the cells of fixed-width elements.
    pub(super) fn place_all(
        &self,
        window: &mut Window<'_>,
        (spans, width): (&[Span], u64),
        (buffer, budget): (&Buffer, &Budget),
        cells: &mut Vec<Cell>,
        fault: Fault<'_>,
    ) -> Result<(), DatasetError> {
        let none = RefCell::default();
        let unpacked = self.unpacked.as_ref().unwrap_or(&none);
        for span in spans {
            let Some((first, end)) = *span else {
                cells.push(Cell::Null);
                continue;
            };
            let place = first.checked_mul(width).zip(end.checked_mul(width));
            let (from, to) = place.filter(|(_, to)| *to <= buffer.length).ok_or_else(|| {
                fault(format!(
                    "its values end at element {end}, and its buffer has {} bytes",
                    buffer.length
                ))
            })?;
            cells.push(buffer.cell(window, unpacked, budget, (from, to - from))?);
        }
        Ok(())
    }
}

/// Bits of a buffer, from the byte `first`.
#[derive(Debug, Default)]
pub(super) struct Bits {
    first: u64,
    bytes: Vec<u8>,
}

impl Bits {
    pub(super) fn is_set(&self, place: u64) -> bool {
        let byte = (place / 8).checked_sub(self.first).and_then(|byte| usize::try_from(byte).ok());
        byte.and_then(|byte| self.bytes.get(byte)).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
    }
}

/// The range that encloses all spans that are not empty.
fn bounds(spans: &[Span]) -> Option<(u64, u64)> {
    let there = || spans.iter().flatten().filter(|(start, end)| start < end);
    let low = there().map(|(start, _)| *start).min()?;
    Some((low, there().map(|(_, end)| *end).max()?))
}

fn is_number(encoding: &Encoding) -> bool {
    matches!(encoding, Encoding::Number(_))
}

/// Assigns the first buffers of a field and of its children.
fn assign(
    field: &Field,
    first: &mut Vec<usize>,
    next: &mut usize,
    more: &mut dyn Iterator<Item = u64>,
) -> Option<()> {
    first.push(*next);
    *next = next.checked_add(match &field.kind {
        Kind::Null => 0,
        Kind::Struct | Kind::FixedList(_) => 1,
        Kind::Bool | Kind::Fixed(..) | Kind::Time(..) | Kind::List { .. } => 2,
        Kind::Bytes { .. } => 3,
        Kind::Unread { buffers, has_more: false, .. } => *buffers,
        Kind::Unread { buffers, has_more: true, .. } => {
            usize::try_from(more.next()?).ok()?.checked_add(*buffers)?
        }
    })?;
    field.children.iter().try_for_each(|child| assign(child, first, next, more))
}

/// The field with a number.
fn field_at(fields: &[Field], number: usize) -> Option<&Field> {
    let mut left = number;
    for field in fields {
        if left == 0 {
            return Some(field);
        }
        let all = fields_of(field);
        if left < all {
            return field_at(&field.children, left - 1);
        }
        left -= all;
    }
    None
}

fn fields_of(field: &Field) -> usize {
    1 + field.children.iter().map(fields_of).sum::<usize>()
}

/// A number in a record; negative ones become very large.
fn number(record: &[u8], start: usize) -> u64 {
    record
        .get(start..)
        .and_then(<[u8]>::first_chunk)
        .map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}
