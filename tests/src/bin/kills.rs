//! `forebay-test-kills daemon|trainer|run|all [--kills N] [--seed S]`: kills processes at random instants and compares
//! what arrives. One line of JSON to stdout; status 1 unless all was well.

use std::path::PathBuf;

use forebay_tests::kills::trainer::Victim;
use forebay_tests::kills::{Plan, daemon, trainer};
use forebay_tests::program;

const USAGE: &str = "usage: forebay-test-kills daemon|trainer|run|all [--kills N] [--seed S]";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().expect(USAGE);
    let mut plan = Plan { kills: 20, seed: 1 };
    while let Some(key) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok()).expect(USAGE);
        match key.as_str() {
            "--kills" => plan.kills = value,
            "--seed" => plan.seed = value,
            _ => panic!("{USAGE}"),
        }
    }
    let report = match mode.as_str() {
        "daemon" => daemon::run(plan),
        "trainer" => trainer::run(Victim::Trainer, &trainer_program(), plan),
        "run" => trainer::run(Victim::Run, &trainer_program(), plan),
        "all" => trainer::run(Victim::All, &trainer_program(), plan),
        _ => panic!("{USAGE}"),
    };
    println!("{report}");
    std::process::exit(i32::from(report["ok"] != true));
}

/// The trainer lies beside this program.
fn trainer_program() -> PathBuf {
    let folder = program::forebay().parent().expect("a folder").to_path_buf();
    let own = std::env::current_exe().expect("where this program lies");
    let beside = own.with_file_name("forebay-test-trainer");
    if beside.exists() { beside } else { folder.join("forebay-test-trainer") }
}
