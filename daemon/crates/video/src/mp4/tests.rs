//! Headers that announce more than their file can hold.

use super::edits::{self, Timing};
use super::left::Left;
use super::samples::Sample;
use crate::codec::Codec;

const MANY: [u8; 4] = (1_u32 << 22).to_be_bytes();

/// Writes into the body of the first box of a kind.
fn set(file: &mut [u8], kind: &[u8; 4], at: usize, bytes: &[u8]) {
    let place = file.windows(4).position(|found| found == kind).unwrap() + 4 + at;
    file[place..place + bytes.len()].copy_from_slice(bytes);
}

fn refusal(file: &[u8]) -> String {
    format!("{:?}", super::read(file).unwrap_err())
}

const TOO_MANY: &str = "it announces packets of more bytes than 4 times its";

#[test]
fn equal_packets_beyond_the_file_are_refused_before_they_are_listed() {
    let mut file = include_bytes!("../../fixtures/h264-faststart.mp4").to_vec();
    // The size of all packets and their number; all are in the first chunk.
    set(&mut file, b"stsz", 4, &[0, 0, 0, 1]);
    set(&mut file, b"stsz", 8, &MANY);
    set(&mut file, b"stsc", 12, &MANY);
    assert!(refusal(&file).contains(TOO_MANY), "{}", refusal(&file));
}

#[test]
fn fragments_beyond_the_file_are_refused_before_they_are_listed() {
    let mut file = include_bytes!("../../fixtures/h264-fragmented.mp4").to_vec();
    // Nothing is said of each packet.
    set(&mut file, b"trun", 1, &[0; 3]);
    set(&mut file, b"trun", 4, &MANY);
    assert!(refusal(&file).contains(TOO_MANY), "{}", refusal(&file));
}

#[test]
fn edits_that_repeat_a_track_without_end_are_refused() {
    // Each edit, of a time of 32 bits, shows all of the 64 samples.
    let edit = [&64_u32.to_be_bytes()[..], &[0; 4], &[0, 1, 0, 0]].concat();
    let list = [&[0; 8][..], &edit.repeat(100)].concat();
    let edits = edits::read(&list).unwrap();
    let sample =
        |dts: i64| Sample { offset: 0, size: 10, dts, pts: dts, duration: 1, key: dts == 0 };
    let samples: Vec<Sample> = (0..64).map(sample).collect();
    let timing = Timing { edits: &edits, scale: 1, movie_scale: 1, shift: 0, codec: Codec::H264 };
    let of_file = |bytes| timing.packets(&samples, &mut Left::of_file(bytes));
    assert_eq!(of_file(64 * 10 * 100 / 4).unwrap().0.len(), 6400);
    let refused = of_file(64 * 10 * 100 / 4 - 1).unwrap_err().to_string();
    assert!(refused.contains(TOO_MANY), "{refused}");
}
