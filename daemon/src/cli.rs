//! The program's commands. They parse arguments, start the engine and servers, and print; the crates do the work.

mod bench;
mod bench_profile;
mod cache;
mod check;
mod completions;
mod config_arguments;
mod confine;
mod decode_media;
mod demo;
mod doctor;
mod harden;
mod index;
mod init;
mod launch;
mod loader_opening;
mod logging;
mod lost_spawner;
mod notify;
mod opening_memory;
mod opening_watch;
#[cfg_attr(not(feature = "pack"), path = "cli/no_pack.rs")]
mod pack;
mod private;
mod run;
mod run_sample;
mod samples;
mod scan_notice;
mod serve;
mod shared;
mod show;
mod values;
mod work_file;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use forebay_inspect::error_text::whole_reason;
use forebay_inspect::output::OutputClosed;
use forebay_inspect::{headspace, profile, stats, top, trace};

/// A data-loader daemon: reads, decodes, transforms and collates samples next to the trainer and publishes finished
/// batches in shared memory.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look at a dataset and write a first configuration for it.
    Init(init::InitArguments),
    /// Serve streams in the foreground until a signal.
    Serve(serve::ServeArguments),
    /// Run a command with a daemon next to it; exit with the command's status.
    Run(run::RunArguments),
    /// Validate a configuration and print the plan: samples, batches, tensors, memory, threads.
    Check(check::CheckArguments),
    /// Draw what a trainer gets of some samples: a page of pictures, labels by name, texts, boxes and masks.
    Show(show::ShowArguments),
    /// Run one sample again in the foreground, as a run does, and print what comes out; breakpoints in Python stages work.
    RunSample(run_sample::RunSampleArguments),
    /// Inspect the machine and a configuration and print what to change, most useful first.
    Doctor(doctor::DoctorArguments),
    /// Run a daemon and a client without a trainer and print throughput, a stage table and the bottleneck.
    Bench(bench::BenchArguments),
    /// Print a running daemon's statistics.
    Stats(stats::StatsArguments),
    /// Measure how much faster a running trainer would be if loading were free.
    Headspace(headspace::HeadspaceArguments),
    /// Record the activity of a running daemon's threads, for Perfetto.
    Trace(trace::TraceArguments),
    /// Draw a flame graph of a running daemon's threads.
    Profile(profile::ProfileArguments),
    /// Show a running daemon, or all of this host, live in the terminal.
    Top(top::TopArguments),
    /// Scan a dataset and save its index for later starts.
    Index(index::IndexArguments),
    /// Write a dataset's samples into shards of another layout: tar, MDS or Parquet.
    Pack(pack::PackArguments),
    /// Show, fill, verify or trim the cache on disk.
    Cache(cache::CacheArguments),
    /// Demonstrate Forebay on generated images.
    Demo(demo::DemoArguments),
    /// Print a script that completes commands and options in a shell.
    Completions(completions::CompletionsArguments),
    /// Serve the loader whose socket is the standard input. Started by the client library.
    #[command(hide = true)]
    Private,
    /// Serve the loaders of this host that share a daemon. Started by the client library.
    #[command(hide = true)]
    Shared(shared::SharedArguments),
    /// Start the workers of a Python stage for the daemon whose socket is the standard input.
    #[command(hide = true)]
    SpawnWorkers,
    /// Decode videos for the daemon whose socket is the standard input.
    #[command(hide = true)]
    DecodeMedia,
    /// Run a profile's `credential_process` for the daemon whose socket is the standard input.
    #[command(hide = true)]
    CredentialProcess,
    /// Execute a command that dies with this process's parent. Started by `run`.
    #[command(hide = true)]
    Guarded(run::GuardedArguments),
}

/// The exit status that a shell reports after SIGPIPE: 128 plus the signal's number.
const CLOSED_PIPE: u8 = 141;

/// Runs the program. The exit status is 0, 1 after an error, 2 for invalid arguments, 141 if the reader of the output
/// closed it early, or under `run` the command's.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Init(arguments) => init::init(&arguments),
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Show(arguments) => show::show(&arguments),
        Command::RunSample(arguments) => run_sample::run_sample(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Stats(arguments) => stats::stats(&arguments),
        Command::Headspace(arguments) => headspace::headspace(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Index(arguments) => index::index(&arguments),
        Command::Pack(arguments) => pack::pack(&arguments),
        Command::Cache(arguments) => cache::cache(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Completions(arguments) => {
            completions::completions(&arguments, &Arguments::command())
        }
        Command::Private => private::private(),
        Command::Shared(arguments) => shared::shared(&arguments),
        Command::SpawnWorkers => harden::spawn_workers(),
        Command::DecodeMedia => decode_media::decode_media(),
        Command::CredentialProcess => harden::credential_process(),
        Command::Guarded(arguments) => run::guarded(&arguments),
    };
    forebay_workers::end_workers();
    outcome.unwrap_or_else(|error| {
        if error.is::<OutputClosed>() {
            return ExitCode::from(CLOSED_PIPE);
        }
        // The standard error may be closed, too.
        let _ = writeln!(std::io::stderr(), "forebay: {}", whole_reason(&error));
        ExitCode::FAILURE
    })
}
