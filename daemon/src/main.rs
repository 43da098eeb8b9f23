//! The `forebay` program. See [`crate::cli`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay::cli::main()
}
