//! Values by definition, limits, and rates; tests/python/test_audio.py compares with libsndfile and SciPy.

use super::*;

fn wave(tag: u16, channels: u16, sample_bytes: u16, data: &[u8]) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    let rate = 8000_u32.to_le_bytes();
    file.extend(
        [tag.to_le_bytes(), channels.to_le_bytes(), [rate[0], rate[1]], [0, 0], [0, 0], [0, 0]]
            .concat(),
    );
    file.extend((channels * sample_bytes).to_le_bytes());
    file.extend((8 * sample_bytes).to_le_bytes());
    file.extend(b"data");
    file.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
    file.extend(data);
    file
}

fn decoded(file: &[u8], form: SoundForm, most_bytes: u64) -> Result<(Vec<u64>, Vec<f32>), Defect> {
    let sound = Sound { file, form };
    let mut array = ArrayBuffer::default();
    decode(&sound, most_bytes, &mut SoundTools::default(), &mut NoSoundDecoder, &mut array)?;
    let (all, held) = decoding_bytes(&sound, most_bytes);
    assert!(held >= array.bytes.len() as u64 && all >= held, "{all}, {held}");
    let floats = array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    Ok((array.shape.clone(), floats.collect()))
}

const MIXED: SoundForm = SoundForm { channels: None, rate: None, span: None };
const ENOUGH: u64 = 1 << 20;

#[test]
fn each_coding_has_the_defined_levels() {
    for (tag, bytes, data, expected) in [
        (1, 1, &[0, 128, 192][..], [-1.0, 0.0, 0.5]),
        (1, 2, &[0, 128, 0, 0, 0, 64], [-1.0, 0.0, 0.5]),
        (1, 3, &[0, 0, 128, 0, 0, 0, 0, 0, 64], [-1.0, 0.0, 0.5]),
        (1, 4, &[0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 64], [-1.0, 0.0, 0.5]),
        // The smallest steps of G.711, and a large one.
        (6, 1, &[0xd5, 0x55, 0xaa], [8.0 / 32_768.0, -8.0 / 32_768.0, 32_256.0 / 32_768.0]),
        (7, 1, &[0xff, 0x7e, 0x80], [0.0, -8.0 / 32_768.0, 32_124.0 / 32_768.0]),
    ] {
        let (shape, floats) = decoded(&wave(tag, 1, bytes, data), MIXED, ENOUGH).unwrap();
        assert_eq!((shape, floats), (vec![3], expected.to_vec()), "{tag} of {bytes} bytes");
    }
}

/// A chunk with a big-endian length of so many bytes; of AIFF, whose lengths have four, it is even.
fn chunk(name: &[u8; 4], length_bytes: usize, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_be_bytes();
    let odd = if length_bytes == 4 { body.len() % 2 } else { 0 };
    [name, &length[8 - length_bytes..], body, &[0][..odd]].concat()
}

/// 3 frames of 44,100 a second; `kind` is empty for AIFF.
fn aiff(kind: &[u8], bits: u16, data: &[u8]) -> Vec<u8> {
    let rate = [0x40, 0x0e, 0xac, 0x44, 0, 0, 0, 0, 0, 0];
    let sizes = [&[0, 1][..], &3_u32.to_be_bytes(), &bits.to_be_bytes()].concat();
    let name = if kind.is_empty() { vec![] } else { b"\x03abc".to_vec() };
    let form = chunk(b"COMM", 4, &[&sizes, &rate[..], kind, &name].concat());
    let samples = chunk(b"SSND", 4, &[&[0; 8], data].concat());
    let last = if kind.is_empty() { b"F" } else { b"C" };
    let head = [&b"FORM\0\0\0\0AIF"[..], last].concat();
    [head, chunk(b"NAME", 4, b"odd"), form, samples].concat()
}

fn au(kind: u32, channels: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let words = [28, length, kind, 44_100, channels, 0].map(u32::to_be_bytes).concat();
    [b".snd", &words[..], data].concat()
}

fn caf(kind: [u8; 4], flags: u32, sample_bytes: u32, data: &[u8]) -> Vec<u8> {
    let words = [flags, sample_bytes, 1, 1, 8 * sample_bytes].map(u32::to_be_bytes).concat();
    let form = [&44_100_f64.to_be_bytes()[..], &kind, &words].concat();
    let samples = [&[0; 4], data].concat();
    [
        b"caff\0\x01\0\0",
        &chunk(b"desc", 8, &form)[..],
        &chunk(b"info", 8, b"odd"),
        &chunk(b"data", 8, &samples),
    ]
    .concat()
}

