//! Masks that formats of labels code ([`forebay_dataset::mask`]): objects' outlines and runs are painted in their order.
//!
//! Equal to pycocotools' `decode(frPyObjects(…))`, pixel for pixel. The work and the memory of an outline are bounded by
//! the image's size before it is followed, and so is the number of pixels that all objects set: `limits.pixels` limits
//! masks as it limits images.

mod outline;

use super::colour;
use super::format::{Content, Form, Format};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_dataset::Defect;
use forebay_dataset::mask::{CodedMask, MaskPart, Numbers, is_mask};
use outline::{Crossings, Effort};

/// How often all objects together may set each pixel, on average.
const MOST_LAYERS: u64 = 256;
/// The pixels that may be set beside these in an image of any size.
const MOST_SMALL: u64 = 1 << 20;

pub(super) const FORMAT: Format = Format {
    begins: is_mask,
    may_be_wide: true,
    read_header: |file, _| {
        let mask = open(file)?;
        if mask.width.checked_mul(mask.height).is_none() {
            return Err(defect("it has more than 4,294,967,295 pixels"));
        }
        Ok((Size { width: mask.width, height: mask.height }, 1))
    },
    bytes_beside_pixels: |file, size, form| {
        let area = u64::from(size.width) * u64::from(size.height);
        let unconverted = if form.channels == 1 { 0 } else { element_bytes(form) as u64 * area };
        let crossings = open(file).and_then(|mask| most_crossings(mask, size)).unwrap_or(0);
        unconverted + 4 * crossings
    },
    decode,
};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot paint the mask: {reason}"))
}

fn open(file: &[u8]) -> Result<CodedMask<'_>, Defect> {
    CodedMask::open(file).ok_or_else(|| defect("its header is cut off"))
}

const fn element_bytes(form: Form) -> usize {
    form.content.element_bytes()
}

/// The maximal number of crossings of one of its outlines; all of them together are within what an image of the size may
/// have.
fn most_crossings(mask: CodedMask<'_>, size: Size) -> Result<u64, Defect> {
    let (mut effort, mut most) = (Effort::new(size), 0);
    for object in mask.objects() {
        if let (_, MaskPart::Outline(points)) = object.ok_or_else(cut)? {
            most = most.max(effort.add(points).ok_or_else(|| {
                defect("its outlines are longer than the image has room for, or far outside of it")
            })?);
        }
    }
    Ok(most)
}

fn cut() -> Defect {
    defect("an object is cut off or malformed")
}

/// Paints the mask, converted to 1, 3 or 4 channels of 8 or 16 bits.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let mask = open(file)?;
    let count = size.width as usize * size.height as usize;
    let crossings = usize::try_from(most_crossings(mask, size)?).unwrap_or(0);
    let mut painter = Painter::new(size, Crossings::with_capacity(crossings));
    let element = element_bytes(form);
    let out = prepare(pixels, count * usize::from(form.channels) * element);
    let painted = match form.channels {
        1 => &mut *out,
        _ => prepare(unconverted, count * element),
    };
    painted.fill(0);
    let is_wide = form.content == Content::Wide;
    for object in mask.objects() {
        let (value, part) = object.ok_or_else(cut)?;
        let narrow = || {
            u8::try_from(value).map_err(|_| {
                defect(format!(
                    "it has the number {value}, and a pixel 8 bits; set `depth = 16` of `decode-image`"
                ))
            })
        };
        match is_wide {
            true => painter.paint(part, value.to_ne_bytes(), painted.as_chunks_mut().0)?,
            false => painter.paint(part, narrow()?, painted)?,
        }
    }
    match (form.channels, is_wide) {
        (1, _) => Ok(()),
        (channels, true) => colour::convert_wide(1, &unconverted[..2 * count], channels, out),
        (channels, false) => {
            colour::convert(1, &unconverted[..count], channels, out);
            Ok(())
        }
    }
}

/// Sets the pixels of objects, and counts them.
struct Painter {
    size: Size,
    crossings: Crossings,
    /// The pixels that may still be set.
    left: u64,
}

impl Painter {
    fn new(size: Size, crossings: Crossings) -> Self {
        let area = u64::from(size.width) * u64::from(size.height);
        Self { size, crossings, left: MOST_LAYERS * area + MOST_SMALL }
    }

    /// Sets the pixels of an object.
    fn paint<T: Copy>(
        &mut self,
        part: MaskPart<'_>,
        value: T,
        pixels: &mut [T],
    ) -> Result<(), Defect> {
        let Self { size, crossings, left } = self;
        match part {
            MaskPart::Outline(points) => {
                for [start, end] in crossings.of(points, *size) {
                    take(left, start, end)?;
                    fill(start, end, *size, value, pixels);
                }
                Ok(())
            }
            MaskPart::Runs(lengths) => paint_runs(lengths, *size, left, value, pixels),
        }
    }
}

/// Subtracts the pixels of a run from those that may still be set.
fn take(left: &mut u64, start: u32, end: u32) -> Result<(), Defect> {
    *left = left.checked_sub(end.saturating_sub(start).into()).ok_or_else(|| {
        defect(format!("its objects cover the image more than {MOST_LAYERS} times"))
    })?;
    Ok(())
}

fn paint_runs<T: Copy>(
    lengths: Numbers<'_>,
    size: Size,
    left: &mut u64,
    value: T,
    pixels: &mut [T],
) -> Result<(), Defect> {
    let all = u64::from(size.width) * u64::from(size.height);
    let (mut at, mut is_inside) = (0_u64, false);
    for length in lengths {
        let end = at.saturating_add(length);
        if end > all {
            return Err(defect(format!("its runs have {end} pixels, and the image has {all}")));
        }
        if is_inside {
            // Both are at most the number of pixels, which is a u32.
            let narrow = |place: u64| u32::try_from(place).unwrap_or(u32::MAX);
            take(left, narrow(at), narrow(end))?;
            fill(narrow(at), narrow(end), size, value, pixels);
        }
        (at, is_inside) = (end, !is_inside);
    }
    Ok(())
}

/// Sets the pixels from one to another, counted down the columns.
fn fill<T: Copy>(start: u32, end: u32, size: Size, value: T, pixels: &mut [T]) {
    let (width, height) = (size.width as usize, size.height as usize);
    let (mut at, end) = (start as usize, (end as usize).min(width * height));
    while at < end {
        let (column, row) = (at / height, at % height);
        let count = (end - at).min(height - row);
        let first = row * width + column;
        for pixel in pixels.iter_mut().skip(first).step_by(width).take(count) {
            *pixel = value;
        }
        at += count;
    }
}

#[cfg(test)]
mod tests;
