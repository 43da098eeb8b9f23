//! What the functions of Python stages take on some samples, one after the other: no daemon, no queue and no other sample.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use super::stage_benchmark::spread;
use super::stream::{Stream, read_at_start};
use forebay_order::DrawKey;
use forebay_pipeline::{MemoryRow, SampleTask, WorkerScratch};

/// Samples that are tried beyond the limit, as long as none could be timed and none failed.
const TRIED: u64 = 4;

/// The function of a stage, in totals over its samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionTimes {
    /// The stage's name.
    pub stage: String,
    /// The samples that it was called with on the clock.
    pub samples: u32,
    /// In the function.
    pub function: Duration,
    /// Of it, in transforms of known packages, by class: `torchvision.Resize`. Each without those within it.
    pub transforms: BTreeMap<String, Duration>,
}

/// Calls the function of each Python stage with up to `most` samples of epoch 0 for about `limit`, and once more before.
/// What it returns is dropped. A stage comes with the reason where no sample reaches it or it raises for all of them.
pub fn time_functions(
    stream: &Stream,
    most: u32,
    limit: Duration,
) -> Vec<Result<FunctionTimes, (String, String)>> {
    let stages = stream.config.stages.iter().enumerate();
    let python = stages.filter(|(_, stage)| stage.python.is_some());
    let timed = python.map(|(number, stage)| {
        let name = || stage.name.clone();
        let times = time_stage(stream, number, most, limit).map_err(|why| (name(), why))?;
        Ok(FunctionTimes { stage: name(), ..times })
    });
    timed.collect()
}

fn time_stage(
    stream: &Stream,
    stage: usize,
    most: u32,
    limit: Duration,
) -> Result<FunctionTimes, String> {
    let count = stream.sample_count().max(1);
    let mut scratch = WorkerScratch::default();
    let mut times = FunctionTimes::default();
    let mut is_warm = false;
    let mut why_not = String::new();
    let begun = Instant::now();
    // The first one warms the worker's memory and caches. A slow function is timed once all the same.
    for number in 0..=u64::from(most) {
        let has_tried = times.samples > 0 || !why_not.is_empty() || number >= TRIED;
        if has_tried && begun.elapsed() > limit {
            break;
        }
        let id = SampleId(spread(number, count));
        match prepare(stream, stage, id, &mut scratch)
            .and_then(|()| stream.plan.time_bundle(stage, &scratch))
        {
            Ok(time) if is_warm => {
                times.samples += 1;
                times.function += time.function;
                for (class, spent) in time.transforms {
                    *times.transforms.entry(class).or_default() += spent;
                }
            }
            Ok(_) => is_warm = true,
            Err(reason) => why_not = reason,
        }
    }
    if times.samples > 0 { Ok(times) } else { Err(why_not) }
}

/// Takes a sample through the stages before, and makes it the only row of a call.
fn prepare(
    stream: &Stream,
    stage: usize,
    id: SampleId,
    scratch: &mut WorkerScratch,
) -> Result<(), String> {
    let Stream { plan, dataset, storage, config, .. } = stream;
    let key = DrawKey { seed: config.order.seed, epoch: 0, sample: id.0 };
    let mut task = SampleTask::new(id, key, Vec::new());
    let limit_bytes = config.dataset.limits.sample_bytes;
    read_at_start(storage.as_ref(), dataset.as_ref(), limit_bytes, &mut task)
        .map_err(|error| error.to_string())?;
    let mut row = MemoryRow::of(plan.row_tensors());
    (0..stage)
        .try_for_each(|before| plan.run(before, &mut task, dataset.as_ref(), &mut row, scratch))
        .and_then(|()| {
            plan.begin_bundle(scratch);
            plan.prepare_row(stage, &mut task, dataset.as_ref(), scratch)
        })
        .map_err(|defect| defect.to_string())
}
