use std::fs;
use std::path::{Path, PathBuf};

use super::bitpacking::{BLOCK, block_bytes, unpack};
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
