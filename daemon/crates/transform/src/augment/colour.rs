//! Augmentations that mix the channels of a pixel: grey, saturation, hue.

use super::planes::{self, PIXELS, Plane};
use super::{Pixels, clamped, rounded, rounded_down, single};

/// Weights of red, green and blue in the grey level; they add up to 0.9999, as in torchvision.
const LUMA: [f32; 3] = [0.2989, 0.587, 0.114];

/// The grey level of a pixel, rounded down.
#[inline(always)]
fn luma(red: f32, green: f32, blue: f32) -> f32 {
    rounded_down(red * LUMA[0] + green * LUMA[1] + blue * LUMA[2])
}

#[inline(always)]
fn lumas([red, green, blue]: &[Plane; 3]) -> Plane {
    std::array::from_fn(|at| luma(red[at], green[at], blue[at]))
}

/// The sum of the grey levels of pixels with three channels.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole numbers below 2²⁴"
)]
pub(super) fn luma_sum(bytes: &[u8]) -> u64 {
    // A sum of levels in single precision is exact up to 2²⁴.
    let part = |bytes: &[u8]| -> u64 {
        let mut sums = [0.0; PIXELS];
        planes::each(bytes, |planes, _| {
            for (sum, luma) in sums.iter_mut().zip(lumas(planes)) {
                *sum += luma;
            }
        });
        sums.iter().map(|sum| *sum as u64).sum()
    };
    bytes.chunks((3 * PIXELS) << 15).map(part).sum()
}

/// Converts pixels with three channels to grey: `to` has as many pixels with one or three channels.
pub(crate) fn grayscale(from: &[u8], to: &mut [u8], channels: u8) {
    let mut rest = to;
    planes::each(from, |planes, count| {
        let grey = lumas(planes).map(rounded);
        let (to, after) = std::mem::take(&mut rest).split_at_mut(count * usize::from(channels));
        if channels == 1 {
            to.copy_from_slice(&grey[..count]);
        } else {
            to.as_chunks_mut::<3>().0.iter_mut().zip(grey).for_each(|(to, grey)| *to = [grey; 3]);
        }
        rest = after;
    });
}

/// Moves colours away from grey, or towards it. A grey image is unchanged.
pub(crate) fn adjust_saturation(pixels: &mut Pixels<&mut [u8]>, factor: f64) {
    if pixels.channels != 3 {
        return;
    }
    let (factor, rest) = (single(factor), single(1.0 - factor));
    planes::change(pixels.bytes, |planes| {
        let grey = lumas(planes);
        for plane in planes {
            for (level, grey) in plane.iter_mut().zip(grey) {
                *level = rounded_down(clamped(*level * factor + grey * rest));
            }
        }
    });
}

/// Rotates the hue by a fraction of the circle, −0.5 to 0.5. A grey image is unchanged.
pub(crate) fn adjust_hue(pixels: &mut Pixels<&mut [u8]>, turn: f64) {
    if pixels.channels != 3 {
        return;
    }
    let turn = single(turn);
    planes::change(pixels.bytes, |[red, green, blue]| {
        for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
            [*red, *green, *blue] = with_hue_turned([*red, *green, *blue], turn);
        }
    });
}

/// Each branch selects between values that are computed anyway, so that neighbouring pixels form a vector.
#[inline(always)]
fn with_hue_turned(pixel: [f32; 3], turn: f32) -> [f32; 3] {
    let [red, green, blue] = pixel.map(|level| level * (1.0 / 255.0));
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let smaller = |a: f32, b: f32| if a < b { a } else { b };
    let highest = larger(larger(red, green), blue);
    let range = highest - smaller(smaller(red, green), blue);
    let is_grey = range == 0.0;
    let saturation = range / if is_grey { 1.0 } else { highest };
    let divisor = if is_grey { 1.0 } else { range };
    let [red_share, green_share, blue_share] =
        [red, green, blue].map(|level| (highest - level) / divisor);
    let sixths = if highest == red {
        blue_share - green_share
    } else if highest == green {
        red_share + 2.0 - blue_share
    } else {
        green_share + 4.0 - red_share
    };
    let circle = sixths * (1.0 / 6.0) + 1.0;
    let hue = if circle >= 1.0 { circle - 1.0 } else { circle } + turn;
    let not_negative = if hue < 0.0 { hue + 1.0 } else { hue };
    let hue = if hue >= 1.0 { hue - 1.0 } else { not_negative } * 6.0;
    // 0 to 6. If rounding yields 6, it means 0.
    let sector = rounded_down(hue);
    let part = saturation * (hue - sector);
    let low = (1.0 - saturation) * highest;
    let falling = (1.0 - part) * highest;
    let rising = (part + (1.0 - saturation)) * highest;
    let is = |number: f32| sector == number;
    let mixed = [
        if is(1.0) {
            falling
        } else if is(2.0) | is(3.0) {
            low
        } else if is(4.0) {
            rising
        } else {
            highest
        },
        if is(1.0) | is(2.0) {
            highest
        } else if is(3.0) {
            falling
        } else if is(4.0) | is(5.0) {
            low
        } else {
            rising
        },
        if is(3.0) | is(4.0) {
            highest
        } else if is(2.0) {
            rising
        } else if is(5.0) {
            falling
        } else {
            low
        },
    ];
    // torchvision's way to map only 1 to 255.
    mixed.map(|value| rounded_down(clamped(smaller(value, 1.0) * 255.999)))
}

/// Mixes the levels of two images in place: each becomes `share` of itself plus the rest of the other, rounded half to
/// even.
pub(crate) fn mix_levels(one: &mut [u8], other: &mut [u8], share: f32) {
    let rest = 1.0 - share;
    for (one, other) in one.iter_mut().zip(other) {
        let (a, b) = (f32::from(*one), f32::from(*other));
        (*one, *other) = (rounded(a * share + b * rest), rounded(b * share + a * rest));
    }
}
