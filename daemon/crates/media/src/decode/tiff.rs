//! TIFF: grey, RGB, palettes and CMYK, with and without alpha, in strips and tiles, packed or not; of several images
//! the first.
//!
//! Own code with the crates `weezl` and `flate2`: the crate `tiff` reads no palettes ([decision
//! 0034](../../../../../docs/decisions/0034-pictures-and-audio.md)). Unsupported features are refused by name: JPEG,
//! fax and other compressions, YCbCr, Lab, BigTIFF. Old files that libtiff reads are read: LZW of TIFF 4, tiles
//! that are listed as strips, bytes with reversed bits. [`raster`] reads floats, signed and wide integers.

mod chunks;
pub(super) mod directory;
mod layout;
pub mod raster;
mod stored;

use std::ops::Range;

use super::format::{Content, Form, Format};
use super::{colour, exif};
use crate::buffers::prepare;
use crate::size::Size;
use chunks::{Predictor, Unpacker, add_up, defect, join_floats, swap_bytes};
use forebay_dataset::Defect;
use layout::{Alpha, Layout, Meaning};
use stored::Stored;

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..]),
    may_be_wide: true,
    read_header: |file, wants_orientation| {
        let tag = if wants_orientation { exif::orientation(file) } else { 1 };
        Ok((Layout::read(file)?.stored.size, tag))
    },
    bytes_beside_pixels: |file, _, form| {
        let Ok(layout) = Layout::read(file) else { return 0 };
        let Size { width, height } = layout.stored.size;
        let area = u64::from(width) * u64::from(height);
        let stored = area * (layout.used() * layout.stored.element_bytes()) as u64;
        let unconverted = if layout.is_direct(form) { 0 } else { stored };
        unconverted + unpacking_bytes(file, &layout.stored)
    },
    decode,
};

/// LZW's tables, or deflate's window and tables.
const UNPACKER_BYTES: u64 = 256 << 10;

/// The memory of [`read_samples`] beside its result.
fn unpacking_bytes(file: &[u8], stored: &Stored<'_>) -> u64 {
    let reversed = if stored.has_reversed_bits { file.len() as u64 } else { 0 };
    // A row of a strip or tile, twice if its floats are joined, and the unpackers' memory.
    let rows = if stored.predictor == Predictor::Floats { 2 } else { 1 };
    reversed + rows * stored.chunk_row_bytes() as u64 + UNPACKER_BYTES
}

/// The places of samples in a result.
#[derive(Debug, Clone, Copy)]
struct Placing {
    /// Samples per pixel; those after them are left out.
    used: usize,
    /// Elements from a pixel to the next.
    pixel: usize,
    /// Elements from a sample of a pixel to its next.
    sample: usize,
}

impl Placing {
    /// Pixel by pixel.
    const fn of_pixels(used: usize) -> Self {
        Self { used, pixel: used, sample: 1 }
    }
}

/// Decodes the image to a form.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let layout = Layout::read(file)?;
    layout.check(form)?;
    let count = size.width as usize * size.height as usize;
    let pixel_bytes = usize::from(form.channels) * form.content.element_bytes();
    let placing = Placing::of_pixels(layout.used());
    if layout.is_direct(form) {
        return read_samples(file, &layout.stored, placing, prepare(pixels, count * pixel_bytes));
    }
    let stored_bytes = layout.used() * layout.stored.element_bytes();
    let stored = prepare(unconverted, count * stored_bytes);
    read_samples(file, &layout.stored, placing, stored)?;
    let out = prepare(pixels, count * pixel_bytes);
    convert(&layout, form, stored, out)
}

/// Reads the used samples to their places, in native byte order; samples of fewer than 8 bits as one byte, not scaled.
fn read_samples(
    file: &[u8],
    stored: &Stored<'_>,
    placing: Placing,
    out: &mut [u8],
) -> Result<(), Defect> {
    let (width, height) = (stored.size.width as usize, stored.size.height as usize);
    let (chunk_width, chunk_height) = stored.chunk;
    let (across, down) = (width.div_ceil(chunk_width), height.div_ceil(chunk_height));
    let element_bytes = stored.element_bytes();
    let is_foreign = stored.directory.is_big_endian() != cfg!(target_endian = "big");
    let mut unpacker = Unpacker::new(stored.packing);
    let mut row = vec![0; stored.chunk_row_bytes()];
    let mut copy = Vec::new();
    let reversed: Vec<u8>;
    let file = if stored.has_reversed_bits {
        reversed = file.iter().map(|byte| byte.reverse_bits()).collect();
        &reversed
    } else {
        file
    };
    for chunk in 0..across * down * stored.planes() {
        let (plane, place) = (chunk / (across * down), chunk % (across * down));
        if stored.is_planar && plane >= placing.used {
            break;
        }
        let (left, top) = (place % across * chunk_width, place / across * chunk_height);
        unpacker.begin(stored.chunk_bytes(file, chunk)?);
        let shown = chunk_width.min(width - left);
        for line in top..height.min(top + chunk_height) {
            unpacker.read(&mut row)?;
            if stored.predictor == Predictor::Floats {
                join_floats(&mut row, element_bytes, stored.samples_in_chunk(), &mut copy);
            } else if element_bytes > 1 && is_foreign {
                swap_bytes(&mut row, element_bytes);
            }
            if stored.predictor == Predictor::Differences {
                add_up(&mut row, element_bytes, stored.samples_in_chunk());
            }
            let pixels = line * width + left;
            let pixels = pixels..pixels + shown;
            match element_bytes {
                1 if stored.bits < 8 => spread_bits(stored.bits, &row, &mut out[pixels]),
                1 => scatter::<1>(stored, &row, plane, placing, pixels, out),
                2 => scatter::<2>(stored, &row, plane, placing, pixels, out),
                4 => scatter::<4>(stored, &row, plane, placing, pixels, out),
                _ => scatter::<8>(stored, &row, plane, placing, pixels, out),
            }
        }
    }
    Ok(())
}

