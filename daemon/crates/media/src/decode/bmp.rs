//! BMP: 1, 4, 8, 16, 24 and 32 bits per pixel, with a palette, with masks, run-length encoded, in either direction.
//!
//! Own code: the format is only a header, rows of fixed length and two kinds of runs, and the available crate replaces
//! missing data by zeros ([decision 0034](../../../../../docs/decisions/0034-pictures-and-audio.md)). The meaning of 16
//! bits, masks and runs is as in Pillow's `BmpImagePlugin.py`; there is alpha if a mask defines it.

use super::colour;
use super::format::{Content, Form, Format};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_dataset::Defect;

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [b'B', b'M', ..]),
    may_be_wide: false,
    read_header: |file, _| Ok((Header::read(file)?.size, 1)),
    bytes_beside_pixels: |file, size, _| {
        let area = u64::from(size.width) * u64::from(size.height);
        let runs = Header::read(file).is_ok_and(|header| header.is_coded());
        4 * u64::from(size.width) + if runs { area } else { 0 }
    },
    decode,
};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the BMP file: {reason}"))
}

/// How the pixels are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Plain,
    Runs8,
    Runs4,
}

/// The bits of a channel in a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mask(u32);

impl Mask {
    /// From 0 to 255, rounded down like Pillow.
    fn level(self, pixel: u32) -> u8 {
        let most = u64::from(self.0 >> self.0.trailing_zeros().min(31));
        let value = u64::from((pixel & self.0) >> self.0.trailing_zeros().min(31));
        u8::try_from((value * 255).checked_div(most).unwrap_or(0)).unwrap_or(255)
    }

    /// Whether its bits are contiguous.
    const fn is_whole(self) -> bool {
        self.0 == 0 || {
            let bits = self.0 >> self.0.trailing_zeros();
            bits & bits.wrapping_add(1) == 0
        }
    }
}

#[derive(Debug)]
struct Header {
    size: Size,
    bits: u16,
    coding: Coding,
    /// Red, green, blue, alpha; unused with a palette.
    masks: [Mask; 4],
    /// The palette's offset, its number of colours, and the bytes of each.
    palette: (usize, usize, usize),
    pixels_at: usize,
    is_top_down: bool,
}

impl Header {
    fn read(file: &[u8]) -> Result<Self, Defect> {
        let cut = || Defect("image file is truncated: the BMP header does not end".to_owned());
        let bytes = |at: usize| file.get(at..)?.first_chunk::<4>();
        let long = |at: usize| bytes(at).map(|four| u32::from_le_bytes(*four)).ok_or_else(cut);
        let short = |at: usize| {
            let two = file.get(at..).and_then(|rest| rest.first_chunk::<2>());
            two.map(|two| u16::from_le_bytes(*two)).ok_or_else(cut)
        };
        let own_bytes = long(14)?;
        let (size, bits, compression, colours, is_top_down, entry_bytes) = match own_bytes {
            12 => {
                let size = Size { width: short(18)?.into(), height: short(20)?.into() };
                (size, short(24)?, 0, 0, false, 3)
            }
            40 | 52 | 56 | 64 | 108 | 124 => {
                let height = long(22)?;
                let is_top_down = height >> 24 == 0xff;
                let height = if is_top_down { height.wrapping_neg() } else { height };
                let size = Size { width: long(18)?, height };
                (size, short(28)?, long(30)?, long(46)?, is_top_down, 4)
            }
            other => {
                return Err(defect(format!("its header has {other} bytes, which no version has")));
            }
        };
        let coding = match (compression, bits) {
            (0, 1 | 4 | 8 | 16 | 24 | 32) | (3, 16 | 24 | 32) => Coding::Plain,
            (1, 8) => Coding::Runs8,
            (2, 4) => Coding::Runs4,
            (4, _) => return Err(defect("it holds a JPEG")),
            (5, _) => return Err(defect("it holds a PNG")),
            _ => return Err(defect(format!("{bits} bits a pixel with compression {compression}"))),
        };
        let mut after_header = 14 + own_bytes as usize;
        let mut masks = match bits {
            16 => [0x7c00, 0x03e0, 0x001f, 0],
            _ => [0x00ff_0000, 0xff00, 0xff, 0],
        };
        if compression == 3 {
            // The shortest header is followed by three masks, without alpha.
            let has_alpha = own_bytes >= 56;
            for (place, mask) in masks.iter_mut().enumerate().take(if has_alpha { 4 } else { 3 }) {
                *mask = long(54 + 4 * place)?;
            }
            after_header += if own_bytes == 40 { 12 } else { 0 };
            if masks == [0; 4] && bits == 32 {
                masks = [0x00ff_0000, 0xff00, 0xff, 0xff00_0000];
            }
        }
        let masks = masks.map(Mask);
        if let Some(Mask(mask)) = masks.iter().find(|mask| !mask.is_whole()) {
            return Err(defect(format!("a channel's bits are not contiguous ({mask:#010x})")));
        }
        let colours = match (bits, colours) {
            (9.., _) => 0,
            (_, 0) => 1 << bits,
            (_, 1..=65_536) => colours as usize,
            _ => return Err(defect(format!("a palette of {colours} colours"))),
        };
        let mut pixels_at = long(10)? as usize;
        if pixels_at == 0 || (pixels_at == after_header && bits <= 8) {
            // The offset does not account for the palette.
            pixels_at = after_header + colours * entry_bytes;
        }
        let palette = (after_header, colours, entry_bytes);
        Ok(Self { size, bits, coding, masks, palette, pixels_at, is_top_down })
    }

