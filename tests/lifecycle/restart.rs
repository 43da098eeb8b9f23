//! Death of the daemon: what it had published is handed over, another one goes on, and nothing else is seen of it.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use forebay_client::{Batch, Error, Loader, Position};
use forebay_tests::taken::{take, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data, program, test_dir, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn config(dir: &TestDir, keys: &str) -> PathBuf {
    data::stack(&dir.path("data"), 40);
    dir.config("train.toml", &data::stack_config(&dir.path("data"), keys))
}

/// Two epochs over sixty pictures in class folders, which need an index.
fn pictures(dir: &TestDir) -> PathBuf {
    data::images(&dir.path("images"), 60, 3);
    let keys = "order.epochs = 2\nring.slots = 3";
    dir.config("train.toml", &data::image_config(&dir.path("images"), keys))
}

fn private(config: &std::path::Path) -> Loader {
    test_dir::loader(config, 0, 1).attach().unwrap()
}

/// Kills the loader's daemon; one that has just died of the kill before has a successor soon.
fn kill_daemon(loader: &Loader) {
    wait_until("there is a daemon to kill", || {
        let daemon = i32::try_from(loader.private_process().unwrap()).unwrap();
        kill(Pid::from_raw(daemon), Signal::SIGKILL).is_ok()
    });
}

fn ids(batch: &Batch) -> Vec<i64> {
    batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec()
}

fn class_folders(dir: &TestDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.path("images")).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// The kernel's line on the memory that a batch lies in: addresses, file number, name.
fn memory_of(batch: &Batch) -> String {
    let address = batch.require("index").unwrap().pointer() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    };
    maps.lines().find(holds).unwrap().to_owned()
}

#[test]
fn a_stream_goes_on_over_daemons_that_are_killed_and_held_batches_stay() {
    let dir = TestDir::new();
    let config = config(&dir, "ring.slots = 4\norder.epochs = 3");
    let mut loader = private(&config);
    let expected: Vec<Vec<Taken>> = (0..3).map(|_| take_epoch(&mut loader)).collect();
    drop(loader);
    let mut loader = private(&config);
    let first_daemon = loader.private_process().unwrap();
    let held = loader.next_batch().unwrap().unwrap();
    let held_ids = ids(&held);
    let memory = memory_of(&held);
    assert!(memory.contains("memfd:forebay-data"), "{memory}");
    for (epoch, expected) in expected.iter().enumerate() {
        let mut found = if epoch == 0 { vec![Taken::of(&held)] } else { Vec::new() };
        let mut numbers = Vec::new();
        loop {
            let Some(batch) = loader.next_batch().unwrap() else { break };
            numbers.push(batch.number());
            found.push(Taken::of(&batch));
            assert_eq!(memory_of(&batch), memory);
            drop(batch);
            if found.len() % 4 == 2 {
                kill_daemon(&loader);
                // Once before the loader notices, and once while it waits for the next one.
                if found.len() == 6 {
                    wait_until("the daemon is replaced", || {
                        loader.private_process() != Some(first_daemon)
                    });
                }
            }
        }
        assert_eq!(&found, expected);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert_eq!(ids(&held), held_ids);
    }
    assert!(loader.restarts() >= 6, "{}", loader.restarts());
    assert_ne!(loader.private_process(), Some(first_daemon));
    assert!(matches!(loader.next_batch(), Err(Error::EpochsFinished { epochs: 3 })));
    // Also when nothing is left to deliver.
    kill_daemon(&loader);
    loader.seek(Position { epoch: 2, samples: 36 }).unwrap();
    assert_eq!(take_epoch(&mut loader), expected[2][9..]);
}

