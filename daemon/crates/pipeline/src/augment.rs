//! What augmentations do to pixels: bytes in memory, height × width × channels. Knows no operation, no file and no draw.
//!
//! Each function is torchvision v2's of that name on a `uint8` tensor, in the same single precision and with the same
//! rounding, so that bytes agree to within one level: torch fuses some multiplications with additions and this code does
//! not, because every machine must compute the same. What is truncated there is truncated here.

mod colour;
mod filter;
mod pad;
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

/// The level that a number from 0 to 255 is cut to, as by torch's `to(torch.uint8)`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast of a float to a byte saturates"
)]
fn truncated(value: f32) -> u8 {
    value.clamp(0.0, MAX_LEVEL) as u8
}

/// The level nearest to a number from 0 to 255, half to even, as by torch's `round_()`.
///
/// Adding 1.5 · 2²³ leaves the whole number in the low bits: an instruction that every processor has in vectors.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
fn rounded(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

/// A number as torch passes it to a kernel for single precision.
#[expect(clippy::cast_possible_truncation, reason = "torch rounds it as well")]
const fn single(value: f64) -> f32 {
    value as f32
}
