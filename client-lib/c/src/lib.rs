//! The C face of the Forebay client: `libforebay`. Its documentation for users is `include/forebay.h`.
//!
//! - [`loader`] and [`batch`]: the functions of the header, a thin layer over [`forebay_client`]; [`options`]: what a loader
//!   is opened with.
//! - [`registry`]: what handles stand for. A handle is looked up, never followed, so one that is null, old or of the other
//!   kind is an error.
//! - [`status`]: error codes, each thread's last error, and the border that no panic crosses.
//! - [`text`]: strings that come in, and texts that go out.
//!
//! `unsafe` is what the border takes: exported names, and reading and writing where the caller points. The caller's part of
//! the bargain, the same for every function, is in the header: a pointer is null or points to what the header says.

#![deny(unsafe_code)]

pub mod batch;
pub mod loader;
pub mod options;
mod registry;
pub mod status;
pub mod text;

#[cfg(test)]
mod header_tests;