#[test]
fn the_next_daemon_reads_no_configuration_and_scans_nothing() {
    let dir = TestDir::new();
    let config = pictures(&dir);
    let mut loader = private(&config);
    let expected = take_epoch(&mut loader);
    drop(loader);
    let mut loader = private(&config);
    let mut found = take(&mut loader, 1);
    std::fs::remove_file(&config).unwrap();
    std::fs::remove_file(dir.path("train.index")).unwrap();
    // A scan would find another dataset.
    let [folder, ..] = &class_folders(&dir)[..] else { panic!("there are classes") };
    let image = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&image, folder.join("000000-new.jpg")).unwrap();
    kill_daemon(&loader);
    found.extend(take_epoch(&mut loader));
    assert_eq!(found, expected);
    assert_eq!(loader.restarts(), 1);
}

/// Nobody does that who replaces files by a rename; whoever does kills the daemon (SIGBUS), and no more.
#[test]
fn an_index_that_is_cut_off_in_place_costs_a_daemon_and_no_batch() {
    let dir = TestDir::new();
    let config = pictures(&dir);
    let mut loader = private(&config);
    let expected = take_epoch(&mut loader);
    let index = std::fs::File::options().write(true).open(dir.path("train.index")).unwrap();
    index.set_len(0).unwrap();
    let second = take_epoch(&mut loader);
    assert_eq!(loader.restarts(), 1, "the daemon read no page of its index");
    loader.set_epoch(0).unwrap();
    assert_eq!(take_epoch(&mut loader), expected);
    loader.set_epoch(1).unwrap();
    assert_eq!(take_epoch(&mut loader), second);
}

#[test]
fn seeks_states_and_figures_are_answered_over_a_death() {
    let dir = TestDir::new();
    let config = config(&dir, "order.epochs = 9");
    let mut loader = private(&config);
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(take_epoch(&mut loader));
    }
    kill_daemon(&loader);
    loader.seek(Position { epoch: 1, samples: 8 }).unwrap();
    assert_eq!(take(&mut loader, 3), expected[1][2..5]);
    let state = loader.state(0).unwrap();
    take(&mut loader, 2);
    kill_daemon(&loader);
    loader.load_state(&state, false).unwrap();
    assert_eq!(take(&mut loader, 1), expected[1][5..6]);
    kill_daemon(&loader);
    assert!(loader.stats().unwrap().contains("\"streams\""));
    kill_daemon(&loader);
    // What is left of the epoch is given up, batches of the dead daemon with it.
    loader.begin_epoch().unwrap();
    assert_eq!(take(&mut loader, 2), expected[2][..2]);
    kill_daemon(&loader);
    loader.set_epoch(0).unwrap();
    assert_eq!(take_epoch(&mut loader), expected[0]);
    assert_eq!(loader.restarts(), 5);
}

#[test]
fn substitutes_are_counted_on_over_a_death() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 64, 4);
    for folder in class_folders(&dir) {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        std::fs::write(&files[2], b"no image").unwrap();
    }
    let keys = "order.epochs = 2\nring.slots = 3\nring.hold = 1\n\
                errors.on_bad_sample = \"substitute\"\nerrors.budget = 4";
    let config = dir.config("train.toml", &data::image_config(&dir.path("images"), keys));
    let walk = |kills: bool| {
        let mut loader = private(&config);
        let mut states = Vec::new();
        for _ in 0..2 {
            while let Some(batch) = loader.next_batch().unwrap() {
                drop(batch);
                states.push(loader.state(0).unwrap());
                if kills && states.len() % 3 == 0 {
                    kill_daemon(&loader);
                }
            }
        }
        states
    };
    let expected = walk(false);
    assert!(expected.iter().any(|state| state.substitutes == 3), "{expected:?}");
    assert_eq!(walk(true), expected);
}

