//! Interpolation of chroma: libjpeg's triangle filter (jdsample.c). The compiler vectorises these loops.

#[target_feature(enable = "avx2")]
pub(super) fn down(near: &[u8], far: &[u8], is_upper: bool, out: &mut [u8]) {
    let bias = if is_upper { 1 } else { 2 };
    for ((near, far), out) in near.iter().zip(far).zip(out) {
        *out = ((u16::from(*near) * 3 + u16::from(*far) + bias) >> 2) as u8;
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn sum_rows(near: &[u8], far: &[u8], sums: &mut [u16]) {
    for ((near, far), sum) in near.iter().zip(far).zip(sums) {
        *sum = u16::from(*near) * 3 + u16::from(*far);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn widen(samples: &[u8], sums: &mut [u16]) {
    for (sample, sum) in samples.iter().zip(sums) {
        *sum = u16::from(*sample);
    }
}

/// A pixel to the left of each sum and one to its right.
#[target_feature(enable = "avx2")]
pub(super) fn across<const LEFT: u16, const RIGHT: u16, const BITS: u32>(
    sums: &[u16],
    out: &mut [u8],
) {
    let Some(count) = sums.len().checked_sub(2) else { return };
    let (before, this, after) = (&sums[..count], &sums[1..=count], &sums[2..]);
    let pairs = out.as_chunks_mut::<2>().0;
    for (((before, this), after), pair) in before.iter().zip(this).zip(after).zip(pairs) {
        *pair = [
            ((this * 3 + before + LEFT) >> BITS) as u8,
            ((this * 3 + after + RIGHT) >> BITS) as u8,
        ];
    }
}
