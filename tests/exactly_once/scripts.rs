//! A training script: epochs of two streams in turn. Several ranks of one host are tested in `tests/python`.

use forebay_tests::taken::sorted;
use forebay_tests::{TestDir, data, program};
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
