//! What a driver refuses comes as an error with the remedy, and leaves daemon and ring whole.

use serde_json::json;

use crate::{batches, error, lines, stream, trainer, without_driver};

#[test]
fn without_a_driver_or_such_a_device_the_error_says_what_to_do() {
    let (dir, config) = stream();
    let (message, _) = error(without_driver(&dir, &[&format!("use={config}"), "epoch"]));
    assert!(message.contains("cuda:0: no NVIDIA driver was found"), "{message}");
    assert!(message.contains("omit the device"), "{message}");
    let mut command = trainer(&dir, &["device=7", &format!("use={config}"), "epoch"]);
    command.env("CUDA_VISIBLE_DEVICES", "0,1");
    let (message, _) = error(command);
    assert!(message.contains("cuda:7: this process sees 2 devices"), "{message}");
    assert!(message.contains("CUDA_VISIBLE_DEVICES is \"0,1\""), "{message}");
    let mut command = trainer(&dir, &[&format!("use={config}"), "epoch"]);
    command.env("FOREBAY_STAND_IN_FAIL", "cuInit=34");
    let (message, _) = error(command);
    assert!(message.contains("toolkit's stub") && message.contains("LD_LIBRARY_PATH"), "{message}");
}

#[test]
fn a_refused_registration_is_staged_and_said_or_an_error_where_it_must_not_be() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch"]));
    let refused = ("FOREBAY_STAND_IN_FAIL", "cuMemHostRegister_v2=801");
    let mut command = trainer(&dir, &["keep=3", &format!("use={config}"), "epoch", "stats"]);
    command.env(refused.0, refused.1).env("FOREBAY_STAND_IN_DELAY_MS", "2");
    let device = lines(command);
    assert_eq!(batches(&device), batches(&host));
    let figures = device.last().unwrap();
    assert_eq!(figures["path"], "staged");
    assert!(figures["reason"].as_str().unwrap().contains("NOT_SUPPORTED"), "{figures}");
    let mut command = trainer(&dir, &["pin=register", &format!("use={config}"), "epoch"]);
    command.env(refused.0, refused.1);
    let (message, _) = error(command);
    assert!(
        message.contains("pinning the ring failed") && message.contains("pin = \"auto\""),
        "{message}"
    );
}

#[test]
fn without_any_pinned_memory_batches_go_from_memory_that_is_not() {
    let (dir, config) = stream();
    let host = lines(trainer(&dir, &[&format!("host={config}"), "epoch"]));
    let mut command = trainer(&dir, &["keep=3", &format!("use={config}"), "epoch", "stats"]);
    command.env("FOREBAY_STAND_IN_FAIL", "cuMemHostRegister_v2=801,cuMemHostAlloc=2");
    let device = lines(command);
    assert_eq!(batches(&device), batches(&host));
    let figures = device.last().unwrap();
    assert_eq!(figures["path"], "pageable");
    assert!(figures["reason"].as_str().unwrap().contains("allocating pinned memory"), "{figures}");
}

#[test]
fn a_driver_that_fails_in_the_middle_ends_the_upload_and_nothing_else() {
    let (dir, config) = stream();
    let host = batches(&lines(trainer(&dir, &[&format!("host={config}"), "epoch"])));
    for (failure, words) in [
        ("cuMemcpyHtoDAsync_v2=2@13", "the device's memory is full"),
        ("cuEventSynchronize=700@4", "the device's context is lost"),
        ("cuMemAllocAsync=2", "allocating memory for a batch failed"),
        ("cuStreamWaitEvent=719@3", "the device's context is lost"),
        ("cuStreamCreate=2", "making a stream failed"),
    ] {
        let mut command = trainer(&dir, &["pin=register", &format!("use={config}"), "epoch"]);
        command.env("FOREBAY_STAND_IN_FAIL", failure);
        let (message, finished) = error(command);
        assert!(message.contains(words), "{failure}: {message}");
        // Nothing is printed of an epoch that failed, and the private daemon has ended with its client.
        assert!(batches(&finished.json_lines()).is_empty());
        assert!(!finished.stderr.contains("broken rule"), "{}", finished.stderr);
    }
    // The next client gets all data.
    let again = lines(trainer(&dir, &[&format!("use={config}"), "epoch"]));
    assert_eq!(batches(&again), host);
}

#[test]
fn two_uploads_share_a_process_and_its_devices() {
    let (dir, config) = stream();
    let host = batches(&lines(trainer(&dir, &[&format!("host={config}"), "epoch"])));
    let of_use = format!("use={config}");
    // The first ends when the second takes its dir, with copies on their way.
    let device =
        lines(trainer(&dir, &["ahead=3", &of_use, "take=2", "device=1", &of_use, "epoch"]));
    let expected = [&host[..2], &host[..]].concat();
    assert_eq!(batches(&device), expected);
    assert!(device.contains(&json!({ "end": 12 })));
}
