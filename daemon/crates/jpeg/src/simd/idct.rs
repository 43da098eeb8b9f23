//! The accurate inverse transform of 8x8 coefficients: Loeffler, Ligtenberg and Moschytz (ICASSP 1989), in 13-bit fixed
//! point like libjpeg-turbo's vectors (jidctint), including the saturations between its two passes.

use std::arch::x86_64::*;

use crate::entropy::Block;
use crate::quantization::LARGEST;

const CONSTANT_BITS: i32 = 13;
const KEPT_BITS: i32 = 2;

/// A constant of the transform in fixed point.
const fn fixed(value: f64) -> i32 {
    (value * (1 << CONSTANT_BITS) as f64 + 0.5) as i32
}

const C0_298: i32 = fixed(0.298_631_336);
const C0_390: i32 = fixed(0.390_180_644);
const C0_541: i32 = fixed(0.541_196_100);
const C0_765: i32 = fixed(0.765_366_865);
const C0_899: i32 = fixed(0.899_976_223);
const C1_175: i32 = fixed(1.175_875_602);
const C1_501: i32 = fixed(1.501_321_110);
const C1_847: i32 = fixed(1.847_759_065);
const C1_961: i32 = fixed(1.961_570_560);
const C2_053: i32 = fixed(2.053_119_869);
const C2_562: i32 = fixed(2.562_915_447);
const C3_072: i32 = fixed(3.072_711_026);

/// Eight rows or columns of eight numbers: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
type Lines = [__m256i; 4];

/// Interleaves the low halves of both lanes as numbers of 16 bits: `a0 b0 a1 b1 …` if `lines` is `a | b`.
#[target_feature(enable = "avx2")]
fn pairs(lines: __m256i) -> __m256i {
    interleave(_mm256_permute4x64_epi64::<0b11_01_10_00>(lines))
}

/// As [`pairs`], if each lane has four numbers of `a` and four of `b`.
#[target_feature(enable = "avx2")]
fn interleave(halves: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, //
        0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,
    );
    _mm256_shuffle_epi8(halves, order)
}

/// `first · A + second · B` of each pair.
#[target_feature(enable = "avx2")]
fn weigh<const A: i32, const B: i32>(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi32(A & 0xffff | B << 16))
}

/// Drops `BITS` bits and saturates to 16: eight numbers of two lines, four of each in a lane.
#[target_feature(enable = "avx2")]
fn descale<const BITS: i32>(first: __m256i, second: __m256i) -> __m256i {
    _mm256_packs_epi32(_mm256_srai_epi32::<BITS>(first), _mm256_srai_epi32::<BITS>(second))
}

/// Sums and differences of the even and the odd results, scaled down: lines 0 and 1, 2 and 3, 4 and 5, 6 and 7.
#[target_feature(enable = "avx2")]
fn finish<const BITS: i32>(even: [__m256i; 4], odd: [__m256i; 4]) -> [__m256i; 4] {
    let round = _mm256_set1_epi32(1 << (BITS - 1));
    let even = even.map(|even| _mm256_add_epi32(even, round));
    let sum = |at: usize| _mm256_add_epi32(even[at], odd[at]);
    let difference = |at: usize| _mm256_sub_epi32(even[at], odd[at]);
    [
        descale::<BITS>(sum(0), sum(1)),
        descale::<BITS>(sum(2), sum(3)),
        descale::<BITS>(difference(3), difference(2)),
        descale::<BITS>(difference(1), difference(0)),
    ]
}

/// One pass over eight lines.
#[target_feature(enable = "avx2")]
fn pass<const BITS: i32>([in04, in15, in26, in37]: Lines) -> [__m256i; 4] {
    let even = pairs(in26);
    let tmp3 = weigh::<{ C0_541 + C0_765 }, C0_541>(even);
    let tmp2 = weigh::<C0_541, { C0_541 - C1_847 }>(even);
    let (in0, in4) = (_mm256_castsi256_si128(in04), _mm256_extracti128_si256::<1>(in04));
    let wide = |sums| _mm256_slli_epi32::<CONSTANT_BITS>(_mm256_cvtepi16_epi32(sums));
    let (tmp0, tmp1) = (wide(_mm_add_epi16(in0, in4)), wide(_mm_sub_epi16(in0, in4)));
    let even = [
        _mm256_add_epi32(tmp0, tmp3),
        _mm256_add_epi32(tmp1, tmp2),
        _mm256_sub_epi32(tmp1, tmp2),
        _mm256_sub_epi32(tmp0, tmp3),
    ];

    let in15 = _mm256_permute4x64_epi64::<0b11_01_10_00>(in15);
    let in37 = _mm256_permute4x64_epi64::<0b11_01_10_00>(in37);
    // 1 and 7; 5 and 3.
    let outer = _mm256_blend_epi32::<0b1100_1100>(in15, in37);
    let inner =
        _mm256_shuffle_epi32::<0b01_00_11_10>(_mm256_blend_epi32::<0b0011_0011>(in15, in37));
    // 1 + 5 and 7 + 3.
    let sums = interleave(_mm256_add_epi16(outer, inner));
    let (outer, inner) = (interleave(outer), interleave(inner));
    let z3 = weigh::<C1_175, { C1_175 - C1_961 }>(sums);
    let z4 = weigh::<{ C1_175 - C0_390 }, C1_175>(sums);
    let odd = [
        _mm256_add_epi32(weigh::<{ C1_501 - C0_899 }, { -C0_899 }>(outer), z4),
        _mm256_add_epi32(weigh::<{ -C2_562 }, { C3_072 - C2_562 }>(inner), z3),
        _mm256_add_epi32(weigh::<{ C2_053 - C2_562 }, { -C2_562 }>(inner), z4),
        _mm256_add_epi32(weigh::<{ -C0_899 }, { C0_298 - C0_899 }>(outer), z3),
    ];
    finish::<BITS>(even, odd)
}

