//! Attacks a daemon of its own with hostile clients beside an honest trainer and prints what came of it as JSON.
//!
//! `forebay-test-hostile [OPERATIONS] [SEED]`; the default is ten million operations.

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().ok());
    let operations = arguments.next().flatten().unwrap_or(10_000_000);
    let seed = arguments.next().flatten().unwrap_or(1);
    println!("{}", forebay_tests::hostile::trial(operations, seed));
}
