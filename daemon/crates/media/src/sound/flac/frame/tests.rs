//! Frames that are written here bit by bit, and the corpus's, which claxon decodes, too.

use claxon::frame::FrameReader;

use super::*;
use forebay_dataset::SoundHeader;

/// Writes bits, the highest of each byte first.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    bits: usize,
}

impl Writer {
    fn put(&mut self, value: i32, count: usize) {
        for place in (0..count).rev() {
            if self.bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = u8::from(value >> place & 1 == 1);
            *self.bytes.last_mut().unwrap() |= bit << (7 - self.bits % 8);
            self.bits += 1;
        }
    }

    fn rice(&mut self, level: i32, parameter: usize) {
        let folded = if level < 0 { -2 * level - 1 } else { 2 * level };
        for _ in 0..folded >> parameter {
            self.put(0, 1);
        }
        self.put(1, 1);
        self.put(folded, parameter);
    }

    /// A frame's header: a block of 16 samples, of so many channels and with this code of bits.
    fn header(channels: i32, bits_code: i32) -> Self {
        let mut writer = Self::default();
        for (value, count) in [(0x7ffc, 15), (0, 1), (6, 4), (0, 4), (channels, 4), (bits_code, 3)]
        {
            writer.put(value, count);
        }
        // A reserved bit; the number; 15 + 1 samples; room for a checksum.
        for (value, count) in [(0, 1), (0xc3, 8), (0x80, 8), (15, 8), (0, 8)] {
            writer.put(value, count);
        }
        writer
    }

    /// A subframe of second differences, in four partitions: Rice-coded, escaped, escaped with no bits, Rice-coded.
    fn subframe(&mut self, levels: &[i32; 16], bits: usize, parameter_bits: usize) {
        self.put(0, 1);
        self.put(8 + 2, 6);
        self.put(0, 1);
        levels[..2].iter().for_each(|level| self.put(*level, bits));
        self.put(if parameter_bits == 5 { 1 } else { 0 }, 2);
        self.put(2, 4);
        for partition in 0..4 {
            let start = if partition == 0 { 2 } else { partition * 4 };
            let differences = (start..partition * 4 + 4)
                .map(|at| levels[at] - 2 * levels[at - 1] + levels[at - 2]);
            match partition {
                0 | 3 => {
                    self.put(3, parameter_bits);
                    differences.for_each(|level| self.rice(level, 3));
                }
                _ => {
                    let width = if partition == 1 { 9 } else { 0 };
                    self.put(-1, parameter_bits);
                    self.put(width, 5);
                    for level in differences {
                        assert!(width > 0 || level == 0, "{level}");
                        self.put(level, usize::try_from(width).unwrap());
                    }
                }
            }
        }
    }

    fn frame(mut self) -> Vec<u8> {
        self.bytes[7] = self.bytes[..7].iter().fold(0, |crc: u8, byte| {
            (0..8).fold(crc ^ byte, |crc, _| crc << 1 ^ if crc & 0x80 == 0 { 0 } else { 0x07 })
        });
        self.bits = self.bytes.len() * 8;
        let crc = i32::from(crc_16(&self.bytes));
        self.put(crc, 16);
        self.bytes
    }
}

/// From 8 to 11 on a line, for the partition without bits.
const FIRST: [i32; 16] = [5, -7, 3, 90, -60, 0, 8, 8, 8, 8, 8, 8, 9, -9, 9, 20];
const SECOND: [i32; 16] = [-1, -2, 0, 4, 100, 9, 20, 18, 16, 14, 12, 10, 8, 8, 8, 8];

fn decoded(frame: &[u8]) -> (Frame, Vec<i32>) {
    let mut levels = vec![7; 3];
    let frame = decode(frame, 16, &mut levels).unwrap();
    (frame, levels)
}

#[test]
fn escaped_partitions_are_read_in_both_codings() {
    for (parameter_bits, bits_code) in [(4, 4), (5, 4), (4, 0)] {
        let mut writer = Writer::header(1, bits_code);
        writer.subframe(&FIRST, 16, parameter_bits);
        writer.subframe(&SECOND, 16, parameter_bits);
        let frame = writer.frame();
        let (read, levels) = decoded(&[&frame[..], b"next"].concat());
        assert_eq!(read, Frame { channels: 2, duration: 16, bytes: frame.len() });
        assert_eq!(levels, [FIRST, SECOND].concat());
        for length in 0..frame.len() {
            assert!(decode(&frame[..length], 16, &mut Vec::new()).is_err(), "{length}");
        }
        let mut damaged = frame;
        damaged[12] ^= 1;
        assert!(decode(&damaged, 16, &mut Vec::new()).is_err());
    }
}

