//! Datasets of Lance with an image and a label: data files of the version 2.2, and a manifest.

use std::fs;
use std::io;
use std::path::Path;

use crate::tfrecord::{field, push_varint};

/// Values of a chunk of labels, and the logarithm of their number.
const CHUNK_VALUES: (usize, u32) = (512, 9);
/// The number of a field outside a struct.
const NO_PARENT: u64 = u64::MAX;

/// A field of a message with a number.
#[must_use]
pub fn number(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_varint(&mut bytes, key << 3);
    push_varint(&mut bytes, value);
    bytes
}

fn packed(key: u64, values: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| push_varint(&mut bytes, *value));
    field(key, &bytes)
}

/// The columns as a schema has them.
fn fields() -> Vec<u8> {
    let column = |id, name: &str, kind: &str| {
        let parts = [field(2, name.as_bytes()), number(3, id), number(4, NO_PARENT)];
        field(1, &[parts.concat(), field(5, kind.as_bytes()), number(6, 1)].concat())
    };
    [column(0, "image", "binary"), column(1, "label", "int64")].concat()
}

/// The compression of numbers of these bits.
fn flat(bits: u64) -> Vec<u8> {
    field(1, &number(1, bits))
}

/// A column of one page.
fn column(layout: &[u8], buffers: &[(usize, usize)], rows: usize) -> Vec<u8> {
    let any = [field(1, b"/lance.encodings21.PageLayout"), field(2, layout)].concat();
    let encoding = field(4, &field(2, &field(1, &any)));
    let places: Vec<u64> = buffers.iter().map(|buffer| buffer.0 as u64).collect();
    let sizes: Vec<u64> = buffers.iter().map(|buffer| buffer.1 as u64).collect();
    let page = [packed(1, &places), packed(2, &sizes), number(3, rows as u64), encoding];
    field(2, &page.concat())
}

/// A data file of images and labels.
#[must_use]
pub fn file(rows: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut offsets) = (Vec::new(), 0_u32.to_le_bytes().to_vec());
    let short = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    for (_, image) in rows {
        bytes.extend(short(image.len()));
        bytes.extend_from_slice(image);
        offsets.extend(short(bytes.len()));
    }
    let (mut sizes, mut chunks) = (Vec::new(), Vec::new());
    for rows in rows.chunks(CHUNK_VALUES.0) {
        let is_last = rows.len() < CHUNK_VALUES.0;
        let size = 8 * rows.len();
        // No levels, and the size of the values.
        chunks.extend([&[0; 2][..], &short(size), &[0xfe; 2]].concat());
        chunks.extend(rows.iter().flat_map(|(label, _)| (*label as u64).to_le_bytes()));
        let words = u32::try_from(size / 8).unwrap_or(u32::MAX);
        let logarithm = if is_last { 0 } else { CHUNK_VALUES.1 };
        sizes.extend((words << 4 | logarithm).to_le_bytes());
    }
    let mut push = |buffer: &[u8]| {
        let start = bytes.len().next_multiple_of(64);
        bytes.resize(start, 0);
        bytes.extend_from_slice(buffer);
        (start, buffer.len())
    };
    let [offsets, sizes, chunks] = [&offsets, &sizes, &chunks].map(|buffer| push(buffer));
    let count = rows.len();
    let images = [
        number(4, 32),
        number(5, count as u64),
        number(6, count as u64),
        field(7, &field(2, &field(1, &flat(32)))),
        packed(8, &[1]),
    ];
    let values = rows.iter().map(|(_, image)| 4 + image.len()).sum();
    let images = column(&field(3, &images.concat()), &[(0, values), offsets], count);
    let labels = [
        field(3, &flat(64)),
        packed(6, &[1]),
        number(7, 1),
        number(9, count as u64),
        number(10, 1),
    ];
    let labels = column(&field(1, &labels.concat()), &[sizes, chunks], count);
    let described = [field(1, &fields()), number(2, count as u64)].concat();
    let [described, images, labels] = [&described, &images, &labels].map(|part| push(part));
    let mut table = |places: &[(usize, usize)]| {
        let start = bytes.len() as u64;
        let numbers = places.iter().flat_map(|place| [place.0 as u64, place.1 as u64]);
        bytes.extend(numbers.flat_map(u64::to_le_bytes));
        start
    };
    let (columns, buffers) = (table(&[images, labels]), table(&[described]));
    bytes.extend([images.0 as u64, columns, buffers].into_iter().flat_map(u64::to_le_bytes));
    bytes.extend([1_u32, 2].into_iter().flat_map(u32::to_le_bytes));
    bytes.extend([2_u16, 2].into_iter().flat_map(u16::to_le_bytes));
    bytes.extend(b"LANC");
    bytes
}

/// The manifest of a first version. `files`: names and rows of data files.
#[must_use]
pub fn manifest(files: &[(String, usize)]) -> Vec<u8> {
    let fragment = |(id, (name, rows)): (u64, &(String, usize))| {
        let data = [
            field(1, name.as_bytes()),
            packed(2, &[0, 1]),
            packed(3, &[0, 1]),
            number(4, 2),
            number(5, 2),
        ];
        let parts = [number(1, id), field(2, &data.concat()), number(4, *rows as u64)];
        field(2, &parts.concat())
    };
    let fragments: Vec<u8> = (0..).zip(files).flat_map(fragment).collect();
    let format = field(15, &[field(1, b"lance"), field(2, b"2.2")].concat());
    manifest_of(&[fields(), fragments, number(3, 1), format].concat())
}

/// A manifest with a message.
#[must_use]
pub fn manifest_of(message: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    bytes.extend(message);
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend([0, 0, 2, 0]);
    bytes.extend(b"LANC");
    bytes
}

/// The path of a data file in its dataset.
#[must_use]
pub fn data_path(number: usize) -> String {
    format!("data/{number:05}.lance")
}

/// The path of the manifest of a first version.
pub const MANIFEST: &str = "_versions/18446744073709551614.manifest";

/// Packs a folder of class folders into a dataset with `rows_each` rows in a file: `image`, and `label`, the class's
/// number.
///
/// # Errors
/// A system error.
pub fn pack_classes(folder: &Path, target: &Path, rows_each: usize) -> io::Result<()> {
    for part in ["data", "_versions"] {
        fs::create_dir_all(target.join(part))?;
    }
    let all = crate::class_folders::files(folder)?;
    let mut files = Vec::new();
    for (number, own) in all.chunks(rows_each.max(1)).enumerate() {
        let rows = own.iter().map(|(label, name)| Ok((*label, fs::read(folder.join(name))?)));
        let path = data_path(number);
        fs::write(target.join(&path), file(&rows.collect::<io::Result<Vec<_>>>()?))?;
        files.push((path.trim_start_matches("data/").to_owned(), own.len()));
    }
    fs::write(target.join(MANIFEST), manifest(&files))
}
