//! Lets a daemon work under trainers that come and are killed and prints what it holds, early and late, as JSON.
//!
//! `forebay-test-soak [SECONDS]`; the default is an hour.

use std::time::Duration;

use forebay_tests::soak::soak;
use serde_json::json;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3600);
    let trainer = std::env::current_exe().unwrap().with_file_name("forebay-test-trainer");
    let soak = soak(&trainer, Duration::from_secs(seconds));
    println!(
        "{}",
        json!({
            "seconds": soak.seconds, "trainers_killed": soak.trainers_killed, "batches": soak.batches,
            "resident_bytes": soak.resident_bytes,
            "resident_bytes_at_equal_threads": soak.resident_bytes_at_equal_threads.0,
            "equal_threads": soak.resident_bytes_at_equal_threads.1, "descriptors": soak.descriptors, "threads": soak.threads,
        })
    );
}
