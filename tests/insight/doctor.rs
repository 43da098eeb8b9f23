//! `forebay doctor` on this machine: what it finds is true of the configuration that it is given.

use std::path::Path;

use forebay_tests::program::Finished;
use forebay_tests::{TestDir, data, program};
use serde_json::Value;

fn doctor(dir: &TestDir, config: &Path, arguments: &[&str]) -> Finished {
    program::run(dir.forebay(&["doctor", "--read-seconds", "0.05"]).args(arguments).arg(config))
}

fn finding<'a>(told: &'a Value, name: &str) -> &'a Value {
    let findings = told["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|finding| finding["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {told}"))
}

#[test]
fn what_to_change_comes_first_and_each_has_its_remedy() {
    let dir = TestDir::new();
    data::images(&dir.path("data"), 24, 2);
    let keys = "output.image = { dtype = \"float32\", mean = [0.5, 0.5, 0.5], std = [0.2, 0.2, 0.2] }\n\
                ring.slots = 3";
    let config = dir.config("train.toml", &data::image_config(&dir.path("data"), keys));
    let told = doctor(&dir, &config, &["--json"]).json();
    assert!(finding(&told, "storage")["state"].as_str().unwrap().contains("samples/s"), "{told}");
    let output = finding(&told, "output")["remedy"].as_str().unwrap();
    assert!(output.contains("output.image.on = \"gpu\""), "{output}");
    assert!(finding(&told, "ring")["remedy"].as_str().unwrap().contains("ring.slots"));
    // Written by every test's configuration.
    assert!(finding(&told, "policy")["state"].as_str().unwrap().contains("normal"));
    let weights: Vec<&str> = told["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["weight"].as_str().unwrap())
        .collect();
    let place_of =
        |weight: &str| ["broken", "costly", "minor", "good"].iter().position(|one| *one == weight);
    assert!(weights.is_sorted_by_key(|weight| place_of(weight).unwrap()), "{weights:?}");
    let shown = doctor(&dir, &config, &[]);
    assert!(
        shown.stdout.contains("→ ") && shown.stdout.contains("as it should be"),
        "{}",
        shown.stdout
    );
}

#[test]
fn what_does_not_work_is_first_and_fails() {
    let dir = TestDir::new();
    let keys = "ring.memory = \"1MiB\"\nring.slots = 60000";
    let config = dir.stack_stream(20, keys);
    let told = doctor(&dir, &config, &[]);
    assert_eq!(told.status.code(), Some(1));
    assert!(told.stdout.starts_with("1. configuration (does not work)"), "{}", told.stdout);
    assert!(told.stdout.contains("ring.memory"), "{}", told.stdout);
    let machine = program::run(&mut dir.forebay(&["doctor"]));
    assert!(machine.stdout.contains("kernel"), "{machine:?}");
}
