//! What the user's functions take, one call after the other: those of stages on some samples, those on complete batches on a
//! batch. No daemon, no queue and no other sample.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use super::stage_benchmark::spread;
use super::stream::{Stream, read_at_start};
use forebay_order::DrawKey;
use forebay_pipeline::batch::BatchRow;
use forebay_pipeline::{FunctionTime, MemoryRow, SampleTask, WorkerScratch};

/// Samples that are tried beyond the limit, as long as none could be timed and none failed.
const TRIED: u64 = 4;

/// A function, in totals over its calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionTimes {
    /// The stage's name, or the operation's place.
    pub place: String,
    /// The samples of the batch that it is called with; none: it is called with one sample at a time.
    pub batch: Option<usize>,
    /// The calls on the clock.
    pub calls: u32,
    /// In the function.
    pub function: Duration,
    /// Of it, in transforms of known packages, by class: `torchvision.Resize`. Each without those within it.
    pub transforms: BTreeMap<String, Duration>,
}

/// Calls each of the user's functions up to `most` times for about `limit`, and once more before: that of a stage with
/// samples of epoch 0, one on complete batches with a batch of as many of them as a batch has, and `most` at most. What it
/// returns is dropped. A function comes with the reason where no sample reaches it or it raises for all of them.
pub fn time_functions(
    stream: &Stream,
    most: u32,
    limit: Duration,
) -> Vec<Result<FunctionTimes, (String, String)>> {
    let stages = stream.config.stages.iter().enumerate();
    let python = stages.filter(|(_, stage)| stage.python.is_some());
    let of_stages = python.map(|(number, stage)| {
        let timed = time_stage(stream, number, most, limit);
        (stage.name.clone(), timed)
    });
    let functions = (0..).zip(stream.plan.batch_function_figures());
    let of_batches = functions.map(|(number, function)| {
        let timed = time_batch_function(stream, number, most, limit);
        (function.place.to_owned(), timed)
    });
    let named = |(place, timed): (String, Result<FunctionTimes, String>)| match timed {
        Ok(times) => Ok(FunctionTimes { place, ..times }),
        Err(why) => Err((place, why)),
    };
    of_stages.chain(of_batches).map(named).collect()
}

fn time_stage(
    stream: &Stream,
    stage: usize,
    most: u32,
    limit: Duration,
) -> Result<FunctionTimes, String> {
    let count = stream.sample_count().max(1);
    let mut scratch = WorkerScratch::default();
    time_calls(most, limit, |number| {
        let id = SampleId(spread(number, count));
        prepare(stream, stage, id, &mut scratch)?;
        stream.plan.time_bundle(stage, &scratch)
    })
}

/// The calls of one function, each of them by its number.
fn time_calls(
    most: u32,
    limit: Duration,
    mut call: impl FnMut(u64) -> Result<FunctionTime, String>,
) -> Result<FunctionTimes, String> {
    let mut times = FunctionTimes::default();
    let mut is_warm = false;
    let mut why_not = String::new();
    let begun = Instant::now();
    // The first one warms the worker's memory and caches. A slow function is timed once all the same.
    for number in 0..=u64::from(most) {
        let has_tried = times.calls > 0 || !why_not.is_empty() || number >= TRIED;
        if has_tried && begun.elapsed() > limit {
            break;
        }
        match call(number) {
            Ok(time) if is_warm => {
                times.calls += 1;
                times.function += time.function;
                for (class, spent) in time.transforms {
                    *times.transforms.entry(class).or_default() += spent;
                }
            }
            Ok(_) => is_warm = true,
            Err(reason) => why_not = reason,
        }
    }
    if times.calls > 0 { Ok(times) } else { Err(why_not) }
}

fn time_batch_function(
    stream: &Stream,
    function: usize,
    most: u32,
    limit: Duration,
) -> Result<FunctionTimes, String> {
    let wanted = stream.config.batch.size.get().min(most) as usize;
    let mut scratch = WorkerScratch::default();
    let mut batch = Vec::new();
    let mut why_not = String::from("the dataset has no samples");
    let count = stream.sample_count();
    for number in 0..count.min(wanted as u64 + TRIED) {
        match made_row(stream, SampleId(spread(number, count)), &mut scratch) {
            Ok(row) => batch.push(row),
            Err(reason) => why_not = reason,
        }
        if batch.len() == wanted {
            break;
        }
    }
    if batch.is_empty() {
        return Err(why_not);
    }
    let times = time_calls(most, limit, |_| {
        let mut rows: Vec<(DrawKey, MemoryRow)> = batch.clone();
        let mut rows: Vec<BatchRow<'_>> =
            rows.iter_mut().map(|(key, row)| BatchRow { key: *key, row }).collect();
        stream.plan.time_batch_function(function, &mut rows)
    })?;
    Ok(FunctionTimes { batch: Some(batch.len()), ..times })
}

/// A sample's row as the stages leave it.
fn made_row(
    stream: &Stream,
    id: SampleId,
    scratch: &mut WorkerScratch,
) -> Result<(DrawKey, MemoryRow), String> {
    let mut task = read_sample(stream, id)?;
    let mut row = MemoryRow::of(stream.plan.row_tensors());
    let key = task.key;
    (0..stream.stages.len())
        .try_for_each(|stage| {
            stream.plan.run(stage, &mut task, stream.dataset.as_ref(), &mut row, scratch)
        })
        .map_err(|defect| defect.to_string())?;
    Ok((key, row))
}

fn read_sample(stream: &Stream, id: SampleId) -> Result<SampleTask, String> {
    let Stream { dataset, storage, config, .. } = stream;
    let key = DrawKey { seed: config.order.seed, epoch: 0, sample: id.0 };
    let mut task = SampleTask::new(id, key, Vec::new());
    let limit_bytes = config.dataset.limits.sample_bytes;
    read_at_start(storage.as_ref(), dataset.as_ref(), limit_bytes, &mut task)
        .map_err(|error| error.to_string())?;
    Ok(task)
}

/// Takes a sample through the stages before, and makes it the only row of a call.
fn prepare(
    stream: &Stream,
    stage: usize,
    id: SampleId,
    scratch: &mut WorkerScratch,
) -> Result<(), String> {
    let Stream { plan, dataset, .. } = stream;
    let mut task = read_sample(stream, id)?;
    let mut row = MemoryRow::of(plan.row_tensors());
    (0..stage)
        .try_for_each(|before| plan.run(before, &mut task, dataset.as_ref(), &mut row, scratch))
        .and_then(|()| {
            plan.begin_bundle(scratch);
            plan.prepare_row(stage, &mut task, dataset.as_ref(), scratch)
        })
        .map_err(|defect| defect.to_string())
}
