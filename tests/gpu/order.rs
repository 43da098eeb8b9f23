//! What arrives on the device is what was published, whatever the order in which work is done.

use forebay_tests::data;
use serde_json::json;

use crate::{batches, lines, stream, trainer};

/// A wait for a copy takes so long: time enough to fill a slot that was given back too early.
const SLOW: (&str, &str) = ("FOREBAY_STAND_IN_DELAY_MS", "3");

#[test]
fn every_batch_is_the_hosts_by_every_way_of_pinning() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch", "epoch"]));
    assert_eq!(batches(&host).len(), 24);
    for (policy, path) in [
        ("auto", "registered"),
        ("register", "registered"),
        ("stage", "staged"),
        ("off", "pageable"),
    ] {
        let pin = format!("pin={policy}");
        let pinned = if policy == "auto" { "pinned" } else { "stats" };
        let arguments = [&*pin, &format!("use={config}"), "epoch", pinned, "epoch", "stats"];
        let mut command = trainer(&dir, &arguments);
        command.env(SLOW.0, SLOW.1);
        let device = lines(command);
        assert_eq!(batches(&device), batches(&host), "{policy}");
        let figures = device.last().unwrap();
        assert_eq!(figures["path"], path, "{figures}");
        let was_staged = figures["staging_seconds"].as_f64().unwrap() > 0.0;
        // Under `auto` the first batches may come before the ring is pinned.
        assert!(was_staged == (policy == "stage") || policy == "auto", "{figures}");
        assert_eq!(figures["batches"], 24);
    }
}

#[test]
fn batches_kept_dropped_and_read_on_other_streams_stay_what_they_are() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch", "epoch", "epoch"]));
    for (keep, streams, ahead) in [(0, 1, 1), (4, 1, 2), (0, 3, 3), (5, 4, 2)] {
        let arguments = [
            &*format!("keep={keep}"),
            &*format!("streams={streams}"),
            &*format!("ahead={ahead}"),
            &*format!("use={config}"),
            "epoch",
            "epoch",
            "epoch",
        ];
        let mut command = trainer(&dir, &arguments);
        command.env(SLOW.0, "1");
        assert_eq!(batches(&lines(command)), batches(&host), "{arguments:?}");
    }
}

#[test]
fn an_epoch_left_at_its_last_batch_leaves_no_trace_of_what_was_uploaded_in_vain() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch", "epoch"]));
    let arguments = [
        "ahead=3",
        &format!("use={config}"),
        "take=10",
        "uploaded=12",
        "begin",
        "state",
        "state=1",
        "take=1",
        "state",
        "stats",
    ];
    let device = lines(trainer(&dir, &arguments));
    let state = device.iter().find_map(|line| line["state"].as_str()).unwrap();
    let state: serde_json::Value = serde_json::from_str(state).unwrap();
    assert_eq!((&state["epoch"], &state["samples"]), (&json!(1), &json!(0)), "{state}");
    assert!(device.iter().any(|line| line["refused"].is_string()), "{device:?}");
    assert_eq!(batches(&device)[10]["digest"], batches(&host)[12]["digest"]);
    // Behind the first batch of an epoch that was begun by leaving another one early.
    let state = device.iter().filter_map(|line| line["state"].as_str()).next_back().unwrap();
    let state: serde_json::Value = serde_json::from_str(state).unwrap();
    assert_eq!((&state["epoch"], &state["samples"]), (&json!(1), &json!(8)), "{state}");
    assert_eq!(device.last().unwrap()["given_up"], 2);
}

#[test]
fn memory_is_freed_behind_the_last_work_that_reads_it() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch"]));
    // The last one is the whole epoch: memory that was offered for batches which never came.
    for count in [1, 2, 3, 12] {
        let arguments = [
            "ahead=2".to_owned(),
            format!("use={config}"),
            format!("leave={}", count + count / 12),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let device = lines(trainer(&dir, &arguments));
        assert_eq!(batches(&device), batches(&host)[..count], "{count}");
    }
}

