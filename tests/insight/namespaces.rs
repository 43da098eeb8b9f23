//! Who looks into a daemon from another container that shares the network.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_tests::program::{self, Finished};
use forebay_tests::{Daemon, TestDir, skipped, test_dir};
use nix::unistd::Uid;

use super::headspace::{Trainer, config};

/// Namespaces that a container may have of its own, as arguments of `unshare`. All share the network.
const CONTAINERS: [&[&str]; 3] = [
    &["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"],
    &["--user", "--map-root-user", "--pid", "--fork"],
    &["--user", "--map-root-user"],
];

const REPLAY: &[&str] = &["headspace", "--replay", "--yes", "--after", "20", "--steps", "20"];

fn in_container(dir: &TestDir, namespaces: &[&str], program: &Path) -> Command {
    let mut command = dir.command(Path::new("unshare"));
    // A killed `unshare` does not leave its child behind.
    let dies_with_it = namespaces.contains(&"--fork").then_some("--kill-child");
    command.args(namespaces).args(dies_with_it).arg(program);
    command
}

fn ask_from(dir: &TestDir, namespaces: &[&str], question: &[&str], socket: &Path) -> Finished {
    let mut command = in_container(dir, namespaces, program::forebay());
    program::run(command.args(question).arg(socket))
}

fn has_namespaces(dir: &TestDir) -> bool {
    let can = |namespaces: &&[&str]| {
        let made = in_container(dir, namespaces, Path::new("true")).status();
        made.is_ok_and(|status| status.success())
    };
    let has = CONTAINERS.iter().all(can);
    if !has {
        skipped("no user and PID namespaces can be made here (unshare)");
    }
    has
}

#[test]
fn another_container_can_neither_look_into_a_private_daemon_nor_have_batches_replayed() {
    let dir = TestDir::new();
    if !has_namespaces(&dir) {
        return;
    }
    // Whatever is allowed to those who may connect.
    let file = config(&dir, "session.allow_headspace = true");
    let loader = test_dir::loader(file.as_path(), 0, 1).attach().unwrap();
    let process = loader.private_process().unwrap();
    let socket = format!("@forebay-{}/{process}-train", Uid::effective());
    let socket = Path::new(&socket);
    let trainer = Trainer::start(loader, Duration::from_millis(2), 0);
    for namespaces in CONTAINERS {
        for question in [&["stats"], REPLAY] {
            let refused = ask_from(&dir, namespaces, question, socket);
            assert!(!refused.status.success(), "{namespaces:?}: {refused:?}");
            let reason = "only from its own user and PID namespaces";
            assert!(refused.stderr.contains(reason), "{namespaces:?}: {refused:?}");
        }
    }
    let own = program::run(dir.forebay(&["stats"]).arg(socket));
    assert!(own.status.success(), "{own:?}");
    assert!(trainer.end().iter().all(|step| !step.is_replayed), "batches were repeated");
}

/// From a daemon's PID namespace, a process of the one above it or beside it has no number.
#[test]
fn a_private_daemon_in_a_container_is_not_looked_into_from_outside() {
    let dir = TestDir::new();
    if !has_namespaces(&dir) {
        return;
    }
    let file = config(&dir, "");
    let trainer = Path::new(env!("CARGO_BIN_EXE_forebay-test-trainer"));
    let mut command = in_container(&dir, CONTAINERS[0], trainer);
    command.arg(format!("use={}", file.display())).arg("daemon");
    let (mut container, told) = program::start_until_it_hangs(&mut command);
    let process = told.iter().find_map(|line| line["daemon"].as_u64()).unwrap();
    // The name has the user and the process as they are inside.
    let socket = format!("@forebay-0/{process}-train");
    let outside = program::run(dir.forebay(&["stats"]).arg(&socket));
    let beside = ask_from(&dir, CONTAINERS[0], &["stats"], Path::new(&socket));
    program::kill(&mut container);
    for refused in [outside, beside] {
        assert!(!refused.status.success(), "{refused:?}");
        assert!(
            refused.stderr.contains("only from its own user and PID namespaces"),
            "{refused:?}"
        );
    }
}

/// A socket file may lie in a folder that containers share.
#[test]
fn a_served_daemon_replays_for_other_containers_only_where_the_configuration_says_so() {
    let dir = TestDir::new();
    if !has_namespaces(&dir) {
        return;
    }
    for (keys, is_allowed) in [("", false), ("session.allow_headspace = true", true)] {
        let daemon = Daemon::serve(&dir, &config(&dir, keys));
        let loader = daemon.loader(0, 1).attach().unwrap();
        let trainer = Trainer::start(loader, Duration::from_millis(2), 0);
        let looks = ask_from(&dir, CONTAINERS[0], &["stats"], &daemon.socket);
        assert!(looks.status.success(), "{looks:?}");
        let replay = ask_from(&dir, CONTAINERS[0], REPLAY, &daemon.socket);
        assert_eq!(replay.status.success(), is_allowed, "{replay:?}");
        if !is_allowed {
            assert!(replay.stderr.contains("session.allow_headspace = true"), "{replay:?}");
        }
        let replayed = trainer.end().iter().any(|step| step.is_replayed);
        assert_eq!(replayed, is_allowed);
    }
}
