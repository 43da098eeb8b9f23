//! A daemon that loaders of one host share: started by the first, restarted by any, ended after the last.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use forebay_tests::taken::{sorted, take_epoch};
use forebay_tests::{TestDir, program, test_dir, wait_until};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// A trainer that shares its daemon. Dropping it kills it.
struct Trainer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Trainer {
    /// Starts it as a rank of so many, with these steps.
    fn start(dir: &TestDir, (rank, world): (u32, u32), steps: &[&str]) -> Self {
        let mut child = command(dir, rank, world)
            .args(steps)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    /// Its lines up to one with this key.
    fn until(&mut self, key: &str) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = self.next().unwrap_or_else(|| panic!("no `{key}` after {lines:?}"));
            let is_last = line.get(key).is_some();
            assert!(is_last || line.get("error").is_none(), "{line}");
            lines.push(line);
            if is_last {
                return lines;
            }
        }
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(dir: &TestDir, rank: u32, world: u32) -> Command {
    let mut command = dir.command(Path::new(env!("CARGO_BIN_EXE_forebay-test-trainer")));
    for (name, number) in
        [("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", world)]
    {
        command.env(name, number.to_string());
    }
    command
}

/// The daemon that serves, once those that found its socket taken have ended.
fn only_daemon(dir: &TestDir) -> u32 {
    wait_until("there is one daemon", || dir.shared_daemons().len() == 1);
    dir.shared_daemons()[0]
}

fn digests(lines: &[Value]) -> Vec<String> {
    let of = |line: &Value| line.get("digest").and_then(Value::as_str).map(str::to_owned);
    lines.iter().filter_map(of).collect()
}

fn ids(lines: &[Value]) -> Vec<i64> {
    let of = |line: &Value| line.get("ids").and_then(Value::as_array).cloned();
    lines.iter().filter_map(of).flatten().filter_map(|id| id.as_i64()).collect()
}

fn nothing_is_left(dir: &TestDir) {
    wait_until("no process is left", || dir.processes().is_empty());
    assert_eq!(dir.runtime_files(), BTreeSet::new());
}

#[test]
fn ranks_share_a_daemon_that_outlives_the_one_that_started_it_and_ends_after_the_last() {
    let dir = TestDir::new();
    let config = dir.stack_stream(64, "order.epochs = 2");
    let attach = format!("use={}", config.display());
    let steps = ["share=", &attach, "epoch", "hang"];
    let mut trainers: Vec<_> = (0..4).map(|rank| Trainer::start(&dir, (rank, 4), &steps)).collect();
    let lines: Vec<_> = trainers.iter_mut().map(|trainer| trainer.until("hangs")).collect();
    let all = sorted(lines.iter().flat_map(|lines| ids(lines)).collect());
    assert_eq!(all, (0..64).collect::<Vec<_>>(), "each sample once over all ranks");
    let daemon = only_daemon(&dir);
    // Any of them may have started it.
    for _ in 0..3 {
        drop(trainers.pop());
        assert!(forebay_tests::is_running(daemon));
    }
    let mut late = Trainer::start(&dir, (3, 4), &["share=", &attach, "epoch", "exit=0"]);
    let mut found = Vec::new();
    while let Some(line) = late.next() {
        found.push(line);
    }
    assert_eq!(digests(&found), digests(&lines[3]), "the same rank has the same batches");
    assert_eq!(only_daemon(&dir), daemon);
    drop(trainers);
    nothing_is_left(&dir);
}

#[test]
fn killed_daemon_is_replaced_by_one_that_all_of_its_clients_go_on_with() {
    let dir = TestDir::new();
    let config = dir.stack_stream(96, "order.epochs = 3\nring.slots = 3");
    let attach = format!("use={}", config.display());
    let expected: Vec<Vec<String>> = (0..3)
        .map(|rank| {
            let mut loader = test_dir::loader(config.as_path(), rank, 3).attach().unwrap();
            (0..3).flat_map(|_| take_epoch(&mut loader)).map(|batch| batch.digest).collect()
        })
        .collect();
    // Time for the kills, between batches of which the ring holds a few.
    let steps = [
        "share=",
        &attach,
        "take=1",
        "pause=1500",
        "epoch=rest",
        "pause=500",
        "epoch",
        "epoch",
        "hang",
    ];
    let mut trainers: Vec<_> = (0..3).map(|rank| Trainer::start(&dir, (rank, 3), &steps)).collect();
    let mut found: Vec<_> = trainers.iter_mut().map(|trainer| trainer.until("digest")).collect();
    // The next daemon reads no configuration.
    std::fs::remove_file(&config).unwrap();
    let mut killed = BTreeSet::new();
    for _ in 0..4 {
        wait_until("there is a daemon to kill", || {
            let next = dir.shared_daemons().into_iter().find(|daemon| !killed.contains(daemon));
            next.is_some_and(|daemon| {
                killed.insert(daemon);
                forebay_tests::signal(daemon, Signal::SIGKILL)
            })
        });
    }
    let mut restarts = 0;
    for (trainer, found) in trainers.iter_mut().zip(&mut found) {
        found.extend(trainer.until("hangs"));
        restarts += found.last().unwrap()["restarts"].as_u64().unwrap();
    }
    assert!(restarts > 0, "no trainer has gone on with another daemon");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(&digests(found), expected);
    }
    wait_until("one daemon is left", || dir.shared_daemons().len() == 1);
    drop(trainers);
    nothing_is_left(&dir);
}

