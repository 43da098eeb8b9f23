//! What does not move is named: in the client's time-out, in `forebay stats` and in the log.

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
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(3)).attach().unwrap();
    let error = loader.next_batch().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let message = error.to_string();
    let file = images.join("class-000/00000000.jpg");
    for part in
        ["no progress for", "the daemon says: ", "in stage `preprocess`", file.to_str().unwrap()]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    let stats = daemon.stats(&dir);
    let stalls = stats["stalls"].as_array().unwrap();
    assert!(stalls.iter().any(|stall| stall["path"] == file.to_str().unwrap()), "{stats}");
    let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket)).stdout;
    assert!(shown.contains("stalled: sample 0 ("), "{shown}");
    drop(loader);
    let (_, log) = daemon.end(Signal::SIGTERM);
    assert!(log.contains("stalled: sample 0 (") && log.contains(file.to_str().unwrap()), "{log}");
}

#[test]
fn a_time_out_of_a_daemon_that_is_stopped_says_that_it_does_not_answer() {
    let dir = TestDir::new();
    let config = dir.image_stream(8, 2, "");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(2)).attach().unwrap();
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
