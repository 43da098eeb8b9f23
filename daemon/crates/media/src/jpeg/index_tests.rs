//! Pixels do not depend on an index's contents.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use forebay_jpeg_index::{Key, Terms};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::*;
use crate::test_images::{draws, gradient};

/// A file with unique content, large enough for an index.
fn file(number: u8, sampling: SamplingFactor, progressive: bool, restart: u16) -> Vec<u8> {
    let (width, height) = (400 + u16::from(number) * 7, 310);
    let mut pixels = gradient(width.into(), height.into(), 3);
    let mut draws = draws(u64::from(number) + 1);
    pixels.iter_mut().for_each(|pixel| *pixel ^= u8::try_from(draws.below(64)).unwrap());
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 85);
    encoder.set_sampling_factor(sampling);
    encoder.set_progressive(progressive);
    if restart > 0 {
        encoder.set_restart_interval(restart);
    }
    encoder.encode(&pixels, width, height, ColorType::Rgb).unwrap();
    file
}

fn files() -> Vec<Vec<u8>> {
    let plain = [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_2_2];
    let mut files: Vec<Vec<u8>> =
        (0..9).map(|number| file(number, plain[usize::from(number) % 3], false, 0)).collect();
    files.push(file(9, SamplingFactor::F_2_2, true, 0));
    files.push(file(10, SamplingFactor::F_2_2, false, 4));
    // Damaged after most crops.
    let mut damaged = file(11, SamplingFactor::F_2_2, false, 0);
    let at = damaged.len() - 2000;
    damaged[at..at + 40].fill(0xfe);
    files.push(damaged);
    files
}

fn open(path: &Path) -> Arc<JpegIndex> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path).unwrap();
    let terms = Terms { limit_bytes: 1 << 30, images: 100, may_write: true };
    Arc::new(JpegIndex::new(file, path, terms))
}

/// The results of several crops of all files: pixels or errors.
fn decode_all(
    files: &[Vec<u8>],
    index: Option<&Arc<JpegIndex>>,
    seed: u64,
) -> Vec<Result<Vec<u8>, Defect>> {
    let mut decoder = JpegDecoder::default();
    decoder.use_index(index);
    let mut draws = draws(seed);
    let mut below = |limit: u32| u32::try_from(draws.below(limit.into())).unwrap();
    let mut found = Vec::new();
    for file in files {
        let header = read_header(file).unwrap();
        for reduction in [Reduction::NONE, crate::reduction::REDUCTIONS[1]] {
            for channels in [3, 4] {
                let Size { width, height } = reduction.size(header.size);
                let (left, top) = (below(width - 8), below(height - 8));
                let size = (1 + below(width - left), 1 + below(height - top));
                let needed = Rectangle { left, top, width: size.0, height: size.1 };
                let wanted = Wanted { reduction, channels, needed, in_colour_rows: false };
                let mut pixels = Vec::new();
                let decoded =
                    decoder.decode(file, &header, wanted, &mut pixels).map(|decoded| decoded.area);
                // libjpeg-turbo decodes more than the wanted part.
                found.push(decoded.map(|area| {
                    let bytes = |pixels: u32| pixels as usize * usize::from(channels);
                    let rows = pixels.chunks_exact(bytes(area.width));
                    let rows = rows.skip((needed.top - area.top) as usize);
                    let from = bytes(needed.left - area.left);
                    let rows = rows.take(needed.height as usize);
                    rows.flat_map(|row| &row[from..from + bytes(needed.width)]).copied().collect()
                }));
            }
        }
    }
    found
}

