//! Luma and chroma to red, green and blue, rounded as libjpeg's tables do (jdcolor.c).

use std::arch::x86_64::*;

/// A factor in 16-bit fixed point.
const fn fixed(value: f64) -> i32 {
    (value * 65536.0 + 0.5) as i32
}

/// One pixel.
fn convert(luma: u8, blue: u8, red: u8) -> [u8; 3] {
    let (luma, blue, red) = (i32::from(luma), i32::from(blue) - 128, i32::from(red) - 128);
    let half = 1 << 15;
    let limit = |value: i32| value.clamp(0, 255) as u8;
    [
        limit(luma + ((fixed(1.402) * red + half) >> 16)),
        limit(luma + ((half - fixed(0.344_14) * blue - fixed(0.714_14) * red) >> 16)),
        limit(luma + ((fixed(1.772) * blue + half) >> 16)),
    ]
}

/// Sixteen numbers of 16 bits from bytes.
#[target_feature(enable = "avx2")]
fn widen(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: the array is 16 bytes, and the load needs no alignment.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Sixteen bytes of saturated numbers.
#[target_feature(enable = "avx2")]
fn narrow(numbers: __m256i) -> __m128i {
    _mm_packus_epi16(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers))
}

/// `number · (1 + FRACTION / 2^16)`, rounded, without its whole part.
#[target_feature(enable = "avx2")]
fn fraction<const FRACTION: i32>(number: __m256i) -> __m256i {
    // The high half of twice the number has one more bit, for rounding.
    let doubled = _mm256_add_epi16(number, number);
    let high = _mm256_mulhi_epi16(doubled, _mm256_set1_epi16(FRACTION as i16));
    _mm256_srai_epi16::<1>(_mm256_add_epi16(high, _mm256_set1_epi16(1)))
}

/// Sixteen pixels: their reds, greens and blues.
#[target_feature(enable = "avx2")]
fn convert_16(luma: &[u8; 16], blue: &[u8; 16], red: &[u8; 16]) -> [__m128i; 3] {
    const GREEN: i32 = -fixed(0.344_14) & 0xffff | fixed(1.0 - 0.714_14) << 16;
    let (luma, middle) = (widen(luma), _mm256_set1_epi16(128));
    let (blue, red) = (_mm256_sub_epi16(widen(blue), middle), _mm256_sub_epi16(widen(red), middle));
    // 1.402 is 1 plus a fraction; 1.772 is 2 minus a fraction.
    let to_red = _mm256_add_epi16(red, fraction::<{ fixed(0.402) }>(red));
    let to_blue =
        _mm256_add_epi16(_mm256_add_epi16(blue, blue), fraction::<{ -fixed(0.228) }>(blue));
    let (half, weights) = (_mm256_set1_epi32(1 << 15), _mm256_set1_epi32(GREEN));
    let sum =
        |pairs| _mm256_srai_epi32::<16>(_mm256_add_epi32(_mm256_madd_epi16(pairs, weights), half));
    // Unpacking and packing both work within halves, so the order is preserved.
    let (low, high) = (_mm256_unpacklo_epi16(blue, red), _mm256_unpackhi_epi16(blue, red));
    let to_green = _mm256_sub_epi16(_mm256_packs_epi32(sum(low), sum(high)), red);
    [to_red, to_green, to_blue].map(|offset| narrow(_mm256_add_epi16(luma, offset)))
}

/// Writes sixteen pixels.
#[target_feature(enable = "avx2")]
fn interleave<const BYTES: usize>([red, green, blue]: [__m128i; 3], out: &mut [u8]) {
    let store = |at: usize, bytes: __m128i, out: &mut [u8]| {
        let Some(place) = out[at * 16..].first_chunk_mut::<16>() else { return };
        // SAFETY: the array is 16 bytes, and the store needs no alignment.
        unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), bytes) };
    };
    if BYTES == 4 {
        let opaque = _mm_set1_epi8(-1);
        let (low, high) = (_mm_unpacklo_epi8(red, green), _mm_unpackhi_epi8(red, green));
        let (low2, high2) = (_mm_unpacklo_epi8(blue, opaque), _mm_unpackhi_epi8(blue, opaque));
        store(0, _mm_unpacklo_epi16(low, low2), out);
        store(1, _mm_unpackhi_epi16(low, low2), out);
        store(2, _mm_unpacklo_epi16(high, high2), out);
        store(3, _mm_unpackhi_epi16(high, high2), out);
        return;
    }
    for (part, places) in PLACES.iter().enumerate() {
        let take = |colour: usize, from: __m128i| {
            let places: &[u8; 16] = &places[colour];
            // SAFETY: the array is 16 bytes, and the load needs no alignment.
            _mm_shuffle_epi8(from, unsafe { _mm_loadu_si128(places.as_ptr().cast()) })
        };
        let bytes = _mm_or_si128(_mm_or_si128(take(0, red), take(1, green)), take(2, blue));
        store(part, bytes, out);
    }
}

