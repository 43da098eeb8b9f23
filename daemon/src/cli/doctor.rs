//! `forebay doctor`: inspects the machine and a configuration and prints what to change, most useful first.
//!
//! [`machine`] reads the kernel's files, [`storage`] measures reads of samples, [`configuration`] checks the plan.
//! [`native`] measures the functions of Python stages and looks up native equivalents in [`equals`]. Each returns
//! [`Finding`]s; none changes anything.

mod configuration;
mod equals;
mod finding;
mod machine;
mod native;
mod storage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::finding::{Finding, Weight};
use super::config_arguments::Settings;
use super::launch::{Launch, Rings};
use super::logging;
use super::opening_watch::OpeningWatch;
use forebay_affinity::LocalRank;
use forebay_config::Config;
use forebay_inspect::output::{print, print_line};
use forebay_workers::WorkerStart;

/// Arguments of `forebay doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// The configuration file (TOML); default: check only the machine.
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// How long to read from storage at each concurrency; 0: skip.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    read_seconds: f64,
    /// How long to call the function of each Python stage, for up to 64 samples; 0: skip.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    call_seconds: f64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// `forebay doctor`. The exit status is 1 if something does not work.
pub(super) fn doctor(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("error");
    let mut findings = machine::findings();
    if let Some(path) = &arguments.config {
        let config = Config::from_file(path, &arguments.settings.overrides()?)?;
        match Launch::prepare(
            vec![config],
            LocalRank::from_environment(),
            Rings::New,
            WorkerStart::WhenCalled,
            &OpeningWatch::impatient(),
            |_| {},
        ) {
            Ok(launch) => {
                let read = storage::measure(&launch.streams[0], arguments.read_seconds);
                findings.extend(configuration::findings(&launch, read.bytes_per_sample));
                findings.extend(read.findings);
                findings.extend(native::findings(&launch.streams[0], arguments.call_seconds));
            }
            Err(fault) => {
                let remedy = "correct this first; the findings above concern the machine only";
                findings.push(Finding::new(Weight::Broken, "configuration", fault.message, remedy));
            }
        }
    }
    // A stable sort keeps the order above within a weight.
    findings.sort_by_key(|finding| finding.weight);
    if arguments.json {
        print_line(serde_json::json!({ "findings": findings }))?;
    } else {
        print(describe(&findings))?;
    }
    let works = findings.iter().all(|finding| finding.weight != Weight::Broken);
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(findings: &[Finding]) -> String {
    let mut text = String::new();
    let (good, bad): (Vec<_>, Vec<_>) =
        findings.iter().partition(|finding| finding.weight == Weight::Good);
    if bad.is_empty() {
        text.push_str("nothing to change\n");
    }
    for (place, finding) in bad.iter().enumerate() {
        let costs = match finding.weight {
            Weight::Broken => "does not work",
            Weight::Costly => "costs much",
            Weight::Minor | Weight::Good => "costs little",
        };
        text.push_str(&format!("{}. {} ({costs}): {}\n", place + 1, finding.name, finding.state));
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("   → {remedy}\n"));
        }
    }
    text.push_str("\nas it should be\n");
    for finding in good {
        text.push_str(&format!("  {:<16}{}\n", finding.name, finding.state));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_numbered_with_the_most_useful_first() {
        let mut findings = vec![
            Finding::good("cores", "8 of 8"),
            Finding::new(Weight::Minor, "clock", "slow", "another one"),
            Finding::new(Weight::Costly, "storage", "slower", "more at once"),
        ];
        findings.sort_by_key(|finding| finding.weight);
        let text = describe(&findings);
        assert!(
            text.starts_with("1. storage (costs much): slower\n   → more at once\n2. clock"),
            "{text}"
        );
        assert!(text.ends_with("as it should be\n  cores           8 of 8\n"), "{text}");
        assert!(describe(&findings[2..]).starts_with("nothing to change"));
    }
}
