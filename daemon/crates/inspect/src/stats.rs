//! `forebay stats`: a running daemon's statistics, as text or JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::observer::{Observer, the_sockets};
use super::table::{columns, percent, time};
use crate::output::print;
use forebay_observe::format_bytes;
use forebay_observe::{
    DaemonReport, DatasetReport, IsolationItem, SessionReport, StageReport, Verdict,
};

/// Arguments of `forebay stats`.
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The daemons' sockets; default: FOREBAY_SOCKET, else all daemons of this user.
    #[arg(value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// Print one JSON object for each daemon, one a line.
    #[arg(long)]
    json: bool,
}

/// `forebay stats`.
pub fn stats(arguments: &StatsArguments) -> anyhow::Result<ExitCode> {
    let sockets = the_sockets(&arguments.sockets)?;
    let mut failed = None;
    for (number, socket) in sockets.iter().enumerate() {
        // A daemon that has just ended does not hide the others.
        match statistics_of(socket, arguments.json) {
            Ok(text) if arguments.json || sockets.len() == 1 => print(text)?,
            Ok(text) => {
                let gap = if number == 0 { "" } else { "\n" };
                print(format!("{gap}daemon at {}\n{text}", socket.display()))?;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn statistics_of(socket: &Path, json: bool) -> anyhow::Result<String> {
    let observer = Observer::connect(socket)?;
    if json { Ok(observer.stats_text()? + "\n") } else { Ok(describe(&observer.stats()?)) }
}

fn describe(report: &DaemonReport) -> String {
    let mut text = format!(
        "forebay {}, process {}: {} work threads, {:.1} s of CPU{}, {} resident ({} without rings)\n",
        report.release,
        report.pid,
        report.threads,
        report.cpu_seconds,
        python_cpu(report),
        format_bytes(report.resident_bytes),
        format_bytes(report.private_bytes),
    );
    for stream in &report.streams {
        let stages: Vec<_> = stream.stages_and_batch().cloned().collect();
        text.push_str(&format!("\nstream {}\n{}", stream.name, stage_table(&stages)));
        for python in stream.python() {
            text.push_str(&format!("  {}: {}\n", python.place, python.line()));
        }
        if !stream.datasets.is_empty() {
            text.push_str(&dataset_table(&stream.datasets));
        }
        if let Some(requests) = &stream.requests {
            text.push_str(&format!("  storage, since the start: {}\n", requests.line()));
        }
        if let Some(cache) = &stream.cache {
            text.push_str(&format!("  cache, since the start: {}\n", cache.line()));
        }
        if let Some(sharing) = &stream.sharing {
            text.push_str(&format!("  sharing, since the start: {}\n", sharing.line()));
        }
        if let Some(supply) = &stream.supply {
            text.push_str(&format!("  feeders, since the start: {}\n", supply.line()));
        }
        if let Some(advice) = &stream.feeding {
            text.push_str(&format!("  {}\n", advice.sentence));
        }
        if let Some(index) = &stream.jpeg_index {
            text.push_str(&format!("  JPEG index: {}\n", index.line()));
        }
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
    text.push_str("\nCPU isolation\n");
    for line in isolation_lines(&report.cpu_isolation) {
        text.push_str(&format!("  {line}\n"));
    }
    for stall in &report.stalls {
        text.push_str(&format!("\nstalled: {}\n", stall.sentence));
    }
    text.push_str(&format!("\n{}", verdict_lines(&report.verdict)));
    text
}

/// The CPU time of the processes with the user's Python functions, if there are any.
fn python_cpu(report: &DaemonReport) -> String {
    let has_python = report.streams.iter().any(|stream| stream.python().next().is_some());
    let seconds = report.python_cpu_seconds;
    if has_python { format!(" and {seconds:.1} s in Python workers") } else { String::new() }
}

/// The short line, and its explanation below it.
pub fn verdict_lines(verdict: &Verdict) -> String {
    let explanation = explanation(verdict).map_or_else(String::new, |text| format!("{text}\n"));
    format!("{}\n{explanation}", verdict.line())
}

/// The part of the sentence that the short line lacks; `None` if there is none.
pub(crate) fn explanation(verdict: &Verdict) -> Option<&str> {
    if verdict.what.is_empty() || verdict.what == verdict.sentence {
        return None;
    }
    let rest = verdict.sentence.strip_prefix(&verdict.what);
    Some(rest.and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&verdict.sentence))
}

/// A line for each measure of CPU isolation; `!` marks measures that are not in force.
pub fn isolation_lines(items: &[IsolationItem]) -> impl Iterator<Item = String> {
    items.iter().map(|item| {
        let mark = if item.in_force { ' ' } else { '!' };
        let remedy = item.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        format!("{mark} {:<14}{}{remedy}", item.name, item.state)
    })
}

fn describe_session(session: &SessionReport) -> String {
    let mut text = format!(
        "\nsession {}: {} as rank {} of {}{}, {} batches taken of {} published; the trainer waited {} of {}\n  \
         {:.2} work threads at its rows in the last minute\n  slots: {} free, {} filling, {} ready, {} leased\n",
        session.session,
        session.stream,
        session.rank,
        session.world_size,
        session.of_trainer(),
        session.batches_taken,
        session.batches_published,
        time(session.wait_seconds),
        time(session.seconds),
        session.window.as_ref().map_or(0.0, |window| window.work_threads),
        session.slots_free,
        session.slots_filling,
        session.slots_ready,
        session.slots_leased,
    );
    for one in &session.substituted {
        text.push_str(&format!(
            "  epoch {}: sample {} replaces {} sample {} ({}: {})\n",
            one.epoch,
            one.substitute,
            if one.unreadable { "unreadable" } else { "bad" },
            one.sample,
            one.path,
            one.reason
        ));
    }
    text
}

/// The datasets of a mixture: the draws of each per epoch, and its rows so far. Weights that change have one line per
/// change.
fn dataset_table(datasets: &[DatasetReport]) -> String {
    let drawn: u64 = datasets.iter().map(|dataset| dataset.draws_per_epoch).sum();
    let rows: u64 = datasets.iter().map(|dataset| dataset.rows_published).sum();
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    let share = |part: u64, all: u64| percent(part as f64 / all.max(1) as f64);
    let row = |dataset: &DatasetReport| {
        let DatasetReport { name, samples, draws_per_epoch, rows_published, changes } = dataset;
        let own = vec![
            name.clone(),
            samples.to_string(),
            draws_per_epoch.to_string(),
            share(*draws_per_epoch, drawn),
            rows_published.to_string(),
            share(*rows_published, rows),
        ];
        let change = |(from, draws): &(u64, u64)| {
            let from = format!("from {from}");
            vec![from, String::new(), draws.to_string(), share(*draws, drawn)]
        };
        std::iter::once(own).chain(changes.iter().map(change)).collect::<Vec<_>>()
    };
    let header = ["dataset", "samples", "an epoch", "share", "published", "share"];
    columns(&header, &datasets.iter().flat_map(row).collect::<Vec<_>>())
}

/// The stages with the queue after each.
pub fn stage_table(stages: &[StageReport]) -> String {
    let header = "stage|at once|tasks|failed|mean|p90|p99|put wait|get wait|occupancy";
    let row = |stage: &StageReport| {
        let counts = [stage.concurrency.into(), stage.num_tasks, stage.num_failures];
        let times = [stage.ave_time, stage.p90_time, stage.p99_time];
        let mut cells = vec![stage.name.clone()];
        cells.extend(counts.map(|count: u64| count.to_string()));
        cells.extend(times.map(time));
        if let Some(queue) = &stage.queue {
            cells.extend([queue.ave_put_time, queue.ave_get_time].map(time));
            cells.push(percent(queue.occupancy_rate));
        }
        cells
    };
    let header: Vec<&str> = header.split('|').collect();
    columns(&header, &stages.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use forebay_observe::{PythonReport, StreamReport};

    use super::*;

    #[test]
    fn cpu_time_of_workers_is_separate_and_functions_on_batches_have_lines() {
        let mut stream = StreamReport { name: "train".to_owned(), ..StreamReport::default() };
        let mut report = DaemonReport {
            cpu_seconds: 1.5,
            python_cpu_seconds: 20.25,
            streams: vec![stream.clone()],
            ..DaemonReport::default()
        };
        assert!(describe(&report).contains(" 1.5 s of CPU, 0 B resident"), "{}", describe(&report));
        let place = || "batch.operations[0]".to_owned();
        stream.batch_functions = vec![StageReport {
            name: place(),
            num_tasks: 77,
            python: Some(PythonReport {
                place: place(),
                function: "own:collate".to_owned(),
                ..PythonReport::default()
            }),
            ..StageReport::default()
        }];
        report.streams = vec![stream];
        let text = describe(&report);
        assert!(
            text.contains(" 1.5 s of CPU and 20.2 s in Python workers, 0 B resident"),
            "{text}"
        );
        assert!(text.contains("  batch.operations[0]: `own:collate`: "), "{text}");
        let row = text.lines().find(|line| line.trim_start().starts_with("batch.operations[0] "));
        assert!(row.is_some_and(|row| row.contains(" 77 ")), "{text}");
    }

    #[test]
    fn each_dataset_of_a_mixture_has_a_line_with_shares() {
        let dataset = |name: &str, samples, draws_per_epoch, rows_published| DatasetReport {
            name: name.to_owned(),
            samples,
            draws_per_epoch,
            rows_published,
            changes: Vec::new(),
        };
        let table = dataset_table(&[dataset("web", 100, 30, 60), dataset("books", 7, 10, 15)]);
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..2], ["dataset", "samples"]);
        assert_eq!(lines[1][..3], ["web", "100", "30"]);
        assert!(lines[1][3].starts_with("75") && lines[1].contains(&"60"), "{table}");
        assert_eq!(lines[2][..3], ["books", "7", "10"]);
        assert!(lines[2][3].starts_with("25") && lines[2].contains(&"15"), "{table}");
        assert!(!dataset_table(&[dataset("web", 1, 0, 0)]).contains("NaN"));
        let web = DatasetReport { changes: vec![(500, 8)], ..dataset("web", 100, 30, 60) };
        let table = dataset_table(&[web, dataset("books", 7, 10, 15)]);
        let line: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(line[..3], ["from", "500", "8"]);
        assert!(line[3].starts_with("20") && table.contains("books"), "{table}");
    }
}
