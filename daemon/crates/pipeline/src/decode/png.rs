//! PNG through zune-png (pure Rust): 1 to 16 bits, palette, grey, alpha, interlaced; of an animation the first frame.
//!
//! Every checksum is verified and the end chunk must be there. Pillow stops when it has the pixels, so it takes a file
//! that lacks a part of its last bytes (image data's checksum, end chunk) or has a wrong checksum there; this does not.
//! Nor does it take a header with an unknown compression or interlacing, or an interlaced image that lacks rows.

use std::borrow::Cow;

use zune_core::bit_depth::{BitDepth, ByteEndian};
use zune_core::bytestream::ZCursor;
use zune_core::options::DecoderOptions;
use zune_png::PngDecoder;

use super::format::{Content, Form, Format};
use super::{colour, exif};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_source::dataset::Defect;

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..]),
    may_be_wide: true,
    read_header,
    bytes_beside_pixels,
    decode: |file, size, form, unconverted, pixels| match form.content {
        Content::Indices => decode_indices(file, size, form, unconverted, pixels),
        Content::Colours | Content::Wide => decode(file, size, form, unconverted, pixels),
    },
};

fn defect(reason: impl std::fmt::Debug) -> Defect {
    // zune-png's reasons are written for a terminal, over several lines.
    let reason = format!("{reason:?}");
    let words: Vec<&str> = reason.split_whitespace().collect();
    Defect(format!("cannot decode the PNG file: {}", words.join(" ")))
}

fn decoder(file: &[u8], size: Size) -> PngDecoder<ZCursor<&[u8]>> {
    let options = DecoderOptions::default()
        .set_max_width(size.width as usize)
        .set_max_height(size.height as usize)
        .set_strict_mode(true)
        .set_byte_endian(ByteEndian::BE)
        .png_set_add_alpha_channel(false)
        .png_set_strip_to_8bit(false)
        .png_set_decode_animated(false);
    PngDecoder::new_with_options(ZCursor::new(file), options)
}

/// The size and the EXIF orientation (1 unless asked for).
fn read_header(file: &[u8], wants_orientation: bool) -> Result<(Size, u8), Defect> {
    let Some((size, tag)) = file.get(16..24).map(|sides| {
        let side = |at: usize| {
            u32::from_be_bytes([sides[at], sides[at + 1], sides[at + 2], sides[at + 3]])
        };
        (Size { width: side(0), height: side(4) }, 1)
    }) else {
        return Err(Defect("image file is truncated: the PNG header does not end".to_owned()));
    };
    if &file[12..16] != b"IHDR" {
        return Err(Defect("the PNG file does not begin with its header".to_owned()));
    }
    // zune-png does not look at it.
    if let Some(method @ 1..) = file.get(27) {
        return Err(Defect(format!("unknown PNG filter method {method}")));
    }
    Ok((size, if wants_orientation { orientation(file) } else { tag }))
}

/// The chunks that are there in full: name and body.
fn chunks(file: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        let (body, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after.get(4..).unwrap_or_default();
        Some((name, body))
    })
}

fn orientation(file: &[u8]) -> u8 {
    chunks(file).find(|(name, _)| *name == b"eXIf").map_or(1, |(_, body)| exif::orientation(body))
}

/// The most that a byte of a deflate stream becomes (zlib's technical details, "Maximum Compression Factor").
const MAX_DEFLATE_FACTOR: u64 = 1032;

/// The most that decoding takes beside the pixels: zune-png copies the compressed image, and each chunk once more for its
/// checksum, inflates all of it, up to a limit that follows from the header, and inflates a colour profile and texts.
fn bytes_beside_pixels(file: &[u8], size: Size, form: Form) -> u64 {
    let (area, height) = (u64::from(size.width) * u64::from(size.height), u64::from(size.height));
    let at = |place: usize| file.get(place).copied().unwrap_or(0);
    let [depth, colours, interlacing] = [24, 25, 28].map(at);
    let stored_channels: u64 = match colours {
        2 => 3,
        4 => 2,
        6 => 4,
        _ => 1,
    };
    let element_bytes = if depth == 16 { 2 } else { 1 };
    let (mut extra, mut has_transparency) = (0, false);
    for (name, body) in chunks(file) {
        match name {
            b"iCCP" | b"zTXt" | b"iTXt" => extra += MAX_DEFLATE_FACTOR * body.len() as u64,
            b"tRNS" => has_transparency = true,
            _ => {}
        }
    }
    let inflated = (area + height) * element_bytes * stored_channels + 4 * height + (1 << 20);
    let decoded_channels = if has_transparency || colours == 3 { 4 } else { stored_channels };
    let decoded = area * decoded_channels * element_bytes;
    let is_direct =
        element_bytes == 1 && decoded_channels == u64::from(form.channels) && colours != 3;
    let unconverted = if is_direct { 0 } else { decoded };
    let interlaced = if interlacing == 0 { 0 } else { decoded };
    let indices = if form.content == Content::Indices { bytes_of_indices(file) } else { 0 };
    2 * file.len() as u64 + inflated + unconverted + interlaced + extra + indices
}

