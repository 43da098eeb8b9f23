//! `forebay-test-kills daemon|decoders|trainer|run|all|shared|load|remote|feeders [--kills N] [--seed S]`: kills processes at random instants and compares
//! what arrives. One line of JSON to stdout; status 1 unless all was well.

use std::path::PathBuf;

use forebay_tests::kills::trainer::Victim;
use forebay_tests::kills::{Plan, daemon, feeders, load, remote, shared, trainer};
use forebay_tests::program;

const USAGE: &str = "usage: forebay-test-kills daemon|decoders|trainer|run|all|shared|load|remote|feeders [--kills N] [--seed S]";

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
        "daemon" => daemon::run(daemon::Victim::Daemon, plan),
        "decoders" => daemon::run(daemon::Victim::Decoders, plan),
        "trainer" => trainer::run(Victim::Trainer, &beside("forebay-test-trainer"), plan),
        "run" => trainer::run(Victim::Run, &beside("forebay-test-trainer"), plan),
        "all" => trainer::run(Victim::All, &beside("forebay-test-trainer"), plan),
        "shared" => shared::run(&beside("forebay-test-trainer"), plan),
        "load" => load::run(&beside("forebay-test-trainer"), plan),
        "feeders" => feeders::run(&beside("forebay-test-trainer"), plan),
        "remote" => {
            remote::run(&beside("forebay-test-trainer"), &beside("forebay-test-server"), plan)
        }
        _ => panic!("{USAGE}"),
    };
    println!("{report}");
    std::process::exit(i32::from(report["ok"] != true));
}

/// A program that lies beside this one.
fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("where this program lies");
    let beside = own.with_file_name(name);
    if beside.exists() {
        return beside;
    }
    program::forebay().parent().expect("a folder").join(name)
}
