//! Parquet files of an image and a label, with plain or compressed pages.

use std::fs;
use std::io;
use std::path::Path;

/// The types of Thrift's compact protocol that are used here.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;
/// Parquet's numbers for types of values.
const INT64: i64 = 2;
const BYTE_ARRAY: i64 = 6;
/// Rows per page.
const PAGE_ROWS: usize = 10;

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// A struct being written, with its fields in ascending order.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    last: u8,
}

impl Fields {
    fn field(mut self, number: u8, kind: u8, value: &[u8]) -> Self {
        // A number at most 15 above the previous one shares a byte with the type.
        self.bytes.push((number - self.last) << 4 | kind);
        self.bytes.extend_from_slice(value);
        self.last = number;
        self
    }

    fn number(self, number: u8, kind: u8, value: i64) -> Self {
        self.field(number, kind, &varint(((value << 1) ^ (value >> 63)).cast_unsigned()))
    }

    fn text(self, number: u8, text: &str) -> Self {
        let value = [&varint(text.len() as u64)[..], text.as_bytes()].concat();
        self.field(number, BINARY, &value)
    }

    fn list(self, number: u8, kind: u8, elements: &[Vec<u8>]) -> Self {
        let count = u8::try_from(elements.len()).unwrap_or(u8::MAX);
        let head = if count < 15 { vec![count << 4 | kind] } else { vec![0xf0 | kind, count] };
        self.field(number, LIST, &[head, elements.concat()].concat())
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn signed(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Snappy's encoding without matches: the number of bytes, and one literal.
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let last = u32::try_from(bytes.len().saturating_sub(1)).unwrap_or(u32::MAX);
    [&varint(bytes.len() as u64)[..], &[63 << 2], &last.to_le_bytes(), bytes].concat()
}

/// A page of plain values, with its header.
fn page(values: &[u8], count: usize, is_packed: bool) -> Vec<u8> {
    let stored = if is_packed { snappy(values) } else { values.to_vec() };
    let data = Fields::default().number(1, I32, signed(count)).number(2, I32, 0);
    // Levels of zero bits, encoded as runs.
    let data = data.number(3, I32, 3).number(4, I32, 3).end();
    let header = Fields::default().number(1, I32, 0).number(2, I32, signed(values.len()));
    let header = header.number(3, I32, signed(stored.len())).field(5, STRUCT, &data);
    [header.end(), stored].concat()
}

/// A file with one group of these rows.
fn file(rows: &[(usize, Vec<u8>)], is_packed: bool) -> Vec<u8> {
    let image = |row: &(usize, Vec<u8>)| {
        let length = u32::try_from(row.1.len()).unwrap_or(u32::MAX).to_le_bytes();
        [&length[..], &row.1].concat()
    };
    let label = |row: &(usize, Vec<u8>)| (row.0 as u64).to_le_bytes().to_vec();
    type Plain<'a> = &'a dyn Fn(&(usize, Vec<u8>)) -> Vec<u8>;
    let columns: [(&str, i64, Plain<'_>); 2] =
        [("image", BYTE_ARRAY, &image), ("label", INT64, &label)];
    let root = Fields::default().text(4, "schema").number(5, I32, 2).end();
    let (mut bytes, mut schema, mut chunks) = (b"PAR1".to_vec(), vec![root], Vec::new());
    for (name, kind, plain) in columns {
        // A required column.
        let element = Fields::default().number(1, I32, kind).number(3, I32, 0).text(4, name);
        schema.push(element.end());
        let start = bytes.len();
        for rows in rows.chunks(PAGE_ROWS) {
            let values: Vec<u8> = rows.iter().flat_map(plain).collect();
            bytes.extend(page(&values, rows.len(), is_packed));
        }
        let length = signed(bytes.len() - start);
        let meta = Fields::default().number(1, I32, kind).list(2, I32, &[vec![0]]);
        let path = [varint(name.len() as u64), name.into()].concat();
        let meta = meta.list(3, BINARY, &[path]).number(4, I32, i64::from(is_packed));
        let meta = meta.number(5, I64, signed(rows.len())).number(6, I64, length);
        let meta = meta.number(7, I64, length).number(9, I64, signed(start)).end();
        chunks.push(Fields::default().number(2, I64, signed(start)).field(3, STRUCT, &meta).end());
    }
    let group = Fields::default().list(1, STRUCT, &chunks).number(2, I64, signed(bytes.len()));
    let group = group.number(3, I64, signed(rows.len())).end();
    let footer = Fields::default().number(1, I32, 2).list(2, STRUCT, &schema);
    let footer = footer.number(3, I64, signed(rows.len())).list(4, STRUCT, &[group]).end();
    bytes.extend_from_slice(&footer);
    bytes.extend(u32::try_from(footer.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(b"PAR1");
    bytes
}

/// Packs a folder of class folders into files of `rows_each` rows, in pages of ten: `image`, and `label`, the class's
/// number. Compressed pages use Snappy.
///
/// # Errors
/// A system error.
pub fn pack_classes(
    folder: &Path,
    target: &Path,
    rows_each: usize,
    is_packed: bool,
) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    for (number, files) in files.chunks(rows_each.max(1)).enumerate() {
        let rows = files.iter().map(|(label, name)| Ok((*label, fs::read(folder.join(name))?)));
        let bytes = file(&rows.collect::<io::Result<Vec<_>>>()?, is_packed);
        fs::write(target.join(format!("train-{number:05}.parquet")), bytes)?;
    }
    Ok(())
}
