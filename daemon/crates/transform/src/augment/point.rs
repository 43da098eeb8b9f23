//! Augmentations of single levels: one table of 256 entries for all channels, or one for each.

use super::{MAX_LEVEL, Pixels, single, truncated};
use crate::augment::colour::luma_sum;

type Levels = [u8; 256];

/// A table of a function of the level.
fn levels(of: impl Fn(u8) -> u8) -> Levels {
    std::array::from_fn(|level| of(u8::try_from(level).unwrap_or(u8::MAX)))
}

fn apply(bytes: &mut [u8], levels: &Levels) {
    for byte in bytes {
        *byte = levels[usize::from(*byte)];
    }
}

/// Applies a table to each channel of a pixel of `N`.
fn apply_each<const N: usize>(bytes: &mut [u8], levels: &[Levels; N]) {
    for pixel in bytes.as_chunks_mut::<N>().0 {
        for (byte, levels) in pixel.iter_mut().zip(levels) {
            *byte = levels[usize::from(*byte)];
        }
    }
}

/// Histograms of the levels, by channel.
fn histograms<const N: usize>(bytes: &[u8]) -> [[u32; 256]; N] {
    let mut counts = [[0; 256]; N];
    for pixel in bytes.as_chunks::<N>().0 {
        for (counts, byte) in counts.iter_mut().zip(pixel) {
            counts[usize::from(*byte)] += 1;
        }
    }
    counts
}

/// Applies to each channel a table computed from its histogram.
fn by_histogram(pixels: &mut Pixels<&mut [u8]>, table: impl Fn(&[u32; 256]) -> Levels) {
    if pixels.channels == 1 {
        let tables = histograms::<1>(pixels.bytes).each_ref().map(table);
        apply(pixels.bytes, &tables[0]);
    } else {
        let tables = histograms::<3>(pixels.bytes).each_ref().map(table);
        apply_each(pixels.bytes, &tables);
    }
}

pub(crate) fn invert(pixels: &mut Pixels<&mut [u8]>) {
    for byte in &mut *pixels.bytes {
        *byte = !*byte;
    }
}

/// Keeps the highest `bits` of 8.
pub(crate) fn posterize(pixels: &mut Pixels<&mut [u8]>, bits: u32) {
    let mask = u8::MAX.checked_shl(8 - bits.min(8)).unwrap_or(0);
    for byte in &mut *pixels.bytes {
        *byte &= mask;
    }
}

/// Inverts levels of at least `threshold`.
pub(crate) fn solarize(pixels: &mut Pixels<&mut [u8]>, threshold: f64) {
    let threshold = single(threshold);
    apply(
        pixels.bytes,
        &levels(|level| if f32::from(level) >= threshold { !level } else { level }),
    );
}

pub(crate) fn adjust_brightness(pixels: &mut Pixels<&mut [u8]>, factor: f64) {
    let factor = single(factor);
    apply(pixels.bytes, &levels(|level| truncated(f32::from(level) * factor)));
}

/// Moves all levels away from the mean of the grey image, or towards it.
pub(crate) fn adjust_contrast(pixels: &mut Pixels<&mut [u8]>, factor: f64) {
    let count = pixels.bytes.len() / usize::from(pixels.channels);
    if count == 0 {
        return;
    }
    let sum: u64 = match pixels.channels {
        1 => pixels.bytes.iter().map(|byte| u64::from(*byte)).sum(),
        _ => luma_sum(pixels.bytes),
    };
    #[expect(clippy::cast_precision_loss, reason = "both are far below 2⁵³")]
    let mean = single(sum as f64 / count as f64);
    let added = mean * single(1.0 - factor);
    let factor = single(factor);
    apply(pixels.bytes, &levels(|level| truncated(f32::from(level) * factor + added)));
}

/// Stretches each channel from 0 to 255.
pub(crate) fn autocontrast(pixels: &mut Pixels<&mut [u8]>) {
    by_histogram(pixels, |counts| {
        let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        if first == last {
            return levels(|level| level);
        }
        let level = |level: usize| f32::from(u8::try_from(level).unwrap_or(u8::MAX));
        let minimum = level(first);
        let scale = (level(last) - minimum) * (1.0 / MAX_LEVEL);
        levels(|level| truncated((f32::from(level) - minimum) / scale))
    });
}

/// Makes the levels of each channel about equally frequent, as Pillow does.
pub(crate) fn equalize(pixels: &mut Pixels<&mut [u8]>) {
    by_histogram(pixels, |counts| {
        let total: u32 = counts.iter().sum();
        let highest = counts.iter().rev().find(|count| **count > 0).unwrap_or(&0);
        let step = (total - highest) / 255;
        if step == 0 {
            return levels(|level| level);
        }
        let mut below = 0;
        counts.map(|count| {
            let level = (below + step / 2) / step;
            below += count;
            u8::try_from(level).unwrap_or(u8::MAX)
        })
    });
}
