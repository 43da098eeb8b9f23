//! PNG through zune-png (pure Rust): 1 to 16 bits, palette, grey, alpha, interlaced; of an animation the first frame.
//!
//! Colour profiles and texts are removed before decoding: they are not needed, and a packed one of some kilobytes may
//! inflate to a gigabyte. Every other checksum is verified and the end chunk is required. Pillow stops once it has the
//! pixels, so it accepts a file that lacks its last bytes (the checksum of image data, the end chunk) or has a wrong
//! checksum there; this decoder does not. It also refuses a header with an unknown compression or interlacing, and an
//! interlaced image with missing rows.

use std::borrow::Cow;
use std::io::Read;

use zune_core::bit_depth::{BitDepth, ByteEndian};
use zune_core::bytestream::ZCursor;
use zune_core::options::DecoderOptions;
use zune_png::PngDecoder;

use super::format::{Content, Form, Format};
use super::{colour, exif};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_dataset::Defect;

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
    // zune-png's messages have several lines.
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

/// The size and the EXIF orientation (1 if not requested).
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
    // zune-png does not check it.
    if let Some(method @ 1..) = file.get(27) {
        return Err(Defect(format!("unknown PNG filter method {method}")));
    }
    Ok((size, if wants_orientation { orientation(file) } else { tag }))
}

/// The complete chunks: name and body.
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
    match chunks(file).find(|(name, _)| *name == b"eXIf") {
        Some((_, body)) => exif::orientation(body),
        None => chunks(file).find_map(raw_profile).map_or(1, |exif| exif::orientation(&exif)),
    }
}

/// The text chunk in which ImageMagick stored an EXIF block before PNG had a chunk for it.
const RAW_PROFILE: &[u8] = b"Raw profile type exif\0";
/// The most that such a text is unpacked to: an EXIF block has at most 64 KiB, and two digits a byte with line ends.
const MAX_RAW_PROFILE: u64 = 256 << 10;

/// The EXIF block of such a chunk: a name, a length and hexadecimal digits, each on lines of text.
fn raw_profile((name, body): (&[u8; 4], &[u8])) -> Option<Vec<u8>> {
    let rest = body.strip_prefix(RAW_PROFILE)?;
    let mut text = Vec::new();
    match name {
        b"tEXt" => text.extend_from_slice(rest),
        // The first byte is the method, of which there is one.
        b"zTXt" => {
            let packed = flate2::read::ZlibDecoder::new(rest.get(1..)?);
            packed.take(MAX_RAW_PROFILE).read_to_end(&mut text).ok()?;
        }
        _ => return None,
    }
    let text = str::from_utf8(&text).ok()?;
    let mut words = text.split_ascii_whitespace();
    let (_name, _length) = (words.next()?, words.next()?);
    let digits: Vec<u8> = words.flat_map(str::bytes).collect();
    let bytes = digits.as_chunks::<2>().0.iter().map(|pair| {
        let pair = str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let block: Vec<u8> = bytes.collect::<Option<_>>()?;
    Some(block.strip_prefix(b"Exif\0\0").unwrap_or(&block).to_vec())
}

/// Chunks that the decoder would inflate and that have no pixels.
fn is_packed_text(name: &[u8; 4]) -> bool {
    matches!(name, b"iCCP" | b"zTXt" | b"iTXt")
}

/// The file without colour profiles and packed texts.
fn without_packed_texts(file: &[u8]) -> Cow<'_, [u8]> {
    if !chunks(file).any(|(name, _)| is_packed_text(name)) {
        return file.into();
    }
    let (mut kept, mut at) = (Vec::with_capacity(file.len()), 8);
    kept.extend_from_slice(&file[..at]);
    for (name, body) in chunks(file) {
        // The last chunk may lack its checksum.
        let end = (at + body.len() + 12).min(file.len());
        if !is_packed_text(name) {
            kept.extend_from_slice(&file[at..end]);
        }
        at = end;
    }
    kept.extend_from_slice(&file[at..]);
    kept.into()
}

/// The maximal memory for decoding besides the pixels: zune-png copies the compressed image, and each chunk once more
/// for its checksum, and inflates all of it, up to a limit that follows from the header. If packed texts are removed,
/// the file is copied.
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
    let (mut copied, mut has_transparency) = (0, false);
    for (name, _) in chunks(file) {
        match name {
            b"tRNS" => has_transparency = true,
            name if is_packed_text(name) => copied = file.len() as u64,
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
    2 * file.len() as u64 + inflated + unconverted + interlaced + copied + indices
}

/// A palette of 256 colours.
const PALETTE_BYTES: usize = 3 * 256;

/// The additional memory of [`decode_indices`] compared to [`decode`]: the file with another palette.
const fn bytes_of_indices(file: &[u8]) -> u64 {
    (file.len() + PALETTE_BYTES) as u64
}

/// Decodes an image of numbers, such as a mask: the levels of a grey image, or the indices of an image with a palette.
///
/// # Errors
/// As [`decode`]; or the image has colours without a palette, or more than 8 bits.
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
    Err(Defect(format!("the PNG file is not an image of indices: {reason}")))
}

/// The file with another palette, in which the level of each colour is its index. If the palette is damaged or missing,
/// the file is unchanged, and the decoder refuses it.
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

/// ISO 3309's CRC-32, bit by bit; used for a palette.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Sets the alpha of an image of 16-bit grey or colours with a transparent level: all 16 bits of each level are compared, where
/// zune-png compares fewer. `levels` are native and have an alpha each.
fn make_transparent(file: &[u8], levels: &mut [u8]) {
    let Some((_, key)) = chunks(file).find(|(name, _)| *name == b"tRNS") else { return };
    let colours = match file.get(25) {
        Some(0) => 1,
        Some(2) => 3,
        _ => return,
    };
    let Some(key) = key.get(..2 * colours) else { return };
    let key: Vec<u16> = key.as_chunks().0.iter().map(|level| u16::from_be_bytes(*level)).collect();
    for pixel in levels.chunks_exact_mut(2 * (colours + 1)) {
        let (colour, alpha) = pixel.split_at_mut(2 * colours);
        let mut found = colour.as_chunks().0.iter().map(|level| u16::from_ne_bytes(*level));
        alpha.fill(if key.iter().all(|level| found.next() == Some(*level)) { 0 } else { 0xff });
    }
}

/// Decodes the image, converted to 1, 3 or 4 channels of 8 or 16 bits.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let file = without_packed_texts(file);
    let mut decoder = decoder(&file, size);
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
        make_transparent(&file, from);
        if is_wide {
            return colour::convert_wide(from_channels.into(), from, channels, out);
        }
        let is_grey = file.get(25) == Some(&0);
        colour::narrow(from, is_grey);
    }
    colour::convert(from_channels, &from[..from_bytes], channels, out);
    Ok(())
}
