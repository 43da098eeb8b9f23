//! Rows as messages of Arrow's IPC format: one column a tensor.
//!
//! A dense tensor is a `fixed_shape_tensor` (of a single number: that number), a ragged one a list of its steps along the
//! first dimension. What Arrow has no type for travels as unsigned numbers of the same size, with its name in the column's
//! metadata: `bfloat16` and booleans of a byte each.

use std::sync::Arc;

use bytes::Bytes;
use forebay_engine::{FedRows, RowColumn};
use forebay_protocol::tensor::DType;

use crate::buffers::Buffers;
use crate::flatbuffer::{Reader, Table, Value, write};

/// Arrow's version of messages: V5.
const VERSION: i16 = 4;
const SCHEMA: u8 = 1;
const RECORD_BATCH: u8 = 3;
const TYPE_INT: u8 = 2;
const TYPE_FLOAT: u8 = 3;
const TYPE_LIST: u8 = 12;
const TYPE_FIXED_SIZE_LIST: u8 = 16;
/// Buffers begin at multiples of this.
const ALIGNMENT: usize = 64;
/// The most bytes of rows in a message, unless a single row is larger.
const MESSAGE_BYTES: usize = 4 << 20;

fn message(kind: u8, header: Table, body_bytes: usize) -> Vec<u8> {
    let body = i64::try_from(body_bytes).unwrap_or(i64::MAX);
    let table = Table::default()
        .number(0, VERSION.to_le_bytes())
        .number(1, [kind])
        .with(2, Value::Table(header))
        .number(3, body.to_le_bytes());
    write(&table)
}

/// The header of the message with the columns' types.
pub(crate) fn schema(columns: &[RowColumn]) -> Vec<u8> {
    let fields = columns.iter().map(field).collect();
    message(SCHEMA, Table::default().with(1, Value::Tables(fields)), 0)
}

/// The same, as a stream or a file has it.
pub(crate) fn encapsulated(header: &[u8]) -> Vec<u8> {
    let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
    [&u32::MAX.to_le_bytes(), &length.to_le_bytes(), header].concat()
}

fn key_value((key, value): (&str, String)) -> Table {
    Table::default().with(0, Value::Text(key.to_owned())).with(1, Value::Text(value))
}

/// The elements of a dense row, or of a ragged row's step.
fn elements(column: &RowColumn) -> i32 {
    let elements = column.unit_bytes / column.dtype.size_bytes();
    i32::try_from(elements).unwrap_or(i32::MAX)
}

fn number_type(dtype: DType) -> (u8, Table) {
    let int = |bits: i32, is_signed: bool| {
        let table = Table::default().number(0, bits.to_le_bytes());
        (TYPE_INT, if is_signed { table.number(1, [1]) } else { table })
    };
    let float = |precision: i16| (TYPE_FLOAT, Table::default().number(0, precision.to_le_bytes()));
    let bits = i32::try_from(dtype.size_bytes() * 8).unwrap_or(0);
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => int(bits, true),
        DType::F16 => float(0),
        DType::F32 => float(1),
        DType::F64 => float(2),
        _ => int(bits, false),
    }
}

fn plain_field(name: &str, (kind, of): (u8, Table), children: Vec<Table>) -> Table {
    let table = Table::default()
        .with(0, Value::Text(name.to_owned()))
        .number(2, [kind])
        .with(3, Value::Table(of));
    table.with(5, Value::Tables(children))
}

/// A list of so many numbers each, or a number.
fn steps(name: &str, column: &RowColumn) -> Table {
    let number = number_type(column.dtype);
    if column.row_shape.is_empty() {
        return plain_field(name, number, Vec::new());
    }
    let size = Table::default().number(0, elements(column).to_le_bytes());
    plain_field(name, (TYPE_FIXED_SIZE_LIST, size), vec![plain_field("item", number, Vec::new())])
}

fn field(column: &RowColumn) -> Table {
    let mut metadata = vec![("forebay:dtype", column.dtype.name().to_owned())];
    let field = match column.max_row_bytes {
        Some(_) => {
            let step = steps("item", column);
            plain_field(&column.name, (TYPE_LIST, Table::default()), vec![step])
        }
        None => {
            if !column.row_shape.is_empty() {
                metadata.push(("ARROW:extension:name", "arrow.fixed_shape_tensor".to_owned()));
                let shape = serde_json::json!({ "shape": column.row_shape });
                metadata.push(("ARROW:extension:metadata", shape.to_string()));
            }
            steps(&column.name, column)
        }
    };
    field.with(6, Value::Tables(metadata.into_iter().map(key_value).collect()))
}

/// Rows of a message: its header and its body.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) header: Vec<u8>,
    pub(crate) body: Bytes,
}

/// Builds the nodes and buffers of a record batch.
#[derive(Debug, Default)]
struct Layout {
    nodes: Vec<[i64; 2]>,
    buffers: Vec<[i64; 2]>,
    end: usize,
}

impl Layout {
    fn node(&mut self, length: usize) {
        self.nodes.push([i64::try_from(length).unwrap_or(i64::MAX), 0]);
    }

