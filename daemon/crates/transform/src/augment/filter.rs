//! Augmentations that mix neighbouring pixels: Gaussian blur and sharpness.

use super::{Pixels, rounded, single, truncated};
use forebay_media::buffers::prepare;

/// Maps a position outside `0..count` to the position inside that it shows: a reflection that does not repeat the edge.
pub(super) fn reflected(place: i64, count: usize) -> usize {
    let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
    if last <= 0 {
        return 0;
    }
    let folded = place.rem_euclid(2 * last);
    usize::try_from(folded.min(2 * last - folded)).unwrap_or(0)
}

/// The weights of a Gaussian filter of `size` pixels, which is odd.
fn gaussian(size: u32, sigma: f64) -> Vec<f32> {
    let reach = f64::from(size - 1) / (2.0 * std::f64::consts::SQRT_2);
    let step = if size > 1 { 2.0 * reach / f64::from(size - 1) } else { 0.0 };
    let weight = |place: u32| {
        let x = (f64::from(place) * step - reach) / sigma;
        libm::exp(-x * x)
    };
    let weights: Vec<f64> = (0..size).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| single(weight / sum)).collect()
}

/// Blurs with a Gaussian of `size` pixels (width, height; odd). The image is reflected at its edges.
///
/// First along rows, then across them: `scratch` contains as many horizontally blurred rows as the filter is high. A
/// row is written once no later row needs it.
pub(crate) fn gaussian_blur(
    pixels: &mut Pixels<&mut [u8]>,
    size: [u32; 2],
    sigma: f64,
    scratch: &mut Vec<f32>,
) {
    let (channels, height) = (usize::from(pixels.channels), pixels.size.height as usize);
    let line = pixels.size.width as usize * channels;
    let (along, across) = (gaussian(size[0], sigma), gaussian(size[1], sigma));
    let (left, above) = (along.len() / 2, across.len() / 2);
    let padded = line + 2 * left * channels;
    let scratch = prepare(scratch, padded + line * (across.len() + 1));
    let (padded, rest) = scratch.split_at_mut(padded);
    let (sum, kept) = rest.split_at_mut(line);
    let mut blurred = 0;
    for row in 0..height {
        while blurred < height.min(row + above + 1) {
            let from = &pixels.bytes[blurred * line..][..line];
            pad_line(from, padded, channels, left);
            let to = &mut kept[blurred % across.len() * line..][..line];
            weigh(to, &along, |place| &padded[place * channels..]);
            blurred += 1;
        }
        weigh(sum, &across, |place| {
            let beyond = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
            let from = reflected(beyond(row + place) - beyond(above), height);
            &kept[from % across.len() * line..]
        });
        for (to, value) in pixels.bytes[row * line..][..line].iter_mut().zip(&*sum) {
            *to = rounded(*value);
        }
    }
}

/// A row in single precision, with `left` reflected pixels on each side.
fn pad_line(from: &[u8], padded: &mut [f32], channels: usize, left: usize) {
    let middle = &mut padded[left * channels..][..from.len()];
    for (to, byte) in middle.iter_mut().zip(from) {
        *to = f32::from(*byte);
    }
    let width = from.len() / channels;
    for beyond in 1..=left {
        let sides = [
            (left - beyond, -i64::try_from(beyond).unwrap_or(0)),
            (left + width + beyond - 1, i64::try_from(width + beyond - 1).unwrap_or(0)),
        ];
        for (to, place) in sides {
            let shown = reflected(place, width);
            for channel in 0..channels {
                padded[to * channels + channel] = f32::from(from[shown * channels + channel]);
            }
        }
    }
}

/// The weighted sum of lines, element by element; processes as many elements at a time as registers hold.
#[inline(always)]
fn weigh<'l>(sums: &mut [f32], weights: &[f32], line: impl Fn(usize) -> &'l [f32]) {
    const AT_ONCE: usize = 32;
    let (whole, rest) = sums.as_chunks_mut::<AT_ONCE>();
    let first_of_rest = whole.len() * AT_ONCE;
    for (number, sums) in whole.iter_mut().enumerate() {
        let mut found = [0.0; AT_ONCE];
        for (place, weight) in weights.iter().enumerate() {
            for (sum, value) in found.iter_mut().zip(&line(place)[number * AT_ONCE..][..AT_ONCE]) {
                *sum += value * weight;
            }
        }
        *sums = found;
    }
    rest.fill(0.0);
    for (place, weight) in weights.iter().enumerate() {
        for (sum, value) in rest.iter_mut().zip(&line(place)[first_of_rest..]) {
            *sum += value * weight;
        }
    }
}

/// Moves each pixel away from the mean of its surroundings (factor above 1), or towards it. The outermost pixels are
/// unchanged.
pub(crate) fn adjust_sharpness(pixels: &mut Pixels<&mut [u8]>, factor: f64, scratch: &mut Vec<u8>) {
    let (width, height) = (pixels.size.width as usize, pixels.size.height as usize);
    if width <= 2 || height <= 2 {
        return;
    }
    let channels = usize::from(pixels.channels);
    let line = width * channels;
    let part = single(1.0 - factor);
    // The original rows above and at the current one.
    let (mut above, mut here) = prepare(scratch, 2 * line).split_at_mut(line);
    above.copy_from_slice(&pixels.bytes[..line]);
    for row in 1..height - 1 {
        let (until, after) = pixels.bytes.split_at_mut((row + 1) * line);
        let to = &mut until[row * line..];
        here.copy_from_slice(to);
        let below = &after[..line];
        let inner = &mut to[channels..line - channels];
        for (place, to) in inner.iter_mut().enumerate() {
            let three = |line: &[u8]| {
                u32::from(line[place])
                    + u32::from(line[place + channels])
                    + u32::from(line[place + 2 * channels])
            };
            let middle = u32::from(here[place + channels]);
            let sum = three(above) + three(here) + three(below) + 4 * middle;
            // A 13th is never a half: the integer nearest to sum / 13.
            let smooth = (2 * sum + 13) / 26;
            #[expect(clippy::cast_precision_loss, reason = "at most 255")]
            let (smooth, middle) = (smooth as f32, middle as f32);
            *to = truncated(middle + (smooth - middle) * part);
        }
        std::mem::swap(&mut above, &mut here);
    }
}