#[test]
fn big_endian_samples_have_the_levels_of_little_endian_ones() {
    let integers = |bytes: usize| {
        let levels = [i32::MIN, 0, 1 << 30].map(i32::to_be_bytes);
        levels.iter().flat_map(|level| &level[..bytes]).copied().collect::<Vec<u8>>()
    };
    let turned = |data: &[u8], bytes: usize| {
        data.chunks(bytes).flat_map(|sample| sample.iter().rev().copied()).collect::<Vec<u8>>()
    };
    let floats = [-1.0_f32, 0.0, 0.5].map(f32::to_be_bytes).concat();
    let doubles = [-1.0_f64, 0.0, 0.5].map(f64::to_be_bytes).concat();
    let mut files = Vec::new();
    for bytes in 1..=4_u16 {
        let (data, width) = (integers(bytes.into()), usize::from(bytes));
        files.push(aiff(b"", 8 * bytes, &data));
        // Four bits of the lowest byte are not used.
        files.push(aiff(b"", 8 * bytes - 4, &data));
        files.push(aiff(b"twos", 8 * bytes, &data));
        files.push(aiff(b"sowt", 8 * bytes, &turned(&data, width)));
        files.push(au(u32::from(bytes) + 1, 1, &data));
        files.push(caf(*b"lpcm", 0, bytes.into(), &data));
        files.push(caf(*b"lpcm", 2, bytes.into(), &turned(&data, width)));
    }
    files.push(aiff(b"raw ", 8, &[0, 128, 192]));
    files.push(aiff(b"fl32", 32, &floats));
    files.push(aiff(b"FL64", 64, &doubles));
    files.extend([au(6, 1, &floats), au(7, 1, &doubles)]);
    files.extend([caf(*b"lpcm", 1, 4, &floats), caf(*b"lpcm", 1, 8, &doubles)]);
    files.extend([
        caf(*b"lpcm", 3, 4, &turned(&floats, 4)),
        caf(*b"lpcm", 3, 8, &turned(&doubles, 8)),
    ]);
    for file in &files {
        let rate = SoundHeader::read(file).unwrap().rate;
        assert_eq!(
            (rate, decoded(file, MIXED, ENOUGH).unwrap()),
            (44_100, (vec![3], vec![-1.0, 0.0, 0.5]))
        );
        // Each cut leaves less than the frames that the header says.
        for length in 0..file.len() - 1 {
            assert!(decoded(&file[..length], MIXED, ENOUGH).is_err(), "{length} of {}", file.len());
        }
    }
    let law = [0xd5, 0x55, 0xaa];
    for file in [aiff(b"alaw", 16, &law), au(27, 1, &law), caf(*b"alaw", 0, 1, &law)] {
        assert_eq!(decoded(&file, MIXED, ENOUGH), decoded(&wave(6, 1, 1, &law), MIXED, ENOUGH));
    }
    for (file, reason) in [
        (aiff(b"ima4", 16, &law), "an AIFF file of coding `ima4` with 16 bits is not read"),
        (au(23, 1, &law), "an AU file of coding 23 is not read"),
        (caf(*b"alac", 0, 1, &law), "a CAF file of coding `alac` with 8 bits is not read"),
        (au(3, 0, &law), "no channels, or no rate"),
    ] {
        let refused = decoded(&file, MIXED, ENOUGH).unwrap_err().0;
        assert!(refused.contains(reason), "{refused}");
    }
    let untold = au(3, 1, &integers(2)).into_iter().enumerate();
    let untold: Vec<u8> =
        untold.map(|(at, byte)| if (8..12).contains(&at) { 0xff } else { byte }).collect();
    assert_eq!(decoded(&untold, MIXED, ENOUGH).unwrap().1, [-1.0, 0.0, 0.5]);
}

#[test]
fn channels_are_mixed_or_kept_or_refused() {
    let file = wave(1, 2, 1, &[192, 128, 0, 128]);
    assert_eq!(decoded(&file, MIXED, ENOUGH).unwrap(), (vec![2], vec![0.25, -0.5]));
    let both = SoundForm { channels: Some(2), rate: None, span: None };
    assert_eq!(decoded(&file, both, ENOUGH).unwrap(), (vec![2, 2], vec![0.5, 0.0, -1.0, 0.0]));
    let one = SoundForm { channels: Some(1), rate: None, span: None };
    let refused = decoded(&file, one, ENOUGH).unwrap_err().0;
    assert_eq!(refused, "the sound has 2 channels, and `channels = 1` is requested");
}

#[test]
fn too_large_sounds_are_refused_from_the_header() {
    let file = wave(1, 1, 1, &[128; 100]);
    assert!(decoded(&file, MIXED, 400).is_ok());
    let refused = decoded(&file, MIXED, 399).unwrap_err().0;
    assert!(refused.contains("100 frames"), "{refused}");
    let faster = SoundForm { channels: None, rate: Some(48_000), span: None };
    assert!(decoded(&file, faster, 2400).is_ok() && decoded(&file, faster, 2399).is_err());
    assert_eq!(decoding_bytes(&Sound { file: &file, form: faster }, 2399), (0, 0));
    // A FLAC file of a few bytes whose header claims 2³⁶ − 1 frames.
    let mut flac = b"fLaC\x80\0\0\x22".to_vec();
    flac.extend([
        0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0xc4, 0x40, 0xff, 0xff, 0xff, 0xff, 0xff,
    ]);
    flac.extend([0; 16]);
    let refused = decoded(&flac, MIXED, ENOUGH).unwrap_err().0;
    assert!(refused.contains("more than limits.inflated_bytes"), "{refused}");
}

