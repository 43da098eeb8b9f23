//! Files that neither Pillow nor tifffile writes. `tests/pixels` compares such with Pillow, and thereby libtiff.

use weezl::{BitOrder, encode};

use super::*;

const SIZE: Size = Size { width: 5, height: 3 };
const COLOURS: Form = Form { channels: 3, content: Content::Colours };

/// A little-endian file of one strip or tile: tags, each with a short, before the data.
fn tiff(tags: &[(u16, u16)], samples: u16, bits: u16, data: &[u8]) -> Vec<u8> {
    // Where tiles are listed as strips the file has tag 273, too.
    let mut entries = vec![(256, 5), (257, 3), (277, samples), (279, 0), (273, 0)];
    entries.retain(|(tag, _)| tags.iter().all(|(other, _)| other != tag));
    entries.extend_from_slice(tags);
    entries.push((258, bits));
    entries.sort_unstable();
    let directory_bytes = 8 + 2 + 12 * entries.len() + 4;
    let mut file = b"II\x2a\0\x08\0\0\0".to_vec();
    file.extend_from_slice(&u16::try_from(entries.len()).unwrap().to_le_bytes());
    for (tag, value) in entries {
        let (count, value) = match tag {
            258 => (u32::from(samples), u32::try_from(directory_bytes).unwrap()),
            273 | 324 => (1, u32::try_from(directory_bytes).unwrap() + 2 * u32::from(samples)),
            279 | 325 => (1, u32::try_from(data.len()).unwrap()),
            _ => (1, u32::from(value)),
        };
        let kind = if matches!(tag, 273 | 279 | 324 | 325) { 4_u16 } else { 3 };
        let value = if tag == 258 && samples <= 2 {
            u32::from(bits) | u32::from(bits) << 16
        } else {
            value
        };
        file.extend_from_slice(&u16::to_le_bytes(tag));
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&count.to_le_bytes());
        file.extend_from_slice(&value.to_le_bytes());
    }
    file.extend_from_slice(&[0; 4]);
    file.extend((0..samples).flat_map(|_| bits.to_le_bytes()));
    file.extend_from_slice(data);
    file
}

fn pixels(file: &[u8], form: Form) -> Result<Vec<u8>, Defect> {
    let mut pixels = Vec::new();
    decode(file, SIZE, form, &mut Vec::new(), &mut pixels)?;
    Ok(pixels)
}

fn levels(count: u8) -> Vec<u8> {
    (0..count).map(|at| at.wrapping_mul(37)).collect()
}

#[test]
fn tiles_that_are_listed_as_strips_are_read() {
    let (mut tile, rgb) = (vec![9; 16 * 16 * 3], levels(45));
    for (row, line) in tile.chunks_mut(48).zip(rgb.chunks(15)) {
        row[..15].copy_from_slice(line);
    }
    for (offsets, lengths) in [(324, 325), (273, 279)] {
        let tags = [(259, 1), (262, 2), (322, 16), (323, 16), (offsets, 0), (lengths, 0)];
        assert_eq!(pixels(&tiff(&tags, 3, 8, &tile), COLOURS).unwrap(), rgb, "{offsets}");
    }
}

#[test]
fn lzw_as_it_was_before_tiff_5_is_read() {
    // Long enough for codes of all lengths and a full table.
    let (width, height) = (200, 300);
    let rgb: Vec<u8> = (0..width * height * 3_u32)
        .map(|at| (at / 3 * (at % 101) % 251).to_le_bytes()[0])
        .collect();
    let size = Size { width, height };
    let packed = encode::Encoder::new(BitOrder::Lsb, 8).encode(&rgb).unwrap();
    assert!(packed[0] == 0 && packed[1] & 1 == 1);
    let tags = [(256, 200), (257, 300), (259, 5), (262, 2)];
    let mut pixels = Vec::new();
    decode(&tiff(&tags, 3, 8, &packed), size, COLOURS, &mut Vec::new(), &mut pixels).unwrap();
    assert_eq!(pixels, rgb);
}

