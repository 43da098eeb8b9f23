//! `forebay index`: scans a dataset once and saves what it found.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::config_arguments::ConfigArguments;
use super::logging;
use forebay_inspect::output::print_line;
use forebay_observe::format_bytes;
use forebay_source::dataset::build_index;

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
        let last = std::sync::Mutex::new(std::time::Instant::now());
        let report = build_index(&config.dataset, &|progress| {
            let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if last.elapsed().as_millis() >= 500 {
                *last = std::time::Instant::now();
                // A closed standard error does not stop the scan.
                let _ = writeln!(
                    std::io::stderr(),
                    "{}: {} files in {} folders so far",
                    config.name,
                    progress.samples,
                    progress.directories
                );
            }
            std::ops::ControlFlow::Continue(())
        })?;
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
