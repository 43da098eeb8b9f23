//! What slow samples cost: one in a hundred takes fifty times as long, asleep. Prints one JSON object.
//!
//! `slow_samples [--batches N] [--rounds N]`, with the program built beside it: the same stream of generated JPEGs through
//! a daemon each, in turn without and with the slow samples.
//!
//! - `ratio`: samples a second with slow samples, over those without, with `concurrency = "auto"` (median of the rounds).
//!   Sleep costs no CPU time, so 1 is what can be had.
//! - `concurrency`: the threads that the engine found for each.
//! - `ratio_fixed`: the same with as many threads as cores, and `bound_fixed`, what these threads' own time allows:
//!   1 / (0.99 + 0.01 × 50). What lies between the two is the price of the order.
//!
//! Slow samples are hidden as long as the other slots have rows for the threads meanwhile:
//! (`ring.slots` − 1) × `batch.size` ≥ rate × the slow time.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_client::{Loader, Target};
use forebay_protocol::frames::ConfigSource;
use forebay_synth::{GenerateOptions, generate_images};
use serde_json::{Value, json};

const IMAGES: u64 = 512;
const BATCH: u64 = 32;
/// About fifty times what decoding one of the images takes.
const SLOW_MILLISECONDS: u32 = 60;
/// The threads have been found when they stay the same for so long.
const AT_REST: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let (batches, rounds) = (number("--batches", 100), number("--rounds", 3));
    let folder = tempfile::tempdir()?;
    let options = GenerateOptions { images: IMAGES, classes: 4, ..GenerateOptions::default() };
    generate_images(&folder.path().join("images"), &options, &|_, _| {})?;
    let cores = std::thread::available_parallelism()?.get();
    let (mut ratios, mut ratios_fixed) = (Vec::new(), Vec::new());
    let mut found = Value::Null;
    for _ in 0..rounds {
        let (plain, plain_threads) = rate(folder.path(), &json!("auto"), false, batches)?;
        let (slow, slow_threads) = rate(folder.path(), &json!("auto"), true, batches)?;
        ratios.push(slow / plain);
        found = json!({ "without": plain_threads, "with": slow_threads });
        let (plain, _) = rate(folder.path(), &json!(cores), false, batches)?;
        let (slow, _) = rate(folder.path(), &json!(cores), true, batches)?;
        ratios_fixed.push(slow / plain);
    }
    let report = json!({
        "ratio": median(&mut ratios),
        "concurrency": found,
        "ratio_fixed": median(&mut ratios_fixed),
        "bound_fixed": 1.0 / (0.99 + 0.01 * 50.0),
        "rounds": rounds,
    });
    println!("{report}");
    Ok(())
}

/// Samples a second in the steady state, and the stage's threads then.
fn rate(
    folder: &Path,
    concurrency: &Value,
    has_slow_samples: bool,
    batches: u64,
) -> Result<(f64, Value), Box<dyn Error>> {
    let probability = if has_slow_samples { 0.01 } else { 0.0 };
    let text = json!({
        "preset": "imagenet-train",
        "dataset": { "path": folder.join("images"), "index": folder.join("index") },
        "batch": { "size": BATCH },
        "cpu": { "policy": "normal" },
        "stage": [{
            "name": "preprocess",
            "concurrency": concurrency,
            "operations": [
                { "op": "decode-image" },
                { "op": "random-resized-crop", "size": 224 },
                { "op": "delay", "milliseconds": SLOW_MILLISECONDS, "probability": probability },
            ],
        }],
    });
    let source = ConfigSource::Json {
        name: "slow".to_owned(),
        folder: folder.display().to_string(),
        text: text.to_string(),
    };
    let own = std::env::current_exe()?;
    let built = own.parent().and_then(Path::parent).ok_or("no folder of the build")?;
    let mut loader: Loader = Loader::builder(Target::Config(source))
        .rank(0, 1)
        .program(built.join("forebay"))
        .attach()?;
    let mut threads = Value::Null;
    let mut since = Instant::now();
    while since.elapsed() < AT_REST {
        take(&mut loader, 8)?;
        let now = stage_threads(&mut loader)?;
        if now != threads {
            (threads, since) = (now, Instant::now());
        }
    }
    let begin = Instant::now();
    take(&mut loader, batches)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    let rate = (batches * BATCH) as f64 / begin.elapsed().as_secs_f64();
    Ok((rate, stage_threads(&mut loader)?))
}

fn stage_threads(loader: &mut Loader) -> Result<Value, Box<dyn Error>> {
    let stats: Value = serde_json::from_str(&loader.stats()?)?;
    Ok(stats["stages"][1]["concurrency"].clone())
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
