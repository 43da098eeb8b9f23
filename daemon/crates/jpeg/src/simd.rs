//! Operations on many samples at once: the inverse transform, the smoothing of chroma, the conversion to RGB.
//!
//! The only unsafe code of this crate: functions that are compiled for processors with AVX2 and BMI2. A [`Simd`] exists
//! only if the processor has both.

#![expect(unsafe_code, reason = "functions for processors with AVX2")]

mod colour;
mod idct;
mod smooth;

use crate::entropy::Block;
use crate::quantization::{Quantization, is_certain};
use crate::request::Unsure;

/// Proof that the processor has AVX2 and BMI2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simd(());

/// Code to be compiled for these features: the method must be marked `inline(always)`.
pub(crate) trait Work {
    /// Runs it.
    fn work(self) -> Result<(), Unsure>;
}

/// Calls a function that is compiled for the features that a [`Simd`] proves.
macro_rules! call {
    ($function:expr) => {
        // SAFETY: `detect` has seen that this processor has the features; there is no other way to make a `Simd`.
        unsafe { $function }
    };
}

impl Simd {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe");
        found.then_some(Self(()))
    }

    /// Runs work that is compiled for these features.
    pub(crate) fn run(self, work: impl Work) -> Result<(), Unsure> {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,movbe")]
        fn inside(work: impl Work) -> Result<(), Unsure> {
            work.work()
        }
        call!(inside(work))
    }

    /// A block of which only the first value is not zero.
    #[inline(always)]
    pub(crate) fn flat(self, first: i32, size: usize, samples: &mut [u8], stride: usize) -> bool {
        // The passes over rows and columns together divide it by 8, whatever the block's size.
        let value = ((first + 4) >> 3) + 128;
        let value = value.clamp(0, 255) as u8;
        for row in samples.chunks_mut(stride).take(size) {
            if let Some(row) = row.first_chunk_mut::<8>().filter(|_| size == 8) {
                *row = [value; 8];
            } else {
                row[..size].fill(value);
            }
        }
        is_certain(first)
    }

    /// Writes a block of 8x8 samples. `false`: libjpeg's transforms may differ.
    #[inline(always)]
    pub(crate) fn transform(
        self,
        block: &Block,
        quantization: &Quantization,
        last: usize,
        samples: &mut [u8],
        stride: usize,
    ) -> bool {
        call!(idct::transform(block, &quantization.0, last, samples, stride))
    }

    /// A row between two rows of samples, three parts of the near one.
    pub(crate) fn smooth_down(self, near: &[u8], far: &[u8], is_upper: bool, out: &mut [u8]) {
        call!(smooth::down(near, far, is_upper, out));
    }

    /// Three parts of the near row and one of the far one.
    pub(crate) fn sum_rows(self, near: &[u8], far: &[u8], sums: &mut [u16]) {
        call!(smooth::sum_rows(near, far, sums));
    }

    pub(crate) fn widen(self, samples: &[u8], sums: &mut [u16]) {
        call!(smooth::widen(samples, sums));
    }

    /// Two pixels for each sum except the first and the last. `of_rows`: the sums are of four samples.
    pub(crate) fn smooth_across(self, sums: &[u16], of_rows: bool, out: &mut [u8]) {
        if of_rows {
            call!(smooth::across::<8, 7, 4>(sums, out));
        } else {
            call!(smooth::across::<1, 2, 2>(sums, out));
        }
    }

    /// A row of pixels of `BYTES` bytes.
    pub(crate) fn to_rgb<const BYTES: usize>(
        self,
        luma: &[u8],
        blue: &[u8],
        red: &[u8],
        out: &mut [u8],
    ) {
        call!(colour::to_rgb::<BYTES>(luma, blue, red, out));
    }

    /// A row of reds, one of greens and one of blues.
    pub(crate) fn to_rgb_rows(self, luma: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
        call!(colour::to_rgb_rows(luma, blue, red, out));
    }

    pub(crate) fn grey_to_rgb<const BYTES: usize>(self, luma: &[u8], out: &mut [u8]) {
        call!(colour::grey_to_rgb::<BYTES>(luma, out));
    }
}
