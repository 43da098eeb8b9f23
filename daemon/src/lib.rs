//! The `forebay` program's commands. The parts that they start are crates of their own, in `crates/`.

#![deny(unsafe_code)]
// It panics on a closed pipe: see `forebay_inspect::output`.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod cli;
#[doc(hidden)]
pub mod fuzzing;
