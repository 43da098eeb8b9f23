//! `forebay run-sample`: one sample through all stages, in the foreground.
//!
//! The functions of Python stages are called once, in processes that keep this process's terminal: `print` and
//! debuggers work. There is no confinement, no time limit, and no other sample.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use forebay_config::Config;
use forebay_dataset::OpenOptions;
use forebay_engine::{SampleRow, SampleRun};
use forebay_inspect::output::print;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};
use forebay_workers::is_foreground_interrupted;
use tokio::signal::unix::{SignalKind, signal};

use super::config_arguments::{Settings, read_one};
use super::launch::runtime;
use super::logging;
use super::values::{begin, described, numbers};

/// The exit status that a shell reports after Ctrl-C: 128 plus the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Arguments of `forebay run-sample`.
#[derive(Debug, Args)]
pub(super) struct RunSampleArguments {
    /// A configuration file (TOML).
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The sample: a value of the field `index`, as messages name it.
    #[arg(value_name = "ID")]
    id: u64,
    /// The only Python stage to run in the foreground; default: each.
    #[arg(long, value_name = "NAME")]
    stage: Option<String>,
    /// The epoch, which draws depend on; of a mixture the dataset's pass, and with weights the draw's number, as messages
    /// name them.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    #[command(flatten)]
    settings: Settings,
}

/// `forebay run-sample`.
pub(super) fn run_sample(arguments: &RunSampleArguments) -> anyhow::Result<ExitCode> {
    let _logging = logging::start("warn");
    let config = read_one(&arguments.config, &arguments.settings)?;
    let stage = arguments.stage.as_deref().map(|name| find_stage(&config, name)).transpose()?;
    let seed = config.order.seed;
    let run = SampleRun::open(config, forebay_formats::open_configured, OpenOptions::default())?;
    let RunSampleArguments { id, epoch, .. } = *arguments;
    let count = run.sample_count();
    if id >= count {
        anyhow::bail!("there is no sample {id}; the dataset has {count}, counted from 0");
    }
    let path = run.path(id);
    let place = format!("sample {id} ({}) in epoch {epoch}, seed {seed}", path.display());
    end_on_interrupt()?;
    match run.run(id, epoch, stage) {
        Ok(row) => {
            print(format_args!("{}{place}\n", lines(&row, run.batch_operations())))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "forebay: {}\n\n{place}", reason.trim_end());
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The index of a Python stage.
fn find_stage(config: &Config, name: &str) -> anyhow::Result<usize> {
    let found = config.stages.iter().position(|stage| stage.name == name);
    if let Some(number) = found.filter(|number| config.stages[*number].python.is_some()) {
        return Ok(number);
    }
    let python = config.stages.iter().filter(|stage| stage.python.is_some());
    let names: Vec<String> = python.map(|stage| format!("`{}`", stage.name)).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let source = &config.source;
    if found.is_some() {
        anyhow::bail!(
            "stage `{name}` of {source} has operations of Forebay's own, which run in any case; its Python stages: {names}"
        );
    }
    anyhow::bail!(
        "{source} has no stage `{name}`; its Python stages: {names}. One that a script gives with `stages={{…}}` is named \
         with `--set stage.{name}.python=MODULE:FUNCTION`; a function of the script itself with `--set \
         stage.{name}.python=__main__:FUNCTION --set python.main=SCRIPT.py`"
    );
}

/// Ctrl-C ends this program, except while the user's code runs: then it is for that code or its debugger.
fn end_on_interrupt() -> anyhow::Result<()> {
    let runtime = runtime()?;
    let guard = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).context("cannot take SIGINT")?;
    drop(guard);
    std::thread::Builder::new()
        .name("forebay-interrupt".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                while interrupts.recv().await.is_some() {
                    if !is_foreground_interrupted() {
                        // Processes started by this program end with it.
                        std::process::exit(INTERRUPTED);
                    }
                }
            });
        })
        .context("cannot start a thread")?;
    Ok(())
}

/// A row's fields as lines of text.
fn lines(row: &SampleRow, batch_operations: &[String]) -> String {
    let mut lines = String::from("the sample's fields in a batch\n");
    for (tensor, bytes) in row.tensors.iter().zip(&row.bytes) {
        lines.push_str(&format!("  {:<20}{}\n", tensor.name, field(tensor, bytes)));
    }
    if !batch_operations.is_empty() {
        let names = batch_operations.join("`, `");
        lines.push_str(&format!("  not run, as they need a batch: `{names}`\n"));
    }
    lines
}

fn field(tensor: &TensorSpec, bytes: &[u8]) -> String {
    let size = |extent: u64| usize::try_from(extent).unwrap_or(0);
    let mut shape: Vec<usize> = tensor.row_shape.iter().map(|side| size(*side)).collect();
    if matches!(tensor.extent, Extent::Ragged { .. }) {
        if tensor.dtype == DType::U8
            && shape.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return format!("text of {} bytes: {:?}", bytes.len(), begin(text));
        }
        let row_bytes = shape.iter().product::<usize>() * size(tensor.dtype.size_bytes());
        shape.insert(0, bytes.len() / row_bytes.max(1));
    }
    let values = numbers(bytes, tensor.dtype);
    let text = described(&values, tensor.dtype, &shape);
    match range(&values) {
        Some([least, greatest, mean]) if values.len() > 1 => {
            format!("{text}; {least:.6} to {greatest:.6}, mean {mean:.6}")
        }
        _ => text,
    }
}

/// Minimum, maximum and mean.
#[expect(clippy::cast_precision_loss, reason = "a count of values")]
fn range(values: &[f64]) -> Option<[f64; 3]> {
    let least = values.iter().copied().reduce(f64::min)?;
    let greatest = values.iter().copied().reduce(f64::max)?;
    Some([least, greatest, values.iter().sum::<f64>() / values.len() as f64])
}