/// A palette of 256 colours.
const PALETTE_BYTES: usize = 3 * 256;

/// The most that [`decode_indices`] takes beside what [`decode`] does: the file with another palette.
const fn bytes_of_indices(file: &[u8]) -> u64 {
    (file.len() + PALETTE_BYTES) as u64
}

/// Decodes an image of numbers, such as a mask: the levels of a grey one, the indices of one with a palette.
///
/// # Errors
/// As [`decode`]; the image has colours without a palette, or more than 8 bits.
fn decode_indices(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let at = |place: usize| file.get(place).copied().unwrap_or(0);
    let reason = match (at(25), at(24)) {
        (3, _) => return decode(&with_greys(file), size, form, unconverted, pixels),
        (0 | 4, ..=8) => return decode(file, size, form, unconverted, pixels),
        (0 | 4, _) => "its levels have 16 bits, and 8 are read",
        _ => "it has colours and no palette",
    };
    Err(Defect(format!("the PNG file is no image of indices: {reason}")))
}

/// The file with another palette, in which the level of each colour is its index. One whose palette is damaged, or missing,
/// stays as it is, for the decoder to refuse.
fn with_greys(file: &[u8]) -> Cow<'_, [u8]> {
    let is_palette = |name: &[u8; 4]| name == b"PLTE";
    let before = chunks(file).take_while(|(name, _)| !is_palette(name));
    let start = 8 + before.map(|(_, body)| body.len() + 12).sum::<usize>();
    let Some((_, palette)) = chunks(file).find(|(name, _)| is_palette(name)) else {
        return file.into();
    };
    let end = start + palette.len() + 12;
    let (Some(named), Some(checksum)) = (file.get(start + 4..end - 4), file.get(end - 4..end))
    else {
        return file.into();
    };
    if crc32(named).to_be_bytes() != *checksum {
        return file.into();
    }
    let depth = file.get(24).copied().unwrap_or(0).min(8);
    let greys = (0..=u8::MAX).take(1 << depth).flat_map(|level| [level; 3]);
    let chunk: Vec<u8> = b"PLTE".iter().copied().chain(greys).collect();
    let length = u32::try_from(chunk.len() - 4).unwrap_or(0);
    let mut changed = Vec::with_capacity(file.len() + PALETTE_BYTES);
    changed.extend_from_slice(&file[..start]);
    changed.extend_from_slice(&length.to_be_bytes());
    changed.extend_from_slice(&chunk);
    changed.extend_from_slice(&crc32(&chunk).to_be_bytes());
    changed.extend_from_slice(&file[end..]);
    changed.into()
}

/// ISO 3309's CRC-32, bit by bit: of a palette.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Decodes the image, converted to 1, 3 or 4 channels of 8 or 16 bits.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let mut decoder = decoder(file, size);
    decoder.decode_headers().map_err(defect)?;
    let (Some(colours), Some(depth), Some(bytes), Some(dimensions)) =
        (decoder.colorspace(), decoder.depth(), decoder.output_buffer_size(), decoder.dimensions())
    else {
        return Err(defect("no header"));
    };
    if dimensions != (size.width as usize, size.height as usize) {
        return Err(defect("two headers"));
    }
    let count = size.width as usize * size.height as usize;
    let from_channels =
        u8::try_from(colours.num_components()).map_err(|_| defect("its channels"))?;
    let sample_bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
    if bytes != count * usize::from(from_channels) * sample_bytes {
        return Err(defect(format!("{bytes} bytes for {count} pixels")));
    }
    let channels = form.channels;
    let is_wide = form.content == Content::Wide;
    if is_wide {
        let bits = if sample_bytes == 2 { 16 } else { 8 };
        colour::check_wide(bits, from_channels.into(), channels)?;
    }
    let out = prepare(pixels, count * usize::from(channels) * form.content.element_bytes());
    if sample_bytes == 1 && from_channels == channels {
        return decoder.decode_into(out).map_err(defect);
    }
    let from = prepare(unconverted, bytes);
    decoder.decode_into(from).map_err(defect)?;
    let mut from_bytes = bytes;
    if sample_bytes == 2 {
        from_bytes = bytes / 2;
        let native = |element: &mut [u8; 2]| *element = u16::from_be_bytes(*element).to_ne_bytes();
        from.as_chunks_mut().0.iter_mut().for_each(native);
        if is_wide {
            return colour::convert_wide(from_channels.into(), from, channels, out);
        }
        colour::narrow(from, from_channels == 1);
    }
    colour::convert(from_channels, &from[..from_bytes], channels, out);
    Ok(())
}
