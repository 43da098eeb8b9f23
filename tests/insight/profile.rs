//! What `forebay bench --profile` says of stages whose scaling is known.

use forebay_tests::{TestDir, data, program};
use serde_json::Value;

/// The profile of a configuration.
fn profile(dir: &TestDir, config: &std::path::Path) -> Value {
    program::run(dir.forebay(&["bench", "--profile", "--json"]).arg(config)).json()
}

/// Whether a profile has the figures of a stage that sleeps 5 ms and one that does nothing.
fn has_scaled(json: &Value) -> bool {
    let stages = json["stages"].as_array().unwrap();
    let runs = stages[2]["runs"].as_array().unwrap();
    let of = |threads: u64, figure: &str| {
        let run = runs.iter().find(|run| run["concurrency"] == threads);
        run.unwrap_or_else(|| panic!("no run of {threads}: {runs:?}"))[figure].as_f64().unwrap()
    };
    let one = of(1, "samples_per_second");
    let sentence = stages[2]["sentence"].as_str().unwrap();
    // A delay is never shorter than 5 ms.
    one <= 200.0
        && one > 20.0
        && of(4, "speed_up") > 0.6 * 4.0
        && of(16, "speed_up") > 0.6 * 16.0
        && of(1, "cpu_seconds_per_sample") < 0.002
        && of(1, "on_a_core") < 0.5
        && sentence.contains("`sleepy`")
        && sentence.contains("`concurrency` to")
        && json["sentence"].as_str().unwrap().contains("the slowest stage is `sleepy`")
}

/// A stage that sleeps does as many rows a time as it has threads. Beside busy neighbours it does fewer, and much fewer
/// during some profiles.
#[test]
fn a_stage_that_sleeps_scales_with_its_threads() {
    let dir = TestDir::new();
    let stages = "{ name = \"quick\", operations = [] }, \
                  { name = \"sleepy\", concurrency = 2, operations = [{ op = \"delay\", milliseconds = 5 }] }";
    let config = dir.staged_stream(400, "", stages);
    let mut last = Value::Null;
    for _ in 0..5 {
        let json = profile(&dir, &config);
        let stages = json["stages"].as_array().unwrap();
        let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["fetch", "quick", "sleepy"]);
        assert_eq!((&stages[1]["configured"], &stages[2]["configured"]), (&Value::Null, &2.into()));
        if has_scaled(&json) {
            return;
        }
        last = json;
    }
    panic!("the last of 5 profiles is {last}");
}

/// Decoding and cropping in stages of their own: the second works on what the first left.
#[test]
fn stages_of_pictures_are_run_one_by_one_and_printed_for_a_person() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 40, 2);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"image-folder\"\nbatch.size = 8\n\
         [[stage]]\nname = \"decode\"\noperations = [{{ op = \"decode-image\" }}]\n\
         [[stage]]\nname = \"crop\"\noperations = [{{ op = \"random-resized-crop\", size = 32 }}]\n",
        dir.path("images").display()
    );
    let config = dir.config("train.toml", &text);
    let json = profile(&dir, &config);
    for stage in json["stages"].as_array().unwrap() {
        for run in stage["runs"].as_array().unwrap() {
            assert!(run["samples"].as_u64().unwrap() > 0, "{stage}");
            assert!(run["cpu_seconds_per_sample"].as_f64().unwrap() > 0.0, "{stage}");
        }
    }
    let shown = program::run(dir.forebay(&["bench", "--profile"]).arg(&config));
    for words in ["decode (configured: auto)", "speed-up", "CPU a sample", "the slowest stage is"] {
        assert!(shown.stdout.contains(words), "{}{}", shown.stdout, shown.stderr);
    }
}

#[test]
fn a_dataset_that_cannot_be_read_is_said_to_be_so() {
    let dir = TestDir::new();
    let config = dir.image_stream(20, 2, "");
    let checked = program::run(dir.forebay(&["check", "--plan-only"]).arg(&config));
    assert!(checked.status.success(), "{checked:?}");
    for class in std::fs::read_dir(dir.path("images")).unwrap() {
        let class = class.unwrap().path();
        if class.is_dir() {
            for file in std::fs::read_dir(class).unwrap() {
                std::fs::write(file.unwrap().path(), b"no picture").unwrap();
            }
        }
    }
    let found = program::run(dir.forebay(&["bench", "--profile"]).arg(&config));
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(found.stderr.contains("images"), "the file is named: {}", found.stderr);
}
