//! `forebay pack`: writes the samples of a configuration's dataset into shards of another layout.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use forebay_keys::{Kind, SomeBytes, Value};
use forebay_protocol::counted::counted;
use forebay_protocol::frames::{Fault, FaultKind};
use tokio::signal::unix::{SignalKind, signal};

use super::config_arguments::{Settings, read_one};
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;
use forebay_affinity::{LocalRank, core_share};
use forebay_config::Config;
use forebay_dataset::{OpenOptions, Opened};
use forebay_inspect::output::print_line;
use forebay_observe::format_bytes;
use forebay_pack::{LayoutChoice, Names, PackError, PackProgress, Recoding, Request};
use forebay_storage::Patience;

/// The number of reading threads if samples are behind a URL: they wait for it.
const REMOTE_THREADS: usize = 32;
/// The time between two lines of progress, in milliseconds.
const NOTICE_MILLISECONDS: u128 = 500;
/// The exit status that a shell reports after SIGINT: 128 plus the signal's number.
const INTERRUPTED: u8 = 130;

/// What becomes of the samples' names.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum NamesWord {
    /// Kept: as keys in a tar, else as the column `__key__`.
    Keep,
    /// Dropped; keys in a tar are numbers.
    Drop,
}

/// Arguments of `forebay pack`.
#[derive(Debug, Args)]
pub(super) struct PackArguments {
    /// A configuration file (TOML): all samples of its dataset are written, in their order.
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The folder to make; it must not exist. Until it is whole and verified, it is called OUT.partial, and the same command
    /// goes on with it after an interruption.
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    /// The layout: tar (WebDataset), mds (MosaicML Streaming) or parquet.
    #[arg(long, value_name = "LAYOUT", value_parser = PossibleValuesParser::new(forebay_pack::words()))]
    to: String,
    /// What becomes of the samples' names.
    #[arg(long, value_enum, default_value = "keep")]
    names: NamesWord,
    /// A shard ends with the sample that reaches so many bytes.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = read_bytes)]
    shard_bytes: u64,
    /// Resize pictures whose shorter side is longer to this many pixels, and encode them as JPEG.
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=65535))]
    resize_shorter: Option<u32>,
    /// Encode all pictures as JPEG with this quality, 1 to 100. With --resize-shorter alone, it is 90 for those that are resized.
    #[arg(long, value_name = "QUALITY", value_parser = clap::value_parser!(u8).range(1..=100))]
    jpeg_quality: Option<u8>,
    /// The field of the pictures to encode anew; needed if there are several.
    #[arg(long, value_name = "FIELD")]
    picture: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

/// A size such as `256MiB`, as in a configuration.
fn read_bytes(text: &str) -> Result<u64, String> {
    let value = text.parse().map_or_else(|_| Value::String(text.to_owned()), Value::Integer);
    SomeBytes::read(&value).ok_or_else(|| format!("expected {}", SomeBytes::EXPECTED))
}

