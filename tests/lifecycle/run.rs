//! `forebay run`: the command's life and end are the daemon's.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use forebay_tests::{TestDir, data, is_running, program, wait_until};
use nix::sys::signal::Signal;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

/// `forebay run` beside a shell script.
fn run_script(dir: &TestDir, script: &str) -> Command {
    let mut command = dir.forebay(&["run"]);
    command.arg(dir.stack_stream(40, "")).args(["--", "sh", "-c", script]);
    command
}

/// Starts a script that prints its process number, and waits for that.
fn start(dir: &TestDir, script: &str) -> (Child, u32) {
    let mut command = run_script(dir, script);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

#[test]
fn the_exit_status_is_the_commands() {
    let dir = TestDir::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        ("kill -SEGV $$", 128 + 11),
    ] {
        let finished = program::run(&mut run_script(&dir, script));
        assert_eq!(finished.status.code(), Some(code), "{script}: {finished:?}");
    }
    let mut missing = dir.forebay(&["run"]);
    missing.arg(dir.stack_stream(40, "")).args(["--", "no-such-program"]);
    let finished = program::run(&mut missing);
    assert_ne!(finished.status.code(), Some(0));
    assert!(finished.stderr.contains("no-such-program"), "{finished:?}");
    let mut trainer = dir.forebay(&["run"]);
    trainer.arg(dir.stack_stream(40, "")).args(["--", TRAINER, "use=train", "take=2", "exit=5"]);
    assert_eq!(program::run(&mut trainer).status.code(), Some(5));
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}

#[test]
fn the_command_finds_its_daemon_in_the_environment() {
    let dir = TestDir::new();
    let finished = program::run(&mut run_script(&dir, "test -S \"$FOREBAY_SOCKET\" && echo there"));
    assert_eq!(finished.stdout, "there\n", "{finished:?}");
    let forebay = program::forebay().display();
    let asked = program::run(&mut run_script(&dir, &format!("{forebay} stats --json")));
    assert_eq!(asked.json()["streams"][0]["name"], "train");
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let dir = TestDir::new();
    // At once: the command has just begun when the signal comes.
    for _ in 0..5 {
        for (signal, name) in [
            (Signal::SIGTERM, "TERM"),
            (Signal::SIGINT, "INT"),
            (Signal::SIGHUP, "HUP"),
            (Signal::SIGUSR1, "USR1"),
            (Signal::SIGUSR2, "USR2"),
        ] {
            let script = format!("trap 'exit 9' {name}; echo $$; while :; do sleep 0.02; done");
            let (mut child, _) = start(&dir, &script);
            assert!(forebay_tests::signal(child.id(), signal));
            let status = program::wait(&mut child);
            assert_eq!(status.code(), Some(9), "SIG{name}: {status}");
        }
    }
    let (mut child, pid) = start(&dir, "echo $$; while :; do sleep 0.05; done");
    assert!(forebay_tests::signal(child.id(), Signal::SIGTERM));
    assert_eq!(program::wait(&mut child).code(), Some(128 + 15));
    assert!(!is_running(pid));
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}

#[test]
fn the_command_dies_with_a_killed_daemon_and_the_next_start_sweeps() {
    let dir = TestDir::new();
    let (mut child, pid) = start(&dir, "echo $$; while :; do sleep 0.05; done");
    assert!(is_running(pid));
    program::kill(&mut child);
    wait_until("the command is dead", || !is_running(pid));
    // The socket, its lock, and the page of the samples under work.
    assert_eq!(dir.runtime_files().len(), 3, "{:?}", dir.runtime_files());
    let finished = program::run(&mut run_script(&dir, "exit 0"));
    assert!(finished.status.success(), "{finished:?}");
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
}

#[test]
fn a_mistake_in_the_configuration_starts_no_command() {
    let dir = TestDir::new();
    let config = dir.config("train.toml", &data::stack_config(&dir.path("nowhere"), ""));
    let mut command = dir.forebay(&["run"]);
    command.arg(config).args(["--", "sh", "-c", "touch begun"]);
    let finished = program::run(&mut command);
    assert_eq!(finished.status.code(), Some(1));
    assert!(!std::fs::exists(dir.path("begun")).unwrap());
    assert!(dir.runtime_files().is_empty());
}