    /// Where a buffer begins.
    fn buffer(&mut self, length: usize) -> usize {
        let start = self.end;
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.buffers.push([number(start), number(length)]);
        self.end = (start + length).next_multiple_of(ALIGNMENT);
        start
    }

    /// The buffer of values that may all be valid.
    fn validity(&mut self) {
        self.buffer(0);
    }

    /// The nodes and buffers of `length` steps; returns where their bytes begin.
    fn steps(&mut self, column: &RowColumn, length: usize, bytes: usize) -> usize {
        if !column.row_shape.is_empty() {
            self.node(length);
            self.validity();
        }
        let size = usize::try_from(column.dtype.size_bytes()).unwrap_or(1);
        self.node(bytes / size);
        self.validity();
        self.buffer(bytes)
    }
}

/// The rows at these places that fit a message, as a message, and how many they are.
pub(crate) fn batch(fed: &FedRows, places: &[usize], buffers: &Arc<Buffers>) -> (Batch, usize) {
    let columns = fed.columns();
    // By column and row.
    let mut lengths = vec![Vec::new(); columns.len()];
    let mut bytes = 0;
    for place in places {
        let mut row = fed.row(*place);
        let of_row: Vec<usize> = (0..columns.len()).map(|one| row.column(one).len()).collect();
        let sum: usize = of_row.iter().sum();
        if bytes > 0 && bytes + sum > MESSAGE_BYTES {
            break;
        }
        bytes += sum;
        for (lengths, length) in lengths.iter_mut().zip(of_row) {
            lengths.push(length);
        }
    }
    let write = |row: usize, column: usize, out: &mut Vec<u8>| {
        out.extend_from_slice(fed.row(places[row]).column(column));
    };
    let rows = lengths.first().map_or(0, Vec::len);
    (assemble(columns, &lengths, rows, buffers, write), rows)
}

/// Rows with these lengths, by column and row, as a message; `write` appends a row of a column.
fn assemble(
    columns: &[RowColumn],
    lengths: &[Vec<usize>],
    rows: usize,
    buffers: &Arc<Buffers>,
    mut write: impl FnMut(usize, usize, &mut Vec<u8>),
) -> Batch {
    let (layout, starts) = lay_out(columns, lengths, rows);
    // Appended, so that no byte is cleared first.
    let mut body = buffers.take(layout.end);
    let placed = columns.iter().zip(lengths).zip(&starts).enumerate();
    for (number, ((column, lengths), (offsets, start))) in placed {
        if let Some(at) = offsets {
            body.resize(*at, 0);
            append_offsets(&mut body, column, lengths);
        }
        body.resize(*start, 0);
        for row in 0..lengths.len() {
            write(row, number, &mut body);
        }
    }
    body.resize(layout.end, 0);
    let header = Table::default()
        .number(0, i64::try_from(rows).unwrap_or(0).to_le_bytes())
        .with(1, Value::Pairs(layout.nodes))
        .with(2, Value::Pairs(layout.buffers));
    Batch { header: message(RECORD_BATCH, header, body.len()), body: buffers.lend(body) }
}

fn append_offsets(body: &mut Vec<u8>, column: &RowColumn, lengths: &[usize]) {
    let unit = usize::try_from(column.unit_bytes).unwrap_or(1).max(1);
    let mut sum = 0;
    for length in std::iter::once(&0).chain(lengths) {
        sum += length / unit;
        body.extend_from_slice(&i32::try_from(sum).unwrap_or(i32::MAX).to_le_bytes());
    }
}

/// The layout of rows with these lengths, and for each column where its offsets, if it is ragged, and its bytes begin.
fn lay_out(
    columns: &[RowColumn],
    lengths: &[Vec<usize>],
    rows: usize,
) -> (Layout, Vec<(Option<usize>, usize)>) {
    let mut layout = Layout::default();
    let place = |(column, lengths): (&RowColumn, &Vec<usize>)| {
        let bytes = lengths.iter().sum();
        if column.max_row_bytes.is_none() {
            return (None, layout.steps(column, rows, bytes));
        }
        layout.node(rows);
        layout.validity();
        let offsets = layout.buffer(4 * (rows + 1));
        let unit = usize::try_from(column.unit_bytes).unwrap_or(1).max(1);
        (Some(offsets), layout.steps(column, bytes / unit, bytes))
    };
    let starts = columns.iter().zip(lengths).map(place).collect();
    (layout, starts)
}

/// Rows that were received.
#[derive(Debug)]
pub(crate) struct Received {
    /// The number of rows.
    pub(crate) rows: usize,
    body: Bytes,
    /// By column: where the offsets of a ragged one begin, and where its bytes begin and end.
    places: Vec<(Option<usize>, usize, usize)>,
}

