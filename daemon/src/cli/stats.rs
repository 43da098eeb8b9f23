//! `forebay stats`: a running daemon's figures, for a person or as JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::frames::{ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::socket::{Connection, Incoming};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::table::{columns, percent, time};
use crate::engine::in_words;
use crate::observe::{DaemonReport, QuietItem, SessionReport, StageReport};
use crate::publish::find_sockets;

/// How long a daemon may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Arguments of `forebay stats`.
#[derive(Debug, Args)]
pub(super) struct StatsArguments {
    /// The daemon's socket; left out: FOREBAY_SOCKET, else the only daemon of this user.
    #[arg(value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// `forebay stats`.
pub(super) fn stats(arguments: &StatsArguments) -> anyhow::Result<ExitCode> {
    let socket = match &arguments.socket {
        Some(socket) => socket.clone(),
        None => the_socket()?,
    };
    let text =
        ask(&socket).with_context(|| format!("asking the daemon at {}", socket.display()))?;
    if arguments.json {
        println!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let report: DaemonReport =
        serde_json::from_str(&text).context("the daemon is of another release")?;
    print!("{}", describe(&report));
    Ok(ExitCode::SUCCESS)
}

fn the_socket() -> anyhow::Result<PathBuf> {
    if let Some(socket) = std::env::var_os("FOREBAY_SOCKET").filter(|socket| !socket.is_empty()) {
        return Ok(socket.into());
    }
    let mut found = find_sockets();
    match found.len() {
        0 => bail!("no daemon of this user listens at an automatic socket; name its socket"),
        1 => Ok(found.remove(0)),
        _ => {
            let list: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            bail!("several daemons run; name one: {}", list.join(" "))
        }
    }
}

fn ask(socket: &Path) -> anyhow::Result<String> {
    let connection = Connection::connect(socket)?;
    let release = env!("CARGO_PKG_VERSION").to_owned();
    connection.send(&ClientFrame::Hello { protocol: PROTOCOL_VERSION, release }, &[])?;
    connection.send(&ClientFrame::Stats, &[])?;
    let deadline = Instant::now() + ANSWER_DEADLINE;
    let mut text = String::new();
    loop {
        match connection.receive::<DaemonFrame>()? {
            Incoming::Frame(DaemonFrame::StatsPart { last, text: part }, _) => {
                text.push_str(&part);
                if last {
                    return Ok(text);
                }
            }
            Incoming::Frame(DaemonFrame::Fault(fault), _) => bail!(fault.message),
            Incoming::Frame(..) | Incoming::Doorbell => {}
            Incoming::Empty => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    bail!("no answer within {} s", ANSWER_DEADLINE.as_secs());
                }
                let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                let descriptor = std::os::fd::AsFd::as_fd(&connection);
                poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], timeout)?;
            }
        }
    }
}

fn describe(report: &DaemonReport) -> String {
    let mut text = format!(
        "forebay {}, process {}: {} work threads, {:.1} s of CPU, {} resident ({} without rings)\n",
        report.release,
        report.pid,
        report.threads,
        report.cpu_seconds,
        in_words(report.resident_bytes),
        in_words(report.private_bytes),
    );
    for stream in &report.streams {
        text.push_str(&format!("\nstream {}\n{}", stream.name, stage_table(&stream.stages)));
        if let Some(list) = &stream.quarantine {
            text.push_str(&format!("bad samples are listed in {}", list.path));
            if list.samples_lost > 0 {
                text.push_str(&format!(" ({} could not be)", list.samples_lost));
            }
            text.push('\n');
        }
        for stage in stream.stages.iter().filter(|stage| !stage.concurrency_reason.is_empty()) {
            text.push_str(&format!("  {}: {}\n", stage.name, stage.concurrency_reason));
        }
    }
    for session in &report.sessions {
        text.push_str(&describe_session(session));
    }
    text.push_str("\nquiet\n");
    for line in quiet_lines(&report.quiet) {
        text.push_str(&format!("  {line}\n"));
    }
    for stall in &report.stalls {
        text.push_str(&format!("\nstalled: {}\n", stall.sentence));
    }
    text.push_str(&format!("\n{}\n", report.verdict.sentence));
    text
}

/// What is in force and what could not be had, a line each.
pub(super) fn quiet_lines(items: &[QuietItem]) -> impl Iterator<Item = String> {
    items.iter().map(|item| {
        let mark = if item.in_force { ' ' } else { '!' };
        let remedy = item.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        format!("{mark} {:<14}{}{remedy}", item.name, item.state)
    })
}

fn describe_session(session: &SessionReport) -> String {
    let mut text = format!(
        "\nsession {}: {} as rank {} of {}, {} batches taken of {} published; the trainer waited {} of {}\n  \
         slots: {} free, {} filling, {} ready, {} leased\n",
        session.session,
        session.stream,
        session.rank,
        session.world_size,
        session.batches_taken,
        session.batches_published,
        time(session.wait_seconds),
        time(session.seconds),
        session.slots_free,
        session.slots_filling,
        session.slots_ready,
        session.slots_leased,
    );
    for one in &session.substituted {
        text.push_str(&format!(
            "  epoch {}: sample {} took the place of {} ({}: {})\n",
            one.epoch, one.substitute, one.sample, one.path, one.reason
        ));
    }
    text
}

/// The stages with the queue after each.
pub(super) fn stage_table(stages: &[StageReport]) -> String {
    let rows: Vec<Vec<String>> = stages
        .iter()
        .map(|stage| {
            let queue = stage.queue.as_ref();
            let shown =
                |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(String::new, show);
            vec![
                stage.name.clone(),
                stage.concurrency.to_string(),
                stage.num_tasks.to_string(),
                stage.num_failures.to_string(),
                time(stage.ave_time),
                time(stage.p90_time),
                time(stage.p99_time),
                shown(queue.map(|queue| queue.ave_put_time), time),
                shown(queue.map(|queue| queue.ave_get_time), time),
                shown(queue.map(|queue| queue.occupancy_rate), percent),
            ]
        })
        .collect();
    let header = [
        "stage",
        "at once",
        "tasks",
        "failed",
        "mean",
        "p90",
        "p99",
        "put wait",
        "get wait",
        "occupancy",
    ];
    columns(&header, &rows)
}
