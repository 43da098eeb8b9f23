//! `forebay check`: the resolved configuration and its plan on this machine; the schema of the keys.

mod classes;
mod figures;
mod lengths;
mod order;
mod sample;

use std::process::ExitCode;

use clap::Args;
use forebay_inspect::output::{print, print_line};
use forebay_protocol::tensor::{Extent, TensorSpec};

use super::config_arguments::ConfigArguments;
use super::launch::{Launch, Rings};
use super::logging;
use super::opening_watch::OpeningWatch;
use forebay_affinity::LocalRank;
use forebay_config::{Last, Reference};
use forebay_engine::{DatasetShare, MemoryPlan, Stream};
use forebay_formats::format_tables;
use forebay_formats::storages::storage_table;
use forebay_inspect::stats::isolation_lines;
use forebay_observe::format_bytes;
use forebay_order::Selection;
use forebay_transform::{batch_operation_tables, operation_tables};
use forebay_workers::WorkerStart;

/// Arguments of `forebay check`.
#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// World size to plan for.
    #[arg(long, default_value_t = 1)]
    world_size: u32,
    /// Print only the plan, not the resolved configuration.
    #[arg(long)]
    plan_only: bool,
    /// Also take so many samples through all stages and print their values. Images that are all of one value are an error.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "8", require_equals = true, conflicts_with = "json")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    sample: Option<u32>,
    /// Print a JSON schema of configuration files, for editors.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print one JSON object: streams with their stages and memory, and the CPU isolation that will be in effect.
    #[arg(long)]
    json: bool,
}

