//! Files with random changes that keep their structure: libjpeg-turbo gives the same pixels for all files that the fast
//! decoder accepts, and learned marks change no pixel.

use forebay_order::Draws;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::tests::random_part;
use super::*;
use crate::reduction::REDUCTIONS;
use crate::test_images::{draws, gradient};

/// Small files of every form that the fast decoder accepts, and of some that it does not. There are three of each, with
/// different pixels, sizes and tables.
fn files() -> Vec<Vec<u8>> {
    let forms = [
        (ColorType::Rgb, SamplingFactor::F_2_2, 0),
        (ColorType::Rgb, SamplingFactor::F_1_1, 0),
        (ColorType::Rgb, SamplingFactor::F_2_1, 0),
        (ColorType::Rgb, SamplingFactor::F_1_2, 0),
        (ColorType::Luma, SamplingFactor::F_1_1, 0),
        (ColorType::Rgb, SamplingFactor::F_2_2, 2),
        (ColorType::Rgb, SamplingFactor::F_1_1, 3),
        (ColorType::Cmyk, SamplingFactor::F_1_1, 0),
    ];
    let mut files = Vec::new();
    for (number, (colour, sampling, restart)) in forms.into_iter().cycle().take(24).enumerate() {
        let (width, height) = [(48, 40), (61, 35), (33, 57)][number / 8];
        let channels = match colour {
            ColorType::Luma => 1,
            ColorType::Rgb => 3,
            _ => 4,
        };
        let mut pixels = gradient(width.into(), height.into(), channels);
        let mut draws = draws(number as u64);
        pixels.iter_mut().for_each(|pixel| *pixel ^= u8::try_from(draws.below(32)).unwrap());
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, [50, 80, 95][number / 8]);
        encoder.set_sampling_factor(sampling);
        // With restarts the encoder would count other differences than it writes.
        encoder.set_optimized_huffman_tables(number >= 16 && restart == 0);
        if restart > 0 {
            encoder.set_restart_interval(restart);
        }
        encoder.encode(&pixels, width, height, colour).unwrap();
        files.push(file);
    }
    files
}

/// The start of each segment, the first byte of the scan's data, and the file's last marker.
fn segments(file: &[u8]) -> (Vec<usize>, usize, usize) {
    let (mut starts, mut at) = (Vec::new(), 2);
    loop {
        starts.push(at);
        let length = usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        let is_scan = file[at + 1] == 0xda;
        at += 2 + length;
        if is_scan {
            return (starts, at, file.len() - 2);
        }
    }
}

/// Applies one to four changes to a file.
fn mutate(good: &[u8], other: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut below = |limit: usize| usize::try_from(draws.below(limit.max(1) as u64)).unwrap();
    let (starts, scan, end) = segments(good);
    let mut file = good.to_vec();
    // The data first, since changes of earlier segments move it.
    for _ in 0..below(3) {
        let at = scan + below(end - scan);
        match below(8) {
            0 | 1 => file[at] ^= 1 << below(8),
            2 => file[at] = u8::try_from(below(256)).unwrap(),
            3 => drop(file.splice(at..at, [0xff, 0x00])),
            4 => drop(file.splice(at..at, [0xff, 0xd0 + u8::try_from(below(10)).unwrap()])),
            5 => drop(file.drain(at..at + below(4).min(end - at))),
            6 => file[at..end.min(at + 12)].fill([0x00, 0xfe, 0xff][below(3)]),
            _ => {
                // The end of another file's data.
                let (_, other_scan, other_end) = segments(other);
                let from = other_scan + below(other_end - other_scan);
                file.splice(at..end, other[from..other_end].iter().copied());
            }
        }
        if file.len() != good.len() {
            break;
        }
    }
    if below(3) == 0 {
        let number = below(starts.len());
        let start = starts[number];
        let next = starts.get(number + 1).copied().unwrap_or(scan);
        match below(6) {
            0 | 1 => file[start + 2 + below(next - start - 2)] ^= 1 << below(8),
            2 => file[start + 4 + below(next - start - 4)] = u8::try_from(below(256)).unwrap(),
            3 => drop(file.drain(start..next)),
            // Repeats the segment, or inserts another file's.
            4 => drop(file.splice(start..start, good[start..next].iter().copied())),
            _ => {
                let (others, other_scan, _) = segments(other);
                let number = number.min(others.len() - 1);
                let next = others.get(number + 1).copied().unwrap_or(other_scan);
                file.splice(start..start, other[others[number]..next].iter().copied());
            }
        }
    }
    file
}

