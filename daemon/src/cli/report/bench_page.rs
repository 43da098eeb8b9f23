//! The page of a measured run: `forebay bench --report`.

use super::super::bench::BenchReport;
use super::super::stats::{STAGE_COLUMNS, stage_cells};
use super::super::table::percent;
use super::chart::{self, Course, Histogram, Series};
use super::course::{Point, Recorder};
use super::machine::machine;
use super::markup::{escape, number, short_time};
use super::page::{color, facts, grid, page, section, table, tiles};
use super::pipeline::pipeline;
use crate::engine::in_words;
use crate::observe::StageReport;

/// What the page tells beside the figures.
pub(in crate::cli) struct BenchPage<'a> {
    /// The stream's name.
    pub(in crate::cli) name: &'a str,
    pub(in crate::cli) report: &'a BenchReport,
    pub(in crate::cli) recorder: &'a Recorder,
    /// The resolved configuration, as `check` prints it.
    pub(in crate::cli) config: &'a str,
    pub(in crate::cli) command_line: &'a str,
}

/// Makes the page.
pub(in crate::cli) fn bench_page(what: &BenchPage<'_>) -> String {
    let report = what.report;
    let rates = what.recorder.rates();
    let wait_share = wait_share(&rates, what.recorder);
    let mut body = key_figures(report, wait_share);
    let note = "A bar between two boxes: for how much of the time the next one had something to take. Where it falls from \
                high to low, the stage before it is the limit.";
    let picture =
        pipeline(&report.stages, session_seconds(what.recorder), wait_share, &report.verdict.limit);
    body.push_str(&grid(&[section("Pipeline", note, &picture)]));
    body.push_str(&grid(&courses(&report.stages, &rates)));
    body.push_str(&grid(&histograms(&report.stages)));
    body.push_str(&grid(&[section("Stages", "", &stage_table(&report.stages))]));
    body.push_str(&grid(&[
        section(
            "Configuration",
            "resolved, as forebay check prints it",
            &format!("<pre>{}</pre>\n", escape(what.config)),
        ),
        section("Machine and run", "", &run_facts(what)),
    ]));
    page(&format!("forebay bench: {}", what.name), &report.verdict.sentence, &body)
}

/// How long the daemon's figures run.
fn session_seconds(recorder: &Recorder) -> f64 {
    recorder.last().and_then(|last| last.sessions.first()).map_or(0.0, |session| session.seconds)
}

/// The share of the whole time in which the trainer waited, by the daemon's figures, as the verdict takes it; without
/// them as the run was seen.
fn wait_share(rates: &[Point], recorder: &Recorder) -> f64 {
    let session = recorder.last().and_then(|last| last.sessions.first());
    if let Some(session) = session.filter(|session| session.seconds > 0.0) {
        return (session.wait_seconds / session.seconds).clamp(0.0, 1.0);
    }
    rates.last().map_or(0.0, |last| last.waited_seconds)
}

fn key_figures(report: &BenchReport, wait_share: f64) -> String {
    let usual_wait = format!("wait for a batch, p99 (p50 {})", short_time(report.wait_seconds.p50));
    tiles(&[
        (number(report.samples_per_second), "samples a second"),
        (percent(wait_share), "of the time the trainer waited"),
        (short_time(report.wait_seconds.p99), &usual_wait),
        (number(report.cpu_seconds_per_1000_samples), "CPU seconds per 1,000 samples"),
        (short_time(report.time_to_first_batch_seconds), "to the first batch"),
        (in_words(report.peak_memory_bytes), "memory at the peak, ring included"),
    ])
}

fn courses(stages: &[StageReport], rates: &[Point]) -> Vec<String> {
    let series = |name: &str, color, value: &dyn Fn(&Point) -> Option<f64>| Series {
        name: name.to_owned(),
        color,
        points: rates.iter().filter_map(|point| Some((point.seconds, value(point)?))).collect(),
    };
    let plot = |heading: &str, y_label, y_most, series: Vec<Series>| {
        let title = format!("{heading} over time, in {y_label}");
        section(heading, "", &chart::course(&Course { title, y_label, y_most, series }))
    };
    let occupancy = stages
        .iter()
        .enumerate()
        .filter(|(_, stage)| stage.queue.is_some())
        .map(|(number, stage)| {
            let is_last = number + 1 == stages.len();
            let name = if is_last { "ring".to_owned() } else { format!("after {}", stage.name) };
            let value =
                |point: &Point| point.occupied_seconds.get(number).map(|share| share * 100.0);
            series(&name, color::stage(number), &value)
        })
        .collect();
    vec![
        plot(
            "Throughput",
            "samples/s",
            None,
            vec![series("samples", color::THROUGHPUT, &|point| Some(point.samples))],
        ),
        plot(
            "Wait",
            "% of the time",
            Some(100.0),
            vec![series("the trainer waits", color::WAIT, &|point| {
                Some(point.waited_seconds * 100.0)
            })],
        ),
        plot("Occupancy of the queues", "% of the time", Some(100.0), occupancy),
        plot(
            "Processor time of the daemon",
            "cores",
            None,
            vec![series("cores", color::CPU, &|point| Some(point.cpu_seconds))],
        ),
    ]
}

fn histograms(stages: &[StageReport]) -> Vec<String> {
    let range = chart::decades(stages.iter().flat_map(|stage| stage.times.iter()));
    let plots = stages.iter().enumerate().map(|(number, stage)| {
        let plot = chart::histogram(&Histogram {
            title: format!("times of the stage {}", stage.name),
            color: color::stage(number),
            times: &stage.times,
            marks: vec![("mean", stage.ave_time), ("p99", stage.p99_time)],
            range,
        });
        section(&format!("Times of {}", stage.name), "", &plot)
    });
    plots.collect()
}

fn stage_table(stages: &[StageReport]) -> String {
    table(&STAGE_COLUMNS, &stages.iter().map(stage_cells).collect::<Vec<_>>())
}

fn run_facts(what: &BenchPage<'_>) -> String {
    let report = what.report;
    let size = format!(
        "{} samples in {} batches, {:.2} s",
        report.samples, report.batches, report.seconds
    );
    let machine = machine();
    let mut all = vec![
        ("command", what.command_line),
        ("run", size.as_str()),
        ("release", env!("CARGO_PKG_VERSION")),
    ];
    all.extend(report.digest.as_deref().map(|digest| ("digest", digest)));
    all.extend(machine.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    facts(all.into_iter())
}
