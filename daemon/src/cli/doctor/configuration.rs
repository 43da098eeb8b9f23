//! Findings about a configuration's plan on this machine.

use forebay_protocol::counted::counted;
use forebay_protocol::tensor::DType;

use super::finding::{Finding, Weight};
use crate::cli::launch::Launch;
use forebay_config::{Concurrency, CpuPolicy};
use forebay_observe::format_bytes;

/// Photographs larger than this have more detail than a crop of 224 pixels needs.
const LARGE_PICTURE_BYTES: u64 = 300 << 10;

/// All findings that do not require a run.
pub(super) fn findings(launch: &Launch, bytes_per_sample: u64) -> Vec<Finding> {
    let mut found = vec![memory(launch), threads(launch)];
    found.extend(policy(launch));
    found.extend(output(launch));
    found.extend(pictures(launch, bytes_per_sample));
    found.extend(ring(launch));
    found.extend(launch.quiet().into_iter().filter(|item| !item.in_force).map(|item| {
        let remedy = item.remedy.unwrap_or_else(|| "no remedy".to_owned());
        let name = format!("{}: {}", item.name, item.state);
        Finding::new(Weight::Costly, "quiet", name, remedy)
    }));
    found
}

fn memory(launch: &Launch) -> Finding {
    let Some(plan) = launch.plans.first() else { return Finding::good("memory", "none") };
    let (needed, ceiling) = (format_bytes(plan.total_bytes()), format_bytes(plan.ceiling_bytes));
    let slots = launch.streams.first().map_or(0, |stream| stream.config().ring.slots);
    Finding::good(
        "memory",
        format!("{needed} of ring.memory = {ceiling}, with {}", counted(slots, "slot")),
    )
}

fn threads(launch: &Launch) -> Finding {
    let Some(stream) = launch.streams.first() else { return Finding::good("threads", "none") };
    let cores = launch.cores.len();
    for (stage, (name, limit)) in stream.config().stages.iter().zip(stream.stage_limits()) {
        if matches!(stage.concurrency, Concurrency::Threads(_)) && (limit as usize) < cores {
            return Finding::new(
                Weight::Costly,
                "threads",
                format!(
                    "stage `{name}` is limited to {}, and {cores} cores are allowed",
                    counted(limit, "thread")
                ),
                format!(
                    "remove `concurrency` of `{name}`: \"auto\" chooses it without starving the trainer"
                ),
            );
        }
    }
    Finding::good(
        "threads",
        format!("{} on {}", counted(launch.threads(), "work thread"), counted(cores, "core")),
    )
}

fn policy(launch: &Launch) -> Option<Finding> {
    let config = launch.streams.first()?.config();
    (config.cpu.policy == CpuPolicy::Normal).then(|| {
        Finding::new(
            Weight::Minor,
            "policy",
            "cpu.policy is \"normal\": work threads compete with the trainer's on equal terms",
            "cpu.policy = \"idle\", the default, where trainer and loader share cores",
        )
    })
}

/// Advice for float fields, which cost CPU time and bus bandwidth.
fn output(launch: &Launch) -> Option<Finding> {
    let stream = launch.streams.first()?;
    let floats = |tensor: &&forebay_protocol::tensor::TensorSpec| {
        matches!(tensor.dtype, DType::F16 | DType::BF16 | DType::F32)
            && tensor.row_shape.len() == 3
            && tensor.finish.is_none()
            // Batches of one shape are not finished on a GPU.
            && tensor.row_shapes.is_empty()
    };
    let tensor = stream.tensors().iter().find(floats)?;
    let times = tensor.dtype.size_bytes();
    Some(Finding::new(
        Weight::Minor,
        "output",
        format!(
            "`{}` is converted to {} on the CPU: {times} bytes for each value",
            tensor.name,
            tensor.dtype.name()
        ),
        format!(
            "with a GPU, set output.{}.on = \"gpu\": one byte for each value over the bus, identical results",
            tensor.name
        ),
    ))
}

fn pictures(launch: &Launch, bytes_per_sample: u64) -> Option<Finding> {
    let stream = launch.streams.first()?;
    let config = stream.config();
    let text = config.resolved_toml();
    let decodes = text.contains("decode-image") && !text.contains("scaled");
    (decodes && bytes_per_sample > LARGE_PICTURE_BYTES).then(|| {
        Finding::new(
            Weight::Costly,
            "pictures",
            format!("a file has {} on average; decoding costs about as much as its bytes", format_bytes(bytes_per_sample)),
            "save smaller pictures (the cheapest speed-up there is), or { op = \"decode-image\", scaled = \"auto\" } \
             where they are much larger than the crop",
        )
    })
}

fn ring(launch: &Launch) -> Option<Finding> {
    let config = launch.streams.first()?.config();
    (config.ring.slots < 4).then(|| {
        Finding::new(
            Weight::Minor,
            "ring",
            format!(
                "{}: one slow batch makes the trainer wait",
                counted(config.ring.slots, "slot")
            ),
            "ring.slots = 8, the default, where memory allows it",
        )
    })
}
