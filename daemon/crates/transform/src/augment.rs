//! Augmentations of pixels: bytes in memory, height × width × channels. Independent of operations, files and draws.
//!
//! Each function is torchvision v2's of that name on a `uint8` tensor, in the same single precision and with the same
//! rounding, so that bytes agree to within one level: torch fuses some multiplications with additions and this code
//! does not, because every machine must compute the same result. Values that torchvision truncates are truncated here.

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

use forebay_media::size::Size;

/// The pixels of an image, in contiguous rows. `B` is `&[u8]`, or `&mut [u8]` to change them in place.
#[derive(Debug)]
pub(crate) struct Pixels<B> {
    pub bytes: B,
    pub size: Size,
    pub channels: u8,
}

/// The maximal level of a channel.
const MAX_LEVEL: f32 = 255.0;

/// Adding this to a number from 0 to 2²² rounds it, half to even: 1.5 · 2²³. The low bits of the sum are the integer.
/// Every processor has vector instructions for this, but not for casts of floats to integers.
const ROUNDING: f32 = 12_582_912.0;

/// The floor of a number from 0 to 2²².
#[inline(always)]
fn rounded_down(value: f32) -> f32 {
    let nearest = (value + ROUNDING) - ROUNDING;
    if nearest > value { nearest - 1.0 } else { nearest }
}

/// A number clamped to 0 to 255; NaN becomes 0.
#[inline(always)]
fn clamped(value: f32) -> f32 {
    let value = if value > 0.0 { value } else { 0.0 };
    if value < MAX_LEVEL { value } else { MAX_LEVEL }
}

/// A number truncated to a level, as by torch's `to(torch.uint8)`.
#[inline(always)]
fn truncated(value: f32) -> u8 {
    rounded(rounded_down(clamped(value)))
}

/// A number from 0 to 255 rounded to a level, half to even, as by torch's `round_()`.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
#[inline(always)]
fn rounded(value: f32) -> u8 {
    (value + ROUNDING).to_bits() as u8
}

/// A number as torch passes it to a single-precision kernel.
#[expect(clippy::cast_possible_truncation, reason = "torch rounds it as well")]
const fn single(value: f64) -> f32 {
    value as f32
}
