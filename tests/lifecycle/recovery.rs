//! What passes ends no run: a suspension, a daemon that refuses a session for a while, a trainer without descriptors.

use std::io::BufRead;
use std::process::Stdio;
use std::time::{Duration, Instant};

use forebay_client::{Error, Loader, Next};
use forebay_tests::taken::{take, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data, program, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

#[test]
fn a_suspension_of_trainer_and_daemon_is_no_time_without_progress() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 8);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"npy\"\nbatch.size = 4\norder.epochs = 1\nstage = [{{ name = \"wait\", \
         concurrency = 1, operations = [{{ op = \"delay\", milliseconds = 500 }}] }}]\n",
        dir.path("data").join("samples.npy").display()
    );
    let config = dir.config("train.toml", &text);
    let mut trainer = dir.command(std::path::Path::new(TRAINER));
    trainer.args(["timeout=8", &format!("use={}", config.display()), "daemon", "epoch"]);
    let mut child = trainer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let daemon = lines
        .by_ref()
        .find_map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()["daemon"].as_i64());
    let processes = [daemon.unwrap(), i64::from(child.id())]
        .map(|process| Pid::from_raw(i32::try_from(process).unwrap()));
    // The trainer waits for its first batch, which takes two seconds.
    std::thread::sleep(Duration::from_millis(300));
    processes.iter().for_each(|process| kill(*process, Signal::SIGSTOP).unwrap());
    std::thread::sleep(Duration::from_secs(12));
    processes.iter().for_each(|process| kill(*process, Signal::SIGCONT).unwrap());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(program::wait(&mut child).success(), "{rest:?}");
    assert_eq!(rest.len(), 2, "{rest:?}");
}

/// Whether a batch comes within a while.
fn comes_soon(loader: &mut Loader, while_: Duration) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < while_ {
        match loader.try_next().unwrap() {
            Next::Batch(_) => return true,
            Next::End => panic!("the epoch has not ended"),
            Next::Waiting => loader.wait().unwrap(),
        }
    }
    false
}

#[test]
fn a_served_daemon_that_refuses_a_session_for_a_while_is_asked_again() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let keys = "ring.slots = 4\norder.epochs = 2";
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), keys));
    let daemon = Daemon::serve(&dir, &config);
    let mut reference = daemon.loader(0, 1).attach().unwrap();
    let expected = take_epoch(&mut reference);
    drop(reference);
    wait_until("the place is free", || daemon.stats(&dir)["sessions"][0].is_null());
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let mut found = take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    let daemon = Daemon::serve(&dir, &config);
    // Another client has the rank before this one asks.
    let other = daemon.loader(0, 1).attach().unwrap();
    while found.len() < expected.len() {
        match loader.try_next().unwrap() {
            Next::Batch(batch) => found.push(Taken::of(&batch)),
            _ => break,
        }
    }
    assert!(found.len() < 6, "a ring of four was published before the death");
    assert!(!comes_soon(&mut loader, Duration::from_millis(700)), "two clients have one rank");
    drop(other);
    while let Some(batch) = loader.next_batch().unwrap() {
        found.push(Taken::of(&batch));
    }
    assert_eq!(found, expected);
    assert_eq!(loader.restarts(), 1, "a refusal is no restart");
}

#[test]
fn a_refusal_that_lasts_is_an_error_with_the_reason() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), "ring.slots = 4"));
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_millis(800)).attach().unwrap();
    take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    let daemon = Daemon::serve(&dir, &config);
    let other = daemon.loader(0, 1).attach().unwrap();
    let error = loop {
        if let Err(error) = loader.next_batch() {
            break error;
        }
    };
    let Error::DaemonLost(message) = &error else { panic!("{error:?}") };
    assert!(message.contains("refused") && message.contains("in use"), "{message}");
    // It is not too late.
    drop(other);
    loop {
        match loader.next_batch() {
            Ok(batch) => break assert!(batch.is_some()),
            Err(Error::DaemonLost(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_trainer_that_has_no_descriptor_left_restarts_its_daemon_once_it_has() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let keys = "ring.slots = 4\norder.epochs = 1";
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), keys));
    let mut trainer = dir.command(std::path::Path::new(TRAINER));
    let target = format!("use={}", config.display());
    // Longer than six attempts that double from a tenth of a second.
    trainer.args([&target, "take=1", "starve=7000", "kill-daemon", "epoch=rest"]);
    let finished = program::run(&mut trainer);
    assert!(finished.status.success(), "{finished:?}");
    let ids = finished.json_lines().into_iter().filter_map(|line| line["ids"].as_array().cloned());
    let mut ids: Vec<i64> = ids.flatten().map(|id| id.as_i64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
}