/// Writes samples of fewer than 8 bits as bytes.
fn spread_bits(bits: u8, row: &[u8], out: &mut [u8]) {
    let (bits, mask) = (usize::from(bits), (1_u8 << bits) - 1);
    for (column, out) in out.iter_mut().enumerate() {
        let at = column * bits;
        *out = row[at / 8] >> (8 - bits - at % 8) & mask;
    }
}

/// Writes the used samples of a row of a strip or tile, `N` bytes each, to their places in these pixels of the result.
fn scatter<const N: usize>(
    stored: &Stored<'_>,
    row: &[u8],
    plane: usize,
    placing: Placing,
    pixels: Range<usize>,
    out: &mut [u8],
) {
    let (row, out) = (row.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let Placing { used, pixel, sample } = placing;
    let samples = stored.samples_in_chunk();
    if samples == used && pixel == used {
        let count = pixels.len() * used;
        out[pixels.start * used..][..count].copy_from_slice(&row[..count]);
        return;
    }
    let planes = if stored.is_planar { plane..plane + 1 } else { 0..used };
    for (first, plane) in planes.enumerate() {
        let to = out[pixels.start * pixel + plane * sample..].iter_mut().step_by(pixel);
        let from = row[first..].iter().step_by(samples);
        to.zip(from).take(pixels.len()).for_each(|(to, from)| *to = *from);
    }
}

/// Converts samples as stored, which it may modify, to pixels of a form.
fn convert(
    layout: &Layout<'_>,
    form: Form,
    stored: &mut [u8],
    out: &mut [u8],
) -> Result<(), Defect> {
    let used = layout.used();
    if form.content == Content::Wide {
        if layout.alpha == Alpha::Multiplied {
            stored.as_chunks_mut::<2>().0.chunks_exact_mut(used).for_each(divide_wide);
        }
        return colour::convert_wide(layout.used(), stored, form.channels, out);
    }
    if form.content == Content::Indices && layout.meaning == Meaning::Palette {
        for (out, from) in out.iter_mut().zip(stored.chunks_exact(used)) {
            *out = from[0];
        }
        return Ok(());
    }
    let mut bytes = stored.len();
    if layout.stored.bits == 16 {
        bytes /= 2;
        // As with PNG: grey is clipped, of other colours the high bytes are used.
        colour::narrow(stored, used == 1);
    }
    let stored = &mut stored[..bytes];
    match layout.meaning {
        Meaning::Palette => return layout.look_up(stored, form.channels, out),
        Meaning::Ink => {
            stored.iter_mut().for_each(|ink| *ink = 255 - *ink);
            colour::inverted_cmyk_to(form.channels, stored, out);
            return Ok(());
        }
        Meaning::Grey { is_inverted } => {
            let factor = match layout.stored.bits {
                1 => 255,
                2 => 85,
                4 => 17,
                _ => 1,
            };
            let flip = if is_inverted && layout.stored.bits <= 8 { 255 } else { 0 };
            for grey in stored.iter_mut().step_by(used) {
                *grey = (*grey * factor) ^ flip;
            }
        }
        Meaning::Colours => {}
    }
    if layout.alpha == Alpha::Multiplied {
        stored.chunks_exact_mut(used).for_each(divide);
    }
    let channels = u8::try_from(used).map_err(|_| defect("its channels"))?;
    colour::convert(channels, stored, form.channels, out);
    Ok(())
}

/// Divides colours by the alpha sample that follows them, as Pillow's `unpackRGBa`.
fn divide(pixel: &mut [u8]) {
    let Some((alpha @ 1.., colours)) = pixel.split_last_mut().map(|(alpha, rest)| (*alpha, rest))
    else {
        pixel.fill(0);
        return;
    };
    for colour in colours {
        let divided = u32::from(*colour) * 255 / u32::from(alpha);
        *colour = u8::try_from(divided).unwrap_or(u8::MAX);
    }
}

fn divide_wide(pixel: &mut [[u8; 2]]) {
    let alpha = pixel.last().map_or(0, |alpha| u16::from_ne_bytes(*alpha));
    let last = pixel.len() - 1;
    for colour in &mut pixel[..last] {
        let divided = (u32::from(u16::from_ne_bytes(*colour)) * 65_535).checked_div(alpha.into());
        *colour = u16::try_from(divided.unwrap_or(0)).unwrap_or(u16::MAX).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests;
