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

/// The shared daemons of a test's folder.
fn daemons(dir: &TestDir) -> Vec<u32> {
    let is_daemon = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("shared\0--detached")
    };
    dir.processes().iter().filter_map(|name| name.parse().ok()).filter(is_daemon).collect()
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
    let [daemon] = daemons(&dir)[..] else { panic!("one daemon: {:?}", daemons(&dir)) };
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
    assert_eq!(daemons(&dir), [daemon]);
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
    let steps = ["share=", &attach, "take=1", "epoch=rest", "epoch", "epoch", "hang"];
    let mut trainers: Vec<_> = (0..3).map(|rank| Trainer::start(&dir, (rank, 3), &steps)).collect();
    let mut found: Vec<_> = trainers.iter_mut().map(|trainer| trainer.until("digest")).collect();
    // The next daemon reads no configuration.
    std::fs::remove_file(&config).unwrap();
    let mut killed = BTreeSet::new();
    for _ in 0..4 {
        wait_until("there is a daemon to kill", || {
            let next = daemons(&dir).into_iter().find(|daemon| !killed.contains(daemon));
            next.is_some_and(|daemon| {
                killed.insert(daemon);
                forebay_tests::signal(daemon, Signal::SIGKILL)
            })
        });
    }
    for (trainer, found) in trainers.iter_mut().zip(&mut found) {
        found.extend(trainer.until("hangs"));
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(&digests(found), expected);
    }
    wait_until("one daemon is left", || daemons(&dir).len() == 1);
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
    wait_until("it has started a daemon", || !daemons(&dir).is_empty());
    let mut other = Trainer::start(&dir, (1, 2), &["share=", &attach, "take=1", "hang"]);
    other.until("hangs");
    let before = daemons(&dir);
    killpg(Pid::from_raw(i32::try_from(starter.id()).unwrap()), Signal::SIGKILL).unwrap();
    program::wait(&mut starter);
    assert_eq!((before.len(), daemons(&dir)), (1, before));
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
    assert_eq!(daemons(&dir).len(), 2);
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
