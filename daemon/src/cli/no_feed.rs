//! Replaces `feed` in a build without that feature.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

/// Arguments of `forebay feed`.
#[derive(Debug, Args)]
pub(super) struct FeedArguments {
    /// Not read: this program is built without `feed`.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `forebay feed`.
pub(super) fn feed(_arguments: &FeedArguments) -> anyhow::Result<ExitCode> {
    bail!("this program is built without `feed`; install the package `forebay`, which has it")
}