#[test]
fn a_daemon_that_does_not_come_back_is_lost_with_the_reason_and_its_last_words() {
    let dir = TestDir::new();
    let config = config(&dir, "ring.slots = 4");
    let wrapper = dir.path("program");
    let script = format!(
        "#!/bin/sh\nif [ -e {0} ]; then echo 'no luck today' >&2; exit 7; fi\nexec {1} \"$@\"\n",
        dir.path("broken").display(),
        program::forebay().display()
    );
    std::fs::write(&wrapper, script).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o700)).unwrap();
    // A process of its own, whose environment names the wrapper.
    let mut trainer = dir.command(std::path::Path::new(env!("CARGO_BIN_EXE_forebay-test-trainer")));
    trainer.env("FOREBAY_PROGRAM", &wrapper).args([
        format!("use={}", config.display()).as_str(),
        "take=2",
        &format!("touch={}", dir.path("broken").display()),
        "kill-daemon",
        "take=100",
    ]);
    let finished = program::run(&mut trainer);
    assert_eq!(finished.status.code(), Some(3), "{finished:?}");
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let last: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    let error = last["error"].as_str().unwrap();
    assert!(error.contains("status 7") && error.contains("no luck today"), "{error}");
    assert!(error.contains("restarted 7 times"), "{error}");
}

#[test]
fn a_client_goes_on_when_a_supervisor_starts_its_daemon_again() {
    let dir = TestDir::new();
    let config = config(&dir, "ring.slots = 4\norder.epochs = 6");
    let daemon = Daemon::serve(&dir, &config);
    let mut reference = daemon.loader(0, 1).attach().unwrap();
    let expected: Vec<Vec<Taken>> = (0..6).map(|_| take_epoch(&mut reference)).collect();
    drop(reference);
    wait_until("the place is free", || daemon.stats(&dir)["sessions"][0].is_null());
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let held = loader.next_batch().unwrap().unwrap();
    let held_ids = ids(&held);
    let mut found = vec![Taken::of(&held)];
    let mut running = Some(daemon);
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL] {
        found.extend(take(&mut loader, 2));
        let _ = running.take().unwrap().end(signal);
        std::thread::scope(|scope| {
            // Nobody is there for a while.
            let supervisor = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(150));
                Daemon::serve(&dir, &config)
            });
            found.extend(take_epoch(&mut loader));
            running = Some(supervisor.join().unwrap());
        });
        assert_eq!(ids(&held), held_ids);
    }
    while let Ok(Some(batch)) = loader.next_batch() {
        found.push(Taken::of(&batch));
    }
    assert_eq!(found[..], expected.concat()[..found.len()]);
    assert_eq!(loader.restarts(), 3);
}

#[test]
fn a_client_whose_supervisor_does_nothing_says_what_happened() {
    let dir = TestDir::new();
    let config = config(&dir, "ring.slots = 4");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_millis(400)).attach().unwrap();
    let mut found = take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    for _ in 0..2 {
        let error = loop {
            match loader.next_batch() {
                Ok(batch) => found.push(Taken::of(&batch.unwrap())),
                Err(error) => break error,
            }
        };
        let Error::DaemonLost(message) = &error else { panic!("{error:?}") };
        assert!(message.contains("closed the connection"), "{message}");
        assert!(message.contains("timeout"), "{message}");
    }
    assert!(found.len() <= 5);
    // It is not too late: a daemon that comes after all goes on.
    let daemon = Daemon::serve(&dir, &config);
    let next = loader.next_batch().unwrap().unwrap();
    assert_eq!(next.number(), found.len() as u64);
    drop(daemon);
}

#[test]
fn a_daemon_that_came_back_over_something_else_is_refused() {
    let dir = TestDir::new();
    let config = config(&dir, "ring.slots = 4");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    let other = dir.config(
        "train.toml",
        &data::stack_config(&dir.path("data"), "ring.slots = 4\norder.seed = 5"),
    );
    let daemon = Daemon::serve(&dir, &other);
    let error = loop {
        match loader.next_batch() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::StateMismatch(_)), "{error:?}");
    assert!(error.to_string().contains("configuration differs"), "{error}");
    drop(daemon);
}
