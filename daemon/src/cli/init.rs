//! `forebay init`: inspects a dataset and writes a first configuration for it, with next steps.
//!
//! The format is detected, the dataset is opened and sampled, and the format's draft is completed with a batch size and
//! a ring that fit the memory. The plan uses the code of `check`, so the written configuration passes it. For a URL,
//! keys of `[storage]` are given as arguments and written too; so are the keys that resolve ambiguous data.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::counted::counted;
use forebay_protocol::frames::{Fault, FaultKind};

use super::launch::{Launch, Rings};
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;
use forebay_affinity::LocalRank;
use forebay_config::{Config, Override};
use forebay_dataset::{DatasetError, OpenOptions};
use forebay_formats::{Draft, Layout, Proposal, find_layout, propose, recognize, resolve_keys};
use forebay_inspect::output::print;
use forebay_keys::{Section, Value, is_url};
use forebay_observe::format_bytes;
use forebay_workers::WorkerStart;

/// The default batch size.
const USUAL_BATCH: u32 = 256;
/// A smaller ring is tried before batches below this.
const SMALL_BATCH: u32 = 32;
/// The minimum number of batches in an epoch if it has as many samples.
const MIN_BATCHES: u64 = 4;
/// At most one in so many samples is left out of an epoch by a large batch.
const LEFT_OUT_ONE_IN: u64 = 20;
const USUAL_SLOTS: u16 = 8;
const FEW_SLOTS: u16 = 4;
/// The maximum size of a proposed ring.
const MAX_RING_BYTES: u64 = 1 << 30;

/// Arguments of `forebay init`.
#[derive(Debug, Args)]
pub(super) struct InitArguments {
    /// The dataset: a folder, or one file, or the URL of one.
    path: PathBuf,
    /// A key of `[storage]`, such as `storage.region=eu-central-1`, or what the data do not tell: `dataset.format`,
    /// `dataset.root`, `dataset.tokens.dtype`, `dataset.windows.length` and other keys of windows. May be given several
    /// times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The configuration to write; `-`: the standard output.
    #[arg(long, short, value_name = "FILE", default_value = "train.toml")]
    output: PathBuf,
    /// Replace a configuration that is there.
    #[arg(long)]
    force: bool,
}

/// `forebay init`.
pub(super) fn init(arguments: &InitArguments) -> anyhow::Result<ExitCode> {
    // Warnings of the dataset are printed by this command.
    let _logging = logging::start("warn,forebay_formats::registry=error");
    let is_printed = arguments.output == Path::new("-");
    if !is_printed && !arguments.force && arguments.output.symlink_metadata().is_ok() {
        return Err(already_exists(&arguments.output));
    }
    let given = Given::read(&arguments.set)?;
    let (found, path) = look(&dataset_path(&arguments.path)?, &given)?;
    let (text, launch) = fit(&found, &path, &given)?;
    let summary = describe(&found, &path, &launch);
    if is_printed {
        let _ = write!(std::io::stderr(), "{summary}");
        print(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    write_configuration(&arguments.output, &text, arguments.force)?;
    print(summary)?;
    print(next_steps(&arguments.output, &launch))?;
    Ok(ExitCode::SUCCESS)
}

fn already_exists(output: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} is there already; replace it with --force, or name another file with --output",
        output.display()
    )
}

/// The keys that cannot be derived from the data.
const DATASET_KEYS: [&str; 2] = ["dataset.root", "dataset.tokens.dtype"];
const WINDOW_KEYS: &str = "dataset.windows.";
const FORMAT_KEY: &str = "dataset.format";

/// The values given with `--set`.
struct Given {
    /// Keys of `[storage]`.
    storage: Vec<Override>,
    /// Keys of `[dataset]` except the format.
    dataset: Vec<Override>,
    format: Option<String>,
    root: Option<String>,
}

