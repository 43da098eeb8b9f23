//! Death of the daemon: what it had published is handed over, another one goes on, and nothing else is seen of it.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::{Batch, Error, Loader};
use forebay_tests::taken::{take, take_epoch, until_error};
use forebay_tests::{Daemon, TestDir, test_dir, wait_until};
use nix::sys::signal::Signal;

/// Two epochs over sixty pictures in class folders, which need an index.
fn pictures(dir: &TestDir) -> PathBuf {
    dir.image_stream(60, 3, "order.epochs = 2\nring.slots = 3")
}

fn private(config: &std::path::Path) -> Loader {
    test_dir::loader(config, 0, 1).attach().unwrap()
}

/// Kills the loader's daemon; one that has just died of the kill before has a successor soon.
fn kill_daemon(loader: &Loader) {
    wait_until("there is a daemon to kill", || {
        forebay_tests::signal(loader.private_process().unwrap(), Signal::SIGKILL)
    });
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

/// That the batches are the same is tested in `exactly_once/states.rs` and `kills`.
#[test]
fn the_next_daemon_goes_on_in_the_same_memory() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "ring.slots = 4\norder.epochs = 3");
    let mut loader = private(&config);
    let held = loader.next_batch().unwrap().unwrap();
    let memory = memory_of(&held);
    assert!(memory.contains("memfd:forebay-data"), "{memory}");
    for number in 1..25 {
        let batch = std::iter::repeat_with(|| loader.next_batch().unwrap()).flatten().next();
        let batch = batch.unwrap();
        assert_eq!((batch.number(), memory_of(&batch)), (number, memory.clone()));
        if number % 4 == 2 {
            kill_daemon(&loader);
        }
    }
    assert!(loader.restarts() >= 5, "{}", loader.restarts());
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

/// Truncating the index in place, instead of replacing it by a rename, kills the daemon (SIGBUS), and has no other effect.
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
fn substitutes_are_counted_on_over_a_death() {
    let dir = TestDir::new();
    let keys = "order.epochs = 2\nring.slots = 3\nring.hold = 1\n\
                errors.on_bad_sample = \"substitute\"\nerrors.budget = 4";
    let config = dir.image_stream(64, 4, keys);
    for folder in class_folders(&dir) {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        std::fs::write(&files[2], b"no image").unwrap();
    }
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
fn a_client_whose_supervisor_does_nothing_says_what_happened() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "ring.slots = 4");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(8)).attach().unwrap();
    let mut found = take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    for _ in 0..2 {
        let (more, error) = until_error(&mut loader);
        found.extend(more);
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
    let config = dir.stack_stream(40, "ring.slots = 4");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    take(&mut loader, 1);
    let _ = daemon.end(Signal::SIGKILL);
    let other = dir.stack_stream(40, "ring.slots = 4\norder.seed = 5");
    let daemon = Daemon::serve(&dir, &other);
    let (_, error) = until_error(&mut loader);
    assert!(matches!(error, Error::StateMismatch(_)), "{error:?}");
    assert!(error.to_string().contains("configuration differs"), "{error}");
    drop(daemon);
}
