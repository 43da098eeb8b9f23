use std::fs;
use std::path::{Path, PathBuf};

use super::bitpacking::{BLOCK, block_bytes, unpack};
use super::fsst::Symbols;
use super::layout::Compression;
use super::values::{Damaged, Form, Values};
use super::{READER, manifest};
use crate::fuzzing::{read_for_fuzzing, read_in_memory};
use forebay_index::window::InMemory;

/// The files of the fixtures, with their paths.
fn files(part: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/fixtures/lance");
    let datasets = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path().join(part));
    let paths = datasets.flat_map(|folder| fs::read_dir(folder).unwrap());
    paths
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn damaged_files_are_refused_or_read_without_a_panic() {
    for (path, whole) in files("data").into_iter().chain(files("_versions")) {
        for length in (0..whole.len()).step_by(whole.len() / 40 + 1) {
            let message = read_in_memory(&READER, &whole[..length]).unwrap_err();
            assert!(!message.is_empty(), "{}: {length}", path.display());
        }
        let mut noise = 1_u64;
        for _ in 0..60 {
            let mut damaged = whole.clone();
            for _ in 0..3 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Descriptions are at the end of a file.
                let from_end = usize::try_from(noise >> 33).unwrap() % damaged.len().min(4096);
                let place = damaged.len() - 1 - from_end;
                damaged[place] ^= 1 << (noise >> 29 & 7);
            }
            read_for_fuzzing(&READER, &damaged);
            let _ = manifest::fragments(&InMemory(&damaged));
        }
    }
}

#[test]
fn every_width_of_packed_numbers_is_unpacked() {
    for size in [1_usize, 2, 4, 8] {
        for width in 0..=8 * size {
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            let number = |place: usize| (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
            // Bit by bit, as the order of lanes has it.
            let (bits, lanes) = (8 * size, BLOCK / (8 * size));
            let mut block = vec![0; block_bytes(width)];
            for row in 0..bits {
                let order = [0, 4, 2, 6, 1, 5, 3, 7][row / 8];
                for lane in 0..lanes {
                    let value = number(order * 16 + row % 8 * 128 + lane);
                    for bit in (0..width).filter(|bit| value >> bit & 1 == 1) {
                        let (word, bit) = ((row * width + bit) / bits, (row * width + bit) % bits);
                        block[(word * lanes + lane) * size + bit / 8] |= 1 << (bit % 8);
                    }
                }
            }
            let mut unpacked = Vec::new();
            unpack(&block, size, width, &mut unpacked).unwrap();
            for (place, found) in unpacked.chunks_exact(size).enumerate() {
                assert_eq!(found, &number(place).to_le_bytes()[..size], "{size} {width} {place}");
            }
            assert_eq!(
                unpack(&block[..block.len().saturating_sub(1)], size, width, &mut unpacked)
                    .is_some(),
                width == 0
            );
        }
    }
}

#[test]
fn symbols_and_escaped_bytes_make_a_text() {
    let mut table = vec![0; 8 + 256 * 8 + 256];
    table[..8].copy_from_slice(&((0x4653_5354_u64 << 32) | 1 << 24 | 2).to_le_bytes());
    table[8..11].copy_from_slice(b"the");
    table[16..18].copy_from_slice(b"re");
    table[24..26].copy_from_slice(&[3, 2]);
    let symbols = Symbols::parse(&table).unwrap();
    let mut text = Vec::new();
    symbols.unpack(&[0, 1, 255, b'!', 1], &mut text).unwrap();
    assert_eq!(text, b"there!re");
    assert_eq!(symbols.unpack(&[2], &mut text), None, "a code without a symbol");
    assert_eq!(symbols.unpack(&[0, 255], &mut text), None, "an escape at the end");
    // The encoder was not used.
    table[3] = 0;
    text.clear();
    Symbols::parse(&table).unwrap().unpack(&[255, 7], &mut text).unwrap();
    assert_eq!(text, [255, 7]);
    assert_eq!(Symbols::parse(&table[1..]), None);
}

#[test]
fn numbers_after_the_last_block_are_packed_or_as_they_are() {
    let compression = Compression::PackedAlike { bytes: 2, width: 3 };
    let unpack = |buffer: &[u8]| Values::unpack(&compression, &[buffer], 1026, Form::Block);
    // A block of zeros.
    let whole = vec![0; block_bytes(3)];
    let plain = [&whole[..], &[5, 0, 6, 0]].concat();
    let found = unpack(&plain).unwrap();
    assert_eq!(
        [1023, 1024, 1025, 1026].map(|place| found.number(place)),
        [Some(0), Some(5), Some(6), None]
    );
    let mut packed = whole.repeat(2);
    // The first numbers of the first two lanes.
    (packed[block_bytes(3)], packed[block_bytes(3) + 2]) = (5, 6);
    let found = unpack(&packed).unwrap();
    assert_eq!(
        [1023, 1024, 1025, 1026].map(|place| found.number(place)),
        [Some(0), Some(5), Some(6), None]
    );
    assert_eq!(unpack(&whole), Err(Damaged));
}
