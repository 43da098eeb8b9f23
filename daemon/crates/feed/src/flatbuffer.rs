//! FlatBuffers, as far as the headers of Arrow's messages need them: written from front to back out of a tree, and read
//! with every offset checked.

/// A value of a table's field.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A number of 1, 2, 4 or 8 bytes, little-endian.
    Number(Vec<u8>),
    /// A table.
    Table(Table),
    /// A vector of tables.
    Tables(Vec<Table>),
    /// A vector of structs of two 64-bit numbers.
    Pairs(Vec<[i64; 2]>),
    /// A string.
    Text(String),
}

/// A table: its fields by number, without those that have their default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table(Vec<(usize, Value)>);

impl Table {
    /// Adds a field.
    pub(crate) fn with(mut self, field: usize, value: Value) -> Self {
        self.0.push((field, value));
        self
    }

    /// Adds a number.
    pub(crate) fn number<const N: usize>(self, field: usize, bytes: [u8; N]) -> Self {
        self.with(field, Value::Number(bytes.to_vec()))
    }
}

/// Writes a buffer whose root is this table. Its length is a multiple of 8.
pub(crate) fn write(root: &Table) -> Vec<u8> {
    let mut out = vec![0; 4];
    let place = write_table(&mut out, root);
    patch(&mut out, 0, place);
    pad(&mut out, 8, 0);
    out
}

/// Writes the offset at `at` to an object.
fn patch(out: &mut [u8], at: usize, place: usize) {
    let offset = u32::try_from(place - at).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&offset.to_le_bytes());
}

/// Pads so that the byte `ahead` bytes later is aligned.
fn pad(out: &mut Vec<u8>, alignment: usize, ahead: usize) {
    let length = (out.len() + ahead).next_multiple_of(alignment) - ahead;
    out.resize(length, 0);
}

fn write_table(out: &mut Vec<u8>, table: &Table) -> usize {
    let size = |value: &Value| match value {
        Value::Number(bytes) => bytes.len(),
        _ => 4,
    };
    let mut fields: Vec<&(usize, Value)> = table.0.iter().collect();
    // The largest first, so that all are aligned without gaps after the table's own 4 bytes and 4 of padding.
    fields.sort_by_key(|(_, value)| std::cmp::Reverse(size(value)));
    let starts_wide = fields.first().is_some_and(|(_, value)| size(value) == 8);
    let mut next = if starts_wide { 8 } else { 4 };
    let slots = table.0.iter().map(|(field, _)| field + 1).max().unwrap_or(0);
    let mut places = vec![0_usize; slots];
    for (field, value) in &fields {
        places[*field] = next;
        next += size(value);
    }
    let vtable_bytes = 4 + 2 * slots;
    pad(out, 2, 0);
    pad(out, 8, vtable_bytes);
    let vtable = out.len();
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    out.extend_from_slice(&short(vtable_bytes));
    out.extend_from_slice(&short(next));
    for place in &places {
        out.extend_from_slice(&short(*place));
    }
    let start = out.len();
    out.resize(start + next, 0);
    let back = i32::try_from(start - vtable).unwrap_or(i32::MAX);
    out[start..start + 4].copy_from_slice(&back.to_le_bytes());
    for (field, value) in &table.0 {
        let at = start + places[*field];
        if let Value::Number(bytes) = value {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            continue;
        }
        let place = write_object(out, value);
        patch(out, at, place);
    }
    start
}

fn write_length(out: &mut Vec<u8>, length: usize) -> usize {
    let start = out.len();
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    start
}

fn write_object(out: &mut Vec<u8>, value: &Value) -> usize {
    match value {
        Value::Number(_) => out.len(),
        Value::Table(table) => write_table(out, table),
        Value::Text(text) => {
            pad(out, 4, 0);
            let start = write_length(out, text.len());
            out.extend_from_slice(text.as_bytes());
            out.push(0);
            start
        }
        Value::Pairs(pairs) => {
            pad(out, 8, 4);
            let start = write_length(out, pairs.len());
            for number in pairs.iter().flatten() {
                out.extend_from_slice(&number.to_le_bytes());
            }
            start
        }
        Value::Tables(tables) => {
            pad(out, 4, 0);
            let start = write_length(out, tables.len());
            out.resize(out.len() + 4 * tables.len(), 0);
            for (number, table) in tables.iter().enumerate() {
                let place = write_table(out, table);
                patch(out, start + 4 + 4 * number, place);
            }
            start
        }
    }
}

/// A table being read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(usize::try_from(u32::from_le_bytes(read(bytes, at)?)).ok()?)
}

impl<'a> Reader<'a> {
    /// The root.
    pub(crate) fn root(bytes: &'a [u8]) -> Option<Self> {
        Some(Self { bytes, at: offset(bytes, 0)? })
    }

    /// Where a field's value is; `None`: it is absent, or the buffer is not well-formed.
    fn field(&self, number: usize) -> Option<usize> {
        let back = i32::from_le_bytes(read(self.bytes, self.at)?);
        let vtable = i64::try_from(self.at).ok()?.checked_sub(i64::from(back))?;
        let vtable = usize::try_from(vtable).ok()?;
        let length = usize::from(u16::from_le_bytes(read(self.bytes, vtable)?));
        let slot = 4 + 2 * number;
        if slot + 2 > length {
            return None;
        }
        let place = usize::from(u16::from_le_bytes(read(self.bytes, vtable.checked_add(slot)?)?));
        (place != 0).then(|| self.at.checked_add(place)).flatten()
    }

    /// A number.
    pub(crate) fn number<const N: usize>(&self, field: usize) -> Option<[u8; N]> {
        read(self.bytes, self.field(field)?)
    }

    /// A table.
    pub(crate) fn table(&self, field: usize) -> Option<Self> {
        Some(Self { at: offset(self.bytes, self.field(field)?)?, ..*self })
    }

    /// A vector of structs of two 64-bit numbers, of this length.
    pub(crate) fn pairs(&self, field: usize, length: usize) -> Option<Vec<[i64; 2]>> {
        let start = offset(self.bytes, self.field(field)?)?;
        let found = usize::try_from(u32::from_le_bytes(read(self.bytes, start)?)).ok()?;
        if found != length {
            return None;
        }
        let pair = |number: usize| {
            let at = start.checked_add(4 + 16 * number)?;
            let word = |at| read(self.bytes, at).map(i64::from_le_bytes);
            Some([word(at)?, word(at.checked_add(8)?)?])
        };
        (0..length).map(pair).collect()
    }
}
