//! `forebay profile`: a flame graph of a running daemon's threads.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::output::print_line;
use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::observing::{MAX_PROFILE_HERTZ, Recording};

use super::flame::Stacks;
use super::trace::record;

/// Arguments of `forebay profile`.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    /// The daemon's socket; default: FOREBAY_SOCKET, else the only daemon of this user.
    #[arg(value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// How long to record, at most 60.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// Samples per second of CPU time, at most 1000.
    #[arg(long, default_value_t = 199)]
    hertz: u32,
    /// Show wall-clock time by stage, sleep included, instead of function samples.
    #[arg(long, conflicts_with = "hertz")]
    clock: bool,
    /// Output file: .svg for a flame graph, any other extension for folded stacks as text.
    #[arg(short, long, default_value = "flame.svg", value_name = "FILE")]
    output: PathBuf,
}

/// `forebay profile`.
pub fn profile(arguments: &ProfileArguments) -> anyhow::Result<ExitCode> {
    let hertz = if arguments.clock { 0 } else { arguments.hertz };
    if !arguments.clock && !(1..=MAX_PROFILE_HERTZ).contains(&hertz) {
        bail!("--hertz {hertz}: from 1 to {MAX_PROFILE_HERTZ}");
    }
    let text = record(arguments.socket.as_deref(), arguments.seconds, |milliseconds| {
        Recording::Profile { milliseconds, hertz }
    })?;
    let text = String::from_utf8(text).context("the daemon's recording")?;
    let stacks = Stacks::parse(&text);
    let path = &arguments.output;
    let is_picture = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    let written = if is_picture { stacks.svg() } else { text };
    std::fs::write(path, written).with_context(|| format!("{}: cannot write", path.display()))?;
    print_line(format_args!("{}: {}", path.display(), stacks.title))?;
    if stacks.total() == 0 {
        print_line("no samples: the daemon was idle")?;
    }
    Ok(ExitCode::SUCCESS)
}