/// `forebay check`.
pub(super) fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    if arguments.schema {
        print_line(format_args!("{:#}", reference().schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let _logging = logging::start("warn");
    let configs = arguments.config.read()?;
    if !arguments.plan_only && !arguments.json {
        for config in &configs {
            print_line(format_args!("# {}, resolved\n{}", config.source, config.resolved_toml()))?;
        }
    }
    let opening = OpeningWatch::impatient();
    let launch = Launch::prepare(
        configs,
        LocalRank::from_environment(),
        Rings::New,
        WorkerStart::WhenCalled,
        &opening,
        |_| {},
    )
    .map_err(|fault| anyhow::anyhow!(fault.message))?;
    for (stream, plan) in launch.streams.iter().zip(&launch.plans) {
        stream.jpeg_index().look(plan.jpeg_index_bytes);
    }
    if arguments.json {
        print_line(as_json(&launch, arguments.world_size))?;
        return Ok(ExitCode::SUCCESS);
    }
    let openings = opening.memory_lines();
    for ((stream, plan), opened) in launch.streams.iter().zip(&launch.plans).zip(openings) {
        print(describe(stream, (plan, &opened), arguments.world_size, &launch)?)?;
    }
    if let Some(count) = arguments.sample {
        let overrides = arguments.config.overrides()?;
        for stream in &launch.streams {
            print(sample::sample(stream.config(), &overrides, count)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(launch: &Launch, world_size: u32) -> serde_json::Value {
    let streams = launch.streams.iter().zip(&launch.plans).map(|(stream, plan)| {
        let stages = stream
            .stage_limits()
            .map(|(name, threads)| serde_json::json!({ "name": name, "threads": threads }));
        serde_json::json!({
            "name": stream.name(),
            "samples": stream.kept_count(),
            "of": stream.sample_count(),
            "stages": stages.collect::<Vec<_>>(),
            "expect": expectation(stream, world_size),
            "draws_per_epoch": stream.selection().draws_per_epoch(),
            "order": order::as_json(stream),
            "drawn_classes": classes::as_json(stream),
            "datasets": stream.datasets().iter().map(dataset_as_json).collect::<Vec<_>>(),
            "jpeg_index": stream.jpeg_index().report(),
            "memory_bytes": plan.total_bytes(),
            "memory_for_large_samples_bytes": plan.work_bytes,
            "memory_of_workers_bytes": plan.workers_bytes,
            "memory_of_decoders_bytes": plan.decoders_bytes,
            "memory_ceiling_bytes": plan.ceiling_bytes,
        })
    });
    serde_json::json!({
        "streams": streams.collect::<Vec<_>>(),
        "threads": launch.threads(),
        "cores": launch.cores,
        "quiet": launch.quiet(),
    })
}

fn dataset_as_json(dataset: &DatasetShare) -> serde_json::Value {
    let DatasetShare { name, samples, draws_per_epoch, changes, .. } = dataset;
    let change = |(from, draws_per_epoch): &(u64, u64)| serde_json::json!({ "from": from, "draws_per_epoch": draws_per_epoch });
    serde_json::json!({
        "name": name,
        "samples": samples,
        "draws_per_epoch": draws_per_epoch,
        "changes": changes.iter().map(change).collect::<Vec<_>>(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a share to be printed")]
fn share_percent(draws: u64, all: u64) -> f64 {
    100.0 * draws as f64 / all.max(1) as f64
}

/// The fingerprint that a launcher expects of every rank of this stream.
fn expectation(stream: &Stream, world_size: u32) -> String {
    format!(
        "{}:{}",
        stream.name(),
        stream.identity(stream.config().batch.size.get()).with("world_size", world_size)
    )
}

/// A tensor in batches of `rows` rows: type, shape and bytes, also after a GPU has finished it.
pub(super) fn tensor_line(tensor: &TensorSpec, rows: u64) -> String {
    let dense = |tensor: &TensorSpec| {
        let dims = std::iter::once(rows).chain(tensor.row_shape.iter().copied());
        let shape: Vec<String> = dims.map(|dim| dim.to_string()).collect();
        let others = match tensor.row_shapes.len() {
            0 => String::new(),
            shapes => format!(", the largest of {shapes} shapes"),
        };
        format!("{} [{}]{others}", tensor.dtype.name(), shape.join(", "))
    };
    let bytes = format_bytes(tensor.row_pitch_bytes().unwrap_or(0) * rows);
    if let Extent::Ragged { max_row_bytes, .. } = tensor.extent {
        let most = format_bytes(max_row_bytes);
        return format!("{} ragged, rows up to {most}, {bytes} a batch", tensor.dtype.name());
    }
    let Some(finish) = &tensor.finish else {
        return format!("{}, {bytes} a batch", dense(tensor));
    };
    // One byte per element crosses the bus.
    let percent = 100 / finish.dtype.size_bytes();
    format!(
        "{}, finished on the GPU to {}{}; {bytes} a batch over the bus, {percent} % of the finished bytes",
        dense(tensor),
        dense(&tensor.finished(finish)),
        if finish.mixes > 0 { " and mixed there" } else { "" }
    )
}

fn describe(
    stream: &Stream,
    (plan, opened): (&MemoryPlan, &str),
    world_size: u32,
    launch: &Launch,
) -> anyhow::Result<String> {
    let config = stream.config();
    let schedule = stream
        .schedule(stream.dealing(), 0, world_size)
        .map_err(|error| anyhow::anyhow!("{}: {error}", config.location(&["batch", "size"])))?;
    let mut lines = vec![format!("# the plan of stream {}", stream.name())];
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<20}{value}"));
    let epochs =
        config.order.epochs.map_or("endless".to_owned(), |epochs| format!("{epochs} epochs"));
    let (samples, draws) = (stream.kept_count(), schedule.samples());
    let each_once = matches!(stream.selection(), Selection::Once(_) | Selection::InBlocks(_));
    if stream.too_long() > 0 {
        let left_out = stream.too_long();
        line(
            "samples",
            format!("{draws} an epoch, {epochs}; {left_out} longer than batch.budget are left out"),
        );
    } else if each_once {
        line("samples", format!("{samples} an epoch, {epochs}"));
    } else {
        line("samples", format!("{samples}, {draws} drawn an epoch, {epochs}"));
    }
    for (name, text) in order::lines(stream, world_size) {
        line(name, text);
    }
    for dataset in stream.datasets() {
        let DatasetShare { name, samples, draws_per_epoch, changes, .. } = dataset;
        let percent = |own: u64| format!("{:.2} %", share_percent(own, draws));
        let mut drawn = format!("{draws_per_epoch} drawn an epoch, {}", percent(*draws_per_epoch));
        for (from, own) in changes {
            drawn.push_str(&format!("; from position {from} on {own}, {}", percent(*own)));
        }
        line("dataset", format!("{name}: {samples} samples, {drawn}"));
    }
    let description = stream.description();
    if let Some(classes) = &description.classes {
        line("classes", classes.to_string());
    }
    if let Some(left_out) = description.left_out {
        line("hidden, left out", left_out);
    }
    for (name, text) in description.notes {
        line(name, text);
    }
    let (fewest, most) = schedule.batches_per_epoch_over_ranks();
    let batches = if let Some(by_length) = stream.by_length() {
        lengths::batches(stream, by_length, most, world_size)
    } else if fewest == most {
        format!(
            "{most} an epoch and rank, of {} samples, over {world_size} ranks",
            config.batch.size
        )
    } else {
        format!(
            "{fewest} to {most} an epoch, by rank, of {} samples: ranks differ; batch.last = \"drop\" or \"pad\" makes \
             them equal",
            config.batch.size
        )
    };
    line("batches", batches);
    if let Some(by_length) = stream.by_length()
        && config.batch.buckets.is_some()
    {
        line("buckets", lengths::buckets(stream, by_length));
    }
    match config.batch.last {
        Last::Drop => {
            line("left out", format!("{} samples an epoch", schedule.samples_left_out_per_epoch()))
        }
        Last::Pad => line("padding", format!("{} rows an epoch", schedule.padding_per_epoch())),
        Last::Short => {}
    }
    for tensor in stream.tensors() {
        let rows = u64::from(config.batch.size.get());
        line(&format!("tensor {}", tensor.name), tensor_line(tensor, rows));
    }
    let reads = match config.reads() {
        (least, most) if least < most => format!("{least} to {most} reads at once (\"auto\")"),
        (reads, _) => format!("{reads} reads at once"),
    };
    line("stage fetch", reads);
    for (name, threads) in stream.stage_limits() {
        line(&format!("stage {name}"), format!("{threads} threads"));
    }
    let cores: Vec<String> = launch.cores.iter().map(u32::to_string).collect();
    line(
        "work threads",
        format!(
            "{} on cores {}, policy {}",
            launch.threads(),
            cores.join(","),
            config.cpu.policy.word()
        ),
    );
    line(
        "memory",
        format!(
            "{} of {}: ring {} ({} slots of {}), rows {}, fetch {}, scratch {}{}; up to {} more for large samples",
            format_bytes(plan.total_bytes()),
            format_bytes(plan.ceiling_bytes),
            format_bytes(plan.ring_bytes),
            config.ring.slots,
            format_bytes(stream.layout().slot_bytes()),
            format_bytes(plan.rows_bytes),
            format_bytes(plan.fetch_bytes),
            format_bytes(plan.scratch_bytes),
            match plan.jpeg_index_bytes {
                0 => String::new(),
                bytes => format!(", JPEG index {}", format_bytes(bytes)),
            },
            format_bytes(plan.work_bytes)
        ),
    );
    line("opening", opened.to_owned());
    if let Some(index) = stream.jpeg_index().report() {
        line("JPEG index", index.line());
    }
    if plan.workers_bytes > 0 {
        let bytes = format_bytes(plan.workers_bytes);
        line(
            "memory of workers",
            format!("{bytes} at most, beside ring.memory; one that holds more is replaced"),
        );
    }
    if let Some(helpers) = stream.helpers() {
        let (count, bytes) = (helpers.helpers, format_bytes(helpers.memory_bytes));
        line(
            "decoders",
            format!(
                "{}; {count} processes of {bytes} at most each, for pictures of {} pixels (limits.pixels)",
                helpers.decoders, helpers.most_pixels
            ),
        );
    }
    line("FOREBAY_EXPECT", expectation(stream, world_size));
    lines.push("  quiet".to_owned());
    lines.extend(isolation_lines(&launch.quiet()).map(|item| format!("  {item}")));
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// All keys: the configuration's, those of formats, and the arguments of operations.
fn reference() -> Reference {
    Reference {
        formats: format_tables().collect(),
        storage: storage_table(),
        operations: operation_tables().collect(),
        batch_operations: batch_operation_tables().collect(),
    }
}

#[cfg(test)]
mod tests;
