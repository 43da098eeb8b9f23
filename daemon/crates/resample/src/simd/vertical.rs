//! Weighted sums of rows.

use std::arch::x86_64::*;

use crate::request::Source;

use super::registers::{all, descale, half_a_unit, load, store};

/// Bytes that are computed together.
const STEP: usize = 32;

/// The sum of up to `2 · PAIRS` rows, all as long as `out`.
// Loops instead of closures and `map`: those are not always compiled for the caller's target features.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn weigh<const PAIRS: usize>(
    source: &Source<'_>,
    first: usize,
    weights: &[i16],
    precision: u32,
    out: &mut [u8],
) {
    let mut rows = [[&source.pixels[..0]; 2]; PAIRS];
    let mut pairs = [_mm256_setzero_si256(); PAIRS];
    for (pair, (rows, both)) in rows.iter_mut().zip(&mut pairs).enumerate() {
        let mut bits = [0; 2];
        for (which, (row, bits)) in rows.iter_mut().zip(&mut bits).enumerate() {
            let at = pair * 2 + which;
            // A row without a weight may be any row.
            let (at, weight) = weights.get(at).map_or((0, 0), |weight| (at, *weight));
            let at = (first + at).min(source.height as usize - 1);
            *row = &source.pixels[at * source.pitch_bytes..][..out.len()];
            *bits = u32::from(weight.cast_unsigned());
        }
        *both = _mm256_set1_epi32((bits[0] | bits[1] << 16).cast_signed());
    }
    let Some(last) = out.len().checked_sub(STEP) else {
        return singly(&rows, weights, precision, out);
    };
    steps(&rows, 0, &pairs, precision, out);
    if !out.len().is_multiple_of(STEP) {
        // The last full step again, up to the end.
        steps(&rows, last, &pairs, precision, out);
    }
}

/// Full steps from a byte on.
#[target_feature(enable = "avx2")]
#[inline]
fn steps<const PAIRS: usize>(
    rows: &[[&[u8]; 2]; PAIRS],
    from: usize,
    weights: &[__m256i; PAIRS],
    precision: u32,
    out: &mut [u8],
) {
    let (start, precision, zero) = (half_a_unit(precision), all(precision), _mm256_setzero_si256());
    let out = out[from..].as_chunks_mut::<STEP>().0;
    let none: &[[u8; STEP]] = &[];
    let mut chunks = [[none; 2]; PAIRS];
    for (chunks, rows) in chunks.iter_mut().zip(rows) {
        for (chunks, row) in chunks.iter_mut().zip(rows) {
            *chunks = &row[from..].as_chunks::<STEP>().0[..out.len()];
        }
    }
    for (step, out) in out.iter_mut().enumerate() {
        let mut sums = [start; 4];
        for (pair, weights) in chunks.iter().zip(weights) {
            let (upper, lower) = (load(&pair[0][step]), load(&pair[1][step]));
            let low = _mm256_unpacklo_epi8(upper, lower);
            let high = _mm256_unpackhi_epi8(upper, lower);
            let words = [
                _mm256_unpacklo_epi8(low, zero),
                _mm256_unpackhi_epi8(low, zero),
                _mm256_unpacklo_epi8(high, zero),
                _mm256_unpackhi_epi8(high, zero),
            ];
            for (sum, words) in sums.iter_mut().zip(words) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, *weights));
            }
        }
        store(descale(sums, precision), out);
    }
}

/// Rows shorter than a step.
fn singly<const PAIRS: usize>(
    rows: &[[&[u8]; 2]; PAIRS],
    weights: &[i16],
    precision: u32,
    out: &mut [u8],
) {
    for (at, out) in out.iter_mut().enumerate() {
        let products = rows
            .as_flattened()
            .iter()
            .zip(weights)
            .map(|(bytes, weight)| i32::from(bytes[at]) * i32::from(*weight));
        let sum = (products.sum::<i32>() + (1 << (precision - 1))) >> precision;
        *out = u8::try_from(sum.clamp(0, 255)).unwrap_or(u8::MAX);
    }
}
