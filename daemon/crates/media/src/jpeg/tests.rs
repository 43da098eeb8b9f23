//! A region's pixels equal the full decoding's; refused files.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::turbo::{TestCoding, encode_for_tests};
use super::*;
use crate::reduction::REDUCTIONS;
use crate::test_images::{draws, gradient, jpeg};
use turbojpeg_sys as sys;

fn decode(
    file: &[u8],
    channels: u8,
    region: Option<Rectangle>,
) -> Result<(Rectangle, Vec<u8>), Defect> {
    decode_at(Reduction::NONE, file, channels, region)
}

fn decode_at(
    reduction: Reduction,
    file: &[u8],
    channels: u8,
    region: Option<Rectangle>,
) -> Result<(Rectangle, Vec<u8>), Defect> {
    let header = read_header(file)?;
    let mut decoder = JpegDecoder::default();
    let mut pixels = Vec::new();
    let needed = region.unwrap_or(Rectangle::whole(reduction.size(header.size)));
    let wanted = Wanted { reduction, channels, needed, in_colour_rows: false };
    let region = decoder.decode(file, &header, wanted, &mut pixels)?.area;
    pixels.truncate(region.width as usize * region.height as usize * usize::from(channels));
    Ok((region, pixels))
}

/// These pixels as red, green and blue, at the image's size.
fn in_rgb(needed: Rectangle) -> Wanted {
    Wanted { reduction: Reduction::NONE, channels: 3, needed, in_colour_rows: false }
}

fn encode(
    width: u16,
    height: u16,
    colour: ColorType,
    sampling: SamplingFactor,
    progressive: bool,
    restart: u16,
) -> Vec<u8> {
    let channels = match colour {
        ColorType::Luma => 1,
        ColorType::Rgb => 3,
        _ => 4,
    };
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 92);
    encoder.set_sampling_factor(sampling);
    encoder.set_progressive(progressive);
    if restart > 0 {
        encoder.set_restart_interval(restart);
    }
    let pixels = gradient(width.into(), height.into(), channels);
    encoder.encode(&pixels, width, height, colour).unwrap();
    file
}

fn part(pixels: &[u8], area: Rectangle, wanted: Rectangle, channels: usize) -> Vec<u8> {
    let mut part = Vec::new();
    for y in 0..wanted.height {
        let row = (wanted.top - area.top + y) as usize * area.width as usize;
        let start = (row + (wanted.left - area.left) as usize) * channels;
        part.extend_from_slice(&pixels[start..start + wanted.width as usize * channels]);
    }
    part
}

/// Compares random regions with the decoding of the whole image, at every reduction.
fn assert_regions(file: &[u8], draws: &mut forebay_order::Draws, what: &str) {
    for reduction in REDUCTIONS {
        let (whole, full) = decode_at(reduction, file, 3, None).unwrap();
        assert_eq!(whole.size(), reduction.size(read_header(file).unwrap().size));
        for _ in 0..6 {
            let mut span = |limit: u32| {
                let start = draws.below(u64::from(limit));
                let length = draws.below(u64::from(limit) - start) + 1;
                (u32::try_from(start).unwrap(), u32::try_from(length).unwrap())
            };
            let ((left, width), (top, height)) = (span(whole.width), span(whole.height));
            let wanted = Rectangle { left, top, width, height };
            let (area, pixels) = decode_at(reduction, file, 3, Some(wanted)).unwrap();
            assert!(
                part(&pixels, area, wanted, 3) == part(&full, whole, wanted, 3),
                "{what} at {reduction:?}: {wanted:?} of {:?}",
                whole.size()
            );
        }
    }
}

/// Odd sizes, whole blocks, and the smallest.
const SIZES: [(u16, u16); 6] = [(131, 97), (64, 48), (33, 70), (1, 1), (1, 40), (57, 1)];

