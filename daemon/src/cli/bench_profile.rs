//! `forebay bench --profile`: each stage separately at several concurrencies, and where it stops scaling.
//!
//! [`forebay_engine::StageBenchmark`] makes the runs; this file chooses the concurrencies, judges and prints. It
//! changes no configuration.

use std::process::ExitCode;

use serde::Serialize;

use forebay_affinity::{LocalRank, core_share};
use forebay_config::{Concurrency, Config};
use forebay_dataset::OpenOptions;
use forebay_engine::{StageBenchmark, StageRun, Stream};
use forebay_inspect::output::{print, print_line};
use forebay_inspect::table::{columns, time};
use forebay_observe::Clock;

/// The maximum number of concurrent reads, and of threads of a stage that sleeps.
const MAX_AT_ONCE: u32 = 32;
/// The share of the best rate at which a concurrency is sufficient.
const ENOUGH: f64 = 0.9;
/// The minimum gain of the last doubling for a stage that still scales.
const STILL_SCALES: f64 = 1.3;
/// If threads lack a core for this share of their time although there are no more threads than cores, other processes
/// disturb the run.
const DISTURBED: f64 = 0.1;
/// A stage that uses a core for less than this share of its time sleeps or waits: more threads than cores make it
/// faster.
const MOSTLY_ON_A_CORE: f64 = 0.5;

/// The value that `--json` prints.
#[derive(Debug, Serialize)]
struct ProfileReport {
    /// The stream.
    stream: String,
    /// The number of cores that the daemon may use.
    cores: f64,
    stages: Vec<StageProfile>,
    /// The slowest stage, and further remarks.
    sentence: String,
}

#[derive(Debug, Serialize)]
struct StageProfile {
    name: String,
    /// The configured concurrency; `None`: `auto`.
    configured: Option<u32>,
    /// The lowest concurrency that reaches nine tenths of the best rate.
    concurrency: u32,
    /// Whether the stage still scales at the highest concurrency tried.
    still_scales: bool,
    runs: Vec<RunProfile>,
    sentence: String,
}

#[derive(Debug, Clone, Serialize)]
struct RunProfile {
    concurrency: u32,
    samples: u64,
    samples_per_second: f64,
    /// Relative to one thread.
    speed_up: f64,
    cpu_seconds_per_sample: f64,
    /// The share of the threads' time on a core, not counting time when they were ready without a core.
    on_a_core: f64,
    /// The share of the threads' time for which they were ready without a core.
    without_a_core: f64,
}

