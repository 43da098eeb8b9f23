//! The `forebay` program's commands. The parts that they start are crates of their own, in `crates/`.

#![deny(unsafe_code)]

pub mod cli;
#[doc(hidden)]
pub mod fuzzing;