#[test]
fn a_field_that_the_device_finishes_is_what_the_daemon_would_have_made() {
    let dir = forebay_tests::TestDir::new();
    data::images(&dir.path("images"), 30, 3);
    for (dtype, layout, norm) in [
        ("float32", "NCHW", ", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]"),
        ("float16", "NCHW", ""),
        ("bfloat16", "NHWC", ", mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25]"),
        ("uint8", "NCHW", ""),
    ] {
        let config = |on: &str| {
            let keys = format!(
                "ring.slots = 3\nring.hold = 1\nbatch.last = \"short\"\norder.epochs = 1\n\
                 output.image = {{ dtype = \"{dtype}\", layout = \"{layout}\", on = \"{on}\"{norm} }}"
            );
            let name = format!("{on}.toml");
            let path = dir.config(&name, &data::image_config(&dir.path("images"), &keys));
            path.to_str().unwrap().to_owned()
        };
        let host = lines(trainer(&dir, &[&format!("host={}", config("cpu")), "epoch"]));
        for policy in ["pin=register", "pin=stage"] {
            let arguments = [policy, "keep=2", &format!("use={}", config("gpu")), "epoch", "stats"];
            let mut command = trainer(&dir, &arguments);
            command.env(SLOW.0, SLOW.1);
            let device = lines(command);
            assert_eq!(batches(&device), batches(&host), "{dtype} {layout} {policy}");
        }
    }
}

#[test]
fn what_the_device_mixes_is_what_the_daemon_would_have_mixed() {
    let dir = forebay_tests::TestDir::new();
    data::images(&dir.path("images"), 46, 3);
    let (mixup, cutmix) = ("{ op = \"mixup\", alpha = 0.6 }", "{ op = \"cutmix\" }");
    let choice = format!("{{ op = \"choice\", operations = [{mixup}, {cutmix}] }}");
    for (dtype, layout, norm, operations) in [
        ("float32", "NCHW", ", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]", mixup),
        ("float32", "NHWC", "", cutmix),
        ("float16", "NHWC", ", mean = [0.5, 0.4, 0.3], std = [0.25, 0.2, 0.3]", &*choice),
        ("bfloat16", "NCHW", ", mean = [0.5, 0.5, 0.5], std = [0.2, 0.2, 0.2]", mixup),
        ("uint8", "NCHW", "", &*choice),
    ] {
        let config = |on: &str, operations: &str| {
            // The last batch has one row, the others five: the middle one has no partner.
            let keys = format!(
                "ring.slots = 3\nring.hold = 1\nbatch.last = \"short\"\norder.epochs = 2\n\
                 batch.operations = [{operations}]\n\
                 output.image = {{ dtype = \"{dtype}\", layout = \"{layout}\", on = \"{on}\"{norm} }}"
            );
            let text = data::image_config(&dir.path("images"), &keys);
            let text = text.replace("batch.size = 8", "batch.size = 5");
            let path = dir.config(&format!("{on}.toml"), &text);
            path.to_str().unwrap().to_owned()
        };
        let host = format!("host={}", config("cpu", operations));
        let host = lines(trainer(&dir, &[&host, "epoch", "epoch"]));
        let plain = format!("host={}", config("cpu", ""));
        assert_ne!(batches(&lines(trainer(&dir, &[&plain, "epoch"]))), batches(&host)[..10]);
        let device = config("gpu", operations);
        for (policy, path) in [("register", "registered"), ("stage", "staged"), ("off", "pageable")]
        {
            let pin = format!("pin={policy}");
            let arguments = [&*pin, "keep=2", &format!("use={device}"), "epoch", "epoch", "stats"];
            let mut command = trainer(&dir, &arguments);
            command.env(SLOW.0, SLOW.1);
            let device = lines(command);
            assert_eq!(batches(&device), batches(&host), "{dtype} {layout} {policy}");
            assert_eq!(batches(&device).len(), 20);
            assert_eq!(device.last().unwrap()["path"], path);
        }
    }
}

#[test]
fn a_daemon_that_is_killed_costs_no_batch_and_no_new_registration() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch", "epoch"]));
    let log = dir.path("calls");
    let arguments = [
        "pin=register",
        "keep=3",
        &format!("use={config}"),
        "take=4",
        "kill-daemon",
        "take=3",
        "kill-daemon",
        "take=100",
        "epoch",
        "stats",
    ];
    let mut command = trainer(&dir, &arguments);
    command.env(SLOW.0, SLOW.1).env("FOREBAY_STAND_IN_LOG", &log);
    let device = lines(command);
    let digests = |lines: &[serde_json::Value]| {
        batches(lines).iter().map(|line| line["digest"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(digests(&device), digests(&host));
    let calls = std::fs::read_to_string(&log).unwrap();
    let count = |name: &str| calls.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((count("cuMemHostRegister_v2"), count("cuMemHostUnregister")), (1, 1));
    assert!(!calls.contains("pageable"), "{calls}");
}

#[test]
fn another_devices_context_stays_the_trainers_own() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch"]));
    let arguments = ["device=1", "context=0", "keep=2", &format!("use={config}"), "epoch"];
    let device = lines(trainer(&dir, &arguments));
    assert_eq!(batches(&device), batches(&host));
}
