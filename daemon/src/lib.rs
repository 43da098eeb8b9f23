//! The commands of the `forebay` program. The crates in `crates/` implement the parts that the commands start.

#![deny(unsafe_code)]
// `println!` panics on a closed pipe: see `forebay_inspect::output`.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod cli;
#[doc(hidden)]
pub mod fuzzing;
