//! `ArrayRecord` files: Riegeli files whose last block leads to a list of their chunks.

use std::fs;
use std::io;
use std::path::Path;

use highway::{HighwayHash, HighwayHasher, Key};

use crate::tfrecord::{self, Values, push_varint};

const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_HEADER_BYTES: usize = 24;
const MAGIC: u64 = 0x7193_0e70_4fda_e05e;

/// A compression: the byte that names it, and its function.
#[derive(Clone, Copy)]
pub struct Compression {
    /// `z` for zstd, `b` for Brotli, `s` for Snappy.
    pub name: u8,
    /// Compresses bytes.
    pub compress: fn(&[u8]) -> Vec<u8>,
}

fn hash(bytes: &[u8]) -> [u8; 8] {
    let word = |text: &[u8; 8]| u64::from_le_bytes(*text);
    let [first, second] = [word(b"Riegeli/"), word(b"records\n")];
    HighwayHasher::new(Key([first, second, first, second])).hash64(bytes).to_le_bytes()
}

/// A header: the hash of its rest, then the rest.
fn header(rest: &[u8]) -> Vec<u8> {
    [&hash(rest)[..], rest].concat()
}

/// The data of a chunk of records.
fn data_of(records: &[Vec<u8>], compression: Option<Compression>) -> Vec<u8> {
    let mut sizes = Vec::new();
    records.iter().for_each(|record| push_varint(&mut sizes, record.len() as u64));
    let [sizes, values] = [sizes, records.concat()].map(|part| match compression {
        Some(Compression { compress, .. }) => {
            let mut packed = Vec::new();
            push_varint(&mut packed, part.len() as u64);
            packed.append(&mut compress(&part));
            packed
        }
        None => part,
    });
    let mut data = vec![compression.map_or(0, |compression| compression.name)];
    push_varint(&mut data, sizes.len() as u64);
    [data, sizes, values].concat()
}

/// Appends a chunk, interrupted by block headers; returns its offset.
fn push_chunk(file: &mut Vec<u8>, kind: u8, (records, bytes): (usize, usize), data: &[u8]) -> u64 {
    let start = file.len();
    let mut rest = (data.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(&hash(data));
    rest.extend_from_slice(&(u64::from(kind) | (records as u64) << 8).to_le_bytes());
    rest.extend_from_slice(&(bytes as u64).to_le_bytes());
    let chunk = [header(&rest), data.to_vec()].concat();
    let before_first = (BLOCK_BYTES - start % BLOCK_BYTES) % BLOCK_BYTES;
    let after_first = chunk.len().saturating_sub(before_first);
    let headers = after_first.div_ceil(BLOCK_BYTES - BLOCK_HEADER_BYTES);
    let end = start + chunk.len() + headers * BLOCK_HEADER_BYTES;
    for byte in chunk {
        if file.len().is_multiple_of(BLOCK_BYTES) {
            let [before, after] = [file.len() - start, end - file.len()];
            let numbers = [before as u64, after as u64].map(u64::to_le_bytes).concat();
            file.append(&mut header(&numbers));
        }
        file.push(byte);
    }
    start as u64
}

/// A message of numbers.
#[must_use]
pub fn numbers(numbers: &[u64]) -> Vec<u8> {
    let mut message = Vec::new();
    for (field, number) in (1..).zip(numbers) {
        push_varint(&mut message, field << 3);
        push_varint(&mut message, *number);
    }
    message
}

/// A file of records, `together` in a chunk.
#[must_use]
pub fn file(records: &[Vec<u8>], together: usize, compression: Option<Compression>) -> Vec<u8> {
    file_listing(records, together, compression, |_| {})
}

/// The same with another list of chunks: `change` gets its records, of which the first describes the file.
#[must_use]
pub fn file_listing(
    records: &[Vec<u8>],
    together: usize,
    compression: Option<Compression>,
    change: impl FnOnce(&mut Vec<Vec<u8>>),
) -> Vec<u8> {
    let mut file = Vec::new();
    push_chunk(&mut file, b's', (0, 0), &[]);
    let (mut footer, count) = (Vec::new(), records.len() as u64);
    for group in records.chunks(together.max(1)) {
        let bytes = group.iter().map(Vec::len).sum();
        let data = data_of(group, compression);
        let offset = push_chunk(&mut file, b'r', (group.len(), bytes), &data);
        footer.push(numbers(&[offset, bytes as u64, group.len() as u64]));
    }
    let described = tfrecord::field(1, &numbers(&[1, footer.len() as u64, count]));
    footer.insert(0, described);
    change(&mut footer);
    let push = |file: &mut Vec<u8>, records: &[Vec<u8>]| {
        let bytes = records.iter().map(Vec::len).sum();
        push_chunk(file, b'r', (records.len(), bytes), &data_of(records, compression))
    };
    let footer = push(&mut file, &footer);
    // To the next block, which leaves room for the header of a chunk that pads the file.
    let mut left = BLOCK_BYTES - file.len() % BLOCK_BYTES;
    if left < 40 {
        left += BLOCK_BYTES;
    }
    let overhead = if left > BLOCK_BYTES { BLOCK_HEADER_BYTES } else { 0 };
    push_chunk(&mut file, b'p', (0, 0), &vec![0; left - 40 - overhead]);
    push(&mut file, &[numbers(&[footer, MAGIC])]);
    file.resize(file.len().next_multiple_of(BLOCK_BYTES), 0);
    file
}

/// Packs a folder of class folders into files of `records_each` records, each a chunk, in the form of TensorFlow Datasets'
/// Examples: `image` and `label`, the class's number.
///
/// # Errors
/// A system error.
pub fn pack_classes(folder: &Path, target: &Path, records_each: usize) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    let shards = files.chunks(records_each.max(1));
    let count = shards.len();
    for (number, files) in shards.enumerate() {
        let record = |(label, name): &(_, _)| -> io::Result<Vec<u8>> {
            let image = fs::read(folder.join::<&String>(name))?;
            let label: usize = *label;
            let label = i64::try_from(label).unwrap_or(0);
            let features =
                [("image", Values::Bytes(&[&image])), ("label", Values::Integers(&[label]))];
            Ok(tfrecord::example(&features))
        };
        let records = files.iter().map(record).collect::<io::Result<Vec<_>>>()?;
        let name = format!("train.array_record-{number:05}-of-{count:05}");
        fs::write(target.join(name), file(&records, 1, None))?;
    }
    Ok(())
}
