//! The C face of the Forebay client: `libforebay`. Its documentation for users is `include/forebay.h`.
//!
//! - [`loader`], [`batch`] and [`padded`]: the functions of the header, a thin layer over [`forebay_client`]; [`options`]: the
//!   options of a loader.
//! - [`registry`]: the objects behind handles. A handle is looked up, never dereferenced, so a handle that is null, stale
//!   or of another kind is an error.
//! - [`status`]: error codes, each thread's last error, and the guard that stops panics.
//! - [`text`]: strings in both directions.
//!
//! `unsafe` is confined to what the FFI needs: exported names, and access through the caller's pointers. The caller's
//! obligation, the same for every function, is in the header: a pointer is null or points to what the header says.

#![deny(unsafe_code)]

pub mod batch;
pub mod loader;
pub mod options;
pub mod padded;
mod registry;
pub mod status;
pub mod text;

#[cfg(test)]
mod header_tests;
