//! Lets a daemon work under trainers that come and are killed and prints what it holds, early and late, as JSON.
//!
//! `forebay-test-soak [SECONDS]`; the default is an hour.

use std::time::Duration;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3600);
    let trainer = std::env::current_exe().unwrap().with_file_name("forebay-test-trainer");
    println!("{}", forebay_tests::soak::soak(&trainer, Duration::from_secs(seconds)));
}
