//! `forebay bench`: a daemon and a client without a trainer.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use forebay_client::{Batch, Error, Loader, Position, Target};
use forebay_inspect::output::{print, print_line};
use forebay_protocol::frames::ConfigSource;

use super::config_arguments::Settings;
use forebay_inspect::bench_report::{BenchReport, WaitSeconds};
use forebay_inspect::report::{ReportFile, TimeSeries, bench_page};
use forebay_inspect::stats::{stage_table, verdict_lines};
use forebay_inspect::table::time;
use forebay_observe::format_bytes;
use forebay_observe::{
    DaemonReport, ProcessMetrics, TimeHistogram, cpu_time, ended_children_cpu_time,
};

/// Arguments of `forebay bench`.
#[derive(Debug, Args)]
pub(super) struct BenchArguments {
    /// The configuration file (TOML).
    #[arg(value_name = "CONFIG")]
    config: std::path::PathBuf,
    #[command(flatten)]
    settings: Settings,
    /// Number of batches; default: the configured epochs, or one epoch if endless.
    #[arg(long, value_name = "N")]
    batches: Option<u64>,
    /// Start at a position: the epoch, and the samples consumed in it.
    #[arg(long, value_name = "EPOCH:SAMPLES", value_parser = parse_position)]
    position: Option<Position>,
    /// Print a digest of all batches (names, types, shapes, bytes); fields with on = "gpu" are digested before finishing.
    #[arg(long)]
    digest: bool,
    /// Run each stage separately at several concurrencies, without daemon and ring, and show where it stops scaling.
    #[arg(long, conflicts_with_all = ["batches", "position", "digest"])]
    profile: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Also write an HTML page: charts over time, time distributions of the stages, configuration, machine and bottleneck.
    #[arg(long, value_name = "FILE.html")]
    report: Option<std::path::PathBuf>,
}

/// Parses `EPOCH:SAMPLES`.
fn parse_position(text: &str) -> Result<Position, String> {
    let read = |text: &str| text.trim().parse::<u64>().ok();
    let parts =
        text.split_once(':').and_then(|(epoch, samples)| Some((read(epoch)?, read(samples)?)));
    let (epoch, samples) = parts.ok_or(
        "a position is two whole numbers, the epoch and the samples consumed in it: 3:4096",
    )?;
    Ok(Position { epoch, samples })
}

/// Options of a measured run.
pub(super) struct BenchOptions<'a> {
    /// JSON values by dotted key.
    pub(super) overrides: Vec<(String, String)>,
    pub(super) batches: Option<u64>,
    pub(super) position: Position,
    pub(super) digest: bool,
    /// Called with every batch and the number of samples before it.
    pub(super) each: &'a mut dyn FnMut(&Batch, u64),
    /// Records the daemon's counters over time.
    pub(super) series: Option<&'a mut TimeSeries>,
}