/// `forebay pack`.
pub(super) fn pack(arguments: &PackArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("warn");
    let config = read_one(&arguments.config, &arguments.settings)?;
    if !config.more_datasets.is_empty() {
        anyhow::bail!(
            "{} has {} datasets, and one is packed at a time; pack each with a configuration of its own",
            config.source,
            1 + config.more_datasets.len()
        );
    }
    let layout = LayoutChoice::find(&arguments.to).context("an unknown layout")?;
    let is_interrupted = watch_signals()?;
    let (source, patience) = open(&config)?;
    let cores = core_share(&config.cpu, LocalRank::ALONE).threads;
    let threads = usize::try_from(cores).unwrap_or(usize::MAX);
    let is_remote = source.storage.remote_root().is_some();
    let request = Request {
        config: &config,
        source: &source,
        patience: Some(&patience),
        output: &std::path::absolute(&arguments.output)?,
        layout,
        names: match arguments.names {
            NamesWord::Keep => Names::Keep,
            NamesWord::Drop => Names::Drop,
        },
        recoding: Recoding { shorter: arguments.resize_shorter, quality: arguments.jpeg_quality },
        picture: arguments.picture.as_deref(),
        shard_bytes: arguments.shard_bytes,
        threads: if is_remote { threads.max(REMOTE_THREADS) } else { threads },
    };
    let begun = Instant::now();
    let last = Mutex::new(begun);
    let progress = |seen: PackProgress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed().as_millis() >= NOTICE_MILLISECONDS {
            *last = Instant::now();
            // A closed standard error does not stop the work.
            let _ = writeln!(std::io::stderr(), "{}: {}", config.name, words(seen));
        }
        // Relaxed: a flag that orders nothing.
        match is_interrupted.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let packed = match forebay_pack::pack(&request, &progress) {
        Err(error @ PackError::Interrupted { .. }) => {
            let _ = writeln!(std::io::stderr(), "forebay: {error}");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        packed => packed?,
    };
    for note in &packed.notes {
        let _ = writeln!(std::io::stderr(), "{}: {note}", config.name);
    }
    let resumed = match packed.resumed {
        0 => String::new(),
        resumed => format!(" ({resumed} of them by an earlier run)"),
    };
    print_line(format!(
        "{}: {}{resumed} in {} of {}, {}, verified, in {:.1} s; read them with {}",
        config.name,
        counted(packed.samples, "sample"),
        counted(packed.shards, "shard"),
        arguments.to,
        format_bytes(packed.bytes),
        begun.elapsed().as_secs_f64(),
        packed.config.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the dataset of a configuration. Also gives how long to wait for its storage.
fn open(config: &Config) -> anyhow::Result<(Opened, Arc<Patience>)> {
    let opening = OpeningWatch::patient();
    let patience = opening.begin(config, Some(1));
    let (dataset, name) = (config.dataset.clone(), config.name.clone());
    let waits = Arc::clone(&patience);
    let open = move || {
        let progress = show_progress(name);
        let options = OpenOptions {
            progress: &progress,
            patience: Some(&*waits),
            // Neighbours share pages, and nobody reads the files again and notices a change.
            by_blocks: true,
            compares_files: true,
            ..OpenOptions::default()
        };
        forebay_formats::open(&dataset, options)
            .map_err(|error| Fault { kind: FaultKind::Config, message: error.to_string() })
    };
    let opened = opening.watched(open, |_| {});
    let opened = opened.map_err(|fault| anyhow::anyhow!(fault.message))?;
    Ok((opened, patience))
}

/// The first SIGINT or SIGTERM sets the flag; another one ends the program, as while the dataset is opened.
fn watch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).context("cannot take SIGINT")?;
    let mut ends = signal(SignalKind::terminate()).context("cannot take SIGTERM")?;
    drop(guard);
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    std::thread::Builder::new()
        .name("forebay-interrupt".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupts.recv() => {}
                        _ = ends.recv() => {}
                    }
                    if set.swap(true, Ordering::Relaxed) {
                        // What is complete is kept in any case.
                        std::process::exit(INTERRUPTED.into());
                    }
                }
            });
        })
        .context("cannot start a thread")?;
    Ok(flag)
}

fn words(seen: PackProgress) -> String {
    let PackProgress { verifies, done, all, bytes, left } = seen;
    let left =
        left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs_f64().ceil()));
    match verifies {
        true => format!("{done} of {} read back and compared{left}", counted(all, "sample")),
        false => {
            let all = counted(all, "sample");
            format!("{done} of {all} written ({}){left}", format_bytes(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sizes_are_read_as_in_a_configuration() {
        assert_eq!(read_bytes("256MiB"), Ok(256 << 20));
        assert_eq!(read_bytes("1000"), Ok(1000));
        for wrong in ["", "0", "MiB", "-1", "1 parsec"] {
            assert!(read_bytes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn progress_says_what_is_done_and_what_is_left() {
        let seen = PackProgress {
            verifies: false,
            done: 3,
            all: 9,
            bytes: 1 << 20,
            left: Some(Duration::from_millis(1500)),
        };
        assert_eq!(words(seen), "3 of 9 samples written (1 MiB), about 2 s left");
        let read = PackProgress { verifies: true, left: None, ..seen };
        assert_eq!(words(read), "3 of 9 samples read back and compared");
    }
}
