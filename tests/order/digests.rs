//! Digests of whole runs of `forebay bench`.

use std::path::Path;

use forebay_tests::{TestDir, data, program};

/// The digest of a run with keys set, and the samples that went into it.
fn digest(dir: &TestDir, config: &Path, settings: &[&str]) -> (String, u64) {
    let mut command = dir.forebay(&["bench", "--json", "--digest"]);
    command.arg(config);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let report = program::run(&mut command).json();
    (report["digest"].as_str().unwrap().to_owned(), report["samples"].as_u64().unwrap())
}

#[test]
fn digests_are_equal_for_every_number_of_threads_and_over_restarts() {
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "order.epochs = 2");
    let (expected, samples) = digest(&dir, &config, &["stage.preprocess.concurrency=1"]);
    assert_eq!(samples, 2 * 56);
    for threads in [1, 2, 4, 8] {
        let threads = format!("stage.preprocess.concurrency={threads}");
        for fetch in ["stage.fetch.concurrency=1", "stage.fetch.concurrency=16"] {
            let (found, _) = digest(&dir, &config, &[&threads, fetch]);
            assert_eq!(found, expected, "{threads} {fetch}");
        }
    }
    // The ring and the scheduling class have no say either; the seed and the size of batches have.
    for settings in [["ring.slots=3", "ring.hold=1"], ["cpu.policy=batch", "ring.slots=16"]] {
        assert_eq!(digest(&dir, &config, &settings).0, expected, "{settings:?}");
    }
    let threads = "stage.preprocess.concurrency=auto";
    for settings in [[threads, "cpu.limit=30%"], [threads, "ring.slots=3"]] {
        assert_eq!(digest(&dir, &config, &settings).0, expected, "{settings:?}");
    }
    for setting in ["order.seed=1", "batch.size=7", "order.shuffle=false"] {
        assert_ne!(digest(&dir, &config, &[setting]).0, expected, "{setting}");
    }
}

/// Long enough for the engine to raise the stage's threads, since its rows sleep.
#[test]
fn the_digest_is_the_same_while_the_engine_changes_the_threads() {
    let dir = TestDir::new();
    let delay = "{ op = \"delay\", milliseconds = 20, probability = 0.5 }";
    let stage = format!("{{ name = \"copy\", operations = [{delay}] }}");
    let config = dir.staged_stream(64, "order.epochs = 12", &stage);
    let mut command = dir.forebay(&["bench", "--json", "--digest"]);
    let report = program::run(command.arg(&config)).json();
    let stage = &report["stages"][1];
    assert!(stage["concurrency_reason"].as_str().unwrap().contains("asleep"), "{stage}");
    assert!(stage["concurrency"].as_u64().unwrap() > 2, "{stage}");
    for threads in 4..=8 {
        let threads = format!("stage.copy.concurrency={threads}");
        let (found, _) = digest(&dir, &config, &[&threads]);
        assert_eq!(found, report["digest"].as_str().unwrap(), "{threads}");
    }
}

#[test]
fn stages_make_the_same_bytes_as_one_stage() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 40, 4);
    let fused = dir.config("fused.toml", &data::image_config(&images, "order.epochs = 1"));
    let split = dir.config(
        "split.toml",
        &format!(
            "dataset.path = {:?}\ndataset.format = \"image-folder\"\nbatch.size = 8\norder.epochs = 1\n\
             output.image = {{ dtype = \"uint8\", layout = \"NCHW\" }}\n\
             [[stage]]\nname = \"decode\"\nconcurrency = 2\noperations = [{{ op = \"decode-image\" }}]\n\
             [[stage]]\nname = \"crop\"\nconcurrency = 1\noperations = [{{ op = \"random-resized-crop\", size = 32 }}]\n\
             [[stage]]\nname = \"flip\"\nconcurrency = 3\noperations = [{{ op = \"random-horizontal-flip\" }}]\n",
            images.display()
        ),
    );
    let expected = digest(&dir, &fused, &[]);
    assert_eq!(digest(&dir, &split, &[]), expected);
    let other = ["stage.decode.concurrency=4", "stage.flip.concurrency=1", "ring.slots=3"];
    assert_eq!(digest(&dir, &split, &other), expected);
}
