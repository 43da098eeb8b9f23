//! Benchmarks one stage of a stream at a given concurrency: inputs are prepared, outputs are discarded.
//!
//! No daemon, no ring, no queue and no other stage takes part, so the result shows how the stage scales with threads on
//! this machine. Threads have the ordinary scheduling class and no affinity. The earlier stages prepare the inputs,
//! outside the measured time, some hundred at a time and within a limit of bytes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;
use nix::time::{ClockId, clock_gettime};

use crate::ground::meter::ready_without_core;
use crate::ground::stream::{ReadScratch, Stream};
use forebay_order::DrawKey;
use forebay_transform::batch::{BatchCaller, BatchRow};
use forebay_transform::{MemoryRow, SampleTask, WorkerScratch};

/// Measured time of a run, if there are enough inputs.
const RUN_TIME: Duration = Duration::from_millis(400);
/// Maximal time of a run including the preparation of inputs.
const LONGEST_RUN: Duration = Duration::from_secs(3);
/// Maximal number of fetched samples kept, and of inputs prepared at a time.
const MAX_INPUTS: usize = 512;
/// Maximal bytes of either.
const MAX_BYTES: usize = 256 << 20;

/// A stage's result at one concurrency.
#[derive(Debug, Clone, Copy)]
pub struct StageRun {
    /// Number of threads.
    pub concurrency: u32,
    /// Number of samples processed; failed samples are not counted.
    pub samples: u64,
    /// Time from the first thread's start to the last thread's end, without preparation of inputs.
    pub seconds: f64,
    /// Sum over all threads.
    pub cpu_seconds: f64,
    /// Sum of the threads' times as runnable without a core: others used the cores, or there are more threads than
    /// cores. 0 if the kernel does not report it.
    pub ready_seconds: f64,
}

/// A stream whose stages can be benchmarked.
#[derive(Debug)]
pub struct StageBenchmark<'s> {
    stream: &'s Stream,
    /// Number of threads that prepare inputs.
    threads: u32,
    /// Number of samples read, over all runs.
    read: AtomicU64,
    fetched: Vec<(SampleId, Vec<u8>, Vec<usize>)>,
}

impl<'s> StageBenchmark<'s> {
    /// Reads nothing yet.
    pub const fn new(stream: &'s Stream, threads: u32) -> Self {
        Self { stream, threads, read: AtomicU64::new(0), fetched: Vec::new() }
    }

    /// Whether samples were read twice: the second read may come from the page cache.
    pub fn has_read_again(&self) -> bool {
        self.read.load(Ordering::Relaxed) > self.stream.kept_count()
    }

