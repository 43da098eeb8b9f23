//! `forebay index`: scans a dataset once and saves what it found.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use forebay_protocol::frames::{Fault, FaultKind};

use super::config_arguments::ConfigArguments;
use super::logging;
use super::opening_watch::OpeningWatch;
use forebay_observe::format_bytes;
use forebay_source::dataset::{OpenOptions, ScanProgress, build_index};

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
            let options = OpenOptions { progress: &progress, previous_index: None, patience };
            build_index(&dataset, options)
                .map_err(|error| Fault { kind: FaultKind::Config, message: error.to_string() })
        };
        let report =
            opening.watched(scan, |_| {}).map_err(|fault| anyhow::anyhow!(fault.message))?;
        for warning in &report.warnings {
            eprintln!("{}: {warning}", config.name);
        }
        println!("{}", describe(&config.name, &report));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how far a scan has come, twice a second.
fn show_progress(name: String) -> impl Fn(ScanProgress) -> ControlFlow<()> {
    let last = Mutex::new(Instant::now());
    move |progress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed().as_millis() >= 500 {
            *last = Instant::now();
            let (files, folders) = (progress.samples, progress.directories);
            eprintln!("{name}: {files} files in {folders} folders so far");
        }
        ControlFlow::Continue(())
    }
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