#[test]
fn region_has_the_pixels_of_a_full_decoding() {
    let mut draws = draws(3);
    let samplings = [
        SamplingFactor::F_1_1,
        SamplingFactor::F_2_1,
        SamplingFactor::F_2_2,
        SamplingFactor::F_1_2,
        SamplingFactor::F_4_1,
        SamplingFactor::F_4_2,
    ];
    for sampling in samplings {
        for colour in [ColorType::Rgb, ColorType::Luma, ColorType::Cmyk] {
            for (progressive, restart) in [(false, 0), (true, 0), (false, 3)] {
                for (width, height) in SIZES {
                    let file = encode(width, height, colour, sampling, progressive, restart);
                    let what = format!("{sampling:?} {colour:?} progressive {progressive}");
                    assert_regions(&file, &mut draws, &what);
                }
            }
        }
    }
}

#[test]
fn region_of_an_arithmetic_file_has_the_pixels_of_a_full_decoding() {
    let mut draws = draws(4);
    for subsampling in [
        sys::TJSAMP_TJSAMP_444,
        sys::TJSAMP_TJSAMP_422,
        sys::TJSAMP_TJSAMP_420,
        sys::TJSAMP_TJSAMP_GRAY,
        sys::TJSAMP_TJSAMP_440,
        sys::TJSAMP_TJSAMP_411,
        sys::TJSAMP_TJSAMP_441,
    ] {
        for (arithmetic, progressive) in
            [(true, false), (true, true), (false, true), (false, false)]
        {
            let coding = TestCoding { subsampling, arithmetic, progressive, lossless: false };
            for (width, height) in SIZES {
                let pixels = gradient(width.into(), height.into(), 3);
                let size = Size { width: width.into(), height: height.into() };
                let file = encode_for_tests(&pixels, size, coding);
                let frame = [[0xc1, 0xc2], [0xc9, 0xca]][usize::from(arithmetic)];
                let found = file.windows(2).any(|marker| {
                    marker == [0xff, frame[usize::from(progressive)]] || marker == [0xff, 0xc0]
                });
                assert!(found, "{coding:?}");
                assert_regions(&file, &mut draws, &format!("{coding:?}"));
            }
        }
    }
}

/// The factors 2×2 for all components are equivalent to 1×1, except for the width of the blocks.
#[test]
fn region_of_a_file_with_larger_factors_than_needed() {
    let mut file = encode(131, 97, ColorType::Rgb, SamplingFactor::F_1_1, false, 0);
    let frame = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    for factors in [0x12, 0x21] {
        for component in 0..3 {
            file[frame + 11 + 3 * component] = factors;
        }
        // Another order of blocks: other pixels, but equal ones each time.
        assert_regions(&file, &mut draws(5), "with factors beyond need");
    }
}

#[test]
fn lossless_file_is_decoded_whole() {
    let size = Size { width: 40, height: 30 };
    let coding = TestCoding {
        subsampling: sys::TJSAMP_TJSAMP_444,
        arithmetic: false,
        progressive: false,
        lossless: true,
    };
    let pixels = gradient(40, 30, 3);
    let file = encode_for_tests(&pixels, size, coding);
    assert_eq!(read_header(&file).unwrap().block_width, None);
    let corner = Rectangle { left: 20, top: 20, width: 1, height: 1 };
    let (area, decoded) = decode(&file, 3, Some(corner)).unwrap();
    assert_eq!(area, Rectangle::whole(size));
    assert!(decoded == pixels);
    let refused = decode_at(REDUCTIONS[1], &file, 3, None).unwrap_err();
    assert_eq!(refused.0, "the JPEG file holds a lossless frame and another one");
}

#[test]
fn grey_of_a_lossless_file_is_repeated_in_colours() {
    let size = Size { width: 40, height: 30 };
    let coding = TestCoding {
        subsampling: sys::TJSAMP_TJSAMP_GRAY,
        arithmetic: false,
        progressive: false,
        lossless: true,
    };
    let pixels = gradient(40, 30, 1);
    let file = encode_for_tests(&pixels, size, coding);
    assert!(decode(&file, 1, None).unwrap().1 == pixels);
    let rgb: Vec<u8> = pixels.iter().flat_map(|grey| [*grey; 3]).collect();
    assert!(decode(&file, 3, None).unwrap().1 == rgb);
    let rgba: Vec<u8> = pixels.iter().flat_map(|grey| [*grey, *grey, *grey, 255]).collect();
    assert!(decode(&file, 4, None).unwrap().1 == rgba);
}