/// As [`pass`], if lines 4 to 7 are zero: all values are sums of two products, with equal results.
#[target_feature(enable = "avx2")]
fn short_pass<const BITS: i32>(in02: __m256i, in13: __m256i) -> [__m256i; 4] {
    const ONE: i32 = 1 << CONSTANT_BITS;
    let (even, odd) = (pairs(in02), pairs(in13));
    let even = [
        weigh::<ONE, { C0_541 + C0_765 }>(even),
        weigh::<ONE, C0_541>(even),
        weigh::<ONE, { -C0_541 }>(even),
        weigh::<ONE, { -C0_541 - C0_765 }>(even),
    ];
    let odd = [
        weigh::<{ C1_175 - C0_390 + C1_501 - C0_899 }, C1_175>(odd),
        weigh::<C1_175, { C1_175 - C1_961 + C3_072 - C2_562 }>(odd),
        weigh::<{ C1_175 - C0_390 }, { C1_175 - C2_562 }>(odd),
        weigh::<{ C1_175 - C0_899 }, { C1_175 - C1_961 }>(odd),
    ];
    finish::<BITS>(even, odd)
}

/// Transposes lines 0 and 1, 2 and 3, 4 and 5, 6 and 7, with four numbers of each in a lane.
#[target_feature(enable = "avx2")]
fn transpose(lines: [__m256i; 4]) -> Lines {
    let [l01, l23, l45, l67] = lines.map(|line| interleave(line));
    let (a, b) = (_mm256_unpacklo_epi32(l01, l23), _mm256_unpackhi_epi32(l01, l23));
    let (c, d) = (_mm256_unpacklo_epi32(l45, l67), _mm256_unpackhi_epi32(l45, l67));
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}

/// Coefficients times their factors, and non-zero bits if a product exceeds [`LARGEST`].
#[target_feature(enable = "avx2")]
fn dequantize(block: &Rows, factors: &Rows, first: usize, second: usize) -> (__m256i, __m256i) {
    let load = |rows: &Rows| {
        // SAFETY: each row is 16 bytes, and the loads need no alignment.
        let [first, second] =
            [first, second].map(|row| unsafe { _mm_loadu_si128(rows[row].as_ptr().cast()) });
        _mm256_set_m128i(second, first)
    };
    let (block, factors) = (load(block), load(factors));
    let product = _mm256_mullo_epi16(block, factors);
    let high = _mm256_mulhi_epi16(block, factors);
    // The high half equals the low half's sign if the product fits into 16 bits.
    let wrapped = _mm256_xor_si256(high, _mm256_srai_epi16::<15>(product));
    let limit = _mm256_set1_epi16(LARGEST as i16 + 1);
    let large = _mm256_srli_epi16::<14>(_mm256_add_epi16(product, limit));
    (product, _mm256_or_si256(wrapped, large))
}

/// Rows of coefficients.
type Rows = [[i16; 8]; 8];

/// Up to this zigzag position all coefficients are in the first four rows and columns.
const LAST_OF_FOUR: usize = 9;

/// Writes the samples of a block, whose coefficients after the zigzag position `last` are zero: eight bytes of eight
/// rows. `false`: a value exceeds [`LARGEST`].
#[target_feature(enable = "avx2")]
pub(super) fn transform(
    block: &Block,
    factors: &[i16; 64],
    last: usize,
    samples: &mut [u8],
    stride: usize,
) -> bool {
    const FIRST: i32 = CONSTANT_BITS - KEPT_BITS;
    const SECOND: i32 = CONSTANT_BITS + KEPT_BITS + 3;
    let (Some(block), Some(factors)) =
        (block.as_chunks::<8>().0.first_chunk(), factors.as_chunks::<8>().0.first_chunk())
    else {
        return false;
    };
    let (values, wrong) = if last <= LAST_OF_FOUR {
        let (in02, w0) = dequantize(block, factors, 0, 2);
        let (in13, w1) = dequantize(block, factors, 1, 3);
        let [c04, c15, c26, c37] = transpose(short_pass::<FIRST>(in02, in13));
        let halves = |low, high| _mm256_permute2x128_si256::<0x20>(low, high);
        let values = short_pass::<SECOND>(halves(c04, c26), halves(c15, c37));
        (values, _mm256_or_si256(w0, w1))
    } else {
        let [(in04, w0), (in15, w1), (in26, w2), (in37, w3)] =
            std::array::from_fn(|row| dequantize(block, factors, row, row + 4));
        let wrong = _mm256_or_si256(_mm256_or_si256(w0, w1), _mm256_or_si256(w2, w3));
        let values = pass::<SECOND>(transpose(pass::<FIRST>([in04, in15, in26, in37])));
        (values, wrong)
    };
    let [r04, r15, r26, r37] = transpose(values);
    let Some(samples) = samples.get_mut(..7 * stride + 8) else { return false };
    for (two, row) in [(r04, r15), (r26, r37)].into_iter().zip([0, 2]) {
        let both = _mm256_xor_si256(_mm256_packs_epi16(two.0, two.1), _mm256_set1_epi8(-128));
        let (upper, lower) = (_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
        let mut write = |row: usize, eight: i64| {
            samples[row * stride..][..8].copy_from_slice(&eight.to_le_bytes());
        };
        write(row, _mm_cvtsi128_si64(upper));
        write(row + 1, _mm_extract_epi64::<1>(upper));
        write(row + 4, _mm_cvtsi128_si64(lower));
        write(row + 5, _mm_extract_epi64::<1>(lower));
    }
    _mm256_testz_si256(wrong, wrong) == 1
}
