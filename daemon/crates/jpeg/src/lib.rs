//! Decodes regions of baseline JPEG files, bit for bit as libjpeg-turbo's accurate path does, at up to twice its speed.
//!
//! The gain is in the blocks outside of the region: only their Huffman codes are followed, several per look-up, and no
//! coefficient is computed. With an [`Index`], which has positions of MCUs, most of these blocks are not read at all.
//! Files that are rare, damaged or in any doubt are not decoded: the caller passes them to libjpeg-turbo, which decides
//! what a file contains. So a result of this crate always equals libjpeg-turbo's.
//!
//! The stages of decoding: `markers` reads the headers, `scan` removes the stuffing from the entropy-coded data,
//! `huffman` builds or finds the tables, `entropy` decodes or skips blocks, `simd` transforms, smooths and converts,
//! and `rows` drives them, one row of MCUs at a time; `checkpoints` has what is learned on the way. References: ITU-T
//! T.81 for the format, libjpeg-turbo 3.1 for every rounding.
//!
//! Requires AVX2; on other processors [`Decoder::new`] returns `None`.

// `simd` is the only module that allows it.
#![deny(unsafe_code)]
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "fields are parts of look-ups and bits, pixels are parts of sums; their limits are documented"
    )
)]

#[cfg(not(target_arch = "x86_64"))]
#[path = "no_simd.rs"]
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

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
