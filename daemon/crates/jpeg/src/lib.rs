//! Decodes regions of baseline JPEG files, bit for bit as libjpeg-turbo's accurate path does, at up to twice its speed.
//!
//! The gain is in the blocks outside of the region: of those only the Huffman codes are followed, several at a look-up,
//! and no coefficient is made. Where an [`Index`] says at which bits they lie, most of them are not looked at either. Files that are rare, damaged or in any doubt are not decoded at all: [`Unsure`] says so, and
//! the caller gives them to libjpeg-turbo, which stays the judge of what a file contains. So a result of this crate is
//! always the one that libjpeg-turbo gives.
//!
//! The way of a file: `markers` reads its headers, `scan` takes the stuffing out of its entropy-coded data, `huffman` makes
//! or finds the tables, `entropy` decodes or skips blocks, `simd` transforms, smooths and converts, and `rows` drives them
//! one row of MCUs after the other; `checkpoints` is what is learned on the way. References: ITU-T T.81 for the format, libjpeg-turbo 3.1 for every rounding.
//!
//! Needs AVX2; elsewhere [`Decoder::new`] gives `None`.

// `simd` is the only module that allows it.
#![deny(unsafe_code)]
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "fields are cut out of look-ups and bits, pixels out of sums; their limits stand beside them"
    )
)]

#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod decoder;
mod request;

#[cfg(target_arch = "x86_64")]
mod bits;
#[cfg(target_arch = "x86_64")]
mod checkpoints;
#[cfg(target_arch = "x86_64")]
mod decoder;
#[cfg(target_arch = "x86_64")]
mod entropy;
#[cfg(target_arch = "x86_64")]
mod huffman;
#[cfg(target_arch = "x86_64")]
mod layout;
#[cfg(target_arch = "x86_64")]
mod markers;
#[cfg(target_arch = "x86_64")]
mod quantization;
#[cfg(target_arch = "x86_64")]
mod reduced;
#[cfg(target_arch = "x86_64")]
mod rows;
#[cfg(target_arch = "x86_64")]
mod scan;
#[cfg(target_arch = "x86_64")]
mod simd;

pub use decoder::Decoder;
pub use request::{Index, Learned, Pixels, Region, Scale, Unsure};
