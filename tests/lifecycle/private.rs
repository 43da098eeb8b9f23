//! A private loader's daemon: it ends with its trainer, however that ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_client::{Error, Target};
use forebay_tests::taken::take;
use forebay_tests::{TestDir, data, is_running, program, test_dir, wait_until};
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

fn config(dir: &TestDir, keys: &str) -> PathBuf {
    data::stack(&dir.path("data"), 40);
    dir.config("train.toml", &data::stack_config(&dir.path("data"), keys))
}

fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// A trainer in a process of its own, and its private daemon's process.
fn trainer(dir: &TestDir, config: &Path, steps: &[&str]) -> (Child, u32) {
    let mut child = dir
        .command(Path::new(TRAINER))
        .arg(format!("use={}", config.display()))
        .args(["daemon"])
        .args(steps)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut daemon = None;
    for line in lines {
        let value: Value = serde_json::from_str(&line).unwrap();
        if let Some(pid) = value["daemon"].as_u64() {
            daemon = u32::try_from(pid).ok();
        }
        if value["hangs"] == true {
            break;
        }
    }
    (child, daemon.expect("the trainer told its daemon"))
}

/// A trainer that takes a batch and hangs, to nobody's ears.
fn unheard_trainer(dir: &TestDir, config: &Path) -> Command {
    let mut command = dir.command(Path::new(TRAINER));
    command.arg(format!("use={}", config.display())).args(["take=1", "hang"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn write_script(path: &Path, lines: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{lines}")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_daemon_ends_with_a_trainer_that_is_killed_and_nothing_is_left() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    let shared_memory = names(Path::new("/dev/shm"));
    let (mut child, daemon) = trainer(&dir, &config, &["take=3", "hang"]);
    assert!(is_running(daemon));
    let files = names(&dir.path(""));
    child.kill().unwrap();
    program::wait(&mut child);
    wait_until("the daemon has ended", || !is_running(daemon));
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
    assert_eq!(names(&dir.path("")), files);
    let left: Vec<String> = names(Path::new("/dev/shm"))
        .difference(&shared_memory)
        .filter(|name| name.contains("forebay"))
        .cloned()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_daemon_ends_also_while_a_sample_takes_for_ever() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let slow = "operations = [{ op = \"delay\", milliseconds = 600000 }]";
    let text = data::stack_config(&dir.path("data"), "").replace("operations = []", slow);
    let config = dir.config("train.toml", &text);
    let (mut child, daemon) = trainer(&dir, &config, &["hang"]);
    child.kill().unwrap();
    program::wait(&mut child);
    wait_until("the daemon has ended", || !is_running(daemon));
}

#[test]
fn a_trainer_killed_at_any_moment_of_its_start_leaves_no_daemon() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    for round in 0..20 {
        let mut child = unheard_trainer(&dir, &config).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round));
        child.kill().unwrap();
        program::wait(&mut child);
    }
    let needle = dir.path("run").display().to_string();
    wait_until("no process of this test is left", || processes_with(&needle).is_empty());
}

/// The program ends right after its loader; what the daemon says at its end comes later still.
#[test]
fn what_a_daemon_says_last_is_passed_on_though_its_trainer_ends() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    let wrapper = dir.path("program");
    let daemon = program::forebay();
    write_script(
        &wrapper,
        &format!("{} \"$@\"\nsleep 0.05\necho last words >&2\n", daemon.display()),
    );
    let mut trainer = dir.command(Path::new(TRAINER));
    trainer.env("FOREBAY_PROGRAM", &wrapper).arg(format!("use={}", config.display()));
    let finished = program::run(trainer.args(["take=1", "exit=0"]));
    assert!(finished.stderr.contains("last words"), "{finished:?}");
}

#[test]
fn a_trainer_killed_before_its_child_has_become_the_daemon_leaves_nothing() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    // Forked, and not yet the daemon: that takes longer here than the trainer lives.
    let (wrapper, forked, over) = (dir.path("program"), dir.path("forked"), dir.path("over"));
    let script = format!(
        "touch {}\nwhile ! [ -e {} ]; do sleep 0.01; done\nexec {} \"$@\"\n",
        forked.display(),
        over.display(),
        program::forebay().display()
    );
    write_script(&wrapper, &script);
    let mut child =
        unheard_trainer(&dir, &config).env("FOREBAY_PROGRAM", &wrapper).spawn().unwrap();
    wait_until("the child is there", || forked.exists());
    child.kill().unwrap();
    program::wait(&mut child);
    let needle = dir.path("run").display().to_string();
    assert!(!processes_with(&needle).is_empty(), "the child outlives its trainer");
    let files = names(&dir.path(""));
    std::fs::write(&over, "").unwrap();
    wait_until("no process of this test is left", || processes_with(&needle).is_empty());
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
    std::fs::remove_file(&over).unwrap();
    assert_eq!(names(&dir.path("")), files);
}

/// The processes that have a text in their environment.
fn processes_with(needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(needle) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn a_dropped_loader_ends_its_daemon_and_its_views_live_on() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let daemon = loader.private_process().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
    drop(loader);
    wait_until("the daemon has ended", || !is_running(daemon));
    assert_eq!(batch.require("index").unwrap().as_slice::<i64>().unwrap(), ids);
}

#[test]
fn a_dict_and_overrides_stand_for_a_file() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let text = serde_json::json!({
        "dataset": { "path": "data/samples.npy", "format": "npy" },
        "batch": { "size": 4 },
        "stage": [{ "name": "copy", "operations": [] }],
        "cpu": { "policy": "normal" },
    });
    let target = Target::json(text.to_string(), Some(&dir.path("")));
    let mut loader =
        test_dir::loader(target, 0, 1).override_key("batch.size", "5").attach().unwrap();
    assert_eq!(take(&mut loader, 1)[0].ids.len(), 5);
    let config = config(&dir, "");
    let target = Target::from(config.as_path());
    let wrong = test_dir::loader(target, 0, 1).override_key("batch.sizes", "5").attach();
    let Err(Error::Config(message)) = wrong else { panic!("{wrong:?}") };
    assert!(message.contains("batch.size"), "{message}");
}
