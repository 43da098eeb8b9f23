//! Blocks reduced by a factor of 2, 4 or 8 in the transform: libjpeg's 4x4, 2x2 and 1x1 transforms (jidctred.c), in
//! 13-bit fixed point with the saturation of libjpeg-turbo's vectors, and their 32-bit sums, which wrap around if all
//! coefficients are maximal.

use std::num::Wrapping;

use crate::entropy::Block;
use crate::quantization::{Quantization, is_certain, is_certain_alone};

/// Fractional bits of the constants, and those that are kept between the two passes.
const CONSTANT_BITS: usize = 13;
const KEPT_BITS: usize = 2;

/// A constant of the transform in fixed point.
const fn fixed(value: f64) -> Wrapping<i32> {
    Wrapping((value * (1 << CONSTANT_BITS) as f64 + 0.5) as i32)
}

/// Divides by a power of two, rounded.
fn descale(value: Wrapping<i32>, bits: usize) -> i32 {
    ((value + Wrapping(1 << (bits - 1))) >> bits).0
}

fn saturate(value: i32) -> i32 {
    value.clamp(i16::MIN.into(), i16::MAX.into())
}

/// Four values of eight coefficients, before the division by `2^(CONSTANT_BITS + 1)`.
fn four(input: [i32; 8]) -> [Wrapping<i32>; 4] {
    let [in0, in1, in2, in3, _, in5, in6, in7] = input.map(Wrapping);
    let even = in0 << (CONSTANT_BITS + 1);
    let even_odd = in2 * fixed(1.847_759_065) - in6 * fixed(0.765_366_865);
    let (sum, difference) = (even + even_odd, even - even_odd);
    let inner = in5 * fixed(1.451_774_981) - in7 * fixed(0.211_164_243)
        + in1 * fixed(1.061_594_337)
        - in3 * fixed(2.172_734_803);
    let outer = in3 * fixed(0.899_976_223) - in7 * fixed(0.509_795_579)
        + in1 * fixed(2.562_915_447)
        - in5 * fixed(0.601_344_887);
    [sum + outer, difference + inner, difference - inner, sum - outer]
}

/// Two values of eight coefficients, before the division by `2^(CONSTANT_BITS + 2)`.
fn two(input: [i32; 8]) -> [Wrapping<i32>; 2] {
    let [in0, in1, _, in3, _, in5, _, in7] = input.map(Wrapping);
    let even = in0 << (CONSTANT_BITS + 2);
    let odd = in5 * fixed(0.850_430_095) - in7 * fixed(0.720_959_822) + in1 * fixed(3.624_509_785)
        - in3 * fixed(1.272_758_580);
    [even + odd, even - odd]
}

/// Both passes: columns, then rows.
fn passes<const N: usize>(
    values: &[i32; 64],
    extra_bits: usize,
    one: fn([i32; 8]) -> [Wrapping<i32>; N],
    samples: &mut [u8],
    stride: usize,
) {
    let mut rows = [[0; 8]; N];
    for column in 0..8 {
        let input = std::array::from_fn(|row| values[row * 8 + column]);
        for (row, value) in rows.iter_mut().zip(one(input)) {
            row[column] = saturate(descale(value, CONSTANT_BITS - KEPT_BITS + extra_bits));
        }
    }
    for (row, out) in rows.into_iter().zip(samples.chunks_mut(stride)) {
        for (value, sample) in one(row).into_iter().zip(out) {
            *sample = to_sample(descale(value, CONSTANT_BITS + KEPT_BITS + 3 + extra_bits));
        }
    }
}

fn to_sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

/// Writes a block of `size` samples in both directions. `false`: libjpeg's transforms may differ.
pub(crate) fn transform(
    block: &Block,
    quantization: &Quantization,
    size: usize,
    samples: &mut [u8],
    stride: usize,
) -> bool {
    let mut values = [0; 64];
    let mut certain = true;
    for ((value, coefficient), factor) in values.iter_mut().zip(block).zip(&quantization.0) {
        *value = i32::from(*coefficient) * i32::from(*factor);
        certain &= is_certain(*value);
    }
    match size {
        4 if certain => passes(&values, 1, four, samples, stride),
        2 if certain => passes(&values, 2, two, samples, stride),
        4 | 2 => {}
        _ => {
            samples[0] = to_sample(descale(Wrapping(values[0]), 3));
            return is_certain_alone(values[0]);
        }
    }
    certain
}
