//! TIFF: grey, RGB, palettes and CMYK, with and without alpha, in strips and tiles, packed or not; of several images
//! the first.
//!
//! Own code with the crates `weezl` and `flate2`: the crate `tiff` reads no palettes ([decision
//! 0034](../../../../../docs/decisions/0034-pictures-and-audio.md)). Unsupported features are refused by name: JPEG,
//! fax and other compressions, floats, YCbCr, Lab, BigTIFF. Old files that libtiff reads are read: LZW of TIFF 4, tiles
//! that are listed as strips, bytes with reversed bits.

mod chunks;
pub(super) mod directory;
mod layout;

use super::format::{Content, Form, Format};
use super::{colour, exif};
use crate::buffers::prepare;
use crate::size::Size;
use chunks::{Unpacker, add_up, defect};
use forebay_dataset::Defect;
use layout::{Alpha, Layout, Meaning};

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..]),
    may_be_wide: true,
    read_header: |file, wants_orientation| {
        let tag = if wants_orientation { exif::orientation(file) } else { 1 };
        Ok((Layout::read(file)?.size, tag))
    },
    bytes_beside_pixels: |file, _, form| {
        let Ok(layout) = Layout::read(file) else { return 0 };
        let area = u64::from(layout.size.width) * u64::from(layout.size.height);
        let stored = area * (layout.used() * layout.element_bytes()) as u64;
        let unconverted = if layout.is_direct(form) { 0 } else { stored };
        let reversed = if layout.has_reversed_bits { file.len() as u64 } else { 0 };
        // A row of a strip or tile, and the unpackers' memory.
        unconverted + reversed + layout.chunk_row_bytes() as u64 + UNPACKER_BYTES
    },
    decode,
};

/// LZW's tables, or deflate's window and tables.
const UNPACKER_BYTES: u64 = 256 << 10;

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
    if layout.is_direct(form) {
        return read_samples(file, &layout, prepare(pixels, count * pixel_bytes));
    }
    let stored_bytes = layout.used() * layout.element_bytes();
    let stored = prepare(unconverted, count * stored_bytes);
    read_samples(file, &layout, stored)?;
    let out = prepare(pixels, count * pixel_bytes);
    convert(&layout, form, stored, out)
}

/// Reads the used samples, pixel by pixel, with 8 bits or, in native order, 16. Fewer bits are not scaled.
fn read_samples(file: &[u8], layout: &Layout<'_>, out: &mut [u8]) -> Result<(), Defect> {
    let (width, height) = (layout.size.width as usize, layout.size.height as usize);
    let (chunk_width, chunk_height) = layout.chunk;
    let (across, down) = (width.div_ceil(chunk_width), height.div_ceil(chunk_height));
    let mut unpacker = Unpacker::new(layout.packing);
    let mut row = vec![0; layout.chunk_row_bytes()];
    let reversed: Vec<u8>;
    let file = if layout.has_reversed_bits {
        reversed = file.iter().map(|byte| byte.reverse_bits()).collect();
        &reversed
    } else {
        file
    };
    for chunk in 0..across * down * layout.planes() {
        let (plane, place) = (chunk / (across * down), chunk % (across * down));
        if layout.is_planar && plane >= layout.used() {
            break;
        }
        let (left, top) = (place % across * chunk_width, place / across * chunk_height);
        unpacker.begin(layout.chunk_bytes(file, chunk)?);
        let shown = chunk_width.min(width - left);
        for line in top..height.min(top + chunk_height) {
            unpacker.read(&mut row)?;
            if layout.bits == 16 && layout.is_big_endian != cfg!(target_endian = "big") {
                row.as_chunks_mut::<2>().0.iter_mut().for_each(|element| element.reverse());
            }
            if layout.has_predictor {
                add_up(&mut row, layout.element_bytes(), layout.samples_in_chunk());
            }
            let start = (line * width + left) * layout.used();
            place_row(layout, &row, plane, start, shown, out);
        }
    }
    Ok(())
}

/// Writes the used samples of a row to their pixels; `start` is the first one's position among all used samples.
fn place_row(
    layout: &Layout<'_>,
    row: &[u8],
    plane: usize,
    start: usize,
    shown: usize,
    out: &mut [u8],
) {
    let used = layout.used();
    if layout.bits < 8 {
        let (bits, mask) = (usize::from(layout.bits), (1_u8 << layout.bits) - 1);
        for (column, out) in out[start..start + shown].iter_mut().enumerate() {
            let at = column * bits;
            *out = row[at / 8] >> (8 - bits - at % 8) & mask;
        }
        return;
    }
    if layout.bits == 16 {
        scatter(
            layout,
            row.as_chunks::<2>().0,
            plane,
            &mut out.as_chunks_mut::<2>().0[start..][..shown * used],
        );
    } else {
        scatter(layout, row, plane, &mut out[start..start + shown * used]);
    }
}

fn scatter<T: Copy>(layout: &Layout<'_>, row: &[T], plane: usize, out: &mut [T]) {
    let used = layout.used();
    if layout.is_planar {
        for (out, from) in out.iter_mut().skip(plane).step_by(used).zip(row) {
            *out = *from;
        }
        return;
    }
    if layout.samples == used {
        let count = out.len();
        out.copy_from_slice(&row[..count]);
        return;
    }
    for (out, from) in out.chunks_exact_mut(used).zip(row.chunks_exact(layout.samples)) {
        out.copy_from_slice(&from[..used]);
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
    if layout.bits == 16 {
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
            let factor = match layout.bits {
                1 => 255,
                2 => 85,
                4 => 17,
                _ => 1,
            };
            let flip = if is_inverted && layout.bits <= 8 { 255 } else { 0 };
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
