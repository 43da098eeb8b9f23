//! What mixes the channels of a pixel: grey, saturation, hue.

use super::{Pixels, rounded, single, truncated};

/// How much of red, green and blue the grey level has; they add up to 0.9999, as torchvision's.
const LUMA: [f32; 3] = [0.2989, 0.587, 0.114];

/// The grey level of a pixel, cut to a whole number.
#[inline(always)]
fn luma([red, green, blue]: [u8; 3]) -> f32 {
    let level = f32::from(red) * LUMA[0] + f32::from(green) * LUMA[1] + f32::from(blue) * LUMA[2];
    f32::from(truncated(level))
}

/// The sum of all grey levels of pixels of three channels.
pub(super) fn luma_sum(bytes: &[u8]) -> u64 {
    // The sum of some thousand levels fits 32 bits, which vectors add faster.
    let part = |pixels: &[[u8; 3]]| -> u32 {
        pixels.iter().map(|pixel| u32::from(truncated(luma(*pixel)))).sum()
    };
    bytes.as_chunks::<3>().0.chunks(4096).map(|pixels| u64::from(part(pixels))).sum()
}

/// Makes pixels of three channels grey: `to` has as many of one or of three.
pub(crate) fn grayscale(from: &[u8], to: &mut [u8], channels: u8) {
    let pixels = from.as_chunks::<3>().0;
    if channels == 1 {
        for (to, pixel) in to.iter_mut().zip(pixels) {
            *to = truncated(luma(*pixel));
        }
    } else {
        for (to, pixel) in to.as_chunks_mut::<3>().0.iter_mut().zip(pixels) {
            *to = [truncated(luma(*pixel)); 3];
        }
    }
}

/// Moves colours away from grey, or towards it. A grey image stays.
pub(crate) fn adjust_saturation(pixels: &mut Pixels<&mut [u8]>, factor: f64) {
    if pixels.channels != 3 {
        return;
    }
    let (factor, rest) = (single(factor), single(1.0 - factor));
    for pixel in pixels.bytes.as_chunks_mut::<3>().0 {
        let grey = luma(*pixel) * rest;
        *pixel = pixel.map(|level| truncated(f32::from(level) * factor + grey));
    }
}

/// Turns the hue by a share of the circle, −0.5 to 0.5. A grey image stays.
pub(crate) fn adjust_hue(pixels: &mut Pixels<&mut [u8]>, turn: f64) {
    if pixels.channels != 3 {
        return;
    }
    let turn = single(turn);
    for pixel in pixels.bytes.as_chunks_mut::<3>().0 {
        *pixel = with_hue_turned(*pixel, turn);
    }
}

#[inline(always)]
fn with_hue_turned(pixel: [u8; 3], turn: f32) -> [u8; 3] {
    let [red, green, blue] = pixel.map(|level| f32::from(level) * (1.0 / 255.0));
    let highest = red.max(green).max(blue);
    let lowest = red.min(green).min(blue);
    let range = highest - lowest;
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
    let hue = if hue < 0.0 {
        hue + 1.0
    } else if hue >= 1.0 {
        hue - 1.0
    } else {
        hue
    } * 6.0;
    // Not negative: cutting is rounding down. Where rounding gave 6, that is 0.
    let sector = truncated(hue);
    let fraction = hue - f32::from(sector);
    let part = saturation * fraction;
    let low = (1.0 - saturation) * highest;
    let falling = (1.0 - part) * highest;
    let rising = (part + (1.0 - saturation)) * highest;
    let mixed = match sector {
        1 => [falling, highest, low],
        2 => [low, highest, rising],
        3 => [low, falling, highest],
        4 => [rising, low, highest],
        5 => [highest, low, falling],
        _ => [highest, rising, low],
    };
    // torchvision's way to give 255 to more than exactly 1.
    mixed.map(|value| truncated(value.clamp(0.0, 1.0) * 255.999))
}

/// Mixes levels of two images in place: each becomes `share` of itself and the rest of the other, half to even.
pub(crate) fn mix_levels(one: &mut [u8], other: &mut [u8], share: f32) {
    let rest = 1.0 - share;
    for (one, other) in one.iter_mut().zip(other) {
        let (a, b) = (f32::from(*one), f32::from(*other));
        (*one, *other) = (rounded(a * share + b * rest), rounded(b * share + a * rest));
    }
}
