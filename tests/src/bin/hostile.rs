//! Attacks a daemon of its own with hostile clients beside an honest trainer and prints what came of it as JSON.
//!
//! `forebay-test-hostile [OPERATIONS] [SEED]`; the default is ten million operations.

use forebay_tests::hostile::trial;
use serde_json::json;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().ok());
    let operations = arguments.next().flatten().unwrap_or(10_000_000);
    let seed = arguments.next().flatten().unwrap_or(1);
    let trial = trial(operations, seed);
    println!(
        "{}",
        json!({
            "operations": trial.tally.total(), "by_client": trial.tally.operations, "cut_off": trial.tally.cut_off,
            "honest_epochs_unharmed": trial.epochs, "descriptors_left": trial.descriptors_left,
            "segments_left": trial.segments_left,
        })
    );
}
