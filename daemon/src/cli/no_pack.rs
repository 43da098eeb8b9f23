//! Replaces `pack` in a build without it.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// Arguments of `forebay pack`.
#[derive(Debug, Args)]
pub(super) struct PackArguments {
    /// Not read: this program is built without `pack`.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `forebay pack`.
pub(super) fn pack(_arguments: &PackArguments) -> anyhow::Result<ExitCode> {
    bail!("this program is built without `pack`; install the package `forebay`, which has it")
}
