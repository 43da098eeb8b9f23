//! Times the user's functions, one call after another: functions of stages on some samples, functions on complete
//! batches on one batch. No daemon, no queue and no other sample takes part.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use crate::actors::stage_benchmark::spread;
use crate::ground::stream::{Stream, read_at_start};
use forebay_order::DrawKey;
use forebay_transform::batch::BatchRow;
use forebay_transform::{FunctionTime, MemoryRow, SampleTask, WorkerScratch};

/// The time limit applies from this sample on, or earlier once a call was timed or has failed.
const TRIED: u64 = 4;

/// Total times of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionTimes {
    /// The stage's name, or the operation's place.
    pub place: String,
    /// Number of samples in the batch that it is called with; `None`: it is called with one sample at a time.
    pub batch: Option<usize>,
    /// Number of timed calls.
    pub calls: u32,
    /// Time in the function.
    pub function: Duration,
    /// Part of it in transforms of known packages, by class, such as `torchvision.Resize`; nested transforms are
    /// counted separately.
    pub transforms: BTreeMap<String, Duration>,
}

/// Calls each of the user's functions once for warm-up, then up to `most` times for about `limit`. A stage's function
/// gets samples of epoch 0; a function on complete batches gets a batch of `batch.size` samples, at most `most`. Return
/// values are dropped. If no sample reaches a function, or it raises for all of them, the entry is its name and the
/// reason.
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
    let count = stream.kept_count().max(1);
    let mut scratch = WorkerScratch::default();
    time_calls(most, limit, |number| {
        let id = stream.kept_at(spread(number, count));
        prepare(stream, stage, id, &mut scratch)?;
        stream.plan.time_bundle(stage, &scratch)
    })
}

/// Times the calls of one function; `call` gets the call's number.
fn time_calls(
    most: u32,
    limit: Duration,
    mut call: impl FnMut(u64) -> Result<FunctionTime, String>,
) -> Result<FunctionTimes, String> {
    let mut times = FunctionTimes::default();
    let mut is_warm = false;
    let mut why_not = String::new();
    let begun = Instant::now();
    // The first call warms the worker's memory and caches. A slow function is timed once nevertheless.
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
    let count = stream.kept_count();
    for number in 0..count.min(wanted as u64 + TRIED) {
        match made_row(stream, stream.kept_at(spread(number, count)), &mut scratch) {
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

/// A sample's row after all stages.
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

/// Runs the stages before `stage` on a sample, and makes it the only row of a call.
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