    /// Reads samples with `concurrency` threads; a sample is read again only after all others.
    ///
    /// # Errors
    /// No sample could be read; the reason.
    pub fn fetch(&self, concurrency: u32) -> Result<StageRun, String> {
        let end = Instant::now() + RUN_TIME;
        let fault = Mutex::new(None);
        let part = on_threads(concurrency, |_| {
            let (mut scratch, mut buffer) = (ReadScratch::default(), Vec::new());
            let mut samples = 0;
            while Instant::now() < end {
                match self.read_next(&mut scratch, &mut buffer) {
                    Ok(_) => samples += 1,
                    Err(error) => {
                        *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        // Stops at once if not even the first sample can be read.
                        if samples == 0 {
                            break;
                        }
                    }
                }
            }
            samples
        });
        match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) if part.samples == 0 => Err(error),
            _ => Ok(part.into_run(concurrency)),
        }
    }

    /// Reads some hundred samples' bytes and keeps them for the stages.
    ///
    /// # Errors
    /// No sample could be read; the reason.
    pub fn keep_inputs(&mut self) -> Result<(), String> {
        let (mut scratch, mut buffer) = (ReadScratch::default(), Vec::new());
        let (mut bytes, mut fault) = (0, None);
        let wanted = self.stream.kept_count().min(MAX_INPUTS as u64);
        for _ in 0..wanted {
            match self.read_next(&mut scratch, &mut buffer) {
                Ok(id) => {
                    bytes += buffer.len();
                    self.fetched.push((id, buffer.clone(), scratch.part_ends.clone()));
                }
                Err(error) => fault = Some(error),
            }
            if bytes > MAX_BYTES {
                break;
            }
        }
        match fault {
            Some(error) if self.fetched.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs a stage (counted from 0, without `fetch`) with `concurrency` threads over the inputs that were kept.
    ///
    /// # Errors
    /// No sample succeeded; the last defect.
    pub fn work(&self, stage: usize, concurrency: u32) -> Result<StageRun, String> {
        let begun = Instant::now();
        let mut all = Part::default();
        let fault = Mutex::new(None);
        let scratches: Vec<Mutex<WorkerScratch>> =
            (0..concurrency).map(|_| Mutex::default()).collect();
        let mut wanted = (4 * concurrency as usize).max(16);
        while all.wall < RUN_TIME && begun.elapsed() < LONGEST_RUN {
            let inputs = self.inputs(stage, wanted)?;
            let next = AtomicUsize::new(0);
            let left = RUN_TIME.saturating_sub(all.wall);
            let end = Instant::now() + left;
            let part = on_threads(concurrency, |thread| {
                let mut scratch = scratches[thread].lock().unwrap_or_else(PoisonError::into_inner);
                let mut row = MemoryRow::of(self.stream.plan.row_tensors());
                let mut samples = 0;
                while Instant::now() < end {
                    let Some(input) = inputs.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    let mut task = input.lock().unwrap_or_else(PoisonError::into_inner);
                    match self.run_stage(stage, &mut task, &mut row, &mut scratch) {
                        Ok(()) => samples += 1,
                        Err(error) => {
                            *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        }
                    }
                }
                samples
            });
            // Enough for the remaining time, with a margin.
            let rate = f64::from(u32::try_from(part.samples).unwrap_or(u32::MAX))
                / part.wall.as_secs_f64().max(1e-9);
            all.add(part);
            let rest = RUN_TIME.saturating_sub(all.wall).as_secs_f64();
            wanted = whole(rate * rest * 1.2).max(wanted);
        }
        match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) if all.samples == 0 => Err(error),
            _ => Ok(all.into_run(concurrency)),
        }
    }

    /// Runs the batch operations with `concurrency` threads, each over a separate batch that all stages have written.
    ///
    /// A batch has `batch.size` rows, or as many as fit in memory for all threads. The same batch is processed
    /// repeatedly, so later runs see the earlier runs' output.
    ///
    /// # Errors
    /// No batch could be made, or an operation failed; the reason.
    pub fn batches(&self, concurrency: u32) -> Result<StageRun, String> {
        let batch = self.batch(concurrency)?;
        let batches: Vec<_> = (0..concurrency).map(|_| Mutex::new(batch.clone())).collect();
        let end = Instant::now() + RUN_TIME;
        let fault = Mutex::new(None);
        let part = on_threads(concurrency, |thread| {
            let mut batch = batches[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let mut samples = 0;
            while Instant::now() < end {
                let mut rows: Vec<BatchRow<'_>> =
                    batch.iter_mut().map(|(key, row)| BatchRow { key: *key, row }).collect();
                let caller = BatchCaller::plain(thread);
                if let Err(error) = self.stream.plan.run_on_batch(&mut rows, &caller) {
                    let error = error.to_string();
                    *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
                samples += rows.len() as u64;
            }
            samples
        });
        match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(part.into_run(concurrency)),
        }
    }

    /// The rows of a batch, for one of `threads` threads.
    fn batch(&self, threads: u32) -> Result<Vec<(DrawKey, MemoryRow)>, String> {
        let stages = self.stream.stages.len();
        let empty = MemoryRow::of(self.stream.plan.row_tensors());
        let row_bytes = empty.held_bytes().max(1);
        let fitting = MAX_BYTES / threads.max(1) as usize / row_bytes;
        let wanted = (self.stream.config.batch.size.get() as usize).min(fitting.max(2));
        let mut scratch = WorkerScratch::default();
        // Some hundred inputs at most: a larger batch contains each of them several times.
        let inputs = self.inputs(0, wanted)?;
        let mut rows = Vec::with_capacity(wanted);
        let mut fault = None;
        for input in inputs {
            let mut task = input.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut row = empty.clone();
            let done = (0..stages)
                .try_for_each(|stage| self.run_stage(stage, &mut task, &mut row, &mut scratch));
            match done {
                Ok(()) => rows.push((task.key, row)),
                Err(error) => fault = Some(error),
            }
        }
        if rows.is_empty() {
            return Err(fault.unwrap_or_else(|| "there is no sample".to_owned()));
        }
        Ok((0..wanted).map(|number| rows[number % rows.len()].clone()).collect())
    }

    /// At most `wanted` inputs of a stage, as its earlier stages leave them.
    fn inputs(&self, stage: usize, wanted: usize) -> Result<Vec<Mutex<SampleTask>>, String> {
        let made = Mutex::new(Vec::new());
        let fault = Mutex::new(None);
        let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wanted = wanted.min(MAX_INPUTS);
        on_threads(self.threads, |_| {
            let mut scratch = WorkerScratch::default();
            let mut row = MemoryRow::of(self.stream.plan.row_tensors());
            while bytes.load(Ordering::Relaxed) < MAX_BYTES {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= wanted || self.fetched.is_empty() {
                    break;
                }
                let (id, fetched, part_ends) = &self.fetched[number % self.fetched.len()];
                let seed = self.stream.config.order.seed;
                let key = DrawKey { seed, epoch: 0, sample: id.0 };
                let mut task = SampleTask::new(*id, key, fetched.clone());
                task.part_ends.clone_from(part_ends);
                let dataset = self.stream.dataset.as_ref();
                // An array that a daemon reads directly into its row.
                task.in_place = self.stream.plan.direct_tensor(dataset);
                let before = (0..stage)
                    .try_for_each(|stage| self.run_stage(stage, &mut task, &mut row, &mut scratch));
                match before {
                    Ok(()) => {
                        bytes.fetch_add(task.held_bytes(), Ordering::Relaxed);
                        made.lock().unwrap_or_else(PoisonError::into_inner).push(Mutex::new(task));
                    }
                    Err(error) => {
                        *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                }
            }
            0
        });
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) if made.is_empty() => Err(error),
            _ => Ok(made),
        }
    }

    fn run_stage(
        &self,
        stage: usize,
        task: &mut SampleTask,
        row: &mut MemoryRow,
        scratch: &mut WorkerScratch,
    ) -> Result<(), String> {
        let Stream { plan, dataset, .. } = self.stream;
        plan.run(stage, task, dataset.as_ref(), row, scratch)
            .map_err(|defect| format!("{}: {defect}", self.stream.sample_path(task.id).display()))
    }

    /// Reads the next sample; all samples are read before one repeats. Samples that share units are read in their
    /// order, and a thread skips the read if the next sample is in the same units.
    fn read_next(
        &self,
        scratch: &mut ReadScratch,
        buffer: &mut Vec<u8>,
    ) -> Result<SampleId, String> {
        let count = self.stream.kept_count().max(1);
        let number = self.read.fetch_add(1, Ordering::Relaxed);
        if self.stream.shares_units {
            let id = self.stream.kept_at(number % count);
            let before = std::mem::take(&mut scratch.locations);
            self.stream.dataset.locate(id, &mut scratch.locations);
            if before == scratch.locations {
                return Ok(id);
            }
            return self.read_sample(id, scratch, buffer);
        }
        self.read_sample(self.stream.kept_at(spread(number, count)), scratch, buffer)
    }

    fn read_sample(
        &self,
        id: SampleId,
        scratch: &mut ReadScratch,
        buffer: &mut Vec<u8>,
    ) -> Result<SampleId, String> {
        // As in `inputs`.
        let key = DrawKey { seed: self.stream.config.order.seed, epoch: 0, sample: id.0 };
        self.stream
            .open_sample((id, key.of_sample()), scratch)
            .and_then(|_| self.stream.read_sample(scratch, buffer))
            .map_err(|error| {
                // The bytes read do not belong to these locations.
                scratch.locations.clear();
                error.to_string()
            })?;
        Ok(id)
    }
}