impl Received {
    /// Reads a message of rows with these columns. Every place is inside of the body afterwards.
    pub(crate) fn read(header: &[u8], body: Bytes, columns: &[RowColumn]) -> Option<Self> {
        let message = Reader::root(header)?;
        if message.number(1)? != [RECORD_BATCH] {
            return None;
        }
        let batch = message.table(2)?;
        let rows = usize::try_from(i64::from_le_bytes(batch.number(0)?)).ok()?;
        if rows > crate::ticket::MAX_ROWS {
            return None;
        }
        let of_column = |column: &RowColumn| {
            let ragged = if column.max_row_bytes.is_some() { 2 } else { 0 };
            ragged + if column.row_shape.is_empty() { 2 } else { 3 }
        };
        let buffers = batch.pairs(2, columns.iter().map(of_column).sum())?;
        let mut buffers = buffers.into_iter().map(|[start, length]| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(length).ok()?)?;
            (end <= body.len()).then_some((start, end))
        });
        let mut places = Vec::with_capacity(columns.len());
        for column in columns {
            let mut skip = |count: usize| (0..count).try_for_each(|_| buffers.next()?.map(drop));
            let mut offsets = None;
            if column.max_row_bytes.is_some() {
                skip(1)?;
                let (start, end) = buffers.next()??;
                offsets = (end - start >= 4 * (rows + 1)).then_some(start);
                offsets?;
            }
            let mut skip = |count: usize| (0..count).try_for_each(|_| buffers.next()?.map(drop));
            skip(if column.row_shape.is_empty() { 1 } else { 2 })?;
            let (start, end) = buffers.next()??;
            places.push((offsets, start, end));
        }
        Some(Self { rows, body, places })
    }

    /// A row of a column.
    pub(crate) fn row(&self, column: &RowColumn, number: usize, row: usize) -> Option<&[u8]> {
        let (offsets, start, end) = *self.places.get(number)?;
        let bytes = self.body.get(start..end)?;
        let unit = usize::try_from(column.unit_bytes).ok()?;
        let Some(offsets) = offsets else {
            let from = row.checked_mul(unit)?;
            return bytes.get(from..from.checked_add(unit)?);
        };
        let offset = |row: usize| {
            let at = offsets + 4 * row;
            let number = i32::from_le_bytes(self.body.get(at..at + 4)?.try_into().ok()?);
            usize::try_from(number).ok()?.checked_mul(unit)
        };
        bytes.get(offset(row)?..offset(row + 1)?)
    }
}

/// Three rows of the columns of the fuzzer's entry point.
#[cfg(test)]
pub(crate) fn three_rows() -> Batch {
    let columns = tests::columns();
    let lengths = [vec![6; 3], vec![16, 0, 48]];
    let write = |row: usize, column: usize, out: &mut Vec<u8>| {
        let end = out.len() + lengths[column][row];
        out.resize(end, u8::try_from(10 * column + row).unwrap_or(0));
    };
    assemble(&columns[..2], &lengths, 3, &Arc::default(), write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_protocol::tensor::{Extent, TensorSpec};

    pub(crate) fn columns() -> Vec<RowColumn> {
        let extent = Extent::Ragged { max_row_bytes: 64, compact: false };
        let boxes = TensorSpec { extent, ..TensorSpec::dense("boxes", DType::F32, &[4]) };
        let tokens = TensorSpec { extent, ..TensorSpec::dense("tokens", DType::I64, &[]) };
        let image = TensorSpec::dense("image", DType::U8, &[2, 3]);
        let index = TensorSpec::dense("index", DType::I64, &[]);
        [image, boxes, tokens, index].iter().map(RowColumn::of_tensor).collect()
    }

    /// Three rows whose bytes tell where they belong.
    fn rows() -> (Batch, Vec<Vec<usize>>) {
        let lengths = vec![vec![6; 3], vec![16, 0, 48], vec![0, 64, 8], vec![8; 3]];
        let write = |row: usize, column: usize, out: &mut Vec<u8>| {
            let end = out.len() + lengths[column][row];
            out.resize(end, u8::try_from(10 * column + row).unwrap());
        };
        (assemble(&columns(), &lengths, 3, &Arc::default(), write), lengths)
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let (columns, (batch, lengths)) = (columns(), rows());
        let received = Received::read(&batch.header, batch.body, &columns).unwrap();
        assert_eq!(received.rows, 3);
        for (number, column) in columns.iter().enumerate() {
            for (row, length) in lengths[number].iter().enumerate().take(3) {
                let bytes = received.row(column, number, row).unwrap();
                assert_eq!(bytes.len(), *length, "{}", column.name);
                let mark = u8::try_from(10 * number + row).unwrap();
                assert!(bytes.iter().all(|byte| *byte == mark), "{} of row {row}", column.name);
            }
            assert!(received.row(column, number, 3).is_none());
        }
    }

    #[test]
    fn cut_or_other_messages_are_refused() {
        let (columns, (batch, _)) = (columns(), rows());
        let body = batch.body;
        for length in 0..batch.header.len() - 8 {
            let _ = Received::read(&batch.header[..length], body.clone(), &columns);
        }
        for length in 0..body.len() {
            let cut = Received::read(&batch.header, body.slice(..length), &columns);
            if let Some(received) = cut {
                let last = received.row(&columns[3], 3, 2);
                assert!(last.is_none_or(|bytes| bytes.len() == 8));
            }
        }
        assert!(Received::read(&batch.header, body.clone(), &columns[1..]).is_none());
        assert!(Received::read(&schema(&columns), body, &columns).is_none());
    }
}
