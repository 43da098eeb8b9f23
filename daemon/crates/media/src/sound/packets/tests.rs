//! The corpus of `sound_lossy`, made by FFmpeg: lengths, parts, and damage. tests/python/test_audio.py compares values.

use std::path::Path;

use super::super::{NoSoundDecoder, SoundTools, decode};
use crate::array::ArrayBuffer;
use crate::test_images::draws;
use forebay_dataset::sound::ogg::set_checksums_right;
use forebay_dataset::{Defect, Sound, SoundForm, SoundHeader, SoundSpan};
use forebay_order::Draws;

const ENOUGH: u64 = 1 << 22;
/// Files of three containers, at least 1,000 damaged ones each; their samples, rate and channels, as FFmpeg 5.1 decodes them; of `vorbis`, whose sound is one page, as
/// libsndfile does.
const FILES: [(&str, u64, u32, u16); 7] = [
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

fn floats(file: &[u8], channels: u16, span: Option<SoundSpan>) -> Result<Vec<u8>, Defect> {
    let form = SoundForm { channels: Some(channels), rate: None, span };
    let mut array = ArrayBuffer::default();
    decode(
        &Sound { file, form },
        ENOUGH,
        &mut SoundTools::default(),
        &mut NoSoundDecoder,
        &mut array,
    )?;
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
        for number in 0..if name == "alac" { 1000 } else { 340 } {
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