/// The n-th index of a permutation of 0..`count` whose consecutive elements are far apart, so that neighbours on a disk
/// are not read one after another.
pub(crate) fn spread(number: u64, count: u64) -> u64 {
    let golden = u128::from(count) * 618 / 1000;
    let is_coprime = |step: &u64| {
        let (mut one, mut other) = (*step, count);
        while other != 0 {
            (one, other) = (other, one % other);
        }
        one == 1
    };
    let first = u64::try_from(golden).unwrap_or(1).max(1);
    let step = (first..=count.max(first)).find(is_coprime).unwrap_or(1);
    let place = u128::from(number) * u128::from(step) % u128::from(count);
    u64::try_from(place).unwrap_or(0)
}

/// The joint result of some threads.
#[derive(Debug, Default)]
struct Part {
    samples: u64,
    wall: Duration,
    cpu: Duration,
    ready: Duration,
}

impl Part {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.ready += other.ready;
    }

    fn into_run(self, concurrency: u32) -> StageRun {
        StageRun {
            concurrency,
            samples: self.samples,
            seconds: self.wall.as_secs_f64(),
            cpu_seconds: self.cpu.as_secs_f64(),
            ready_seconds: self.ready.as_secs_f64(),
        }
    }
}

/// Runs `work` on `threads` threads that start together; each returns its count of samples.
fn on_threads(threads: u32, work: impl Fn(usize) -> u64 + Sync) -> Part {
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let run = |number| {
            let (barrier, work) = (&barrier, &work);
            move || {
                barrier.wait();
                let (begun, ready) = (Instant::now(), ready_without_core().unwrap_or_default());
                let samples = work(number);
                let ready = ready_without_core().unwrap_or_default().saturating_sub(ready);
                (samples, begun, Instant::now(), thread_cpu_time(), ready)
            }
        };
        let threads: Vec<_> =
            (0..threads as usize).map(|number| scope.spawn(run(number))).collect();
        // A thread that panicked has written the message to stderr; its samples are missing.
        let ended: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        let first = ended.iter().map(|(_, begun, ..)| *begun).min();
        let last = ended.iter().map(|(_, _, ended, ..)| *ended).max();
        let wall = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
        let mut all = Part { wall, ..Part::default() };
        for (samples, _, _, cpu, ready) in ended {
            all.samples += samples;
            all.cpu += cpu;
            all.ready += ready;
        }
        all
    })
}

fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn whole(number: f64) -> usize {
    number.clamp(0.0, 1e6) as usize
}

#[cfg(test)]
mod tests {
    use crate::actors::stage_benchmark::spread;

    #[test]
    fn all_indices_are_visited_before_one_repeats() {
        for count in [1, 2, 3, 6, 10, 64, 97, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|number| spread(number, count)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>(), "{count}");
        }
    }
}
