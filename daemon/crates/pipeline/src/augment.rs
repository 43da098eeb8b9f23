//! What augmentations do to pixels: bytes in memory, height × width × channels. Knows no operation, no file and no draw.
//!
//! Each function is torchvision v2's of that name on a `uint8` tensor, in the same single precision and with the same
//! rounding, so that bytes agree to within one level: torch fuses some multiplications with additions and this code does
//! not, because every machine must compute the same. What is truncated there is truncated here.

mod colour;
mod filter;
mod pad;
mod planes;
mod point;
mod warp;

pub(crate) use colour::{adjust_hue, adjust_saturation, grayscale, mix_levels};
pub(crate) use filter::{adjust_sharpness, gaussian_blur};
pub(crate) use pad::{Beyond, Margins, pad};
pub(crate) use point::{
    adjust_brightness, adjust_contrast, autocontrast, equalize, invert, posterize, solarize,
};
pub(crate) use warp::{
    AffineShape, Picked, Projection, expanded_size, forward_affine, forward_perspective,
    inverse_affine, perspective, warp,
};

use crate::size::Size;

/// The pixels of an image, rows without gaps. `B` is `&[u8]`, or `&mut [u8]` where they are changed in place.
#[derive(Debug)]
pub(crate) struct Pixels<B> {
    pub bytes: B,
    pub size: Size,
    pub channels: u8,
}

/// The largest level of a channel.
const MAX_LEVEL: f32 = 255.0;

/// What is added to a number from 0 to 2²² to have it rounded, half to even: 1.5 · 2²³. The low bits of the sum are the
/// whole number. Every processor has this in vectors, which casts of floats to whole numbers are not everywhere.
const ROUNDING: f32 = 12_582_912.0;

/// The whole number below a number from 0 to 2²².
#[inline(always)]
fn rounded_down(value: f32) -> f32 {
    let nearest = (value + ROUNDING) - ROUNDING;
    if nearest > value { nearest - 1.0 } else { nearest }
}

/// A number as near to 0 to 255 as it can be; what is no number becomes 0.
#[inline(always)]
fn clamped(value: f32) -> f32 {
    let value = if value > 0.0 { value } else { 0.0 };
    if value < MAX_LEVEL { value } else { MAX_LEVEL }
}

/// The level that a number is cut to, as by torch's `to(torch.uint8)`.
#[inline(always)]
fn truncated(value: f32) -> u8 {
    rounded(rounded_down(clamped(value)))
}

/// The level nearest to a number from 0 to 255, half to even, as by torch's `round_()`.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
#[inline(always)]
fn rounded(value: f32) -> u8 {
    (value + ROUNDING).to_bits() as u8
}

/// A number as torch passes it to a kernel for single precision.
#[expect(clippy::cast_possible_truncation, reason = "torch rounds it as well")]
const fn single(value: f64) -> f32 {
    value as f32
}