/// For each of the 48 bytes of sixteen pixels, in three parts, and each colour: the index of its byte; 128: none.
const PLACES: [[[u8; 16]; 3]; 3] = {
    let mut places = [[[128; 16]; 3]; 3];
    let mut byte = 0;
    while byte < 48 {
        places[byte / 16][byte % 3][byte % 16] = (byte / 3) as u8;
        byte += 1;
    }
    places
};

#[target_feature(enable = "avx2")]
pub(super) fn to_rgb<const BYTES: usize>(luma: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
    let (lumas, luma_rest) = luma.as_chunks::<16>();
    let (blues, blue_rest) = blue.as_chunks::<16>();
    let (reds, red_rest) = red.as_chunks::<16>();
    let (many, rest) = out.split_at_mut(lumas.len() * 16 * BYTES);
    let parts = lumas.iter().zip(blues).zip(reds).zip(many.chunks_exact_mut(16 * BYTES));
    for (((luma, blue), red), out) in parts {
        interleave::<BYTES>(convert_16(luma, blue, red), out);
    }
    let pixels = luma_rest.iter().zip(blue_rest).zip(red_rest).zip(rest.chunks_exact_mut(BYTES));
    for (((luma, blue), red), out) in pixels {
        out[..3].copy_from_slice(&convert(*luma, *blue, *red));
        out[3..].fill(255);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn to_rgb_rows(luma: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
    let (reds, rest) = out.split_at_mut(luma.len());
    let (greens, blues) = rest.split_at_mut(luma.len());
    let chunks = |samples| <[u8]>::as_chunks::<16>(samples);
    let ((lumas, luma), (from_blues, blue), (from_reds, red)) =
        (chunks(luma), chunks(blue), chunks(red));
    let (reds, last_reds) = reds.as_chunks_mut::<16>();
    let (greens, last_greens) = greens.as_chunks_mut::<16>();
    let (blues, last_blues) = blues.as_chunks_mut::<16>();
    let from = lumas.iter().zip(from_blues).zip(from_reds);
    for (((luma, blue), red), out) in from.zip(reds.iter_mut().zip(greens).zip(blues)) {
        let ((reds, greens), blues) = out;
        for (colour, place) in convert_16(luma, blue, red).into_iter().zip([reds, greens, blues]) {
            // SAFETY: the array is 16 bytes, and the store needs no alignment.
            unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), colour) };
        }
    }
    let from = luma.iter().zip(blue).zip(red);
    for (((luma, blue), red), out) in
        from.zip(last_reds.iter_mut().zip(last_greens).zip(last_blues))
    {
        let ((last_red, last_green), last_blue) = out;
        [*last_red, *last_green, *last_blue] = convert(*luma, *blue, *red);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn grey_to_rgb<const BYTES: usize>(luma: &[u8], out: &mut [u8]) {
    for (luma, out) in luma.iter().zip(out.chunks_exact_mut(BYTES)) {
        out[..3].fill(*luma);
        out[3..].fill(255);
    }
}

#[cfg(test)]
mod tests {
    use super::convert;
    use crate::simd::Simd;

    #[test]
    fn vectors_convert_every_colour_like_single_pixels() {
        let Some(simd) = Simd::detect() else { return };
        for blue in 0..=255 {
            let red: Vec<u8> = (0..=255).collect();
            for luma in (0..=255).step_by(5) {
                let (lumas, blues) = (vec![luma; 256], vec![blue; 256]);
                let (mut rgb, mut rgba) = (vec![0; 768], vec![0; 1024]);
                let mut rows = vec![0; 768];
                simd.to_rgb_rows(&lumas, &blues, &red, &mut rows);
                assert!(
                    (0..768).all(|at| rows[at] == convert(luma, blue, red[at % 256])[at / 256])
                );
                simd.to_rgb::<3>(&lumas, &blues, &red, &mut rgb);
                simd.to_rgb::<4>(&lumas, &blues, &red, &mut rgba);
                for ((red, rgb), rgba) in red.iter().zip(rgb.chunks(3)).zip(rgba.chunks(4)) {
                    let expected = convert(luma, blue, *red);
                    assert_eq!((rgb, &rgba[..3], rgba[3]), (&expected[..], &expected[..], 255));
                }
            }
        }
    }
}
