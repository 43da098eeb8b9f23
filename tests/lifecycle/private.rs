//! A private loader's daemon ends with its trainer, however that ends; `kills` and `exactly_once/states.rs` test it at
//! random instants.

use std::path::Path;
use std::process::{Command, Stdio};

use forebay_tests::{TestDir, is_running, names_in, program, wait_until};

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

/// A trainer that takes a batch and hangs, its output discarded.
fn unheard_trainer(dir: &TestDir, config: &Path) -> Command {
    let mut command = dir.command(Path::new(TRAINER));
    command.arg(format!("use={}", config.display())).args(["take=1", "hang"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn write_script(path: &Path, lines: &str) {
    program::write_script(path, &format!("#!/bin/sh\n{lines}"));
}

#[test]
fn the_daemon_ends_also_while_a_sample_takes_for_ever() {
    let dir = TestDir::new();
    let slow = "{ name = \"slow\", operations = [{ op = \"delay\", milliseconds = 600000 }] }";
    let config = dir.staged_stream(40, "", slow);
    let mut trainer = dir.command(Path::new(TRAINER));
    trainer.arg(format!("use={}", config.display())).arg("daemon");
    let (mut child, told) = program::start_until_it_hangs(&mut trainer);
    let daemon = told.iter().find_map(|line| line["daemon"].as_u64());
    let daemon = u32::try_from(daemon.expect("the trainer told its daemon")).unwrap();
    program::kill(&mut child);
    wait_until("the daemon has ended", || !is_running(daemon));
}

/// The program ends right after its loader; what the daemon says at its end comes later still. A loader waits only a
/// moment for its daemon, which a busy machine may exceed: one success of several tries is enough.
#[test]
fn what_a_daemon_says_last_is_passed_on_though_its_trainer_ends() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let wrapper = dir.path("program");
    let daemon = program::forebay();
    write_script(
        &wrapper,
        &format!("{} \"$@\"\nsleep 0.05\necho last words >&2\n", daemon.display()),
    );
    let run = || {
        let mut trainer = dir.command(Path::new(TRAINER));
        trainer.env("FOREBAY_PROGRAM", &wrapper).arg(format!("use={}", config.display()));
        let finished = program::run(trainer.args(["take=1", "exit=0"]));
        assert!(finished.status.success(), "{finished:?}");
        wait_until("its daemon has ended", || dir.processes().is_empty());
        finished
    };
    let mut runs = std::iter::repeat_with(run).take(20);
    assert!(runs.any(|run| run.stderr.contains("last words")), "20 trainers passed nothing on");
}

#[test]
fn a_trainer_killed_before_its_child_has_become_the_daemon_leaves_nothing() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
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
    program::kill(&mut child);
    assert!(!dir.processes().is_empty(), "the child outlives its trainer");
    let files = names_in(&dir.path(""));
    std::fs::write(&over, "").unwrap();
    wait_until("no process of this test is left", || dir.processes().is_empty());
    assert!(dir.runtime_files().is_empty(), "{:?}", dir.runtime_files());
    std::fs::remove_file(&over).unwrap();
    assert_eq!(names_in(&dir.path("")), files);
}