/// `FOREBAY_TEST_JPEG_MUTATIONS` sets the number; `scripts/prove` uses 20 million. Each file is decoded by both
/// decoders, and, if the fast one accepts it, a second region of it with and without the marks of the first.
#[test]
fn fast_decoder_accepts_only_files_that_the_library_decodes_equally() {
    let count: u64 =
        std::env::var("FOREBAY_TEST_JPEG_MUTATIONS").map_or(6000, |count| count.parse().unwrap());
    let files = files();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let work = |thread: u64| {
        let (mut draws, mut decoder) = (draws(8 + thread), JpegDecoder::default());
        let mut quick = forebay_jpeg::Decoder::new();
        // Refused at once, refused by both, accepted, and decoded with marks.
        let mut counts = [0_u64; 4];
        for _ in 0..count / threads {
            let mut any = || &files[usize::try_from(draws.below(files.len() as u64)).unwrap()];
            let (good, other) = (any(), any());
            let file = mutate(good, other, &mut draws);
            // Sizes in a damaged header are checked before either decoder runs.
            let header = match read_header(&file) {
                Ok(header) if has_few_pixels(header.size) => header,
                _ => {
                    counts[0] += 1;
                    continue;
                }
            };
            let reduction = REDUCTIONS[usize::try_from(draws.below(4)).unwrap()];
            let size = reduction.size(header.size);
            let channels = [1, 3, 3, 4][usize::try_from(draws.below(4)).unwrap()];
            let needed = random_part(&mut draws, size);
            let wanted = Wanted { reduction, channels, needed, in_colour_rows: false };
            let (is_sure, _) = decoder.decode_twice(&file, &header, wanted);
            counts[1 + usize::from(is_sure)] += 1;
            if let (true, Some(quick)) = (is_sure, &mut quick) {
                let regions =
                    [needed, random_part(&mut draws, size), random_part(&mut draws, size)];
                let scale = Scale::of_factor(reduction.factor()).unwrap();
                counts[3] += u64::from(learns_nothing_else(quick, &file, scale, regions));
            }
        }
        counts
    };
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold([0; 4], |mut sums, counts| {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            sums
        })
    });
    let [refused, unsure, sure, learned] = counts;
    println!(
        "{} mutated files: {refused} without a header, {unsure} left to libjpeg-turbo, {sure} accepted, of {learned} a later \
         region with what was learned",
        refused + unsure + sure
    );
    assert!(refused > 0 && unsure > 0, "{counts:?}");
    assert!(quick_is_there() == (sure > 0 && learned > 0), "{counts:?}");
}

fn has_few_pixels(size: Size) -> bool {
    (1..=256).contains(&size.width) && (1..=256).contains(&size.height)
}

fn quick_is_there() -> bool {
    forebay_jpeg::Decoder::new().is_some()
}

/// Decodes the regions in turn with the marks of earlier ones: each result equals the one without marks. Returns
/// whether any marks were learned.
fn learns_nothing_else(
    decoder: &mut forebay_jpeg::Decoder,
    file: &[u8],
    scale: Scale,
    regions: [Rectangle; 3],
) -> bool {
    let mut known = Vec::new();
    for (number, Rectangle { left, top, width, height }) in regions.into_iter().enumerate() {
        let region = Region { left, top, width, height };
        let mut decode = |index| {
            let mut pixels = vec![0; width as usize * height as usize * 3];
            let learned = decoder.decode(file, scale, region, Pixels::Rgb, index, &mut pixels);
            learned.map(|learned| (learned, pixels))
        };
        let alone = decode(Index::default()).map(|(_, pixels)| pixels);
        let mut marks = Vec::new();
        let index = Index { known: &known, learned: Some(&mut marks), whole: number == 1 };
        let together = decode(index);
        assert_eq!(together.as_ref().map(|(_, pixels)| pixels), alone.as_ref());
        if matches!(together, Ok((Learned::Marks, _))) {
            known = marks;
        }
    }
    !known.is_empty()
}
