//! Measures taking a ready batch and returning it: `cargo run --release --example take_latency`.
//!
//! Without an argument it uses a scripted daemon inside this process; with one, that configuration, socket or stream,
//! with a pause before each take that lets the ring fill, as a training step does. Only batches that were ready count;
//! for each, only the call of `next_batch` is measured, on one thread. Prints one JSON object.

#[path = "../tests/support/stub.rs"]
mod stub;

use std::time::{Duration, Instant};

use forebay_client::Loader;

const SCRIPTED_BATCHES: usize = 20_000;
const REAL_BATCHES: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> Result<(), forebay_client::Error> {
    let argument = std::env::args().nth(1);
    let mut loader = match &argument {
        Some(target) => Loader::attach(target.as_str())?,
        None => {
            let script = stub::Script {
                rows: 256,
                slots: 64,
                hold: 62,
                batches_per_epoch: 1_000_000,
                ..stub::Script::default()
            };
            let stub = stub::Stub::start(script);
            Loader::attach(stub.path.as_path())?
        }
    };
    let batches = if argument.is_some() { REAL_BATCHES } else { SCRIPTED_BATCHES };
    let mut times: Vec<Duration> = Vec::with_capacity(batches);
    while times.len() < batches {
        if argument.is_some() {
            std::thread::sleep(PAUSE);
        }
        let waited = loader.wait_statistics().waited();
        let begin = Instant::now();
        let batch = loader.next_batch()?;
        let time = begin.elapsed();
        if batch.is_some() && loader.wait_statistics().waited() == waited {
            times.push(time);
        }
    }
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100].as_nanos();
    println!(
        "{{\"batches\": {batches}, \"median_nanoseconds\": {}, \"p99_nanoseconds\": {}}}",
        at(50),
        at(99)
    );
    Ok(())
}
