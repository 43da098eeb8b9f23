//! Runs only the work on samples, on N threads: no engine, no ring, no client, no reading of files. This is the rate
//! that a loader without overhead would reach; `scripts/bench/peers --kernel` compares with it.
//!
//! `kernel CONFIG.toml --threads N --samples N`: the configuration is a complete one, with its dataset. All files are
//! read into memory first; then each thread takes the next sample until N samples are done, repeatedly over the
//! dataset, where each round is an epoch with different draws. Prints one JSON line. Needs memory for the whole
//! dataset.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_dataset::{Dataset, OpenOptions, Opened};
use forebay_formats::open;
use forebay_observe::cpu_time;
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::Extent;
use forebay_storage::Storage;
use forebay_transform::{Row, SamplePlan, SampleTask, WorkerScratch};

/// The rows of one batch, written one after another, as in a slot: memory that is not in the first-level cache when it
/// is written.
struct Rows {
    tensors: Vec<Vec<u8>>,
    pitches: Vec<usize>,
    row: usize,
}

const ROWS: usize = 256;

impl Rows {
    fn of(plan: &SamplePlan) -> Result<Self, Box<dyn Error>> {
        let mut pitches = Vec::new();
        for tensor in plan.tensors() {
            if !matches!(tensor.extent, Extent::Dense) {
                return Err("a ragged field: the kernel measures dense ones".into());
            }
            pitches.push(usize::try_from(tensor.row_pitch_bytes().ok_or("a row that large")?)?);
        }
        let tensors = pitches.iter().map(|pitch| vec![0; pitch * ROWS]).collect();
        Ok(Self { tensors, pitches, row: 0 })
    }
}

impl Row for Rows {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        let pitch = self.pitches[tensor];
        &mut self.tensors[tensor][self.row * pitch..(self.row + 1) * pitch]
    }

    fn ragged(&mut self, _tensor: usize, _bytes: u64) -> Option<&mut [u8]> {
        None
    }

    fn ragged_bytes(&mut self, _tensor: usize) -> &[u8] {
        &[]
    }
}

/// State shared by the threads.
struct Job {
    config: Config,
    dataset: Arc<dyn Dataset>,
    plan: SamplePlan,
    files: Vec<Vec<u8>>,
    next: AtomicU64,
    samples: u64,
}

impl Job {
    /// One thread's part; the first refused sample is an error.
    fn work(&self) -> Result<(), String> {
        let mut rows = Rows::of(&self.plan).map_err(|error| error.to_string())?;
        let mut scratch = WorkerScratch::default();
        let count = self.files.len() as u64;
        loop {
            // Relaxed: only the number is passed on.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.samples {
                return Ok(());
            }
            let id = number % count;
            let index = usize::try_from(id).map_err(|error| error.to_string())?;
            let key = DrawKey { seed: 17, epoch: number / count, sample: id };
            // A task owns its bytes. The copy is the minimal cost of reading the file, and a few percent of the work.
            let mut task = SampleTask::new(SampleId(id), key, self.files[index].clone());
            for stage in 0..self.config.stages.len() {
                self.plan
                    .run(stage, &mut task, self.dataset.as_ref(), &mut rows, &mut scratch)
                    .map_err(|defect| format!("sample {id}: {defect}"))?;
            }
            rows.row = (rows.row + 1) % ROWS;
        }
    }
}

fn read_all(dataset: &dyn Dataset, storage: &dyn Storage) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut files = Vec::new();
    let mut locations = Vec::new();
    for id in 0..dataset.sample_count() {
        locations.clear();
        dataset.locate(SampleId(id), &mut locations);
        let [location] = locations[..] else {
            return Err("samples of several locations are not measured".into());
        };
        let mut bytes = Vec::new();
        storage.read(dataset, location, u64::MAX, &mut bytes)?;
        bytes.shrink_to_fit();
        files.push(bytes);
    }
    Ok(files)
}

/// Runs the samples on `threads` threads; returns wall-clock and CPU time.
fn timed(job: &Job, threads: usize) -> Result<(Duration, Duration), Box<dyn Error>> {
    let (began, cpu_before) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| job.work())).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err("a thread panicked".to_owned()),
        })
    })?;
    Ok((began.elapsed(), cpu_time().saturating_sub(cpu_before)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, threads_word, threads, samples_word, samples] = arguments.as_slice() else {
        return Err("CONFIG.toml --threads N --samples N".into());
    };
    if (threads_word.as_str(), samples_word.as_str()) != ("--threads", "--samples") {
        return Err("CONFIG.toml --threads N --samples N".into());
    }
    let (threads, samples): (usize, u64) = (threads.parse()?, samples.parse()?);
    let config = Config::from_file(Path::new(config), &[])?;
    let Opened { dataset, storage, .. } = open(&config.dataset, OpenOptions::default())?;
    let plan = SamplePlan::compile(&config, dataset.as_ref())?;
    let files = read_all(dataset.as_ref(), storage.as_ref())?;
    let mut job =
        Job { config, dataset, plan, files, next: AtomicU64::new(0), samples: samples.min(256) };
    // A warm-up in which the buffers grow.
    timed(&job, threads)?;
    (job.next, job.samples) = (AtomicU64::new(0), samples);
    let (elapsed, cpu) = timed(&job, threads)?;
    let count = f64::from(u32::try_from(samples)?);
    println!(
        "{}",
        serde_json::json!({
            "samples": samples,
            "seconds": elapsed.as_secs_f64(),
            "samples_per_second": count / elapsed.as_secs_f64(),
            "cpu_seconds_per_1000_samples": cpu.as_secs_f64() / count * 1000.0,
        })
    );
    Ok(())
}
