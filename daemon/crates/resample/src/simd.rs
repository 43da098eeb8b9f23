//! Weighted sums of many values at once.
//!
//! The only unsafe code of this crate. Its invariant: a [`Simd`] exists only on a processor with AVX2, and a [`Gather`]
//! has only offsets below its `width`, which `gather` compares with the planes that it reads. All other loads and
//! stores are of arrays of a register's size.

#![expect(
    unsafe_code,
    reason = "functions for processors with AVX2, and loads at offsets that were checked before"
)]

mod horizontal;
mod registers;
mod vertical;

use crate::axis::{Axis, Key};
use crate::request::Source;
pub(crate) use horizontal::Gather;
pub(crate) use registers::{Line, MOST_PAIRS, PLANE_SLACK};

/// Proof that the processor has AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simd(());

/// Calls a function that is compiled for the features that a [`Simd`] proves.
macro_rules! call {
    ($function:expr) => {
        // SAFETY: `detect` has seen that this processor has the feature; there is no other way to make a `Simd`.
        unsafe { $function }
    };
}

impl Simd {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// Computes an axis in code that is compiled for these features: it rounds without calls.
    pub(crate) fn make(self, axis: &mut Axis, key: Key) -> bool {
        #[target_feature(enable = "avx2")]
        fn inside(axis: &mut Axis, key: Key) -> bool {
            axis.make(key)
        }
        call!(inside(axis, key))
    }

    /// The weighted sum of rows of the source from the first one on, up to the length of `out`.
    pub(crate) fn weigh_rows(
        self,
        source: &Source<'_>,
        first: usize,
        weights: &[i16],
        precision: u32,
        out: &mut [u8],
    ) {
        call!(match weights.len() {
            0..=2 => vertical::weigh::<1>(source, first, weights, precision, out),
            3..=4 => vertical::weigh::<2>(source, first, weights, precision, out),
            5..=6 => vertical::weigh::<3>(source, first, weights, precision, out),
            _ => vertical::weigh::<MOST_PAIRS>(source, first, weights, precision, out),
        });
    }

    /// Separates the colours of interleaved pixels. `line` and the planes have room for a multiple of sixteen pixels.
    pub(crate) fn separate(self, line: &[u8], red: &mut [u8], green: &mut [u8], blue: &mut [u8]) {
        call!(horizontal::separate(line, [red, green, blue]));
    }

    /// Computes the results of one row.
    pub(crate) fn gather(self, gather: &Gather, planes: [&[u8]; 3], to: Line<'_>) {
        call!(gather.row(planes, to));
    }
}