/// `forebay bench`.
pub(super) fn bench(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    // Parsed here too, so that errors are reported as in other commands; `--set` is TOML, the protocol has JSON.
    let overrides = arguments.settings.overrides()?;
    let config = forebay_config::Config::from_file(&arguments.config, &overrides)?;
    if arguments.profile {
        return super::bench_profile::profile(config, arguments.json);
    }
    // Before the long run, so that an unwritable path fails early.
    let page = arguments.report.as_deref().map(ReportFile::create).transpose()?;
    let mut series = TimeSeries::default();
    let shown = Instant::now();
    let mut last_shown = Duration::ZERO;
    let progress = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let mut each = |_: &Batch, samples: u64| {
        if progress && shown.elapsed() - last_shown > Duration::from_millis(500) {
            last_shown = shown.elapsed();
            eprint!("\r{samples} samples in {:.1} s ", last_shown.as_secs_f64());
        }
    };
    let options = BenchOptions {
        overrides: overrides.iter().filter_map(forebay_config::Override::as_json).collect(),
        batches: arguments.batches,
        position: arguments.position.unwrap_or_default(),
        digest: arguments.digest,
        each: &mut each,
        series: page.is_some().then_some(&mut series),
    };
    let report = measure(&arguments.config, config.order.epochs, options)?;
    if progress {
        eprint!("\r\x1b[K");
    }
    if let Some(page) = page {
        page.finish(&bench_page(&config.name, &report, &series, &config.resolved_toml()))?;
    }
    if arguments.json {
        print_line(serde_json::to_string(&report)?)?;
    } else {
        print(describe(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a private daemon with a configuration file and takes its batches.
#[expect(clippy::cast_precision_loss, reason = "figures")]
pub(super) fn measure(
    config: &Path,
    epochs: Option<u64>,
    mut options: BenchOptions<'_>,
) -> anyhow::Result<BenchReport> {
    let absolute = std::path::absolute(config)?;
    let source = ConfigSource::File(absolute.display().to_string());
    let program = std::env::current_exe().context("where this program lies")?;
    let start = Instant::now();
    // Includes daemons that died during the measurement.
    let all_cpu = || cpu_time() + ended_children_cpu_time();
    let cpu_before = all_cpu();
    let mut builder = Loader::builder(Target::Config(source))
        .rank(0, 1)
        .program(program)
        .position(options.position)
        // Measured as stored in the ring: finishing on a GPU costs the daemon nothing.
        .unfinished(true);
    for (key, json) in options.overrides {
        builder = builder.override_key(key, json);
    }
    let mut loader = builder.attach()?;
    let requested = Instant::now();
    let mut first_batch = Duration::ZERO;
    let mut begun: Option<DaemonReport> = None;
    let (mut samples, mut batches, mut epochs_done) = (0u64, 0u64, 0u64);
    let mut last = requested;
    let mut digest = options.digest.then(blake3::Hasher::new);
    let waits = TimeHistogram::default();
    while options.batches.is_none_or(|most| batches < most) {
        let asked = Instant::now();
        match loader.next_batch() {
            Ok(Some(batch)) => {
                last = Instant::now();
                waits.record(last - asked);
                if batches == 0 {
                    first_batch = start.elapsed();
                    // The verdict excludes the start, unless this report is unavailable.
                    begun = loader.stats().ok().and_then(|text| serde_json::from_str(&text).ok());
                }
                (options.each)(&batch, samples);
                samples += batch.rows();
                batches += 1;
                if let Some(hasher) = &mut digest {
                    add_batch(hasher, &batch);
                }
                if let Some(series) = &mut options.series {
                    series.sample(&mut loader, samples, waits.total());
                }
            }
            Ok(None) => {
                epochs_done += 1;
                if options.batches.is_none() && epochs_done >= epochs.unwrap_or(1) {
                    break;
                }
            }
            Err(Error::EpochsFinished { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let daemon: DaemonReport = serde_json::from_str(&loader.stats()?)?;
    if let Some(series) = &mut options.series {
        series.finish(&daemon, samples, waits.total());
    }
    let judged = begun
        .map(|begun| daemon.since(&begun))
        .filter(|since_begun| since_begun.verdict.limit != "none")
        .unwrap_or_else(|| daemon.clone());
    let seconds = (last - requested).as_secs_f64();
    let own_cpu = (all_cpu() - cpu_before).as_secs_f64();
    let own = ProcessMetrics::now();
    let has_python = daemon.streams.iter().any(|stream| stream.python().next().is_some());
    let daemon_peak = loader.private_process().map_or(0, ProcessMetrics::peak_of);
    Ok(BenchReport {
        samples,
        batches,
        seconds,
        samples_per_second: if seconds > 0.0 { samples as f64 / seconds } else { 0.0 },
        cpu_seconds_per_1000_samples: (own_cpu + daemon.cpu_seconds) * 1000.0
            / (samples as f64).max(1.0),
        python_cpu_seconds_per_1000_samples: has_python
            .then(|| daemon.python_cpu_seconds * 1000.0 / (samples as f64).max(1.0)),
        time_to_first_batch_seconds: first_batch.as_secs_f64(),
        peak_memory_bytes: daemon_peak + own.peak_bytes.saturating_sub(own.shared_bytes),
        wait_seconds: WaitSeconds {
            p50: waits.percentile_seconds(0.5),
            p99: waits.percentile_seconds(0.99),
        },
        digest: digest.map(|hasher| hasher.finalize().to_hex().to_string()),
        supply: daemon.streams.into_iter().find_map(|stream| stream.supply),
        stages: daemon.stages,
        verdict: judged.verdict,
        window: judged.sessions.into_iter().next().and_then(|session| session.window),
    })
}

/// Names, dtypes, shapes and row bytes.
fn add_batch(hasher: &mut blake3::Hasher, batch: &Batch) {
    for tensor in batch.tensors() {
        hasher.update(tensor.name().as_bytes());
        hasher.update(&[0]);
        hasher.update(tensor.dtype().name().as_bytes());
        if let Some(ragged) = tensor.ragged() {
            hasher.update(&(ragged.len() as u64).to_le_bytes());
            for row in 0..ragged.len() {
                let bytes = ragged.row_bytes(row).unwrap_or_default();
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            }
        } else {
            for dim in tensor.shape() {
                hasher.update(&dim.to_le_bytes());
            }
            hasher.update(tensor.bytes());
        }
    }
}

/// The results as text.
pub(super) fn describe(report: &BenchReport) -> String {
    let python = report
        .python_cpu_seconds_per_1000_samples
        .map_or_else(String::new, |seconds| format!(" and {seconds:.3} (Python workers)"));
    let mut text = format!(
        "{} samples in {} batches, {:.2} s: {:.0} samples/s\n\
         {:.3} CPU seconds per 1,000 samples (daemon and client){}, peak memory {}\n\
         first batch after {}, wait for a batch p50 {}, p99 {}\n",
        report.samples,
        report.batches,
        report.seconds,
        report.samples_per_second,
        report.cpu_seconds_per_1000_samples,
        python,
        format_bytes(report.peak_memory_bytes),
        time(report.time_to_first_batch_seconds),
        time(report.wait_seconds.p50),
        time(report.wait_seconds.p99),
    );
    if let Some(digest) = &report.digest {
        text.push_str(&format!("digest {digest}\n"));
    }
    let verdict = verdict_lines(&report.verdict);
    text.push_str(&format!("\n{}\n{verdict}", stage_table(&report.stages)));
    text
}
