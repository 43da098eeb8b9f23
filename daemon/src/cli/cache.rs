//! `forebay cache`: shows, fills, checks and trims the cache on disk.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};

use forebay_cache::{CacheAdmin, CachedDataset};
use forebay_config::{Config, DatasetConfig};
use forebay_dataset::{Dataset, OpenOptions, Opened};
use forebay_inspect::output::print_line;
use forebay_inspect::table::columns;
use forebay_observe::format_bytes;
use forebay_protocol::counted::counted;
use forebay_protocol::frames::{Fault, FaultKind};
use forebay_storage::location::Location;
use forebay_storage::{self, Storage, StorageError};

use super::config_arguments::Settings;
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;

/// Concurrent reads while a cache is filled.
const FILLING_THREADS: u64 = 32;
/// An entry is not written while another process counts the entries or holds the lock: the next pass fetches it again.
const FILLING_PASSES: u32 = 4;
/// The maximum number of attempts for a read with a temporary error; the pauses begin at one second and double.
const FILLING_TRIES: u32 = 6;
/// The maximum number of failed samples in the message.
const NAMED_FAILURES: usize = 10;

/// What to do with it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Action {
    /// Say what lies there.
    Show,
    /// Fetch every sample that is not there yet.
    Fill,
    /// Read every entry, and remove those that are damaged.
    Verify,
    /// Remove the datasets that no process uses, but this configuration's.
    Trim,
}

/// Arguments of `forebay cache`.
#[derive(Debug, Args)]
pub(super) struct CacheArguments {
    /// A configuration file (TOML) with `cache.path`.
    config: PathBuf,
    /// What to do with it.
    #[arg(value_enum, default_value = "show")]
    action: Action,
    #[command(flatten)]
    settings: Settings,
}