#[test]
fn bytes_with_reversed_bits_are_read() {
    let rgb = levels(45);
    let reversed: Vec<u8> = rgb.iter().map(|byte| byte.reverse_bits()).collect();
    for (order, data) in [(1, &rgb), (2, &reversed)] {
        let file = tiff(&[(259, 1), (262, 2), (266, order)], 3, 8, data);
        assert_eq!(pixels(&file, COLOURS).unwrap(), rgb, "{order}");
    }
    let file = tiff(&[(259, 1), (262, 2), (266, 2)], 3, 8, &reversed);
    let beside = (FORMAT.bytes_beside_pixels)(&file, SIZE, COLOURS);
    assert!(beside >= file.len() as u64 + UNPACKER_BYTES, "{beside}");
}

#[test]
fn cmyk_of_16_bits_is_its_high_bytes() {
    let inks = levels(60);
    let wide: Vec<u8> = inks.iter().flat_map(|ink| [99, *ink]).collect();
    let expected = pixels(&tiff(&[(259, 1), (262, 5)], 4, 8, &inks), COLOURS).unwrap();
    let file = tiff(&[(259, 1), (262, 5)], 4, 16, &wide);
    assert_eq!(pixels(&file, COLOURS).unwrap(), expected);
    // Not as four levels of red, green, blue and alpha.
    let refused = pixels(&file, Form { channels: 4, content: Content::Wide }).unwrap_err();
    assert!(refused.0.contains("its colours are CMYK, which is not read"), "{}", refused.0);
}

#[test]
fn what_is_not_read_is_named_with_a_remedy() {
    for (tags, samples, bits, name) in [
        (&[(259, 4), (262, 1)][..], 1, 1, "it is packed by a fax code"),
        (&[(259, 7), (262, 6)], 3, 8, "it is packed by JPEG"),
        (&[(259, 50_000), (262, 2)], 3, 8, "it is packed by Zstandard"),
        (&[(259, 34_925), (262, 2)], 3, 8, "it is packed by LZMA"),
        (&[(259, 1), (262, 6)], 3, 8, "its colours are YCbCr"),
        (&[(259, 1), (262, 8)], 3, 8, "its colours are Lab"),
        (&[(259, 1), (262, 1)], 1, 12, "its samples are of 12 bits"),
        (&[(259, 1), (262, 1), (339, 6)], 1, 64, "its samples are complex numbers"),
        (&[(259, 1), (262, 2)], 3, 4, "a pixel of it has 3 samples of 4 bits"),
        (&[(259, 5), (262, 1), (317, 3)], 1, 16, "its differences are of predictor 3 with 16 bits"),
    ] {
        let refused = pixels(&tiff(tags, samples, bits, &[0; 64]), COLOURS).unwrap_err();
        let expected = format!(
            "cannot decode the TIFF file: {name}, which is not read; convert it, or read it `as = \"bytes\"` and \
             decode it in a Python stage"
        );
        assert_eq!(refused.0, expected);
    }
    let grey = [(259, 1), (262, 1)];
    for (tags, samples, bits, name, dtype) in [
        (&grey[..], 1, 32, "its samples are unsigned integers of 32 bits", "uint32"),
        (&[(259, 1), (262, 1), (339, 3)], 1, 16, "its samples are floats of 16 bits", "float16"),
        (
            &[(259, 1), (262, 1), (339, 2)],
            1,
            8,
            "its samples are signed integers of 8 bits",
            "int8",
        ),
        (&grey, 17, 8, "a pixel of it has 17 samples", "uint8"),
    ] {
        let refused = pixels(&tiff(tags, samples, bits, &[0; 64]), COLOURS).unwrap_err();
        let remedy = format!(
            "use {{ op = \"decode-raster\", size = [3, 5], samples = {samples}, dtype = \"{dtype}\" }}"
        );
        let expected = format!("{name}, which `decode-image` does not read; {remedy}");
        assert_eq!(refused.0, format!("cannot decode the TIFF file: {expected}"));
    }
}
