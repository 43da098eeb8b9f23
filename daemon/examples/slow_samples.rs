//! What slow samples cost: one in a hundred takes fifty times as long, asleep. Prints one JSON object.
//!
//! `slow_samples [--batches N] [--rounds N]`: the same stream of small arrays through a daemon each, in turn without and
//! with the slow samples; the other samples take a millisecond asleep. Threads are fixed, so that both kinds have the
//! same: what is compared is whether other batches are worked while one waits.
//!
//! - `ratio`: samples a second with slow samples, over those without (median of the rounds).
//! - `bound`: what the threads' own time allows: 1 / (0.99 + 0.01 × 50). The ratio cannot be above it.
//! - `ratio_auto` and `concurrency_auto`: the same with `concurrency = "auto"`, which may hide the sleep by more threads.
//!
//! Slow samples are hidden as long as the other slots have rows for the threads meanwhile:
//! (`ring.slots` − 1) × `batch.size` ≥ rate × the slow time.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use forebay::cli::generate::{ArrayContainer, ArrayOptions, generate_arrays};
use forebay_client::{Loader, Target};
use forebay_protocol::frames::ConfigSource;
use serde_json::Value;

const SAMPLES: u64 = 1024;
const BATCH: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let (batches, rounds) = (number("--batches", 200), number("--rounds", 3));
    let folder = tempfile::tempdir()?;
    let options = ArrayOptions {
        container: ArrayContainer::NpyStack,
        samples: SAMPLES,
        shape: vec![16],
        ..ArrayOptions::default()
    };
    generate_arrays(folder.path(), &options, &|_, _| {})?;
    let mut ratios = Vec::new();
    let mut ratios_auto = Vec::new();
    let mut concurrency_auto = Value::Null;
    for _ in 0..rounds {
        let (plain, _) = rate(folder.path(), "8", false, batches)?;
        let (slow, _) = rate(folder.path(), "8", true, batches)?;
        ratios.push(slow / plain);
        let (auto, concurrency) = rate(folder.path(), "\"auto\"", true, batches)?;
        ratios_auto.push(auto / plain);
        concurrency_auto = concurrency;
    }
    let report = serde_json::json!({
        "ratio": median(&mut ratios),
        "bound": 1.0 / (0.99 + 0.01 * 50.0),
        "ratio_auto": median(&mut ratios_auto),
        "concurrency_auto": concurrency_auto,
        "rounds": rounds,
    });
    println!("{report}");
    Ok(())
}

/// Samples a second in the steady state, and the stage's threads at the end.
fn rate(
    folder: &Path,
    concurrency: &str,
    has_slow_samples: bool,
    batches: u64,
) -> Result<(f64, Value), Box<dyn Error>> {
    let probability = if has_slow_samples { 0.01 } else { 0.0 };
    let text = serde_json::json!({
        "dataset": { "format": "npy", "path": folder.join("samples.npy"), "index": folder.join("index") },
        "batch": { "size": BATCH },
        "cpu": { "policy": "normal" },
        "stage": [{
            "name": "work",
            "concurrency": serde_json::from_str::<Value>(concurrency)?,
            "operations": [
                { "op": "delay", "milliseconds": 1 },
                { "op": "delay", "milliseconds": 49, "probability": probability },
            ],
        }],
    });
    let source = ConfigSource::Json {
        name: "slow".to_owned(),
        folder: folder.display().to_string(),
        text: text.to_string(),
    };
    let program = std::env::current_exe()?
        .parent()
        .and_then(Path::parent)
        .map(|target| target.join("forebay"));
    let mut loader: Loader = Loader::builder(Target::Config(source))
        .rank(0, 1)
        .program(program.ok_or("no folder of the build")?)
        .attach()?;
    // The first batches fill the ring and let the threads be found.
    take(&mut loader, batches / 2)?;
    let begin = Instant::now();
    take(&mut loader, batches)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    let rate = (batches * BATCH) as f64 / begin.elapsed().as_secs_f64();
    let stats: Value = serde_json::from_str(&loader.stats()?)?;
    Ok((rate, stats["stages"][1]["concurrency"].clone()))
}

fn take(loader: &mut Loader, count: u64) -> Result<(), Box<dyn Error>> {
    let mut taken = 0;
    while taken < count {
        taken += u64::from(loader.next_batch()?.is_some());
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
