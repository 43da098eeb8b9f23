//! `forebay index`: scans a dataset once and saves what it found.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use forebay_protocol::frames::{Fault, FaultKind};

use super::config_arguments::ConfigArguments;
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;
use forebay_inspect::output::print_line;
use forebay_observe::format_bytes;
use forebay_source::dataset::{OpenOptions, build_index};

/// Arguments of `forebay index`.
#[derive(Debug, Args)]
pub(super) struct IndexArguments {
    #[command(flatten)]
    config: ConfigArguments,
}

/// `forebay index`.
pub(super) fn index(arguments: &IndexArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("warn");
    for config in arguments.config.read()? {
        let opening = OpeningWatch::patient();
        let patience = opening.patience(&config, false);
        let (name, dataset) = (config.name.clone(), config.dataset.clone());
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
        let report =
            opening.watched(scan, |_| {}).map_err(|fault| anyhow::anyhow!(fault.message))?;
        for warning in &report.warnings {
            let _ = writeln!(std::io::stderr(), "{}: {warning}", config.name);
        }
        print_line(describe(&config.name, &report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(name: &str, report: &forebay_source::dataset::IndexReport) -> String {
    let place =
        report.path.as_ref().map_or("not saved".to_owned(), |path| path.display().to_string());
    format!(
        "{name}: {} samples in {} classes, {} in {:.2} s: {place}",
        report.samples,
        report.classes,
        format_bytes(report.bytes),
        report.seconds
    )
}