impl Given {
    fn read(arguments: &[String]) -> anyhow::Result<Self> {
        let mut given = Self { storage: Vec::new(), dataset: Vec::new(), format: None, root: None };
        for argument in arguments {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            let (key, value) = (key.trim(), value.trim().trim_matches('"'));
            match key {
                FORMAT_KEY => given.format = Some(value.to_owned()),
                "dataset.root" => {
                    let root = dataset_path(Path::new(value))?;
                    let text = Value::String(root.clone()).to_toml();
                    given.dataset.push(Override::from_toml(key, &text)?);
                    given.root = Some(root);
                }
                key if DATASET_KEYS.contains(&key) || key.starts_with(WINDOW_KEYS) => {
                    given.dataset.push(Override::from_argument(argument)?);
                }
                key if key.starts_with("storage.") => {
                    given.storage.push(Override::from_argument(argument)?);
                }
                _ => bail!(
                    "--set {argument}: init takes keys of `storage`, and `{FORMAT_KEY}`, `{}`, `{WINDOW_KEYS}…`; change the others \
                     in what it writes",
                    DATASET_KEYS.join("`, `")
                ),
            }
        }
        Ok(given)
    }

    /// The lines of `[dataset]` that make the samples windows.
    fn windows(&self) -> String {
        let lines = self.dataset.iter().filter_map(Override::toml_line);
        lines.filter(|line| line.starts_with("windows.")).map(|line| line + "\n").collect()
    }

    fn overrides(&self) -> Vec<Override> {
        self.storage.iter().chain(&self.dataset).cloned().collect()
    }
}

/// The path in the form for a configuration.
fn dataset_path(given: &Path) -> anyhow::Result<String> {
    let path = match is_url(given) {
        true => given.to_owned(),
        false => std::path::absolute(given).with_context(|| format!("{given:?}"))?,
    };
    path.into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!("{path:?} is not UTF-8, as a configuration must be; make a link to it under another name")
    })
}

/// The result for a path; if its folders contain class folders, for the folder that was probably meant.
fn look(path: &str, given: &Given) -> anyhow::Result<(Proposal, String)> {
    let mut path = path.to_owned();
    let mut warning = None;
    loop {
        match look_once(&path, given) {
            Ok((mut found, layout)) => {
                found.report.warnings.splice(0..0, warning);
                found.draft.dataset += &given.windows();
                if let Some(Layout { path, root, note, .. }) = layout {
                    found.report.warnings.insert(0, note);
                    let root = root.map(|root| dataset_path(&root)).transpose()?;
                    let line = |root| format!("root = {}\n", Value::String(root).to_toml());
                    found.draft.dataset += &root.map(line).unwrap_or_default();
                    return Ok((found, dataset_path(&path)?));
                }
                if let Some(root) = &given.root {
                    found.draft.dataset +=
                        &format!("root = {}\n", Value::String(root.clone()).to_toml());
                }
                return Ok((found, path));
            }
            Err(LookError::Nested(message, meant)) if warning.is_none() => {
                path = dataset_path(&meant)?;
                warning = Some(format!("{message}. The configuration reads {path:?}"));
            }
            Err(LookError::Nested(message, _) | LookError::Other(message)) => bail!(message),
        }
    }
}

enum LookError {
    /// The message, and the folder that was probably meant.
    Nested(String, PathBuf),
    Other(String),
}

