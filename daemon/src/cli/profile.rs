//! `forebay profile`: where the time of a running daemon's threads goes, as a flame graph.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::kept::read_kept;
use forebay_protocol::observing::Recording;

use super::flame::Stacks;
use super::observer::{Observer, the_socket};
use super::trace::in_milliseconds;
use crate::engine::MOST_HERTZ;

/// The largest text that is taken from a daemon.
const MOST_TEXT_BYTES: u64 = 64 << 20;

/// Arguments of `forebay profile`.
#[derive(Debug, Args)]
pub(super) struct ProfileArguments {
    /// The daemon's socket; left out: FOREBAY_SOCKET, else the only daemon of this user.
    #[arg(value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// How long to record, at most 60.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// Samples a second of processor time, at most 1000.
    #[arg(long, default_value_t = 199)]
    hertz: u32,
    /// Show the time on the clock by stage, sleep included, instead of samples of functions.
    #[arg(long, conflicts_with = "hertz")]
    clock: bool,
    /// The file to write, for a browser; with another ending than .svg the folded stacks as text.
    #[arg(short, long, default_value = "flame.svg", value_name = "FILE")]
    output: PathBuf,
}

/// `forebay profile`.
pub(super) fn profile(arguments: &ProfileArguments) -> anyhow::Result<ExitCode> {
    let milliseconds = in_milliseconds(arguments.seconds)?;
    let hertz = if arguments.clock { 0 } else { arguments.hertz };
    if !arguments.clock && !(1..=MOST_HERTZ).contains(&hertz) {
        bail!("--hertz {hertz}: from 1 to {MOST_HERTZ}");
    }
    let observer = Observer::connect(&the_socket(arguments.socket.as_deref())?)?;
    let takes = Duration::from_millis(milliseconds.into());
    let recorded = observer.record(Recording::Profile { milliseconds, hertz }, takes)?;
    let text = read_kept(recorded, MOST_TEXT_BYTES).context("the daemon's recording")?;
    let text = String::from_utf8(text).context("the daemon's recording")?;
    let stacks = Stacks::parse(&text);
    let path = &arguments.output;
    let is_picture = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    let written = if is_picture { stacks.svg() } else { text };
    std::fs::write(path, written).with_context(|| format!("{}: cannot write", path.display()))?;
    println!("{}: {}", path.display(), stacks.title);
    if stacks.total() == 0 {
        println!("nothing was seen: the daemon had nothing to do");
    }
    Ok(ExitCode::SUCCESS)
}