#[test]
fn resampling_keeps_a_constant_level_and_scipys_number_of_frames() {
    let file = wave(3, 1, 4, &0.5_f32.to_le_bytes().repeat(4000));
    for (rate, count) in [(16_000, 8000), (4000, 2000), (11_025, 5513), (7999, 4000)] {
        let form = SoundForm { channels: None, rate: Some(rate), span: None };
        let (shape, floats) = decoded(&file, form, ENOUGH).unwrap();
        assert_eq!(shape, [count], "{rate}");
        let middle = &floats[floats.len() / 4..floats.len() * 3 / 4];
        // The ripple of the window.
        assert!(middle.iter().all(|level| (level - 0.5).abs() < 2e-3), "{rate}");
    }
    let odd = SoundForm { channels: None, rate: Some(131_101), span: None };
    let refused = decoded(&file, odd, 1 << 30).unwrap_err().0;
    assert!(refused.contains("no large divisor in common"), "{refused}");
}

#[test]
fn channels_are_resampled_as_each_alone() {
    let level = |frame: u16, channel: u16| f32::from((frame * 37 + channel * 101) % 255) / 255.0;
    let alone = |channel| (0..300).flat_map(move |frame| level(frame, channel).to_le_bytes());
    let frames = (0..300).flat_map(|frame| (0..3).map(move |channel| level(frame, channel)));
    let together: Vec<u8> = frames.flat_map(f32::to_le_bytes).collect();
    for rate in [8001, 16_000, 3000, 500] {
        let form = |channels| SoundForm { channels: Some(channels), rate: Some(rate), span: None };
        let (shape, floats) = decoded(&wave(3, 3, 4, &together), form(3), ENOUGH).unwrap();
        for channel in 0..3 {
            let file = wave(3, 1, 4, &alone(channel).collect::<Vec<u8>>());
            let (of_one, one) = decoded(&file, form(1), ENOUGH).unwrap();
            assert_eq!(shape[0], of_one[0]);
            let same = floats.iter().skip(channel.into()).step_by(3);
            assert!(same.eq(&one), "{rate}, channel {channel}");
        }
    }
}

/// Like the fuzz target, over randomly damaged seeds.
#[test]
fn damaged_files_are_errors_or_floats() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sound");
    let mut draws = crate::test_images::draws(11);
    let mut seeds: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 9);
    let below = |draws: &mut forebay_order::Draws, most: usize| {
        usize::try_from(draws.below(most as u64)).unwrap()
    };
    let (mut read, mut refused) = (0, 0);
    for seed in seeds {
        let seed = std::fs::read(seed).unwrap();
        for number in 0..600 {
            let mut file = seed[1..].to_vec();
            if number % 3 == 0 {
                file.truncate(4 + below(&mut draws, file.len() - 4));
            } else {
                let most = if number % 3 == 1 { file.len().min(100) } else { file.len() };
                for _ in 0..=below(&mut draws, 4) {
                    let place = 4 + below(&mut draws, most - 4);
                    file[place] = [0, 1, 127, 128, 255, u8::try_from(draws.below(256)).unwrap()]
                        [below(&mut draws, 6)];
                }
            }
            let form = SoundForm {
                channels: [None, Some(2)][number % 2],
                rate: [None, Some(16_000)][number / 2 % 2],
                span: None,
            };
            let sound = Sound { file: &file, form };
            let (all, _) = decoding_bytes(&sound, ENOUGH);
            let mut array = ArrayBuffer::default();
            match decode(
                &sound,
                ENOUGH,
                &mut SoundTools::default(),
                &mut NoSoundDecoder,
                &mut array,
            ) {
                Ok(()) => read += 1,
                Err(Defect(reason)) => {
                    assert!(reason.len() > 10, "{reason}");
                    refused += 1;
                }
            }
            assert!(array.bytes.len() as u64 <= ENOUGH.min(all), "{} of {all}", array.bytes.len());
        }
    }
    assert!(read > 500 && refused > 500, "{read} read, {refused} refused");
}

#[test]
fn flac_file_without_a_length_is_decoded() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sound");
    let told = std::fs::read(corpus.join("flac")).unwrap().split_off(1);
    let mut untold = told.clone();
    // The lowest 36 bits of the description.
    untold[21] &= 0xf0;
    untold[22..26].fill(0);
    let both = SoundForm { channels: Some(2), rate: None, span: None };
    let (shape, floats) = decoded(&told, both, ENOUGH).unwrap();
    assert_eq!(shape, [400, 2]);
    assert_eq!(decoded(&untold, both, ENOUGH).unwrap(), (shape, floats));
    let refused = decoded(&untold, both, 3199).unwrap_err().0;
    assert!(refused.contains("more frames than limits.inflated_bytes allows"), "{refused}");
    let cut = decoded(&told[..told.len() - 3], both, ENOUGH).unwrap_err().0;
    assert!(cut.contains("cannot decode the FLAC file"), "{cut}");
}