impl From<anyhow::Error> for LookError {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<DatasetError> for LookError {
    fn from(error: DatasetError) -> Self {
        let message = error.to_string();
        match error {
            DatasetError::NestedClasses { meant, .. } => Self::Nested(message, meant),
            _ => Self::Other(message),
        }
    }
}

/// Opens and inspects the path once. The opening is watched, so a storage that hangs ends with a message.
fn look_once(path: &str, given: &Given) -> Result<(Proposal, Option<Layout>), LookError> {
    let opening = OpeningWatch::impatient();
    // It has the default time-outs.
    let mut config = minimal(path, &given.overrides())?;
    let (format, has_root) = (given.format.clone(), given.root.is_some());
    let patience = opening.begin(&config, Some(1));
    let path = path.to_owned();
    let looked = opening.watched(
        move || {
            let progress = show_progress(path);
            let patience = Some(&*patience);
            let options = OpenOptions {
                progress: &progress,
                previous_index: None,
                patience,
                ..OpenOptions::default()
            };
            let asks = format.is_none();
            let look = || -> Result<_, LookError> {
                let layout = match asks && !has_root {
                    true => find_layout(&config.dataset, options)?,
                    false => None,
                };
                match (&layout, format) {
                    (Some(layout), _) => {
                        layout.format.clone_into(&mut config.dataset.format);
                        config.dataset.path.clone_from(&layout.path);
                        if let Some(root) = &layout.root {
                            let root = dataset_path(root)?;
                            let table = vec![("root".to_owned(), Value::String(root).into())];
                            let own =
                                Section::new("dataset", Value::Table(table).into(), Path::new("/"));
                            config.dataset.own = own.map_err(DatasetError::from)?;
                        }
                    }
                    (None, Some(format)) => config.dataset.format = format,
                    (None, None) => {
                        recognize(&config.dataset, options)?.clone_into(&mut config.dataset.format);
                    }
                }
                Ok((propose(&config.dataset, asks, options)?, layout))
            };
            Ok(look())
        },
        |_| {},
    );
    looked.map_err(|fault| LookError::Other(fault.message))?
}

/// A minimal configuration that can be opened.
fn minimal(path: &str, overrides: &[Override]) -> Result<Config, LookError> {
    let path = Value::String(path.to_owned()).to_toml();
    let text = format!(
        "dataset = {{ path = {path}, format = \"\" }}\nbatch.size = 1\nstage = [{{ name = \"look\", operations = [] }}]\n"
    );
    let config = Config::from_text("init", Path::new("/"), &text, overrides);
    let config = config.and_then(|mut config| {
        resolve_keys(&mut config.dataset)?;
        Ok(config)
    });
    config.map_err(|error| LookError::Other(error.to_string()))
}

/// The given `[storage]` table; empty if no key was given.
fn storage_table(overrides: &[Override]) -> String {
    let lines: Vec<_> = overrides.iter().filter_map(Override::toml_line).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n[storage]\n{}\n", lines.join("\n")),
    }
}

/// A batch size and a ring.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: u32,
    slots: u16,
}

impl Sizes {
    fn usual(samples: u64) -> Self {
        let mut batch = USUAL_BATCH;
        while batch > 1 && u64::from(batch) * MIN_BATCHES > samples {
            batch /= 2;
        }
        // `batch.last = "drop"` leaves out what does not fill a batch.
        while batch > SMALL_BATCH && samples % u64::from(batch) * LEFT_OUT_ONE_IN > samples {
            batch /= 2;
        }
        Self { batch, slots: USUAL_SLOTS }
    }

    fn smaller(self) -> Option<Self> {
        match self {
            Self { batch, .. } if batch > SMALL_BATCH => Some(Self { batch: batch / 2, ..self }),
            Self { slots, .. } if slots > FEW_SLOTS => Some(Self { slots: FEW_SLOTS, ..self }),
            Self { batch, .. } if batch > 1 => Some(Self { batch: batch / 2, ..self }),
            _ => None,
        }
    }
}

/// A configuration with a ring that fits the machine and is not too large for a start, and its launch.
fn fit(found: &Proposal, path: &str, given: &Given) -> anyhow::Result<(String, Launch)> {
    let mut sizes = Sizes::usual(found.report.samples);
    let storage = storage_table(&given.storage);
    loop {
        let text = configuration(found, path, &storage, sizes, "");
        let mut config = Config::from_text("train", Path::new("/"), &text, &[])?;
        resolve_keys(&mut config.dataset)?;
        let prepared = Launch::prepare(
            vec![config],
            LocalRank::from_environment(),
            Rings::New,
            WorkerStart::WhenCalled,
            &OpeningWatch::impatient(),
            |_| {},
        );
        let fits =
            |launch: &Launch| launch.plans.iter().all(|plan| plan.ring_bytes <= MAX_RING_BYTES);
        match (prepared, sizes.smaller()) {
            (Ok(launch), smaller) if smaller.is_none() || fits(&launch) => {
                let batch = launch.streams.first().map_or(0, |stream| stream.layout().slot_bytes());
                let batch = format!(" of {}", format_bytes(batch));
                return Ok((configuration(found, path, &storage, sizes, &batch), launch));
            }
            (Ok(_) | Err(Fault { kind: FaultKind::Memory, .. }), Some(smaller)) => sizes = smaller,
            (Ok(_), None) => bail!("bug: no batch size was left"),
            (Err(fault), _) => bail!(fault.message),
        }
    }
}

