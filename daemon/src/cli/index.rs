//! `forebay index`: scans a dataset once and saves its index.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_protocol::counted::counted;
use forebay_protocol::frames::{Fault, FaultKind};

use super::config_arguments::ConfigArguments;
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;
use forebay_affinity::{LocalRank, core_share};
use forebay_config::{Config, DatasetConfig};
use forebay_dataset::{IndexReport, OpenOptions};
use forebay_engine::{Learning, Stream};
use forebay_formats::build_index;
use forebay_inspect::output::print_line;
use forebay_observe::{Clock, format_bytes};

/// Arguments of `forebay index`.
#[derive(Debug, Args)]
pub(super) struct IndexArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Read all JPEG files too and learn where their parts lie, which the first epoch does otherwise
    #[arg(long)]
    jpeg: bool,
}

/// `forebay index`.
pub(super) fn index(arguments: &IndexArguments) -> anyhow::Result<ExitCode> {
    // Also the commit of a repository that the index is made of.
    let _logging = logging::start(&format!("warn,{}=info", logging::DATASET));
    for config in arguments.config.read()? {
        for dataset in config.datasets() {
            let name = match (&dataset.name, config.more_datasets.is_empty()) {
                (Some(name), false) => format!("{}, {name}", config.name),
                _ => config.name.clone(),
            };
            let report = scan(&config, dataset.clone(), name.clone())?;
            for warning in &report.warnings {
                let _ = writeln!(std::io::stderr(), "{name}: {warning}");
            }
            print_line(describe(&name, &report))?;
            if let Some(selected) = &report.selected {
                print_line(format!("{name}: {selected}"))?;
            }
            if let Some(changes) = &report.changes {
                print_line(format!("{name}: {changes}"))?;
            }
        }
        if arguments.jpeg {
            print_line(learn(config)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Scans one dataset.
fn scan(config: &Config, dataset: DatasetConfig, name: String) -> anyhow::Result<IndexReport> {
    let opening = OpeningWatch::patient();
    let patience = opening.begin(config, Some(1));
    let scan = move || {
        let progress = show_progress(name);
        let patience = Some(&*patience);
        let options = OpenOptions {
            progress: &progress,
            previous_index: None,
            patience,
            ..OpenOptions::default()
        };
        build_index(&dataset, options)
            .map_err(|error| Fault { kind: FaultKind::Config, message: error.to_string() })
    };
    opening.watched(scan, |_| {}).map_err(|fault| anyhow::anyhow!(fault.message))
}

/// Reads the JPEG files into the index, and prints the progress every two seconds.
fn learn(config: Config) -> anyhow::Result<String> {
    let name = config.name.clone();
    let threads = core_share(&config.cpu, LocalRank::ALONE).threads;
    let stream = Stream::open(
        config,
        forebay_formats::open_configured,
        threads,
        OpenOptions::default(),
        Clock::system(),
    )?;
    let (learning, begun, all) = (Learning::default(), Instant::now(), stream.kept_count());
    let learned = std::thread::scope(|scope| {
        let run = scope.spawn(|| learning.run(&stream, threads));
        let mut last = begun;
        while !run.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let done = learning.samples();
            if done > 0 && last.elapsed() > Duration::from_secs(2) {
                last = Instant::now();
                let left = begun.elapsed().as_secs() * (all - done.min(all)) / done;
                let _ = writeln!(
                    std::io::stderr(),
                    "{name}: {done} of {}, about {left} s left",
                    counted(all, "sample")
                );
            }
        }
        run.join().unwrap_or_else(|_| Err("a thread of it has panicked".to_owned()))
    });
    learned.map_err(|why| anyhow::anyhow!("{name}: dataset.jpeg_index: {why}"))?;
    let skipped = match learning.skipped() {
        0 => String::new(),
        skipped => format!(", {} that cannot be read left out", counted(skipped, "sample")),
    };
    let line = stream.jpeg_index().report().map_or_else(String::new, |report| report.line());
    Ok(format!("{name}: {line}, in {:.1} s{skipped}", begun.elapsed().as_secs_f64()))
}

fn describe(name: &str, report: &IndexReport) -> String {
    let place =
        report.path.as_ref().map_or("not saved".to_owned(), |path| path.display().to_string());
    format!(
        "{name}: {} in {}, {} in {:.2} s: {place}",
        counted(report.samples, "sample"),
        counted(report.classes, "class"),
        format_bytes(report.bytes),
        report.seconds
    )
}
