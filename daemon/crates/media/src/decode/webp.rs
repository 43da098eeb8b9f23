//! WebP through image-webp (pure Rust): lossy, lossless, with alpha; of an animation the first frame.

mod animation;

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::format::{Form, Format};
use super::{colour, exif};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_dataset::Defect;

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..]),
    may_be_wide: false,
    read_header,
    bytes_beside_pixels,
    decode,
};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the WebP file: {reason}"))
}

/// The size and the EXIF orientation (1 if not requested).
fn read_header(file: &[u8], wants_orientation: bool) -> Result<(Size, u8), Defect> {
    // image-webp reads what it needs; libwebp requires all announced bytes of the container.
    let announced = file
        .get(4..8)
        .map_or(0, |size| u64::from(u32::from_le_bytes([size[0], size[1], size[2], size[3]])) + 8);
    if announced > file.len() as u64 {
        return Err(Defect(format!(
            "image file is truncated: {} of {announced} bytes of WebP",
            file.len()
        )));
    }
    let first_chunk = file
        .get(16..20)
        .map_or(0, |size| 20 + u64::from(u32::from_le_bytes([size[0], size[1], size[2], size[3]])));
    if first_chunk > announced {
        return Err(Defect(format!(
            "the first chunk of the WebP file ends at byte {first_chunk} of {announced}"
        )));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(defect)?;
    let (width, height) = decoder.dimensions();
    let mut tag = 1;
    if wants_orientation && let Ok(Some(block)) = decoder.exif_metadata() {
        tag = exif::orientation(block.strip_prefix(b"Exif\0\0").unwrap_or(&block));
    }
    Ok((Size { width, height }, tag))
}

/// The maximal memory for decoding besides the pixels, from image-webp's allocations: planes of whole macroblocks for a
/// lossy image, four bytes per pixel and the transforms' memory for a lossless one; both, and a plane of alpha, in a
/// container.
fn bytes_beside_pixels(file: &[u8], size: Size, form: Form) -> u64 {
    let blocks = u64::from(size.width).div_ceil(16) * u64::from(size.height).div_ceil(16);
    let area = blocks * 256;
    let bytes_per_pixel = match (file.get(12..16), form.channels) {
        (Some(b"VP8 "), 3) => 2,
        (Some(b"VP8 "), _) => 5,
        (Some(b"VP8L"), _) => 10,
        _ => 14,
    };
    // A container's flag of an animation, whose first frame is copied out of the file.
    let is_animated =
        matches!(file.get(12..21), Some([b'V', b'P', b'8', b'X', .., flags]) if flags & 2 != 0);
    area * bytes_per_pixel + file.len() as u64 * if is_animated { 2 } else { 1 }
}

/// Decodes the image, converted to 1, 3 or 4 channels.
fn decode(
    file: &[u8],
    size: Size,
    Form { channels, .. }: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(defect)?;
    if decoder.is_animated() {
        return animation::decode(file, size, decoder.has_alpha(), channels, unconverted, pixels);
    }
    // Limits its copies of parts of the file.
    decoder.set_memory_limit(file.len());
    let count = size.width as usize * size.height as usize;
    let from_channels = if decoder.has_alpha() { 4 } else { 3 };
    let bytes = count * usize::from(from_channels);
    if decoder.output_buffer_size() != Some(bytes) {
        return Err(defect("two headers"));
    }
    let out = prepare(pixels, count * usize::from(channels));
    if from_channels == channels {
        return decoder.read_image(out).map_err(defect);
    }
    let from = prepare(unconverted, bytes);
    decoder.read_image(from).map_err(defect)?;
    colour::convert(from_channels, from, channels, out);
    Ok(())
}
