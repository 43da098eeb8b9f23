//! `forebay top`: a live view of a running daemon: throughput, wait, stages, ring, CPU, memory and problems.
//!
//! ```text
//!   watch     one thread per daemon: requests its report over one connection
//!   history   its recent reports; the current values are the mean of the last seconds
//!   snapshot  plain numbers and sentences of one daemon and session
//!   app       which daemons are watched, which one is chosen, keys
//!   screen    view (one, with its pipeline) or overview (all); parts
//!   terminal  configures and restores the terminal
//! ```
//! The daemon answers one `Stats` request per refresh, as for `forebay stats`; the rest runs in this process.

mod app;
mod history;
mod overview;
mod page;
mod parts;
mod pipeline;
mod screen;
mod snapshot;
mod terminal;
#[cfg(test)]
mod testing;
mod view;
mod watch;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;

use self::app::{App, Wanted};
use self::screen::{Screen, as_text};
use crate::output::print;

/// Arguments of `forebay top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// The daemons' sockets; default: FOREBAY_SOCKET, else all daemons of this user.
    #[arg(value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// Show one table of all ranks of this host; without SOCKET, of all daemons of this user.
    #[arg(long)]
    all: bool,
    /// Seconds between refreshes.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    every: Duration,
    /// Print one screen as plain text and exit; the default if the output is not a terminal.
    #[arg(long)]
    once: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    let seconds = seconds.ok_or("a number of seconds from 0.1 to 60: 0.5")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// The maximum time for which `--once` waits for daemons that do not respond.
const ONCE_DEADLINE: Duration = Duration::from_secs(5);
/// The minimum period that `--once` covers.
const ONCE_WINDOW: Duration = Duration::from_secs(1);
/// The size of the screen of `--once`.
const ONCE_COLUMNS: u16 = 80;
const ONCE_ROWS: u16 = 24;

/// `forebay top`.
pub fn top(arguments: &TopArguments) -> anyhow::Result<ExitCode> {
    let wanted = wanted(arguments);
    let is_once = arguments.once || !std::io::stdout().is_terminal();
    if is_once {
        let app = App::new(wanted, arguments.every.min(ONCE_WINDOW), arguments.all)?;
        print(once(app)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = terminal::signals_that_end()?;
    let mut app = App::new(wanted, arguments.every, arguments.all)?;
    terminal::show(&mut app, signals)?;
    Ok(ExitCode::SUCCESS)
}

fn wanted(arguments: &TopArguments) -> Wanted {
    let of_environment = std::env::var_os("FOREBAY_SOCKET").filter(|socket| !socket.is_empty());
    match of_environment {
        _ if !arguments.sockets.is_empty() => {
            Wanted::Named(arguments.sockets.iter().map(|socket| whole(socket)).collect())
        }
        Some(socket) if !arguments.all => Wanted::Named(vec![socket.into()]),
        _ => Wanted::Automatic,
    }
}

/// The absolute path of a socket's file; an abstract name unchanged.
fn whole(socket: &Path) -> PathBuf {
    if socket.as_os_str().as_encoded_bytes().starts_with(b"@") {
        return socket.to_owned();
    }
    std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned())
}

/// Prints one screen after every daemon has responded for a second or has timed out.
fn once(mut app: App) -> anyhow::Result<String> {
    let begin = Instant::now();
    let mut screen: Screen;
    loop {
        app.take_in()?;
        screen = app.screen();
        let is_settled = screen
            .snapshots
            .iter()
            .all(|snapshot| snapshot.figures.is_some() || snapshot.lost.is_some());
        let covered = begin.elapsed() >= ONCE_WINDOW + Duration::from_millis(200);
        if (is_settled && covered) || begin.elapsed() >= ONCE_DEADLINE {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let Some(snapshot) = screen
        .snapshots
        .iter()
        .find(|snapshot| snapshot.figures.is_some())
        .or(screen.snapshots.first())
    else {
        bail!("no running daemon of this user was found; give its socket");
    };
    if snapshot.figures.is_none() {
        let reason = snapshot.lost.as_ref().map_or("no answer", |(reason, _)| reason);
        bail!("{reason}");
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let rows =
        u16::try_from(screen.snapshots.len()).unwrap_or(u16::MAX).saturating_add(ONCE_ROWS - 8);
    let rows = if screen.is_overview { rows.max(ONCE_ROWS) } else { ONCE_ROWS };
    let text = as_text(&screen, columns.unwrap_or(ONCE_COLUMNS).clamp(40, 400), rows);
    // Omits the last line, which lists keys.
    let lines: Vec<&str> = text.lines().collect();
    let kept = lines.split_last().map_or("".to_owned(), |(_, lines)| lines.join("\n"));
    Ok(kept.trim_end().to_owned() + "\n")
}