fn configuration(
    found: &Proposal,
    path: &str,
    storage: &str,
    sizes: Sizes,
    batch_bytes: &str,
) -> String {
    let Sizes { batch, slots } = sizes;
    let path = Value::String(path.to_owned()).to_toml();
    let Draft { head, dataset, epochs, tables } = &found.draft;
    let epochs = epochs.line();
    let tables = if tables.is_empty() { String::new() } else { format!("\n{tables}") };
    let format = &found.format;
    format!(
        "\
# Made by forebay init. `forebay check FILE` prints every key with its value, and the plan that this makes.
{head}
[dataset]
format = \"{format}\"
path = {path}
{dataset}{storage}
[order]
{epochs}
seed = 0             # another seed: another order and other random operations

[batch]
size = {batch:<12}  # samples per rank

[ring]
slots = {slots:<11}  # batches{batch_bytes} in shared memory; the trainer may hold all but 2
{tables}"
    )
}

/// A description of the dataset and of the plan.
fn describe(found: &Proposal, path: &str, launch: &Launch) -> String {
    let names = launch.streams.first().map_or(&[][..], |stream| stream.class_names());
    let classes = match (&found.classes, names) {
        (Some(classes), _) => classes.to_string(),
        (None, [first, .., last]) => format!("{}, {first} to {last}", names.len()),
        (None, [one]) => format!("1, {one}"),
        (None, []) => "none".to_owned(),
    };
    let mut text = format!(
        "{path:?}: {}, {}, looked at in {:.1} s\n  classes: {classes}\n",
        found.format,
        counted(found.report.samples, "sample"),
        found.report.seconds
    );
    for (stream, plan) in launch.streams.iter().zip(&launch.plans) {
        let rows = u64::from(stream.config().batch.size.get());
        for tensor in stream.tensors() {
            text += &format!("  {}: {}\n", tensor.name, super::check::tensor_line(tensor, rows));
        }
        text += &format!(
            "  memory: {}, of which {} take {}\n",
            format_bytes(plan.total_bytes()),
            counted(stream.config().ring.slots, "batch"),
            format_bytes(plan.ring_bytes)
        );
    }
    for warning in &found.report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

fn next_steps(output: &Path, launch: &Launch) -> String {
    let shown = output.display();
    let fields: Vec<_> = launch
        .streams
        .iter()
        .flat_map(|stream| stream.tensors())
        .map(|tensor| format!("batch[{:?}]", tensor.name))
        .collect();
    format!(
        "
Written: {shown}. From Python:

    import forebay
    loader = forebay.Loader({:?})
    for batch in loader: ...  # {}

forebay.torch.Loader and forebay.jax.Loader give tensors and JAX arrays. Next:

    forebay check {shown}    # every key with its value, and the plan
    forebay bench {shown}    # samples a second without a trainer, and what limits them
    forebay doctor {shown}   # what to change on this machine
",
        output.display().to_string(),
        fields.join(", "),
    )
}

/// A configuration that is replaced stays whole if the new one cannot be written, and no part of a new one stays.
fn write_configuration(output: &Path, text: &str, replace: bool) -> anyhow::Result<()> {
    let old = replace.then(|| fs::canonicalize(output).ok()).flatten().filter(|old| old.is_file());
    let target = old.as_ref().map_or_else(
        || output.to_owned(),
        |old| {
            let mut new = old.clone().into_os_string();
            new.push(".new");
            PathBuf::from(new)
        },
    );
    let mut options = File::options();
    options.write(true);
    match replace {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(&target).and_then(|mut file| {
        let written = file.write_all(text.as_bytes());
        if written.is_err() && target.is_file() {
            let _ = fs::remove_file(&target);
        }
        written
    });
    match written.and_then(|()| old.map_or(Ok(()), |old| fs::rename(&target, old))) {
        Err(error) if !replace && error.kind() == ErrorKind::AlreadyExists => {
            Err(already_exists(output))
        }
        written => written.with_context(|| format!("writing {}", output.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn a_batch_leaves_out_few_samples_of_an_epoch() {
        let of = [(3, 1), (150, 32), (1_500, 64), (4_000, 256), (1_281_167, 256), (u64::MAX, 256)];
        for (samples, batch) in of {
            assert_eq!(Sizes::usual(samples).batch, batch, "{samples}");
        }
    }
}
