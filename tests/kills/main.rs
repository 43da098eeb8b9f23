//! Promise P2 under SIGKILL: a short run of each kind of kill. `FOREBAY_TEST_KILLS` says how many, `scripts/prove` runs
//! the long ones.

#![forbid(unsafe_code)]

use std::process::Command;

use forebay_tests::program;

/// Runs the killing program, which compares every batch.
fn kill(mode: &str, seed: &str) {
    kill_over(None, mode, seed, "20");
}

fn kill_over(format: Option<&str>, mode: &str, seed: &str, usual: &str) {
    let kills = std::env::var("FOREBAY_TEST_KILLS").unwrap_or_else(|_| usual.to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-test-kills"));
    command.envs(format.map(|format| ("FOREBAY_TEST_KILLS_FORMAT", format)));
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

/// Behind a server in bad weather, which is killed, too.
#[test]
fn trainers_daemons_and_the_server_are_killed() {
    kill("remote", "15");
}

#[test]
fn the_daemon_is_killed_over_archives() {
    kill_over(Some("webdataset"), "daemon", "5", "8");
}

#[test]
fn the_daemon_is_killed_over_a_manifest() {
    kill_over(Some("manifest"), "daemon", "6", "8");
}

#[test]
fn the_daemon_is_killed_over_tfrecords() {
    kill_over(Some("tfrecord"), "daemon", "7", "8");
}

#[test]
fn the_daemon_is_killed_over_shards_of_mosaic() {
    kill_over(Some("mds"), "daemon", "8", "8");
}

#[test]
fn the_daemon_is_killed_over_shards_of_litdata() {
    kill_over(Some("litdata"), "daemon", "9", "8");
}

#[test]
fn the_daemon_is_killed_over_tables_of_arrow() {
    kill_over(Some("arrow"), "daemon", "11", "8");
}

#[test]
fn the_daemon_is_killed_over_tables_of_parquet() {
    kill_over(Some("parquet"), "daemon", "12", "8");
}

#[test]
fn the_daemon_is_killed_over_compressed_pages_of_parquet() {
    kill_over(Some("parquet.pages"), "daemon", "13", "8");
}

#[test]
fn the_daemon_is_killed_over_a_mixture_whose_weights_change() {
    kill_over(Some("mixture"), "daemon", "14", "8");
}

#[test]
fn the_daemon_is_killed_over_compressed_archives_and_their_cache() {
    kill_over(Some("webdataset.gz"), "daemon", "10", "8");
}
