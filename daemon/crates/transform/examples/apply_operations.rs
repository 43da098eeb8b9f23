//! Runs a configuration's operations on image files and writes the rows, one after another, without a daemon.
//!
//! `apply_operations CONFIG.toml SEED EPOCH OUT [--repeat N] FILE…`: the TOML contains only `[[stage]]` and `[output]`;
//! the sample id of a file is its index in the list. A refused file yields no row and one line on standard output,
//! `FILE: reason`. With `--repeat`, the work is repeated N times on one thread and the mean of the images' best times
//! is printed.

#[path = "support/in_memory.rs"]
mod in_memory;

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_transform::{SamplePlan, SampleTask, WorkerScratch};
use in_memory::{InMemory, OneRow};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("CONFIG SEED EPOCH OUT [--repeat N] FILE…");
    let (config, seed, epoch, out) = (next()?, next()?, next()?, next()?);
    let (seed, epoch) = (seed.parse()?, epoch.parse()?);
    let mut files: Vec<String> = arguments.collect();
    let mut repeats = 0;
    if files.first().is_some_and(|first| first == "--repeat") {
        repeats = files.get(1).ok_or("--repeat N")?.parse()?;
        files.drain(..2);
    }
    let config = forebay_config::plain_config::plain_config(&std::fs::read_to_string(config)?);
    let dataset = InMemory::images();
    let plan = SamplePlan::compile(&config, &dataset)?;
    let row_bytes = plan.tensors()[0].row_pitch_bytes().ok_or("a row that large")?;
    let mut row = OneRow(vec![0; usize::try_from(row_bytes)?]);
    let mut scratch = WorkerScratch::default();
    let mut rows = std::io::BufWriter::new(std::fs::File::create(out)?);
    let mut tasks = Vec::new();
    for (id, file) in (0..).zip(&files) {
        let key = DrawKey { seed, epoch, sample: id };
        tasks.push(SampleTask::new(SampleId(id), key, std::fs::read(file)?));
    }
    let mut run = |task: &mut SampleTask, row: &mut OneRow| {
        (0..config.stages.len())
            .try_for_each(|stage| plan.run(stage, task, &dataset, row, &mut scratch))
    };
    for (task, file) in tasks.iter_mut().zip(&files) {
        match run(task, &mut row) {
            Ok(()) => rows.write_all(&row.0)?,
            Err(defect) => println!("{file}: {defect}"),
        }
    }
    if repeats > 0 {
        // The best time of each image, since other processes disturb some repeats of some images.
        let mut best = vec![Duration::MAX; tasks.len()];
        for _ in 0..repeats {
            for (task, best) in tasks.iter_mut().zip(&mut best) {
                let start = Instant::now();
                let _ = run(task, &mut row);
                *best = start.elapsed().min(*best);
            }
        }
        let each = best.iter().sum::<Duration>().as_secs_f64() / tasks.len() as f64;
        println!("best of {repeats}: {:.1} µs an image, {:.0} images/s", each * 1e6, 1.0 / each);
    }
    Ok(())
}