#[test]
fn daemon_survives_the_process_group_and_the_session_of_its_starter() {
    use std::os::unix::process::CommandExt;
    let dir = TestDir::new();
    let config = dir.stack_stream(16, "");
    let attach = format!("use={}", config.display());
    let mut starter = command(&dir, 0, 2);
    starter.args(["share=", &attach, "take=1", "hang"]).process_group(0).stdout(Stdio::null());
    let mut starter = starter.spawn().unwrap();
    wait_until("it has started a daemon", || !dir.shared_daemons().is_empty());
    let mut other = Trainer::start(&dir, (1, 2), &["share=", &attach, "take=1", "hang"]);
    other.until("hangs");
    let before = only_daemon(&dir);
    killpg(Pid::from_raw(i32::try_from(starter.id()).unwrap()), Signal::SIGKILL).unwrap();
    program::wait(&mut starter);
    assert_eq!(only_daemon(&dir), before);
    drop(other);
    nothing_is_left(&dir);
}

#[test]
fn names_separate_jobs_and_a_rank_that_is_there_already_is_refused() {
    let dir = TestDir::new();
    let config = dir.stack_stream(16, "");
    let attach = format!("use={}", config.display());
    let start = |name: &str| {
        let steps = [&format!("share={name}"), attach.as_str(), "take=1", "hang"];
        Trainer::start(&dir, (0, 1), &steps)
    };
    let (mut one, mut other, mut second) = (start("one"), start("other"), start("one"));
    other.until("hangs");
    // Either of the two with one name may be the first.
    let is_refused = |line: &Value| {
        line.get("error").and_then(Value::as_str).is_some_and(|error| error.contains("shared"))
    };
    let ends = [&mut one, &mut second].map(|trainer| {
        std::iter::from_fn(|| trainer.next())
            .find(|line| line.get("hangs").is_some() || line.get("error").is_some())
            .unwrap()
    });
    assert_eq!(ends.iter().filter(|line| is_refused(line)).count(), 1, "{ends:?}");
    wait_until("each name has a daemon", || dir.shared_daemons().len() == 2);
    drop((one, other, second));
    nothing_is_left(&dir);
}

#[test]
fn configuration_that_cannot_be_served_is_reported_to_every_loader_and_leaves_nothing() {
    let dir = TestDir::new();
    let config = dir.stack_stream(16, "");
    std::fs::remove_dir_all(dir.path("data")).unwrap();
    let attach = format!("use={}", config.display());
    let trainers: Vec<_> =
        (0..3).map(|rank| Trainer::start(&dir, (rank, 3), &["share=", &attach])).collect();
    for mut trainer in trainers {
        let line = trainer.next().unwrap();
        let error = line.get("error").and_then(Value::as_str).unwrap_or_default();
        assert!(error.contains("data"), "{line}");
    }
    nothing_is_left(&dir);
}

/// An evaluation or a checkpoint: no loader calls anything for longer than the daemon stays without loaders.
#[test]
fn daemon_that_dies_while_its_trainers_are_busy_is_replaced_once() {
    let dir = TestDir::new();
    let config = dir.stack_stream(64, "order.epochs = 1\nring.slots = 3");
    let attach = format!("use={}", config.display());
    let steps = ["share=", &attach, "take=1", "pause=8000", "epoch=rest", "hang"];
    let mut trainer = Trainer::start(&dir, (0, 1), &steps);
    let mut found = trainer.until("digest");
    assert!(forebay_tests::signal(only_daemon(&dir), Signal::SIGKILL));
    found.extend(trainer.until("hangs"));
    assert_eq!(sorted(ids(&found)), (0..64).collect::<Vec<_>>());
    assert_eq!(found.last().unwrap()["restarts"], 1);
    drop(trainer);
    nothing_is_left(&dir);
}

#[test]
fn variable_of_the_environment_that_a_configuration_names_separates_daemons() {
    let dir = TestDir::new();
    let config = dir.stack_stream(16, "");
    let data = dir.path("data").display().to_string();
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(&data));
    std::fs::write(&config, text.replace(&data, "${SOME_DATA}")).unwrap();
    let other = dir.path("other");
    forebay_tests::data::stack(&other, 8);
    let attach = format!("use={}", config.display());
    let samples = |data: &Path, rank: u32| {
        let mut command = command(&dir, rank, 2);
        command.env("SOME_DATA", data).args(["share=", &attach, "epoch", "exit=0"]);
        let finished = program::run(&mut command);
        let lines: Vec<Value> =
            finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        ids(&lines).len()
    };
    assert_eq!((samples(&dir.path("data"), 0), samples(&other, 1)), (8, 4));
    nothing_is_left(&dir);
}

#[test]
fn program_that_starts_no_daemon_is_an_error_at_once() {
    let dir = TestDir::new();
    let config = dir.stack_stream(16, "");
    let attach = format!("use={}", config.display());
    for (line, words) in [("exit 2", "starts no shared daemon"), ("exit 0", "without a reason")] {
        let program = dir.path("program");
        program::write_script(&program, &format!("#!/bin/sh\n{line}\n"));
        let mut command = command(&dir, 0, 1);
        command.env("FOREBAY_PROGRAM", &program).args(["share=", &attach]);
        let finished = program::run(&mut command);
        assert!(finished.stdout.contains(words), "{finished:?}");
    }
}