/// Runs all stages and prints the profile.
pub(super) fn profile(config: Config, json: bool) -> anyhow::Result<ExitCode> {
    let share = core_share(&config.cpu, LocalRank::from_environment());
    let granted = share.granted_cores;
    let stream = Stream::open(
        config,
        forebay_formats::open_configured,
        share.threads,
        OpenOptions::default(),
        Clock::system(),
    )?;
    let shows = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let show = |stage: &str, threads: u32| {
        if shows {
            eprint!("\r\x1b[K{stage}, {threads} at once ");
        }
    };
    let mut alone = StageBenchmark::new(&stream, share.threads.max(1));
    let config = stream.config();
    let configured = (!config.fetch.is_auto()).then(|| config.reads().0);
    let runs = doubling(
        MAX_AT_ONCE,
        |_| true,
        |threads| {
            show("fetch", threads);
            alone.fetch(threads)
        },
    )?;
    let mut stages = vec![judge("fetch", configured, runs, granted)];
    let is_cached = alone.has_read_again();
    alone.keep_inputs().map_err(anyhow::Error::msg)?;
    for (number, stage) in stream.config().stages.iter().enumerate() {
        let configured = match stage.concurrency {
            Concurrency::Auto => None,
            Concurrency::Threads(threads) => Some(threads.get()),
        };
        let twice_the_cores = (share.threads * 2).max(4);
        let goes_on = |last: &StageRun| {
            last.concurrency < twice_the_cores || on_a_core(last) < MOSTLY_ON_A_CORE
        };
        let runs = doubling(MAX_AT_ONCE.max(twice_the_cores), goes_on, |threads| {
            show(&stage.name, threads);
            alone.work(number, threads)
        })?;
        stages.push(judge(&stage.name, configured, runs, granted));
    }
    if stream.has_batch_operations() {
        let runs = doubling(
            (share.threads * 2).max(4),
            |_| true,
            |threads| {
                show("batch.operations", threads);
                alone.batches(threads)
            },
        )?;
        stages.push(judge_batches(runs, granted));
    }
    if shows {
        eprint!("\r\x1b[K");
    }
    let sentence = conclusion(&stages, is_cached, granted);
    let report =
        ProfileReport { stream: stream.name().to_owned(), cores: granted, stages, sentence };
    if json {
        print_line(serde_json::to_string(&report)?)?;
    } else {
        print(describe(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs at 1, 2, 4, … up to `most`, and only while `goes_on` returns true.
fn doubling(
    most: u32,
    goes_on: impl Fn(&StageRun) -> bool,
    mut run: impl FnMut(u32) -> Result<StageRun, String>,
) -> anyhow::Result<Vec<StageRun>> {
    let mut runs: Vec<StageRun> = Vec::new();
    let mut threads = 1;
    while threads <= most && runs.last().is_none_or(&goes_on) {
        runs.push(run(threads).map_err(anyhow::Error::msg)?);
        threads *= 2;
    }
    Ok(runs)
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn rate(run: &StageRun) -> f64 {
    if run.seconds > 0.0 { run.samples as f64 / run.seconds } else { 0.0 }
}

fn on_a_core(run: &StageRun) -> f64 {
    let time = run.seconds * f64::from(run.concurrency) - run.ready_seconds;
    if time > 0.0 { (run.cpu_seconds / time).min(1.0) } else { 1.0 }
}

fn without_a_core(run: &StageRun) -> f64 {
    let time = run.seconds * f64::from(run.concurrency);
    if time > 0.0 { (run.ready_seconds / time).min(1.0) } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn judge(name: &str, configured: Option<u32>, runs: Vec<StageRun>, cores: f64) -> StageProfile {
    let first = runs.first().map_or(0.0, rate);
    let runs: Vec<RunProfile> = runs
        .iter()
        .map(|run| RunProfile {
            concurrency: run.concurrency,
            samples: run.samples,
            samples_per_second: rate(run),
            speed_up: if first > 0.0 { rate(run) / first } else { 0.0 },
            cpu_seconds_per_sample: run.cpu_seconds / run.samples.max(1) as f64,
            on_a_core: on_a_core(run),
            without_a_core: without_a_core(run),
        })
        .collect();
    let best = runs.iter().map(|run| run.samples_per_second).fold(0.0, f64::max);
    let enough = runs.iter().find(|run| run.samples_per_second >= ENOUGH * best);
    let concurrency = enough.map_or(1, |run| run.concurrency);
    let last_two = runs.len().checked_sub(2).and_then(|from| runs.get(from..));
    let still_scales = last_two
        .is_some_and(|two| two[1].samples_per_second >= STILL_SCALES * two[0].samples_per_second);
    let sentence = sentence(name, enough, still_scales, cores);
    StageProfile { name: name.to_owned(), configured, concurrency, still_scales, runs, sentence }
}

/// The profile of the operations on complete batches, which have no `concurrency` key.
fn judge_batches(runs: Vec<StageRun>, cores: f64) -> StageProfile {
    let judged = judge("batch.operations", None, runs, cores);
    let fastest = judged.runs.iter().map(|run| run.samples_per_second).fold(0.0, f64::max);
    let sentence = format!(
        "`{}` gives {fastest:.0} samples/s at most, on the work threads of all stages",
        judged.name
    );
    StageProfile { sentence, ..judged }
}

fn sentence(name: &str, enough: Option<&RunProfile>, still_scales: bool, cores: f64) -> String {
    let Some(run) = enough else {
        return format!("`{name}` was not run");
    };
    let threads = run.concurrency;
    let gives = format!(
        "`{name}` gives {:.0} samples/s at {threads} at once, {:.1} times one thread",
        run.samples_per_second, run.speed_up
    );
    if still_scales {
        return format!(
            "{gives}, the highest concurrency tried, and still scales: set its `concurrency` to {threads} or more"
        );
    }
    let why = if run.on_a_core >= MOSTLY_ON_A_CORE {
        format!(
            "it takes {} of CPU time a sample, and there are {cores:.1} cores",
            time(run.cpu_seconds_per_sample)
        )
    } else {
        format!("it waits {:.0} % of its time", (1.0 - run.on_a_core) * 100.0)
    };
    format!("{gives}; higher concurrency does not help: {why}; set its `concurrency` to {threads}")
}

/// The slowest stage, with each stage at its sufficient concurrency.
fn conclusion(stages: &[StageProfile], is_cached: bool, cores: f64) -> String {
    let rate_of = |stage: &StageProfile| {
        let enough = stage.runs.iter().find(|run| run.concurrency == stage.concurrency);
        enough.map_or(0.0, |run| run.samples_per_second)
    };
    let slowest = stages.iter().min_by(|one, other| rate_of(one).total_cmp(&rate_of(other)));
    let mut sentence = slowest.map_or_else(String::new, |stage| {
        format!(
            "the slowest stage is `{}`, with {:.0} samples/s; running together, stages share the cores and are slower",
            stage.name,
            rate_of(stage)
        )
    });
    let is_disturbed =
        |run: &RunProfile| f64::from(run.concurrency) <= cores && run.without_a_core >= DISTURBED;
    if stages.iter().flat_map(|stage| &stage.runs).any(is_disturbed) {
        sentence.push_str(
            "; other processes used the cores, so the figures are too low; repeat on an idle machine",
        );
    }
    if is_cached {
        sentence.push_str("; the dataset fits the page cache; reads from a cold disk take longer");
    }
    sentence
}

fn describe(report: &ProfileReport) -> String {
    let mut text = format!(
        "stream {}: each stage by itself, inputs in memory, output discarded; {:.1} cores\n",
        report.stream, report.cores
    );
    for stage in &report.stages {
        let configured =
            stage.configured.map_or_else(|| "auto".to_owned(), |threads| threads.to_string());
        text.push_str(&format!("\n{} (configured: {configured})\n", stage.name));
        let rows: Vec<Vec<String>> = stage
            .runs
            .iter()
            .map(|run| {
                let is_enough = run.concurrency == stage.concurrency && !stage.still_scales;
                vec![
                    run.concurrency.to_string(),
                    format!("{:.0}", run.samples_per_second),
                    format!("{:.2}", run.speed_up),
                    time(run.cpu_seconds_per_sample),
                    if is_enough { "enough" } else { "" }.to_owned(),
                ]
            })
            .collect();
        text.push_str(&columns(&["at once", "samples/s", "speed-up", "CPU a sample", ""], &rows));
        text.push_str(&format!("  {}\n", stage.sentence));
    }
    text.push_str(&format!("\n{}\n", report.sentence));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rates: &[f64], cpu_each: f64) -> Vec<StageRun> {
        let run = |(power, rate): (u32, &f64)| StageRun {
            concurrency: 1 << power,
            samples: 1000,
            seconds: 1000.0 / rate,
            cpu_seconds: 1000.0 * cpu_each,
            ready_seconds: 0.0,
        };
        (0..).zip(rates).map(run).collect()
    }

    #[test]
    fn lowest_sufficient_concurrency_is_named() {
        let decode = judge("decode", Some(4), runs(&[1000.0, 1900.0, 1950.0], 0.001), 2.0);
        assert_eq!((decode.concurrency, decode.still_scales), (2, false));
        assert!(decode.sentence.contains("1.9 times one thread"), "{}", decode.sentence);
        assert!(decode.sentence.contains("1.00 ms of CPU time a sample"), "{}", decode.sentence);
        assert!(decode.sentence.ends_with("set its `concurrency` to 2"), "{}", decode.sentence);
    }

    #[test]
    fn stage_that_scales_to_the_end_is_reported() {
        let sleepy = judge("sleepy", None, runs(&[200.0, 400.0, 800.0, 1590.0], 1e-5), 2.0);
        assert_eq!((sleepy.concurrency, sleepy.still_scales), (8, true));
        assert!(sleepy.sentence.contains("8 or more"), "{}", sleepy.sentence);
        let batches = judge_batches(runs(&[200.0, 400.0], 1e-5), 2.0);
        assert!(batches.sentence.contains("400 samples/s at most"), "{}", batches.sentence);
        assert!(!batches.sentence.contains("concurrency"), "{}", batches.sentence);
    }

    #[test]
    fn slowest_stage_is_named_at_its_best_rate() {
        let stages = [
            judge("fetch", Some(16), runs(&[500.0, 900.0, 1700.0], 1e-5), 2.0),
            judge("decode", None, runs(&[1000.0, 1200.0, 1200.0], 0.001), 2.0),
        ];
        let told = conclusion(&stages, true, 2.0);
        assert!(told.contains("the slowest stage is `decode`, with 1200 samples/s"), "{told}");
        assert!(told.contains("page cache") && !told.contains("idle machine"), "{told}");
        let mut disturbed = runs(&[1000.0], 0.0005);
        disturbed[0].ready_seconds = 0.4;
        let told = conclusion(&[judge("decode", None, disturbed, 2.0)], false, 2.0);
        assert!(told.contains("repeat on an idle machine"), "{told}");
    }
}