#[test]
fn a_side_channel_has_a_bit_more() {
    for (code, left, right) in [
        (8, FIRST, std::array::from_fn(|at| FIRST[at] - SECOND[at])),
        (9, std::array::from_fn(|at| FIRST[at] + SECOND[at]), SECOND),
    ] {
        let mut writer = Writer::header(code, 4);
        writer.subframe(&FIRST, if code == 9 { 17 } else { 16 }, 4);
        writer.subframe(&SECOND, if code == 8 { 17 } else { 16 }, 4);
        assert_eq!(decoded(&writer.frame()).1, [left, right].concat(), "{code}");
    }
    let mut writer = Writer::header(10, 4);
    writer.subframe(&FIRST, 16, 4);
    writer.subframe(&SECOND, 17, 4);
    let (_, levels) = decoded(&writer.frame());
    for (at, (left, right)) in levels[..16].iter().zip(&levels[16..]).enumerate() {
        assert_eq!(((left + right) >> 1, left - right), (FIRST[at], SECOND[at]), "{at}");
    }
}

#[test]
fn a_file_with_an_escaped_partition_between_frames_of_claxons_is_read() {
    // Two frames of one channel: the second is constant, which claxon decodes.
    let mut writer = Writer::header(0, 4);
    writer.subframe(&FIRST, 16, 4);
    let escaped = writer.frame();
    let mut writer = Writer::header(0, 4);
    writer.put(0, 8);
    writer.put(-300, 16);
    let constant = writer.frame();
    let mut info = [0; 34];
    // 8 kHz, 1 channel, 16 bits, 48 frames.
    info[10..18].copy_from_slice(&(8000_u64 << 44 | 15 << 36 | 48).to_be_bytes());
    let mut file = [&b"fLaC\x80\0\0\x22"[..], &info].concat();
    file.extend([&escaped[..], &constant, &escaped].concat());
    assert!(FrameReader::new(std::io::Cursor::new(&constant)).read_next_or_eof(vec![]).is_ok());

    let form = forebay_dataset::SoundForm { channels: Some(1), rate: None, span: None };
    let (mut array, mut tools) = Default::default();
    let sound = forebay_dataset::Sound { file: &file, form };
    crate::sound::decode(
        &sound,
        1 << 20,
        &mut tools,
        &mut crate::sound::NoSoundDecoder,
        &mut array,
    )
    .unwrap();
    let expected = [FIRST, [-300; 16], FIRST].concat();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let expected: Vec<f32> = expected.iter().map(|level| *level as f32 / 32_768.0).collect();
    let floats = array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    assert_eq!(floats.collect::<Vec<_>>(), expected);
}

#[test]
fn all_frames_of_the_corpus_are_those_of_claxon() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sound");
    for (name, bits) in [("flac", 16), ("flac-24", 24)] {
        let file = std::fs::read(corpus.join(name)).unwrap();
        let file = &file[1..];
        let mut data = &file[SoundHeader::read(file).unwrap().data];
        let mut reader = FrameReader::new(std::io::Cursor::new(data));
        let mut count = 0;
        while let Some(block) = reader.read_next_or_eof(vec![]).unwrap() {
            let mut levels = Vec::new();
            let frame = decode(data, bits, &mut levels).unwrap();
            assert_eq!(levels, block.into_buffer(), "{name}");
            data = &data[frame.bytes..];
            count += 1;
        }
        assert!(count > 0 && data.is_empty(), "{count}");
    }
}

/// scripts/make-pictures has compared the file's levels with libFLAC's.
#[test]
fn the_escaped_file_of_the_corpus_is_read() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sound");
    let file = std::fs::read(corpus.join("flac-escaped")).unwrap();
    let data = &file[1..][SoundHeader::read(&file[1..]).unwrap().data];
    assert!(FrameReader::new(std::io::Cursor::new(data)).read_next_or_eof(vec![]).is_err());
    let mut levels = Vec::new();
    let frame = decode(data, 16, &mut levels).unwrap();
    assert_eq!(frame, Frame { channels: 1, duration: 256, bytes: data.len() });
    for (at, level) in (0_i32..).zip(&levels) {
        let at = f64::from(at);
        let expected = 9000.0 * (at / 9.0).sin() + 40.0 * at.cos();
        assert!((f64::from(*level) - expected).abs() <= 0.501, "{at}: {level}");
    }
}

#[test]
fn damaged_frames_do_not_panic() {
    let mut writer = Writer::header(10, 4);
    writer.subframe(&FIRST, 16, 4);
    writer.subframe(&SECOND, 17, 4);
    let frame = writer.frame();
    let mut draws = crate::test_images::draws(5);
    for _ in 0..20_000 {
        let mut damaged = frame.clone();
        for _ in 0..2 {
            let place = usize::try_from(draws.below(frame.len() as u64)).unwrap();
            damaged[place] = u8::try_from(draws.below(256)).unwrap();
        }
        // Right by its checksum, so that what is behind it is reached, too.
        let end = damaged.len() - 2;
        let crc = crc_16(&damaged[..end]).to_be_bytes();
        damaged[end..].copy_from_slice(&crc);
        let mut levels = Vec::new();
        if let Ok(frame) = decode(&damaged, 16, &mut levels) {
            assert_eq!(levels.len(), frame.channels * frame.duration);
        }
    }
}
