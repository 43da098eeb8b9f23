//! TFRecord files of `tf.train.Example`s.

use std::fs;
use std::io;
use std::path::Path;

/// A feature's values.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// `bytes_list`.
    Bytes(&'a [&'a [u8]]),
    /// `float_list`, packed.
    Floats(&'a [f32]),
    /// `int64_list`, packed.
    Integers(&'a [i64]),
}

/// Appends a number of 7 bits a byte.
pub fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// A field of a message with bytes or a message.
#[must_use]
pub fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    push_varint(&mut bytes, number << 3 | 2);
    push_varint(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
    bytes
}

/// An entry of the map of features.
#[must_use]
pub fn entry(key: &str, feature: &[u8]) -> Vec<u8> {
    field(1, &[field(1, key.as_bytes()), field(2, feature)].concat())
}

/// One feature.
#[must_use]
pub fn feature(values: Values<'_>) -> Vec<u8> {
    match values {
        Values::Bytes(values) => {
            field(1, &values.iter().flat_map(|value| field(1, value)).collect::<Vec<_>>())
        }
        Values::Floats(values) => {
            let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            field(2, &if packed.is_empty() { Vec::new() } else { field(1, &packed) })
        }
        Values::Integers(values) => {
            let mut packed = Vec::new();
            values.iter().for_each(|value| push_varint(&mut packed, value.cast_unsigned()));
            field(3, &if packed.is_empty() { Vec::new() } else { field(1, &packed) })
        }
    }
}

/// An Example with features by key.
#[must_use]
pub fn example(features: &[(&str, Values<'_>)]) -> Vec<u8> {
    let entries = features.iter().flat_map(|(key, values)| entry(key, &feature(*values)));
    field(1, &entries.collect::<Vec<_>>())
}

/// CRC32C, bit by bit, masked like TensorFlow's.
fn checksum(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record: its length, its data, and their checksums.
#[must_use]
pub fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let (head, tail) = (checksum(&length).to_le_bytes(), checksum(data).to_le_bytes());
    [&length[..], &head, data, &tail].concat()
}

/// Packs a folder of class folders into files of `records_each` records, in the form of ImageNet's scripts:
/// `image/encoded` and `image/class/label`, the class's number.
///
/// # Errors
/// A system error.
pub fn pack_classes(folder: &Path, target: &Path, records_each: usize) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    let shards = files.chunks(records_each.max(1));
    let count = shards.len();
    for (number, files) in shards.enumerate() {
        let mut bytes = Vec::new();
        for (label, name) in files {
            let image = fs::read(folder.join(name))?;
            let label = i64::try_from(*label).unwrap_or(0);
            bytes.append(&mut frame(&example(&[
                ("image/encoded", Values::Bytes(&[&image])),
                ("image/class/label", Values::Integers(&[label])),
            ])));
        }
        fs::write(target.join(format!("train-{number:05}-of-{count:05}")), bytes)?;
    }
    Ok(())
}
