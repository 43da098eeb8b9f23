//! Promise P2 under SIGKILL: a short run of each kind of kill. `FOREBAY_TEST_KILLS` says how many, `scripts/prove` runs
//! the long ones.

#![forbid(unsafe_code)]

use std::process::Command;

use forebay_tests::program;

/// Runs the killing program, which compares every batch.
fn kill(mode: &str, seed: &str) {
    let kills = std::env::var("FOREBAY_TEST_KILLS").unwrap_or_else(|_| "20".to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-test-kills"));
    command.args([mode, "--kills", &kills, "--seed", seed]);
    command.env("FOREBAY_PROGRAM", program::forebay());
    let finished = program::run(&mut command);
    assert!(finished.status.success(), "{}\n{}", finished.stdout, finished.stderr);
    println!("{}", finished.stdout.trim());
}

#[test]
fn the_daemon_is_killed() {
    kill("daemon", "1");
}

#[test]
fn the_trainer_is_killed() {
    kill("trainer", "2");
}

#[test]
fn run_is_killed() {
    kill("run", "3");
}

#[test]
fn everything_is_killed_at_once() {
    kill("all", "4");
}