#[test]
fn region_is_smaller_than_the_image() {
    let file = encode(400, 300, ColorType::Rgb, SamplingFactor::F_2_2, false, 0);
    let wanted = Rectangle { left: 100, top: 50, width: 60, height: 40 };
    let header = read_header(&file).unwrap();
    let area =
        JpegDecoder::default().decode_any(&file, &header, in_rgb(wanted), &mut Vec::new()).unwrap();
    assert_eq!(area, Rectangle { left: 96, top: 50, width: 66, height: 40 });
}

pub(super) fn random_part(draws: &mut forebay_order::Draws, size: Size) -> Rectangle {
    let mut span = |length: u32| {
        let start = u32::try_from(draws.below(length.into())).unwrap();
        (start, 1 + u32::try_from(draws.below(u64::from(length - start))).unwrap())
    };
    let ((left, width), (top, height)) = (span(size.width), span(size.height));
    Rectangle { left, top, width, height }
}

#[test]
fn fast_decoder_gives_the_librarys_pixels() {
    if forebay_jpeg::Decoder::new().is_none() {
        println!("skipped: this processor lacks AVX2");
        return;
    }
    let mut draws = draws(7);
    let mut decoder = JpegDecoder::default();
    let sizes = [
        (1, 1),
        (2, 3),
        (3, 7),
        (4, 20),
        (5, 4),
        (8, 8),
        (9, 16),
        (17, 33),
        (40, 24),
        (131, 97),
        (256, 64),
    ];
    let (mut sure, mut all) = (0, 0);
    for sampling in [
        SamplingFactor::F_1_1,
        SamplingFactor::F_2_1,
        SamplingFactor::F_2_2,
        SamplingFactor::F_1_2,
        SamplingFactor::F_4_1,
    ] {
        for colour in [ColorType::Rgb, ColorType::Luma] {
            for restart in [0, 1, 5] {
                for (width, height) in sizes {
                    let file = encode(width, height, colour, sampling, false, restart);
                    let header = read_header(&file).unwrap();
                    for reduction in REDUCTIONS {
                        for channels in [1, 3, 4] {
                            let scaled = reduction.size(header.size);
                            let region = random_part(&mut draws, scaled);
                            for region in [Rectangle::whole(scaled), region] {
                                let (is_sure, judged) = decoder.decode_twice(
                                    &file,
                                    &header,
                                    Wanted {
                                        reduction,
                                        channels,
                                        needed: region,
                                        in_colour_rows: false,
                                    },
                                );
                                judged.unwrap();
                                sure += u32::from(is_sure);
                                all += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    // Left to the library: chroma of four samples per pixel, and chroma too narrow or too small for smoothing.
    assert!(sure * 2 > all, "{sure} of {all}");
}

/// Coefficients of a fine table, interpreted with a coarse one: where they exceed 16 bits, libjpeg's code paths differ.
#[test]
fn fast_decoder_leaves_out_of_range_values_to_the_library() {
    let mut decoder = JpegDecoder::default();
    // Flat fields, whose blocks have only a first coefficient, and edges.
    let pixels: Vec<u8> = (0..64 * 48 * 3)
        .map(|at| if at / (64 * 3 * 24) == at / 96 % 2 { 255 } else { 3 })
        .collect();
    for factor in [16, 40, 80, 255] {
        let mut file = Vec::new();
        Encoder::new(&mut file, 100).encode(&pixels, 64, 48, ColorType::Rgb).unwrap();
        let mut at = 0;
        while let Some(found) = file[at..].windows(4).position(|head| head == [0xff, 0xdb, 0, 67]) {
            at += found + 5;
            file[at..at + 64].fill(factor);
        }
        assert!(at > 0);
        let header = read_header(&file).unwrap();
        for reduction in REDUCTIONS {
            let whole = Rectangle::whole(reduction.size(header.size));
            let wanted = Wanted { reduction, ..in_rgb(whole) };
            decoder.decode_twice(&file, &header, wanted).1.unwrap();
        }
    }
}

/// Replaces the first occurrence of these bytes.
fn replaced(file: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = file.windows(from.len()).position(|bytes| bytes == from).expect("these bytes");
    [&file[..at], to, &file[at + from.len()..]].concat()
}

#[test]
fn fast_decoder_rejects_files_that_violate_a_rule() {
    let mut decoder = JpegDecoder::default();
    let mut is_sure = |file: &[u8]| {
        let header = read_header(file).unwrap();
        decoder.decode_twice(file, &header, in_rgb(Rectangle::whole(header.size))).0
    };
    let good = encode(120, 80, ColorType::Rgb, SamplingFactor::F_2_2, false, 2);
    if forebay_jpeg::Decoder::new().is_some() {
        assert!(is_sure(&good));
    }

    let first = |marker| [0xff, marker];
    let swapped = replaced(&good, &first(0xd0), &first(0xd7));
    let swapped = replaced(&swapped, &first(0xd1), &first(0xd0));
    assert!(!is_sure(&swapped), "restart markers out of order");
    let longer = replaced(&good, &first(0xd0), &[0, 0, 0xff, 0xd0]);
    assert!(!is_sure(&longer), "bytes before a restart marker");

    // Without JFIF's segment, the components' numbers or Adobe's segment determine the colours.
    let start = good.windows(2).position(|bytes| bytes == first(0xe0)).unwrap();
    let bare = [&good[..start], &good[start + 18..]].concat();
    let rgb = replaced(
        &bare,
        &[3, 0, 0x22, 0, 1, 0x11, 1, 2, 0x11],
        &[3, b'R', 0x22, 0, b'G', 0x11, 1, b'B', 0x11],
    );
    let rgb = replaced(&rgb, &[3, 0, 0, 1, 0x11, 2, 0x11], &[3, b'R', 0, b'G', 0x11, b'B', 0x11]);
    assert!(!is_sure(&rgb), "components named R, G and B");
    let adobe = [b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0".as_slice(), &[0]].concat();
    let adobe = [&bare[..start], &adobe, &bare[start..]].concat();
    assert!(!is_sure(&adobe), "Adobe's mark of red, green and blue");

    // One more symbol of nine bits gets the code of ones only.
    let usual = b"\0\x1f\0\0\x01\x05\x01\x01\x01\x01\x01\x01\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b";
    let more = b"\0\x20\0\0\x01\x05\x01\x01\x01\x01\x01\x02\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0b";
    assert!(!is_sure(&replaced(&good, usual, more)), "a code of ones alone");
}

#[test]
fn truncated_file_is_refused_even_if_the_region_is_complete() {
    let file = encode(200, 200, ColorType::Rgb, SamplingFactor::F_2_2, false, 0);
    let top = Rectangle { left: 0, top: 0, width: 50, height: 10 };
    assert!(decode(&file, 3, Some(top)).is_ok());
    for length in [file.len() - 2, file.len() - 1, file.len() / 2, 300, 30, 3] {
        for region in [None, Some(top)] {
            let refused = decode(&file[..length], 3, region).unwrap_err();
            assert!(refused.0.starts_with("image file is truncated"), "{length}: {refused}");
        }
    }
}

#[test]
fn corrupt_data_with_an_end_is_decoded() {
    let mut file = encode(200, 200, ColorType::Rgb, SamplingFactor::F_2_2, false, 0);
    let middle = file.len() * 3 / 4;
    file.drain(middle..middle + 200);
    decode(&file, 3, None).unwrap();
}

#[test]
fn damaged_bytes_never_panic() {
    let mut draws = draws(5);
    for progressive in [false, true] {
        let good = encode(60, 40, ColorType::Rgb, SamplingFactor::F_2_2, progressive, 0);
        for _ in 0..400 {
            let mut file = good.clone();
            for _ in 0..=draws.below(4) {
                let at = usize::try_from(draws.below(file.len() as u64)).unwrap();
                file[at] = draws.next_u64().to_le_bytes()[0];
            }
            let sides = 1..=4000;
            if read_header(&file).is_ok_and(|JpegHeader { size, .. }| {
                sides.contains(&size.width) && sides.contains(&size.height)
            }) {
                let _ = decode(&file, 3, None);
                let corner = Rectangle { left: 0, top: 0, width: 1, height: 1 };
                let _ = decode(&file, 3, Some(corner));
            }
        }
    }
}

#[test]
fn earlier_files_do_not_affect_a_decoder() {
    let good = encode(50, 35, ColorType::Rgb, SamplingFactor::F_2_2, false, 0);
    let good_header = read_header(&good).unwrap();
    let whole = Rectangle::whole(good_header.size);
    let (_, expected) = decode(&good, 3, None).unwrap();
    let before = encode(45, 39, ColorType::Rgb, SamplingFactor::F_2_2, false, 0);
    let header = read_header(&before).unwrap();
    let mut decoder = JpegDecoder::default();
    let mut pixels = Vec::new();
    for length in 0..before.len() {
        let top = Rectangle { left: 0, top: 0, width: 9, height: 3 };
        for region in [Rectangle::whole(header.size), top] {
            decoder.decode(&before[..length], &header, in_rgb(region), &mut pixels).unwrap_err();
            let decoded = decoder.decode(&good, &good_header, in_rgb(whole), &mut pixels);
            assert_eq!(decoded, Ok(whole.into()), "after {length} bytes of another file");
            assert!(pixels[..expected.len()] == expected, "after {length} bytes of another file");
        }
    }
}

#[test]
fn grey_of_a_colour_file_is_computed_from_its_colours() {
    let file = jpeg(&gradient(40, 30, 3), 40, 30, 3);
    let (_, rgb) = decode(&file, 3, None).unwrap();
    let (_, grey) = decode(&file, 1, None).unwrap();
    let (_, rgba) = decode(&file, 4, None).unwrap();
    for ((colour, grey), with_alpha) in rgb.chunks_exact(3).zip(&grey).zip(rgba.chunks_exact(4)) {
        let expected = (u32::from(colour[0]) * 19595
            + u32::from(colour[1]) * 38470
            + u32::from(colour[2]) * 7471
            + 0x8000)
            >> 16;
        assert_eq!(u32::from(*grey), expected);
        assert_eq!(with_alpha, [colour[0], colour[1], colour[2], 255]);
    }
}

/// A file whose header understates its contents would make the library buffer memory that is not accounted for.
#[test]
fn buffered_images_are_accounted_for_and_the_library_is_limited() {
    let size = Size { width: 1200, height: 800 };
    let pixels = gradient(1200, 800, 3);
    let coding = |progressive| TestCoding {
        subsampling: sys::TJSAMP_TJSAMP_420,
        arithmetic: false,
        progressive,
        lossless: false,
    };
    let header = |progressive| read_header(&encode_for_tests(&pixels, size, coding(progressive)));
    assert_eq!(header(false).unwrap().buffered_bytes, 0);
    // Two bytes for each of 1.5 samples per pixel, in whole blocks of 16 pixels.
    assert_eq!(header(true).unwrap().buffered_bytes, 1200 * 800 * 3);
    let file = encode_for_tests(&pixels, size, coding(true));
    let mut turbo = TurboDecoder::new().unwrap();
    let mut decode = |memory_bytes| {
        let mut image = turbo.open(&file, memory_bytes).unwrap();
        let mut rows = vec![0; 1200 * 800 * 3];
        image.decode(Rectangle::whole(size), Reduction::NONE, PixelFormat::Rgb, &mut rows)
    };
    assert_eq!(decode(library_bytes(&header(true).unwrap())), Verdict::Fine);
    assert!(matches!(decode(0), Verdict::Failed(reason) if reason.contains("emory")));
}
