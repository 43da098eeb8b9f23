//! `forebay doctor`: looks at the machine and a configuration, and says what to change, most useful first.
//!
//! [`machine`] asks the kernel, [`storage`] reads samples and takes the time, [`configuration`] reads the plan. Each gives
//! [`Finding`]s; none changes anything.

mod configuration;
mod machine;
mod storage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::launch::{Launch, Rings};
use super::{Settings, logging};
use crate::config::Config;
use crate::engine::LocalRank;

/// Arguments of `forebay doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// The configuration file (TOML); left out: the machine alone.
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// For how long the storage is read at each concurrency; 0 leaves it out.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    read_seconds: f64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How much a finding matters, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Weight {
    /// It does not work like this.
    Broken,
    /// It costs much: throughput, or steps of the trainer.
    Costly,
    /// It costs little, or only at times.
    Minor,
    /// As it should be.
    Good,
}

/// One thing looked at.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    weight: Weight,
    /// What was looked at, in a word or two.
    name: &'static str,
    /// How it is, with numbers.
    state: String,
    /// What to change; none where nothing is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn good(name: &'static str, state: impl Into<String>) -> Self {
        Self { weight: Weight::Good, name, state: state.into(), remedy: None }
    }

    fn new(
        weight: Weight,
        name: &'static str,
        state: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { weight, name, state: state.into(), remedy: Some(remedy.into()) }
    }
}

/// `forebay doctor`. The exit status is 1 where something does not work.
pub(super) fn doctor(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("error");
    let mut findings = machine::look();
    if let Some(path) = &arguments.config {
        let config = Config::from_file(path, &arguments.settings.overrides()?)?;
        match Launch::prepare(vec![config], LocalRank::from_environment(), Rings::New) {
            Ok(launch) => {
                let read = storage::look(&launch.streams[0], arguments.read_seconds);
                findings.extend(configuration::look(&launch, read.bytes_per_sample));
                findings.extend(read.findings);
            }
            Err(fault) => {
                let remedy = "correct this first; the machine is judged above without it";
                findings.push(Finding::new(Weight::Broken, "configuration", fault.message, remedy));
            }
        }
    }
    // Stable: within a weight the order is that of looking.
    findings.sort_by_key(|finding| finding.weight);
    if arguments.json {
        println!("{}", serde_json::json!({ "findings": findings }));
    } else {
        print!("{}", describe(&findings));
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
    fn the_most_useful_comes_first_and_is_numbered() {
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
