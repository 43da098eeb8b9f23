//! Loads and stores of whole registers, and definitions for both directions.

use std::arch::x86_64::*;

/// Results that are computed together.
pub(crate) const BLOCK: usize = 32;
/// Padding after the samples of a plane, so that sixteen bytes can be read from each of them.
pub(crate) const PLANE_SLACK: usize = 16;
/// Maximal pairs of weights per position.
pub(crate) const MOST_PAIRS: usize = 4;

/// The destination of a row's results.
#[derive(Debug)]
pub(crate) enum Line<'l> {
    Interleaved(&'l mut [u8]),
    Planar([&'l mut [u8]; 3]),
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store(bytes: __m256i, place: &mut [u8; 32]) {
    // SAFETY: the array is 32 bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), bytes) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array is 32 bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array is 16 bytes, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Converts sums, which include half a unit for rounding, to bytes without the fractional bits: each half of the result
/// has four numbers of the first register, then of the second one, and so on.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn descale(sums: [__m256i; 4], precision: __m256i) -> __m256i {
    let [a, b, c, d] = sums;
    let (a, b) = (_mm256_srav_epi32(a, precision), _mm256_srav_epi32(b, precision));
    let (c, d) = (_mm256_srav_epi32(c, precision), _mm256_srav_epi32(d, precision));
    _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn half_a_unit(precision: u32) -> __m256i {
    _mm256_set1_epi32(1 << (precision - 1))
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn all(precision: u32) -> __m256i {
    _mm256_set1_epi32(precision.cast_signed())
}
