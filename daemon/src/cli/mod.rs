//! What a person types. The commands read arguments and print; the work is in the other folders.

mod bench;
mod bench_profile;
mod check;
mod confine;
mod demo;
mod doctor;
mod flame;
pub mod generate;
mod harmless;
mod headspace;
mod index;
mod launch;
mod logging;
mod notify;
mod observer;
mod private;
mod profile;
mod report;
mod run;
mod seclude;
mod serve;
mod stats;
mod table;
mod top;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Override};

/// A data-loader daemon: it downloads, decodes, transforms and collates beside the trainer and publishes finished
/// batches in shared memory.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve streams in the foreground until a signal.
    Serve(serve::ServeArguments),
    /// Serve streams beside a command; end with it and exit with its status.
    Run(run::RunArguments),
    /// Validate a configuration and print the plan: samples, batches, tensors, memory, threads.
    Check(check::CheckArguments),
    /// Look at the machine and a configuration, and say what to change, most useful first.
    Doctor(doctor::DoctorArguments),
    /// Run daemon and client together and print figures, a stage table and a verdict.
    Bench(bench::BenchArguments),
    /// Print a running daemon's figures.
    Stats(stats::StatsArguments),
    /// Measure what a step would take if data were free, on a running trainer.
    Headspace(headspace::HeadspaceArguments),
    /// Record what every thread of a running daemon does, for Perfetto.
    Trace(trace::TraceArguments),
    /// Draw where the time of a running daemon's threads goes, as a flame graph.
    Profile(profile::ProfileArguments),
    /// Watch a running daemon, or all of this host, live in the terminal.
    Top(top::TopArguments),
    /// Scan a dataset and save its index, so that later starts need not.
    Index(index::IndexArguments),
    /// The whole thing on generated data.
    Demo(demo::DemoArguments),
    /// Serve the loader whose socket is the standard input. Started by the client library.
    #[command(hide = true)]
    Private,
    /// Execute a command that dies with this process's parent. Started by `run`.
    #[command(hide = true)]
    Guarded(run::GuardedArguments),
}

/// Configuration files and keys set over them.
#[derive(Debug, Args)]
struct ConfigArguments {
    /// Configuration files (TOML); each is a stream named after its file.
    #[arg(required = true, value_name = "CONFIG")]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
struct Settings {
    /// Override a key, such as `batch.size=128`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    fn overrides(&self) -> Result<Vec<Override>, ConfigError> {
        self.set.iter().map(|argument| Override::from_argument(argument)).collect()
    }
}

impl ConfigArguments {
    fn read(&self) -> anyhow::Result<Vec<Config>> {
        let overrides = self.settings.overrides()?;
        let mut configs: Vec<Config> = Vec::new();
        for path in &self.configs {
            let config = Config::from_file(path, &overrides)?;
            if let Some(same) = configs.iter().find(|earlier| earlier.name == config.name) {
                anyhow::bail!(
                    "{} and {} would both be the stream `{}`; rename one file",
                    same.source,
                    config.source,
                    config.name
                );
            }
            configs.push(config);
        }
        Ok(configs)
    }
}

/// Runs the program: the exit status is 0, 1 after an error, 2 for wrong arguments, or the command's own under `run`.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Stats(arguments) => stats::stats(&arguments),
        Command::Headspace(arguments) => headspace::headspace(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Index(arguments) => index::index(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Private => private::private(),
        Command::Guarded(arguments) => run::guarded(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("forebay: {}", whole_reason(&error));
        ExitCode::FAILURE
    })
}

/// An error with its causes, each said once: many an error's own words end in its cause's.
fn whole_reason(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let path = std::path::Path::new("/data/0.jpg");
        let error = anyhow::Error::new(generate::GenerateError::file(path, "write")(full));
        assert_eq!(whole_reason(&error), "/data/0.jpg: cannot write: no storage space");
        assert_eq!(
            whole_reason(&error.context("the demonstration's data")),
            "the demonstration's data: /data/0.jpg: cannot write: no storage space"
        );
    }
}
