//! `forebay init`: looks at a dataset and writes a first configuration for it, with what to try next.
//!
//! The format is recognized, the dataset opened and sampled, and the format's draft completed by a batch size and a ring
//! that fit the memory: the plan is made by what `check` uses, so that what is written passes it. Behind a URL, keys of
//! `[storage]` that reach it are given as arguments and written too.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::frames::{Fault, FaultKind};

use super::launch::{Launch, Rings};
use super::logging;
use super::opening_watch::OpeningWatch;
use super::scan_notice::show_progress;
use forebay_config::{Config, Override, Value, is_url};
use forebay_engine::LocalRank;
use forebay_inspect::output::print;
use forebay_observe::format_bytes;
use forebay_source::dataset::{
    DatasetError, OpenOptions, Proposal, propose, recognize, resolve_keys,
};

/// The batch size where nothing speaks against it.
const USUAL_BATCH: u32 = 256;
/// Batches below this are only proposed after a smaller ring.
const SMALL_BATCH: u32 = 32;
/// An epoch has at least so many batches, where it has as many samples.
const MIN_BATCHES: u64 = 4;
const USUAL_SLOTS: u16 = 8;
const FEW_SLOTS: u16 = 4;
/// A larger ring is for those who ask for it.
const MAX_RING_BYTES: u64 = 1 << 30;

/// Arguments of `forebay init`.
#[derive(Debug, Args)]
pub(super) struct InitArguments {
    /// The dataset: a folder, or one file, or the URL of one.
    path: PathBuf,
    /// A key of `[storage]`, such as `storage.region=eu-central-1`. May be given several times.
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
    // Warnings of the dataset are printed here.
    let _logging = logging::start("warn,forebay_source::dataset::registry=error");
    let is_printed = arguments.output == Path::new("-");
    if !is_printed && !arguments.force && arguments.output.symlink_metadata().is_ok() {
        return Err(is_there(&arguments.output));
    }
    let overrides = storage_keys(&arguments.set)?;
    let (found, path) = look(&dataset_path(&arguments.path)?, &overrides)?;
    let (text, launch) = fit(&found, &path, &overrides)?;
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

fn is_there(output: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} is there already; replace it with --force, or name another file with --output",
        output.display()
    )
}

/// The keys to reach a storage.
fn storage_keys(arguments: &[String]) -> anyhow::Result<Vec<Override>> {
    let read = |argument: &String| match argument.starts_with("storage.") {
        true => Ok(Override::from_argument(argument)?),
        false => bail!(
            "--set {argument}: init takes keys of `storage` alone; change the others in what it writes"
        ),
    };
    arguments.iter().map(read).collect()
}

/// The path as a configuration can have it.
fn dataset_path(given: &Path) -> anyhow::Result<String> {
    let path = match is_url(given) {
        true => given.to_owned(),
        false => std::path::absolute(given).with_context(|| format!("{given:?}"))?,
    };
    path.into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!("{path:?} is not UTF-8, as a configuration must be; make a link to it under another name")
    })
}

/// What was found at a path; where its folders hold class folders, in the folder that was probably meant.
fn look(given: &str, overrides: &[Override]) -> anyhow::Result<(Proposal, String)> {
    let mut path = given.to_owned();
    let mut warning = None;
    loop {
        match look_once(&path, overrides) {
            Ok(mut found) => {
                found.report.warnings.splice(0..0, warning);
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

impl From<DatasetError> for LookError {
    fn from(error: DatasetError) -> Self {
        let message = error.to_string();
        match error {
            DatasetError::NestedClasses { meant, .. } => Self::Nested(message, meant),
            _ => Self::Other(message),
        }
    }
}

/// Watched, as at any opening: a storage that hangs ends the look with a message.
fn look_once(path: &str, overrides: &[Override]) -> Result<Proposal, LookError> {
    let opening = OpeningWatch::impatient();
    // Its time-outs are the defaults.
    let mut config = minimal(path, overrides)?;
    let patience = opening.patience(&config, false);
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
            let found = recognize(&config.dataset, options).map_err(LookError::from);
            Ok(found.and_then(|format| {
                format.clone_into(&mut config.dataset.format);
                Ok(propose(&config.dataset, options)?)
            }))
        },
        |_| {},
    );
    looked.map_err(|fault| LookError::Other(fault.message))?
}

/// As little of a configuration as can be opened.
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

/// `[storage]` as it was given; empty where it was not.
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

/// The configuration whose ring is not too large for the machine or for a first one, and what starts with it.
fn fit(found: &Proposal, path: &str, overrides: &[Override]) -> anyhow::Result<(String, Launch)> {
    let mut sizes = Sizes::usual(found.report.samples);
    let storage = storage_table(overrides);
    loop {
        let text = configuration(found, path, &storage, sizes, "");
        let mut config = Config::from_text("train", Path::new("/"), &text, &[])?;
        resolve_keys(&mut config.dataset)?;
        let prepared = Launch::prepare(
            vec![config],
            LocalRank::from_environment(),
            Rings::New,
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
    let (head, tables) = (&found.draft.head, &found.draft.tables);
    let tables = if tables.is_empty() { String::new() } else { format!("\n{tables}") };
    let format = &found.format;
    format!(
        "\
# Made by forebay init. `forebay check FILE` prints every key with its value, and the plan that this makes.
{head}
[dataset]
format = \"{format}\"
path = {path}
{storage}
[order]
epochs = 90          # left out: endless
seed = 0             # another seed: another order and other random operations

[batch]
size = {batch:<12}  # samples per rank

[ring]
slots = {slots:<11}  # batches{batch_bytes} in shared memory; the trainer may hold all but 2
{tables}"
    )
}

/// What was found, and what it becomes.
fn describe(found: &Proposal, path: &str, launch: &Launch) -> String {
    let classes = found.classes.as_ref().map_or("none".to_owned(), ToString::to_string);
    let mut text = format!(
        "{path:?}: {}, {} samples, looked at in {:.1} s\n  classes: {classes}\n",
        found.format, found.report.samples, found.report.seconds
    );
    for (stream, plan) in launch.streams.iter().zip(&launch.plans) {
        let rows = u64::from(stream.config().batch.size.get());
        for tensor in stream.tensors() {
            text += &format!("  {}: {}\n", tensor.name, super::check::tensor_line(tensor, rows));
        }
        text += &format!(
            "  memory: {}, of which {} batches are {}\n",
            format_bytes(plan.total_bytes()),
            stream.config().ring.slots,
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

fn write_configuration(output: &Path, text: &str, replace: bool) -> anyhow::Result<()> {
    let mut options = File::options();
    options.write(true);
    match replace {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(output).and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Err(error) if !replace && error.kind() == ErrorKind::AlreadyExists => Err(is_there(output)),
        written => written.with_context(|| format!("writing {}", output.display())),
    }
}
