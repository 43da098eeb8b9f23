//! What passes ends no run: a suspension, a daemon that refuses a session for a while, a trainer without descriptors, a
//! full disk, a user without rights.

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
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(8)).attach().unwrap();
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

/// Whether a trainer took each of so many samples once.
fn took_all(finished: &program::Finished, samples: i64) {
    assert!(finished.status.success(), "{finished:?}");
    let ids = finished.json_lines().into_iter().filter_map(|line| line["ids"].as_array().cloned());
    let mut ids: Vec<i64> = ids.flatten().map(|id| id.as_i64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..samples).collect::<Vec<_>>());
}

#[test]
fn a_trainer_that_has_no_descriptor_left_restarts_its_daemon_all_the_same() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "ring.slots = 4\norder.epochs = 1");
    let target = format!("use={}", config.display());
    // The descriptors never come back.
    let steps = ["timeout=60", &target, "take=1", "starve=600000", "kill-daemon", "epoch=rest"];
    took_all(&program::run(dir.command(std::path::Path::new(TRAINER)).args(steps)), 40);
}

#[test]
fn a_full_disk_where_the_index_is_saved_ends_no_run_and_no_restart() {
    let dir = TestDir::new();
    let config = dir.image_stream(56, 3, "ring.slots = 4\norder.epochs = 1");
    let text = std::fs::read_to_string(&config).unwrap();
    let small = dir.path("small");
    std::fs::create_dir(&small).unwrap();
    let index = small.join("train.index");
    // The first line has the index.
    let rest = text.split_once('\n').unwrap().1;
    std::fs::write(&config, format!("dataset.index = {index:?}\n{rest}")).unwrap();
    // One page, which a file of the test takes.
    let script = "mount -t tmpfs -o size=4k none \"$0\" && echo full > \"$0/other\" && exec \"$@\"";
    let mut command = dir.command(std::path::Path::new("unshare"));
    command.args(["--map-root-user", "--mount", "sh", "-c", script]);
    command.arg(&small).arg(TRAINER);
    command.args([&format!("use={}", config.display()), "take=1", "kill-daemon", "epoch=rest"]);
    let finished = program::run(&mut command);
    if finished.stderr.contains("unshare:") || finished.stderr.contains("mount:") {
        return forebay_tests::skipped("no file system can be mounted");
    }
    assert!(finished.stderr.contains("No space left on device"), "{finished:?}");
    took_all(&finished, 56);
}

#[test]
fn an_ordinary_user_has_the_same_restarts() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let dir = TestDir::new();
    let config = dir.image_stream(56, 3, "ring.slots = 4\norder.epochs = 1");
    let mut trainer = dir.command(std::path::Path::new(TRAINER));
    trainer.args([&format!("use={}", config.display()), "take=1", "kill-daemon", "epoch=rest"]);
    if nix::unistd::Uid::effective().is_root() {
        let own = ["", "run", "cache"].map(|name| dir.path(name));
        own.iter().for_each(|path| std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap());
        trainer.uid(NOBODY).gid(NOBODY);
    }
    took_all(&program::run(&mut trainer), 56);
}

#[test]
fn an_index_of_another_user_is_copied_and_no_restart_depends_on_its_file() {
    if !nix::unistd::Uid::effective().is_root() {
        return forebay_tests::skipped("files cannot be given to another user");
    }
    let dir = TestDir::new();
    let config = dir.image_stream(60, 3, "ring.slots = 4\norder.epochs = 1");
    let images = std::fs::read_dir(dir.path("images")).unwrap();
    let mut folders: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    // What changed just before a scan is scanned again at the next start.
    let then = std::time::SystemTime::now() - Duration::from_secs(3600);
    for folder in folders.iter().chain([&dir.path("images")]) {
        std::fs::File::open(folder).unwrap().set_modified(then).unwrap();
    }
    let private = || forebay_tests::test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let expected = take_epoch(&mut private());
    let index = dir.path("train.index");
    std::os::unix::fs::chown(&index, Some(65534), None).unwrap();
    let mut loader = private();
    let mut found = take(&mut loader, 1);
    // A mapping of it would end the daemon, and a scan would find another dataset.
    std::fs::OpenOptions::new().write(true).open(&index).unwrap().set_len(0).unwrap();
    std::fs::write(folders[0].join("000000-new.jpg"), "").unwrap();
    for _ in 0..2 {
        forebay_tests::signal(loader.private_process().unwrap(), Signal::SIGKILL);
        found.extend(take(&mut loader, 2));
    }
    found.extend(take_epoch(&mut loader));
    assert_eq!(found, expected);
}

/// How often a file has been opened since the last look.
fn opened(watch: &std::os::fd::OwnedFd) -> usize {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = rustix::fs::inotify::Reader::new(watch, &mut buffer);
    std::iter::from_fn(|| reader.next().ok().map(drop)).count()
}

#[test]
fn daemons_that_wait_for_the_index_of_another_ask_ever_less_often() {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    const WAITING: usize = 10;
    let dir = TestDir::new();
    let config = dir.image_stream(20, 2, "");
    let path = dir.path("train.index.lock");
    let lock = std::fs::File::create(&path).unwrap();
    let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&watch, &path, WatchFlags::OPEN).unwrap();
    let index = ["index".as_ref(), config.as_os_str()];
    let mut waiting: Vec<_> =
        (0..WAITING).map(|_| dir.forebay(&index).stdout(Stdio::null()).spawn().unwrap()).collect();
    let begin = Instant::now();
    let mut looks = 0;
    while begin.elapsed() < Duration::from_secs(8) {
        looks += opened(&watch);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Every 20 ms they would be four hundred each.
    assert!((WAITING..WAITING * 80).contains(&looks), "{looks} looks at the lock");
    assert!(waiting.iter_mut().all(|child| child.try_wait().unwrap().is_none()));
    std::fs::remove_file(&path).unwrap();
    drop(lock);
    waiting.iter_mut().for_each(|child| assert!(program::wait(child).success()));
}
