//! Replaces `top` in a build without it.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// Arguments of `forebay top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// Not read: this program is built without `tui`.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `forebay top`.
///
/// # Errors
/// This build does not include the command.
pub fn top(_arguments: &TopArguments) -> anyhow::Result<ExitCode> {
    bail!(
        "this program is built without `tui`, which `top` needs; `forebay stats` prints the same figures once"
    )
}
