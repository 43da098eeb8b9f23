//! The corpus of `sound_lossy`, made by FFmpeg: lengths, parts, and damage. tests/python/test_audio.py compares values.

use std::path::Path;

use super::super::{NoSoundDecoder, SoundDecoder, SoundTools, decode};
use crate::array::ArrayBuffer;
use crate::test_images::draws;
use forebay_dataset::sound::ogg::set_checksums_right;
use forebay_dataset::{Defect, Sound, SoundForm, SoundHeader, SoundSpan};
use forebay_decoders::SoundRequest;
use forebay_order::Draws;

const ENOUGH: u64 = 1 << 22;
/// Files of four containers, at least 1,000 damaged ones each; their samples, rate and channels, as FFmpeg 5.1 decodes them;
/// of `vorbis`, whose sound is one page, as libsndfile does, and of AAC without what its encoder added to the end.
const FILES: [(&str, u64, u32, u16); 12] = [
    ("aac", 8000, 16_000, 1),
    ("aac-fragments", 7639, 22_050, 2),
    ("aac-he", 13_230, 44_100, 1),
    ("aac-he-v2", 13_230, 44_100, 2),
    ("adts", 8192, 16_000, 1),
    ("alac", 1600, 8000, 2),
    ("mp3", 8000, 16_000, 1),
    ("mp3-stereo", 13_230, 44_100, 2),
    ("mp3-no-tag", 4608, 8000, 1),
    ("vorbis", 6400, 16_000, 2),
    ("opus-speech", 24_000, 48_000, 1),
    ("opus-music", 14_400, 48_000, 2),
];

fn file(name: &str) -> Vec<u8> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sound_lossy");
    // Without what the fuzzer chooses by.
    std::fs::read(corpus.join(name)).unwrap().split_off(3)
}

/// In the place of a process that decodes AAC: each float is the number of its frame, counted from the first packet's.
struct Counting;

impl SoundDecoder for Counting {
    fn decode(
        &mut self,
        request: &SoundRequest<'_>,
        floats: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let bytes: u64 = request.packets.iter().map(|bytes| u64::from(*bytes)).sum();
        assert_eq!(bytes, request.data.len() as u64);
        for frame in request.skip..request.skip + request.frames {
            floats(&(frame as f32).to_ne_bytes().repeat(request.channels.into()))?;
        }
        Ok(())
    }
}

fn floats(file: &[u8], channels: u16, span: Option<SoundSpan>) -> Result<Vec<u8>, Defect> {
    let form = SoundForm { channels: Some(channels), rate: None, span };
    let mut array = ArrayBuffer::default();
    decode(&Sound { file, form }, ENOUGH, &mut SoundTools::default(), &mut Counting, &mut array)?;
    Ok(array.bytes)
}

#[test]
fn sounds_are_as_long_as_ffmpeg_says() {
    for (name, samples, rate, channels) in FILES {
        let file = file(name);
        let header = SoundHeader::read(&file).unwrap();
        assert_eq!(
            (header.frames, header.rate, header.channels),
            (Some(samples), rate, channels),
            "{name}"
        );
        let bytes = floats(&file, channels, None).unwrap();
        assert_eq!(bytes.len() as u64, samples * 4 * u64::from(channels), "{name}");
        assert_eq!(bytes, floats(&file, channels, None).unwrap(), "{name}");
    }
}

#[test]
fn aac_begins_after_what_the_encoder_added_and_needs_a_decoder() {
    let first = |name: &str, channels| {
        let bytes = floats(&file(name), channels, None).unwrap();
        f32::from_ne_bytes(*bytes.first_chunk().unwrap())
    };
    // Nothing in a fragmented file says how much that is.
    let firsts = (first("aac", 1), first("aac-he-v2", 2), first("aac-fragments", 2));
    assert_eq!(firsts, (1024.0, 7106.0, 0.0));
    let (file, form) = (file("aac"), SoundForm::default());
    let (mut tools, mut array) = (SoundTools::default(), ArrayBuffer::default());
    let sound = Sound { file: &file, form };
    let refused = decode(&sound, ENOUGH, &mut tools, &mut NoSoundDecoder, &mut array).unwrap_err();
    assert_eq!(refused.0, "no process decodes AAC here");
}

#[test]
fn only_the_packets_up_to_the_end_of_a_part_are_asked_for() {
    struct Packets(usize);
    impl SoundDecoder for Packets {
        fn decode(
            &mut self,
            request: &SoundRequest<'_>,
            _: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
        ) -> Result<(), Defect> {
            self.0 = request.packets.len();
            Err(Defect(String::new()))
        }
    }
    let file = file("aac");
    let packets = |frames: u64| {
        let length = Some(frames * 1_000_000_000 / 16_000);
        let form = SoundForm { span: Some(SoundSpan { start: 0, length }), ..SoundForm::default() };
        let (mut tools, mut array) = (SoundTools::default(), ArrayBuffer::default());
        let mut packets = Packets(0);
        let sound = Sound { file: &file, form };
        decode(&sound, ENOUGH, &mut tools, &mut packets, &mut array).unwrap_err();
        packets.0
    };
    // One packet of what the encoder added, then 1,024 frames each.
    assert_eq!([1024, 1025, 2048, 2049, 8000].map(packets), [2, 3, 3, 4, 9]);
}

#[test]
fn a_part_is_the_same_as_of_the_whole_sound() {
    let mut random = draws(5);
    for (name, samples, rate, channels) in FILES {
        let file = file(name);
        let whole = floats(&file, channels, None).unwrap();
        let nanoseconds = samples * 1_000_000_000 / u64::from(rate);
        for _ in 0..40 {
            let start = random.below(nanoseconds - 1_000_000);
            let length = Some(random.below(nanoseconds)).filter(|length| length % 8 != 0);
            let span = SoundSpan { start, length };
            let frames = span.frames(samples, rate).unwrap();
            let each = 4 * u64::from(channels);
            let place = |frame: u64| usize::try_from(frame * each).unwrap();
            let part = floats(&file, channels, Some(span)).unwrap();
            let expected = &whole[place(frames.start)..place(frames.end)];
            assert!(part == expected, "{name} {frames:?}");
        }
        let behind = SoundSpan { start: nanoseconds + 1_000_000, length: None };
        let refused = floats(&file, channels, Some(behind)).unwrap_err().0;
        assert!(refused.contains("behind the sound"), "{refused}");
    }
}

#[test]
fn damaged_files_are_errors_or_floats() {
    for (name, _, _, channels) in FILES {
        let whole = file(name);
        let mut random = draws(7);
        let mut refused = 0;
        for number in 0..if ["aac", "alac"].contains(&name) { 1000 } else { 340 } {
            let mut file = whole.clone();
            let below = |random: &mut Draws, bound: usize| {
                usize::try_from(random.below(bound as u64)).unwrap()
            };
            if number % 4 == 0 {
                file.truncate(below(&mut random, whole.len()));
            } else {
                for _ in 0..=number % 7 {
                    let place = below(&mut random, whole.len());
                    file[place] = random.below(256).to_le_bytes()[0];
                }
                if number % 4 == 3 {
                    set_checksums_right(&mut file);
                }
            }
            match floats(&file, channels, None) {
                Ok(bytes) => assert!(bytes.len() as u64 <= ENOUGH),
                Err(Defect(reason)) => {
                    assert!(!reason.is_empty());
                    refused += 1;
                }
            }
        }
        // What is cut off is noticed, but for what follows the last whole frame of an MP3 file without a count.
        assert!(refused > 70 || name == "mp3-no-tag", "{name}: {refused}");
    }
}