/// The first decoding of a file learns up to its last row. Decodings that go further add marks.
#[test]
fn known_marks_grow_with_the_needed_rows() {
    let file = file(0, SamplingFactor::F_2_2, false, 0);
    let mut decoder = forebay_jpeg::Decoder::new().unwrap();
    let mut pixels = vec![0; 100 * 20 * 3];
    let mut decode = |top: u32, known: &[u8], whole: bool| {
        let region = Region { left: 200, top, width: 100, height: 20 };
        let mut decode = |index| {
            decoder.decode(&file, Scale::Full, region, Pixels::Rgb, index, &mut pixels).unwrap();
            pixels.clone()
        };
        let expected = decode(Index::default());
        let mut marks = Vec::new();
        let index = Index { known, learned: Some(&mut marks), whole };
        assert_eq!(decode(index), expected, "from row {top}");
        marks
    };
    // Out of 310 rows.
    assert!(decode(0, &[], false).is_empty(), "less than an eighth");
    let some = decode(60, &[], false);
    assert!(decode(40, &some, false).is_empty(), "nothing new");
    assert!(decode(75, &some, false).is_empty(), "16 rows more");
    let more = decode(180, &some, false);
    let all = decode(0, &more, true);
    assert!(some.len() > 40 && more.len() > some.len() * 2 && all.len() > more.len() * 3 / 2);
    assert_eq!((&more[..some.len()], &all[..more.len()]), (&*some, &*more));
    assert_eq!(all, decode(0, &[], true), "at once, and in parts");
    for top in [0, 100, 280] {
        assert!(decode(top, &all, false).is_empty() && decode(top, &all, true).is_empty());
    }
    // Truncated marks end between two checkpoints, or within one.
    for length in (4..some.len()).rev() {
        decode(60, &some[..length], false);
    }
}

#[test]
fn pixels_do_not_depend_on_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let files = files();
    let expected = |seed| decode_all(&files, None, seed);
    // Empty: all marks are learned during the test.
    let index = open(&path);
    index.start().unwrap();
    assert_eq!(decode_all(&files, Some(&index), 1), expected(1));
    let figures = index.figures();
    // The second to fourth decoding of a file may find its marks already.
    assert!(figures.missed >= files.len() as u64, "{figures:?}");
    index.finish(Duration::from_secs(60));
    let whole = std::fs::read(&path).unwrap();
    let all: usize = files.iter().map(Vec::len).sum();
    assert!(whole.len() > 1000 && whole.len() < all / 50, "{} of {all}", whole.len());
    // Complete.
    let known = |seed| {
        let index = open(&path);
        index.look().unwrap();
        assert_eq!(decode_all(&files, Some(&index), seed), expected(seed));
        index.figures().found
    };
    for seed in 2..6 {
        assert!(known(seed) >= 40, "four decodings of ten files");
    }
    // Truncated to half, then randomly damaged.
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!((4..40).contains(&known(6)));
    let mut draws = draws(7);
    for seed in 0..20 {
        let mut damaged = whole.clone();
        for _ in 0..3 {
            let at = usize::try_from(draws.below(damaged.len() as u64)).unwrap();
            damaged[at] ^= 1 << draws.below(8);
        }
        std::fs::write(&path, damaged).unwrap();
        known(10 + seed);
    }
}

/// Marks with a correct checksum are trusted; any marks may at most affect pixels.
#[test]
fn invalid_marks_do_not_panic() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(&folder.path().join("index"));
    index.start().unwrap();
    let files: Vec<Vec<u8>> = files().into_iter().take(3).collect();
    decode_all(&files, Some(&index), 1);
    index.finish(Duration::from_secs(60));
    let learned = open(&folder.path().join("index"));
    learned.look().unwrap();
    let marks =
        files.iter().map(|file| learned.find(file, &mut Vec::new()).marks.unwrap().to_vec());
    let marks: Vec<Vec<u8>> = marks.collect();
    assert!(files.iter().all(|file| Key::is_kept(file)));
    let mut decoder = forebay_jpeg::Decoder::new().unwrap();
    let mut draws = draws(2);
    let mut below = |limit: usize| usize::try_from(draws.below(limit as u64)).unwrap();
    let (mut accepted, mut pixels, mut more) = (0, vec![0; 40 * 40 * 3], Vec::new());
    for round in 0..6000 {
        let mut marks = marks[below(marks.len())].clone();
        for _ in 0..=below(3) {
            let at = below(marks.len());
            match below(4) {
                0 => marks[at] ^= 1 << below(8),
                1 => marks.truncate(at.max(1)),
                2 => marks[at] = u8::try_from(below(256)).unwrap(),
                _ => marks.insert(at, 255),
            }
        }
        let region = Region {
            left: u32::try_from(below(360)).unwrap(),
            top: u32::try_from(below(270)).unwrap(),
            width: 40,
            height: 40,
        };
        let file = &files[round % 3];
        let learned = (below(2) == 0).then_some(&mut more);
        let known = Index { known: &marks, learned, whole: below(2) == 0 };
        let decoded = decoder.decode(file, Scale::Full, region, Pixels::Rgb, known, &mut pixels);
        accepted += usize::from(decoded.is_ok());
    }
    // If marks are refused, the file is decoded without them.
    assert_eq!(accepted, 6000);
}

