//! Arrow streams: the location of each row's values.
//!
//! A stream consists of messages: a schema, then batches of rows, each with a description ([`flatbuffer`]) and its
//! buffers. The location of a row's values follows from the description and from offsets ([`batch`]), which are read
//! once; the values are not moved.

mod batch;
mod byte_lists;
mod flatbuffer;
mod nested;
mod packed;
mod schema;

use std::ops::ControlFlow;

use self::batch::Batch;
use self::flatbuffer::{Broken, Table};
use self::packed::Budget;
pub(crate) use self::schema::{Field, Kind, TimeUnit};
use self::schema::{Leaf, Schema};
use crate::{Cell, Reader, Reads, TableColumn, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The number of bytes read at once from a file's start.
const HEAD_BYTES: u64 = 16 << 10;
/// The number of rows of a batch that are processed together.
const ROWS_AT_ONCE: u64 = 4096;
/// The prefix of a file that ends with a list of its batches; a stream follows it.
const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// The maximum alignment of a stream in such a file.
const MAX_ALIGNMENT: u64 = 64;
/// The prefix of a message.
const HEAD: [u8; 4] = [0xff; 4];

/// Reads Arrow streams.
pub const READER: Reader = Reader { columns, rows };

/// The header and body of a message.
pub(crate) struct Message<'m> {
    version: i16,
    kind: u8,
    header: Table<'m>,
    /// The offset and the length of the body.
    pub(crate) body: (u64, u64),
}

/// Visits a stream's messages, up to its end or until the visitor stops.
pub(crate) fn walk(
    file: &dyn Bytes,
    piece: u64,
    mut visit: impl FnMut(Message<'_>, &mut Window<'_>) -> Result<ControlFlow<()>, DatasetError>,
) -> Result<(), DatasetError> {
    let mut window = Window::new(file, WindowSize::fixed(piece));
    let length = file.length();
    let mut at = 0;
    if length >= 8 && window.get(0, 8)? == MAGIC {
        at = 8;
        // The crate `arrow` begins the stream at a multiple of its alignment.
        while at < MAX_ALIGNMENT && length - at >= 8 && window.get(at, 8)? == [0; 8] {
            at += 8;
        }
    }
    let start = at;
    loop {
        if length.saturating_sub(at) < 8 {
            return Err(file.fault(format!(
                "it ends at byte {length} without the mark that ends a stream: it is cut off"
            )));
        }
        let mut head = [0; 8];
        head.copy_from_slice(window.get(at, 8)?);
        let [a, b, c, d, size @ ..] = head;
        if [a, b, c, d] != HEAD {
            return Err(file.fault(match at == start {
                true => "it is no Arrow stream of version 0.15 or later".to_owned(),
                false => format!("at byte {at} there is no message: it is damaged"),
            }));
        }
        let size = u32::from_le_bytes(size);
        if size == 0 {
            return Ok(());
        }
        let text = window.get(at + 8, u64::from(size))?.to_vec();
        let broken = |_: Broken| file.fault(format!("its message at byte {at} is damaged"));
        let table = Table::root(&text).map_err(broken)?;
        let header = table.table(2).map_err(broken)?.ok_or_else(|| broken(Broken))?;
        let body = at + 8 + u64::from(size);
        let bytes = u64::try_from(table.i64(3, 0).map_err(broken)?).map_err(|_| broken(Broken))?;
        let end = body.checked_add(bytes).filter(|end| *end <= length).ok_or_else(|| {
            file.fault(format!(
                "its message at byte {at} has {bytes} bytes, and the file {length}: it is cut off or damaged"
            ))
        })?;
        let message = Message {
            version: table.i16(0, 0).map_err(broken)?,
            kind: table.u8(1, 0).map_err(broken)?,
            header,
            body: (body, bytes),
        };
        if (at == start) != (message.kind == 1) {
            return Err(file.fault(format!("its message at byte {at} is not where it belongs")));
        }
        if visit(message, &mut window)?.is_break() {
            return Ok(());
        }
        at = end;
    }
}

/// The units of a schema's times by column name, from a message with the schema; `None`: not such a message.
pub(crate) fn time_units(message: &[u8]) -> Option<Vec<(String, TimeUnit)>> {
    schema::time_units(&header_of(message)?.1).ok()
}

/// The fields of a schema, from a message with it.
pub(crate) fn fields(message: &[u8]) -> Option<Vec<Field>> {
    let (version, header) = header_of(message)?;
    schema::fields(&header, version).ok()
}

/// The version and the header of a message.
fn header_of(message: &[u8]) -> Option<(i16, Table<'_>)> {
    // Before version 0.15, messages had no such prefix.
    let message = message.strip_prefix(&HEAD).unwrap_or(message);
    let table = Table::root(message.get(4..)?).ok()?;
    Some((table.i16(0, 0).ok()?, table.table(2).ok()??))
}

fn columns(file: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    let mut found = Vec::new();
    walk(file, HEAD_BYTES, |message, _| {
        let schema = Schema::parse(&message.header, message.version);
        let schema = schema.map_err(|reason| file.fault(reason))?;
        found = schema.leaves.into_iter().map(|leaf| leaf.column).collect();
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

fn rows(
    file: &dyn Bytes,
    wanted: &[usize],
    reads: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let mut schema = None;
    let mut row = 0;
    let budget = Budget::of(file);
    walk(file, reads.piece, |message, window| {
        let fault = |reason: String| file.fault(reason);
        let Some(schema) = &schema else {
            schema = Some(Schema::parse(&message.header, message.version).map_err(fault)?);
            return Ok(ControlFlow::Continue(()));
        };
        // Other messages contain dictionaries; dictionary-encoded columns are not supported.
        if message.kind != 3 {
            return Ok(ControlFlow::Continue(()));
        }
        let batch = Batch::parse(&message.header, schema, message.body).map_err(fault)?;
        let leaves: Vec<&Leaf> =
            wanted.iter().filter_map(|place| schema.leaves.get(*place)).collect();
        if batch.is_packed() {
            let values = batch.rows.saturating_mul(leaves.len().max(1) as u64);
            budget.count(values).map_err(fault)?;
        }
        visit_batch((&batch, &budget), (&leaves, &schema.fields), window, &mut row, visit)
    })
}

/// Visits the rows of a batch.
fn visit_batch(
    (batch, budget): (&Batch<'_>, &Budget),
    (leaves, fields): (&[&Leaf], &[Field]),
    window: &mut Window<'_>,
    row: &mut u64,
    visit: Visit<'_>,
) -> Result<ControlFlow<()>, DatasetError> {
    let mut columns: Vec<Vec<Cell>> = leaves.iter().map(|_| Vec::new()).collect();
    let mut cells = Vec::with_capacity(leaves.len());
    let mut start = 0;
    while start < batch.rows {
        let end = batch.rows.min(start + ROWS_AT_ONCE);
        for (leaf, column) in leaves.iter().zip(&mut columns) {
            column.clear();
            batch.cells(window, (leaf, fields), (start..end, budget), column)?;
        }
        for place in 0..usize::try_from(end - start).unwrap_or(0) {
            cells.clear();
            cells.extend(columns.iter_mut().map(|column| {
                column.get_mut(place).map_or(Cell::Null, |cell| std::mem::replace(cell, Cell::Null))
            }));
            if visit(*row, &cells)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            *row += 1;
        }
        start = end;
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