/// `forebay cache`.
pub(super) fn cache(arguments: &CacheArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("warn");
    let mut config = Config::from_file(&arguments.config, &arguments.settings.overrides()?)?;
    config.datasets_mut().try_for_each(forebay_formats::resolve_keys)?;
    let admin = CacheAdmin::open(&config.dataset.cache).map_err(anyhow::Error::msg)?;
    // If a storage cannot be opened, no dataset counts as this configuration's.
    let storages = || -> Vec<_> {
        let open = |of: &DatasetConfig| {
            forebay_formats::storages::open(&forebay_formats::root_of(of), &of.storage).ok()
        };
        config.datasets().filter_map(open).collect()
    };
    match arguments.action {
        Action::Show => show(&admin, &storages())?,
        Action::Verify => verify(&admin)?,
        Action::Trim => {
            let freed = admin.trim(&storages()).map_err(anyhow::Error::msg)?;
            print_line(format!("{} freed", format_bytes(freed)))?;
        }
        Action::Fill => {
            let mut is_filled = true;
            for dataset in config.datasets() {
                is_filled &= fill(&config, dataset)?;
            }
            if !is_filled {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(admin: &CacheAdmin, storages: &[Arc<dyn Storage>]) -> anyhow::Result<()> {
    let found = admin.datasets(storages).map_err(anyhow::Error::msg)?;
    let bytes = found.iter().map(|dataset| dataset.bytes).sum();
    print_line(format!(
        "{}: {} of at most {}",
        admin.path().display(),
        format_bytes(bytes),
        format_bytes(admin.limit_bytes()),
    ))?;
    let row = |dataset: &CachedDataset| {
        let used = match (dataset.is_own, dataset.is_used) {
            (true, true) => "this configuration's, in use",
            (true, false) => "this configuration's",
            (false, true) => "in use",
            (false, false) => "",
        };
        let (entries, bytes) = (dataset.entries.to_string(), format_bytes(dataset.bytes));
        vec![dataset.title.clone(), entries, bytes, used.to_owned()]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    if !rows.is_empty() {
        print_line(columns(&["dataset", "entries", "bytes", ""], &rows).trim_end())?;
    }
    Ok(())
}

fn verify(admin: &CacheAdmin) -> anyhow::Result<()> {
    let mut notice = Notice::new();
    let verified = admin
        .verify(&mut |so_far| {
            notice.say(|| {
                format!("{} entries, {} so far", so_far.entries, format_bytes(so_far.bytes))
            });
            true
        })
        .map_err(anyhow::Error::msg)?;
    print_line(format!(
        "{} entries, {}: {} damaged and removed",
        verified.entries,
        format_bytes(verified.bytes),
        verified.damaged
    ))?;
    Ok(())
}

/// Prints the progress once per second.
struct Notice(Instant);

impl Notice {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.0.elapsed() >= Duration::from_secs(1) {
            self.0 = Instant::now();
            // A closed standard error does not stop the command.
            let _ = writeln!(std::io::stderr(), "{}", text());
        }
    }
}

/// Reads every sample through the cache; returns whether all could be read and stored.
fn fill(config: &Config, dataset: &DatasetConfig) -> anyhow::Result<bool> {
    let opening = OpeningWatch::patient();
    let patience = opening.begin(config, Some(1));
    let (name, keys) = (config.name.clone(), dataset.clone());
    let open = move || {
        let progress = show_progress(name);
        let options = OpenOptions {
            progress: &progress,
            patience: Some(&*patience),
            ..OpenOptions::default()
        };
        forebay_formats::open(&keys, options)
            .map_err(|error| Fault { kind: FaultKind::Config, message: error.to_string() })
    };
    let opened = opening.watched(open, |_| {}).map_err(|fault| anyhow::anyhow!(fault.message))?;
    if forebay_formats::makes_files(dataset) {
        // Nothing else of it is read.
        return Ok(true);
    }
    let metrics = opened.storage.properties().cache.context(
        "nothing of this dataset can be kept: the cache cannot be used, which the lines above say, or the storage has no \
         tags that tell an object from one that takes its place",
    )?;
    anyhow::ensure!(
        !differs_by_pass(opened.dataset.as_ref()),
        "{}: each pass reads other parts of its files, since clips begin at random places, so that nothing is fetched ahead: \
         a run keeps what it reads. With dataset.start = \"uniform\" all of it can be fetched",
        config.name
    );
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let samples = opened.dataset.kept_count();
    let (begun, notice) = (Instant::now(), Mutex::new(Notice::new()));
    let read_all = |pass_begun: Instant| {
        let (mut buffer, mut locations) = (Vec::new(), Vec::new());
        loop {
            // Relaxed, here and below: counters.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= samples {
                return;
            }
            locations.clear();
            opened.dataset.locate(opened.dataset.kept_at(number), &mut locations);
            for location in &locations {
                match read(&opened, *location, config, &mut buffer) {
                    Ok(()) => {
                        bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
                    }
                    Err(error) => lock(&failures).push(error.to_string()),
                }
            }
            lock(&notice).say(|| {
                // Based on this pass: a later one reads mostly from the cache.
                let seconds = pass_begun.elapsed().as_secs_f64();
                let left = (samples - number) as f64 * seconds / (number + 1) as f64;
                format!(
                    "{}: {number} of {}, {} read, {:.0} s left",
                    config.name,
                    counted(samples, "sample"),
                    format_bytes(bytes.load(Ordering::Relaxed)),
                    left
                )
            });
        }
    };
    let mut were_there = None;
    for _ in 0..FILLING_PASSES {
        next.store(0, Ordering::Relaxed);
        bytes.store(0, Ordering::Relaxed);
        let (before, pass_begun) = (metrics.report(), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..FILLING_THREADS.min(samples) {
                scope.spawn(|| read_all(pass_begun));
            }
        });
        let now = metrics.report();
        were_there.get_or_insert(now.num_hits);
        let missed = now.num_misses - before.num_misses;
        let is_done = missed == now.num_kept - before.num_kept;
        if is_done || now.num_full > 0 || !lock(&failures).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let failures = failures.into_inner().unwrap_or_default();
    for failure in failures.iter().take(NAMED_FAILURES) {
        let _ = writeln!(std::io::stderr(), "{}: {failure}", config.name);
    }
    let report = metrics.report();
    print_line(format!(
        "{}: {}, {} in {:.1} s: {} were there, {} were kept, {} had no room, {} failed",
        config.name,
        counted(samples, "sample"),
        format_bytes(bytes.load(Ordering::Relaxed)),
        begun.elapsed().as_secs_f64(),
        were_there.unwrap_or(0),
        report.num_kept,
        report.num_full,
        failures.len(),
    ))?;
    let is_kept = samples == 0 || report.num_kept + report.num_hits > 0;
    Ok(is_kept && failures.is_empty() && report.num_full == 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(
    opened: &Opened,
    location: Location,
    config: &Config,
    buffer: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let limit_bytes = config.dataset.limits.sample_bytes;
    let mut pause = Duration::from_secs(1);
    for _ in 1..FILLING_TRIES {
        match opened.storage.read(&*opened.dataset, location, limit_bytes, buffer) {
            Err(error) if error.is_transient() => {
                std::thread::sleep(error.retry_after().unwrap_or(pause));
                pause *= 2;
            }
            done => return done,
        }
    }
    opened.storage.read(&*opened.dataset, location, limit_bytes, buffer)
}

/// Whether what is read of a sample differs from pass to pass, as far as a few samples show.
fn differs_by_pass(dataset: &dyn Dataset) -> bool {
    const SAMPLES: u64 = 16;
    const DRAWS: u64 = 8;
    let located = |number, draw| {
        let mut locations = Vec::new();
        dataset.locate_drawn(dataset.kept_at(number), draw, &mut locations);
        locations
    };
    (0..dataset.kept_count().min(SAMPLES))
        .any(|number| (1..DRAWS).any(|draw| located(number, draw) != located(number, 0)))
}

#[cfg(test)]
mod tests {
    use forebay_config::Override;

    use super::*;

    #[test]
    fn clips_at_random_places_cannot_be_fetched_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let videos = folder.path().join("videos");
        std::fs::create_dir(&videos).unwrap();
        let video = include_bytes!("../../crates/video/fixtures/h264-b.mp4");
        std::fs::write(videos.join("0.mp4"), video).unwrap();
        let differs = |start: &str| {
            let text = format!(
                "dataset = {{ path = {:?}, format = \"video-folder\", frames = 2, stride = 1, start = {start:?}, index = {:?} }}\n\
                 stage = [{{ name = \"copy\", operations = [] }}]\n[batch]\nsize = 1\n[listen]\nsocket = \"/tmp/x\"\n",
                videos,
                folder.path().join(start)
            );
            let mut config =
                Config::from_text("test.toml", folder.path(), &text, &[] as &[Override]).unwrap();
            config.datasets_mut().try_for_each(forebay_formats::resolve_keys).unwrap();
            let opened = forebay_formats::open(&config.dataset, OpenOptions::default()).unwrap();
            differs_by_pass(opened.dataset.as_ref())
        };
        assert!(differs("random") && !differs("uniform"));
    }
}