/// A region of a file, and its pixels without an index.
struct Crop {
    file: usize,
    wanted: Wanted,
    pixels: Vec<u8>,
}

fn crops(files: &[Vec<u8>], each: usize) -> Vec<Crop> {
    let mut draws = draws(3);
    let mut decoder = JpegDecoder::default();
    let mut crops = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let header = read_header(file).unwrap();
        for _ in 0..each {
            let mut below = |limit: u32| u32::try_from(draws.below(limit.into())).unwrap();
            let Size { width, height } = header.size;
            let (left, top) = (below(width - 32), below(height - 32));
            let needed = Rectangle { left, top, width: 32, height: 32 };
            let reduction = Reduction::NONE;
            let wanted = Wanted { reduction, channels: 3, needed, in_colour_rows: false };
            let mut pixels = Vec::new();
            assert!(decoder.decode_usual(file, &header, wanted, &mut pixels));
            pixels.truncate(32 * 32 * 3);
            crops.push(Crop { file: number, wanted, pixels });
        }
    }
    crops
}

/// Damages random bytes, as failing disks, foreign programs and lost writes do.
fn damage(bytes: &mut Vec<u8>, mut below: impl FnMut(usize) -> usize) {
    for _ in 0..=below(3) {
        let (at, from) = (below(bytes.len()), below(bytes.len()));
        let run = 1 + below(64).min(bytes.len() - at.max(from) - 1);
        match below(6) {
            0 | 1 => bytes[at] ^= 1 << below(8),
            2 => bytes[at] = u8::try_from(below(256)).unwrap(),
            3 => bytes[at..at + run].fill(if below(2) == 0 { 0 } else { 0xff }),
            4 => bytes.copy_within(from..from + run, at),
            // Records may be moved.
            _ => {
                let (at, from) = (at / 8 * 8, from / 8 * 8);
                let run = (1 + below(250)) * 8;
                let run = run.min(bytes.len() - at.max(from));
                bytes.copy_within(from..from + run, at);
            }
        }
    }
    if below(8) == 0 {
        bytes.truncate(1 + below(bytes.len()));
    }
}

/// `FOREBAY_TEST_INDEX_DAMAGES` sets the number; `scripts/prove` uses a million.
#[test]
fn damaged_records_change_no_pixel() {
    let count =
        std::env::var("FOREBAY_TEST_INDEX_DAMAGES").map_or(1500, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let files: Vec<Vec<u8>> = files().into_iter().take(9).collect();
    let crops = crops(&files, 12);
    let index = open(&path);
    index.start().unwrap();
    decode_all(&files, Some(&index), 1);
    index.finish(Duration::from_secs(60));
    let whole = std::fs::read(&path).unwrap();
    let handle = OpenOptions::new().write(true).open(&path).unwrap();
    // An index that was read before the damage, and in each round one that is read after it.
    let before = open(&path);
    before.look().unwrap();
    let headers: Vec<JpegHeader> = files.iter().map(|file| read_header(file).unwrap()).collect();
    let (mut draws, mut decoder, mut found) = (draws(5), JpegDecoder::default(), 0);
    let mut below = |limit: usize| usize::try_from(draws.below(limit as u64)).unwrap();
    let mut pixels = Vec::new();
    for round in 0..count {
        let mut damaged = whole.clone();
        damage(&mut damaged, &mut below);
        handle.write_all_at(&damaged, 0).unwrap();
        handle.set_len(damaged.len() as u64).unwrap();
        let index = if round % 2 == 0 {
            before.clone()
        } else {
            let after = open(&path);
            // It may look like another kind of file now.
            let _ = after.look();
            after
        };
        let known_before = index.figures().found;
        decoder.use_index(Some(&index));
        for _ in 0..2 {
            let Crop { file, wanted, pixels: expected } = &crops[below(crops.len())];
            assert!(decoder.decode_usual(&files[*file], &headers[*file], *wanted, &mut pixels));
            assert!(
                pixels[..expected.len()] == *expected,
                "round {round}: {wanted:?} of file {file}"
            );
        }
        found += index.figures().found - known_before;
    }
    assert!(found > 0, "no record was left whole");
    println!("{count} damages changed no pixel; {found} records were still found");
}
