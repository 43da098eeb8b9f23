//! Replaces `keys` in a build without `feed`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// Arguments of `forebay keys`.
#[derive(Debug, Args)]
pub(super) struct KeysArguments {
    /// Not read: this program is built without `feed`.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `forebay keys`.
pub(super) fn keys(_arguments: &KeysArguments) -> anyhow::Result<ExitCode> {
    bail!("this program is built without `feed`; install the package `forebay`, which has it")
}
