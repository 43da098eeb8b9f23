//! What does not move is named: in the client's time-out, in `forebay stats` and in the log.

use std::path::Path;
use std::time::Duration;

use forebay_client::Error;
use forebay_tests::{Daemon, TestDir, data, program, wait_until};
use nix::sys::signal::Signal;

#[test]
fn a_time_out_names_the_stage_the_sample_and_the_file_and_so_do_stats_and_log() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 8, 2);
    let keys = "order.shuffle = false\nerrors.stall_after = \"300ms\"";
    let text = data::image_config(&images, keys).replace(
        "{ op = \"decode-image\" }",
        "{ op = \"delay\", milliseconds = 60000 }, { op = \"decode-image\" }",
    );
    let config = dir.config("train.toml", &text);
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(8)).attach().unwrap();
    let error = loader.next_batch().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let message = error.to_string();
    assert!(
        message.contains("no progress for") && message.contains("in stage `preprocess`"),
        "{message}"
    );
    // Which ones are under work is up to the reads: what is read first is worked on first.
    let named = message.split_once("the daemon says: sample ").unwrap().1;
    let (sample, named) = named.split_once(" (").unwrap();
    let file = named.split_once(')').unwrap().0;
    assert!(Path::new(file).starts_with(&images) && Path::new(file).exists(), "{message}");
    let stats = daemon.stats(&dir);
    let stalls = stats["stalls"].as_array().unwrap();
    assert!(stalls.iter().any(|stall| stall["path"] == file), "{stats}");
    let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket)).stdout;
    let stalled = format!("stalled: sample {sample} (");
    assert!(shown.contains(&stalled), "{shown}");
    drop(loader);
    let (_, log) = daemon.end(Signal::SIGTERM);
    assert!(log.contains(&stalled) && log.contains(file), "{log}");
}

#[test]
fn a_time_out_of_a_daemon_that_is_stopped_says_that_it_does_not_answer() {
    let dir = TestDir::new();
    let config = dir.image_stream(8, 2, "");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(8)).attach().unwrap();
    loader.next_batch().unwrap().unwrap();
    daemon.signal(Signal::SIGSTOP);
    let error = loop {
        if let Err(error) = loader.next_batch() {
            break error;
        }
    };
    daemon.signal(Signal::SIGCONT);
    assert!(error.to_string().contains("the daemon did not answer"), "{error}");
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    // The answer that comes late is no batch and no error.
    wait_until("a batch comes", || matches!(loader.next_batch(), Ok(Some(_))));
}
