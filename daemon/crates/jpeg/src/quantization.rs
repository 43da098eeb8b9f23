//! Quantization tables, and the limit of the products.

use crate::entropy::ZIGZAG;

/// Past this limit libjpeg-turbo's transform wraps if all other coefficients are zero, and saturates otherwise.
pub(crate) const LARGEST: i32 = 8191;

/// Factors of the coefficients, row by row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantization(pub [i16; 64]);

impl Quantization {
    /// From a file's table, in zigzag order.
    pub(crate) fn new(table: &[u8; 64]) -> Self {
        let mut factors = [0; 64];
        for (factor, place) in table.iter().zip(ZIGZAG) {
            factors[usize::from(place)] = i16::from(*factor);
        }
        Self(factors)
    }

    /// The first coefficient of a block times its factor.
    #[inline(always)]
    pub(crate) fn first(&self, coefficient: i16) -> i32 {
        i32::from(coefficient) * i32::from(self.0[0])
    }
}

/// Whether libjpeg's transforms agree about a value.
#[inline(always)]
pub(crate) fn is_certain(value: i32) -> bool {
    (-LARGEST - 1..=LARGEST).contains(&value)
}

/// As [`is_certain`], for the transform to a single sample, which does not use vectors: libjpeg's table of samples
/// repeats past this limit.
#[inline(always)]
pub(crate) fn is_certain_alone(value: i32) -> bool {
    (-512..512).contains(&((value + 4) >> 3))
}
