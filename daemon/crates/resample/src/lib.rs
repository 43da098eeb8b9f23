//! Crop, resize, flip and layout of images of 8-bit RGB, in one pass and without allocations: pixels are bit for bit
//! those of fast_image_resize's antialiased convolutions, whose arithmetic equals Pillow-SIMD's.
//!
//! Each row of the result is computed at once, in memory that stays in the first-level cache: `vertical` computes
//! weighted sums of the source's rows, `planes` separates the colours, `horizontal` computes weighted sums of
//! neighbours within each, 32 results at a time, and writes them to their destination. `axis` has the weights; mirrored
//! results are weights in another order.
//!
//! Unsupported cases are left to the caller and [`AnyResampler`], which gives the same pixels more slowly: see
//! [`Resampler::resample`]. Requires AVX2; on other processors [`Resampler::new`] returns `None`.
//!
//! [`PillowResampler`] gives the pixels of Pillow itself, for results that must equal a reference's.

// `simd` is the only module that allows it.
#![deny(unsafe_code)]

mod any;
mod pillow;
mod request;

#[cfg(target_arch = "x86_64")]
mod axis;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_simd.rs"]
mod resampler;
#[cfg(target_arch = "x86_64")]
mod resampler;
#[cfg(target_arch = "x86_64")]
mod simd;

pub use any::{AnyResampler, Packed};
pub use pillow::PillowResampler;
pub use request::{Filter, Form, Shown, Source, Target};
pub use resampler::Resampler;

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