    fn is_coded(&self) -> bool {
        self.coding != Coding::Plain
    }

    /// The colour of each index; colours missing in the palette are black.
    fn colours(&self, file: &[u8]) -> Result<[[u8; 4]; 256], Defect> {
        let (start, count, entry_bytes) = self.palette;
        let entries = file.get(start..start + count * entry_bytes).ok_or_else(|| {
            Defect("image file is truncated: the BMP palette does not end".to_owned())
        })?;
        let mut colours = [[0, 0, 0, 255]; 256];
        for (colour, entry) in colours.iter_mut().zip(entries.chunks_exact(entry_bytes)) {
            *colour = [entry[2], entry[1], entry[0], 255];
        }
        Ok(colours)
    }

    /// The row of the file for a row of the image.
    const fn stored_row(&self, row: usize) -> usize {
        if self.is_top_down { row } else { self.size.height as usize - 1 - row }
    }
}

/// Decodes the image, converted to 1, 3 or 4 channels.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let header = Header::read(file)?;
    let (width, height) = (size.width as usize, size.height as usize);
    let has_palette = header.bits <= 8;
    if form.content == Content::Indices && !has_palette {
        return Err(Defect(
            "the BMP file is not an image of indices: it has no palette".to_owned(),
        ));
    }
    let colours = if has_palette { header.colours(file)? } else { [[0; 4]; 256] };
    let data = file.get(header.pixels_at..).unwrap_or_default();
    let row_bytes = (width * usize::from(header.bits)).div_ceil(8);
    let pitch_bytes = row_bytes.next_multiple_of(4);
    let (line_bytes, index_bytes) = (4 * width, if header.is_coded() { width * height } else { 0 });
    let (line, indices) = prepare(unconverted, line_bytes + index_bytes).split_at_mut(line_bytes);
    if header.is_coded() {
        let is_odd = header.pixels_at % 2 == 1;
        read_runs(data, header.coding == Coding::Runs4, is_odd, width, indices)?;
    }
    let channels = usize::from(form.channels);
    let out = prepare(pixels, width * height * channels);
    for (row, out) in out.chunks_exact_mut(width * channels).enumerate() {
        let stored = header.stored_row(row);
        let (row_of, bits) = if header.is_coded() {
            (indices.get(stored * width..(stored + 1) * width), 8)
        } else {
            let start = stored * pitch_bytes;
            (data.get(start..start + row_bytes), header.bits)
        };
        let from = row_of.ok_or_else(|| {
            Defect(format!("image file is truncated: the BMP file lacks row {row} of {height}"))
        })?;
        if form.content == Content::Indices {
            (0..width).zip(out).for_each(|(column, out)| *out = index(from, bits, column));
            continue;
        }
        for (column, to) in line.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = match bits {
                ..=8 => colours[usize::from(index(from, bits, column))],
                _ => {
                    let bytes = usize::from(bits / 8);
                    let parts = &from[column * bytes..(column + 1) * bytes];
                    let pixel = parts.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
                    let [red, green, blue, alpha] = header.masks;
                    let opacity = if alpha == Mask(0) { 255 } else { alpha.level(pixel) };
                    [red.level(pixel), green.level(pixel), blue.level(pixel), opacity]
                }
            };
        }
        colour::convert(4, line, form.channels, out);
    }
    Ok(())
}

/// The index of a pixel in a row of 1, 4 or 8 bits per pixel.
fn index(row: &[u8], bits: u16, column: usize) -> u8 {
    match bits {
        1 => row[column / 8] >> (7 - column % 8) & 1,
        4 => row[column / 2] >> (4 - 4 * (column % 2)) & 15,
        _ => row[column],
    }
}

/// Reads runs into a plane of indices, in the order of the stored rows; skipped pixels get index 0. A run ends at its
/// row's end; literal pixels continue in the next row, as in Pillow.
fn read_runs(
    data: &[u8],
    is_four: bool,
    starts_odd: bool,
    width: usize,
    plane: &mut [u8],
) -> Result<(), Defect> {
    plane.fill(0);
    let cut = || Defect("image file is truncated: the BMP file's runs do not end".to_owned());
    let half = |byte: u8, place: usize| if place.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
    let (mut at, mut written, mut column) = (0, 0, 0);
    while written < plane.len() {
        let [count, value] = *data.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(cut)?;
        at += 2;
        let count = usize::from(count);
        match (count, value) {
            (1.., _) => {
                let count = count.min(width.saturating_sub(column)).min(plane.len() - written);
                for (place, to) in plane[written..written + count].iter_mut().enumerate() {
                    *to = if is_four { half(value, place) } else { value };
                }
                written += count;
                column += count;
            }
            (0, 0) => {
                written = written.next_multiple_of(width);
                column = 0;
            }
            (0, 1) => return Ok(()),
            (0, 2) => {
                let [right, up] =
                    *data.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(cut)?;
                at += 2;
                written = (written + usize::from(right) + usize::from(up) * width).min(plane.len());
                column = written % width;
            }
            (0, count) => {
                let pixels = usize::from(count).min(plane.len() - written);
                let bytes = if is_four { pixels.div_ceil(2) } else { pixels };
                let from = data.get(at..at + bytes).ok_or_else(cut)?;
                for (place, to) in plane[written..written + pixels].iter_mut().enumerate() {
                    *to = if is_four { half(from[place / 2], place) } else { from[place] };
                }
                written += pixels;
                column += usize::from(count);
                at += bytes;
                // Runs begin at even offsets of the file.
                at += usize::from((at % 2 == 1) != starts_odd);
            }
        }
    }
    Ok(())
}
