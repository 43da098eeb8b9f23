//! Crop, resize, flip and layout of images of 8-bit RGB, in one pass and without allocations: to the bit the pixels of
//! fast_image_resize's antialiased convolutions, whose arithmetic is that of Pillow-SIMD.
//!
//! Each row of the result is made at once, in memory that stays in the first-level cache: `vertical` weighs rows of the
//! source, `planes` separates the colours, `horizontal` weighs neighbours within each, 32 results at a time, and writes them
//! where they belong. `axis` has the weights; mirrored results are weights in another order.
//!
//! What it does not do is left to the caller and [`AnyResampler`], which gives the same pixels more slowly: see
//! [`Resampler::resample`]. Needs AVX2; elsewhere [`Resampler::new`] gives `None`.

// `simd` is the only module that allows it.
#![deny(unsafe_code)]

mod any;
mod request;

#[cfg(target_arch = "x86_64")]
mod axis;
#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod resampler;
#[cfg(target_arch = "x86_64")]
mod resampler;
#[cfg(target_arch = "x86_64")]
mod simd;

pub use any::{AnyResampler, Packed};
pub use request::{Filter, Form, Shown, Source, Target};
pub use resampler::Resampler;
