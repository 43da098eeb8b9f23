//! Mixes two images in their rows in place.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::augment::mix_levels;
use forebay_media::size::Size;
use forebay_protocol::mix::Mix;
use forebay_protocol::tensor::DType;

/// The layout of an image in its row.
#[derive(Debug)]
pub(super) struct ImageRow {
    pub dtype: DType,
    pub size: Size,
    pub channels: usize,
    pub channels_last: bool,
}

/// A rectangle of an image.
#[derive(Debug)]
pub(super) struct Part {
    pub columns: Range<usize>,
    pub rows: Range<usize>,
}

impl Part {
    /// The mix for the client's GPU.
    pub(super) fn mix(&self) -> Mix {
        let range = |pixels: &Range<usize>| {
            let [start, end] =
                [pixels.start, pixels.end].map(|pixel| u32::try_from(pixel).unwrap_or(u32::MAX));
            start..end
        };
        Mix::Part { columns: range(&self.columns), rows: range(&self.rows) }
    }

    /// The fraction of the image outside the part.
    #[expect(clippy::cast_precision_loss, reason = "pixels of an image")]
    pub(super) fn rest(&self, size: Size) -> f64 {
        let part = self.columns.len() as f64 * self.rows.len() as f64;
        1.0 - part / (f64::from(size.width) * f64::from(size.height))
    }
}

/// Number of elements converted at a time.
const WIDENED: usize = 256;

impl ImageRow {
    /// Swaps a part of two images.
    pub(super) fn swap(&self, part: &Part, one: &mut [u8], other: &mut [u8]) {
        let element_bytes = usize::try_from(self.dtype.size_bytes()).unwrap_or(1);
        let (planes, pixel_bytes) = match self.channels_last {
            true => (1, self.channels * element_bytes),
            false => (self.channels, element_bytes),
        };
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        for plane in 0..planes {
            for row in part.rows.clone() {
                let line = (plane * height + row) * width;
                let bytes = (line + part.columns.start) * pixel_bytes
                    ..(line + part.columns.end) * pixel_bytes;
                if let (Some(one), Some(other)) = (one.get_mut(bytes.clone()), other.get_mut(bytes))
                {
                    one.swap_with_slice(other);
                }
            }
        }
    }

    /// Each image becomes `share` of itself plus the rest of the other. Bytes are rounded half to even; floats are
    /// mixed in single precision, float64 in double precision.
    pub(super) fn mix(&self, share: f32, one: &mut [u8], other: &mut [u8]) {
        let rest = 1.0 - share;
        match self.dtype {
            DType::F16 => mix_halves(one, other, share, f16::from_bits, f16::to_bits),
            DType::BF16 => mix_halves(one, other, share, bf16::from_bits, bf16::to_bits),
            DType::F32 => {
                let (one, other) = (one.as_chunks_mut().0, other.as_chunks_mut().0);
                for (one, other) in one.iter_mut().zip(other) {
                    let (a, b) = (f32::from_ne_bytes(*one), f32::from_ne_bytes(*other));
                    *one = (a * share + b * rest).to_ne_bytes();
                    *other = (b * share + a * rest).to_ne_bytes();
                }
            }
            DType::F64 => {
                let (share, rest) = (f64::from(share), f64::from(rest));
                let (one, other) = (one.as_chunks_mut().0, other.as_chunks_mut().0);
                for (one, other) in one.iter_mut().zip(other) {
                    let (a, b) = (f64::from_ne_bytes(*one), f64::from_ne_bytes(*other));
                    *one = (a * share + b * rest).to_ne_bytes();
                    *other = (b * share + a * rest).to_ne_bytes();
                }
            }
            _ => mix_levels(one, other, share),
        }
    }
}

fn mix_halves<H: Copy + Default>(
    one: &mut [u8],
    other: &mut [u8],
    share: f32,
    from_bits: fn(u16) -> H,
    to_bits: fn(H) -> u16,
) where
    [H]: HalfFloatSliceExt,
{
    let rest = 1.0 - share;
    let widened = |bytes: &[[u8; 2]]| {
        let (mut halves, mut floats) = ([H::default(); WIDENED], [0.0; WIDENED]);
        for (half, bytes) in halves.iter_mut().zip(bytes) {
            *half = from_bits(u16::from_ne_bytes(*bytes));
        }
        halves.convert_to_f32_slice(&mut floats);
        floats
    };
    let narrowed = |floats: &[f32; WIDENED], bytes: &mut [[u8; 2]]| {
        let mut halves = [H::default(); WIDENED];
        halves.convert_from_f32_slice(floats);
        for (bytes, half) in bytes.iter_mut().zip(halves) {
            *bytes = to_bits(half).to_ne_bytes();
        }
    };
    let one = one.as_chunks_mut().0.chunks_mut(WIDENED);
    for (one, other) in one.zip(other.as_chunks_mut().0.chunks_mut(WIDENED)) {
        let (mut a, mut b) = (widened(one), widened(other));
        for (a, b) in a.iter_mut().zip(&mut b) {
            (*a, *b) = (*a * share + *b * rest, *b * share + *a * rest);
        }
        narrowed(&a, one);
        narrowed(&b, other);
    }
}
