//! Training scripts as processes: epochs of two streams in turn, several ranks on one host.

use std::path::Path;
use std::process::{Child, Stdio};

use forebay_tests::taken::sorted;
use forebay_tests::{Daemon, TestDir, data, program};
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

/// The ids that a trainer's lines tell of a stream's epoch.
fn ids(lines: &[Value], stream: &str, epoch: u64) -> Vec<i64> {
    lines
        .iter()
        .filter(|line| line["stream"] == stream && line["epoch"] == epoch)
        .flat_map(|line| line["ids"].as_array().unwrap())
        .map(|id| id.as_i64().unwrap())
        .collect()
}

#[test]
fn a_script_alternates_train_and_val_on_one_daemon() {
    let dir = TestDir::new();
    data::stack(&dir.path("train-data"), 41);
    data::stack(&dir.path("val-data"), 18);
    let train = dir.config(
        "train.toml",
        &data::stack_config(&dir.path("train-data"), "batch.last = \"short\"\norder.epochs = 3"),
    );
    let keys = "batch.last = \"short\"\norder.shuffle = false";
    let val = dir.config("val.toml", &data::stack_config(&dir.path("val-data"), keys));
    let mut command = dir.forebay(&["run"]);
    command.args([&train, &val]).args(["--", TRAINER, "use=train", "use=val"]);
    // The second epoch of val is left early.
    command.args(["use=train", "epoch", "use=val", "epoch", "use=train", "epoch"]);
    command.args(["use=val", "take=2", "use=train", "epoch", "use=val", "epoch"]);
    let finished = program::run(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    let lines = finished.json_lines();
    for epoch in 0..3 {
        assert_eq!(sorted(ids(&lines, "train", epoch)), (0..41).collect::<Vec<_>>());
    }
    assert_eq!(ids(&lines, "val", 0), (0..18).collect::<Vec<_>>());
    assert_eq!(ids(&lines, "val", 1), (0..8).collect::<Vec<_>>());
    assert_eq!(ids(&lines, "val", 2), (0..18).collect::<Vec<_>>());
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}

/// Four trainers at once, each as a launcher would start it; the ids of two epochs over all of them.
fn four_ranks(start: impl Fn(u32) -> Child, samples: i64) {
    let children: Vec<Child> = (0..4).map(start).collect();
    let ranks: Vec<Vec<Value>> = children
        .into_iter()
        .map(|child| {
            let finished = program::finish(child);
            assert!(finished.status.success(), "{finished:?}");
            finished.json_lines()
        })
        .collect();
    for (rank, lines) in ranks.iter().enumerate() {
        assert_eq!(lines[0]["rank"], rank);
        assert_eq!(lines[0]["world_size"], 4);
        assert_eq!(lines[0]["source"], "RANK and WORLD_SIZE");
    }
    for epoch in 0..2 {
        let all = ranks.iter().flat_map(|lines| ids(lines, "default", epoch)).collect();
        assert_eq!(sorted(all), (0..samples).collect::<Vec<_>>(), "epoch {epoch}");
    }
}

/// What torchrun sets for the ranks of one host.
fn as_rank(command: &mut std::process::Command, rank: u32) -> Child {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "4")
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", "4")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn config(dir: &TestDir) -> std::path::PathBuf {
    data::stack(&dir.path("data"), 75);
    let keys = "batch.last = \"short\"\norder.epochs = 2";
    dir.config("train.toml", &data::stack_config(&dir.path("data"), keys))
}

#[test]
fn four_processes_of_one_host_share_a_daemon() {
    let dir = TestDir::new();
    let config = config(&dir);
    let daemon = Daemon::serve(&dir, &config);
    let start = |rank| {
        let mut command = dir.command(Path::new(TRAINER));
        command.args(["use=default", "epoch", "epoch"]).env("FOREBAY_SOCKET", &daemon.socket);
        as_rank(&mut command, rank)
    };
    four_ranks(start, 75);
}

#[test]
fn four_daemons_of_one_host_each_beside_its_rank() {
    let dir = TestDir::new();
    let config = config(&dir);
    let start = |rank| {
        let mut command = dir.forebay(&["run"]);
        command.arg(&config).args(["--", TRAINER, "use=default", "epoch", "epoch"]);
        as_rank(&mut command, rank)
    };
    four_ranks(start, 75);
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}
