//! Storage that goes away and comes back: at a start, in the run and at a restart nothing is lost, and each sample comes
//! once. Faults come from `storage_faults.c`, whose head says how, and from folders that are renamed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_client::{Builder, Error, Loader, Next};
use forebay_tests::taken::{ids, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data, program, test_dir, wait_until};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const SAMPLES: u64 = 160;

/// What a storage that is away may say.
const AWAY: [Errno; 8] = [
    Errno::EIO,
    Errno::ESTALE,
    Errno::ETIMEDOUT,
    Errno::EHOSTDOWN,
    Errno::ENOTCONN,
    Errno::EAGAIN,
    Errno::ENODEV,
    Errno::ESHUTDOWN,
];

/// How long an outage lasts; `scripts/prove` has longer ones.
fn outage_time(short: Duration) -> Duration {
    let seconds = std::env::var("FOREBAY_TEST_OUTAGE_SECONDS").ok();
    seconds.map_or(short, |seconds| Duration::from_secs(seconds.parse().unwrap()))
}

/// For `scripts/prove`.
fn tell(outages: usize) {
    println!("{outages} outages ended with every batch as undisturbed");
}

/// The program that makes calls fail.
fn injector() -> &'static Path {
    static INJECTOR: OnceLock<PathBuf> = OnceLock::new();
    INJECTOR.get_or_init(|| {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("errors/storage_faults.c");
        let number = BUILT.fetch_add(1, Ordering::Relaxed);
        let unfinished = folder.join(format!("faults.{}.{number}", std::process::id()));
        let built = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .args([&unfinished, &source])
            .status()
            .unwrap();
        assert!(built.success());
        // Whole at once: another test's process may be starting it.
        let finished = folder.join("storage-faults");
        std::fs::rename(unfinished, &finished).unwrap();
        finished
    })
}

/// A folder of images, its configuration, and a daemon whose calls on it can be made to fail.
struct Place {
    dir: TestDir,
    images: PathBuf,
    config: PathBuf,
}

impl Place {
    fn new(keys: &str) -> Self {
        let dir = TestDir::new();
        let images = dir.path("images");
        data::images(&images, SAMPLES, 2);
        let keys = format!("order.epochs = 2\nring.slots = 3\n{keys}");
        let config = dir.config("train.toml", &data::image_config(&images, &keys));
        let script = format!(
            "#!/bin/sh\nexport STORAGE_FAULTS_FOLDER={} STORAGE_FAULTS_CONTROL={}\nexec {} {} \"$@\"\n",
            images.display(),
            dir.path("control").display(),
            injector().display(),
            program::forebay().display()
        );
        program::write_script(&dir.path("program"), &script);
        Self { dir, images, config }
    }

    fn loader(&self) -> Builder {
        test_dir::loader(self.config.as_path(), 0, 1).program(self.dir.path("program"))
    }

    /// From now on calls fail so; 0: they do not return.
    fn fail(&self, error: i32) {
        let new = self.dir.path("control.new");
        std::fs::write(&new, error.to_string()).unwrap();
        std::fs::rename(new, self.dir.path("control")).unwrap();
    }

    fn mend(&self) {
        std::fs::remove_file(self.dir.path("control")).unwrap();
    }

    /// Mends in a while, on another thread.
    fn mend_in(&self, time: Duration) -> std::thread::JoinHandle<()> {
        let control = self.dir.path("control");
        std::thread::spawn(move || {
            std::thread::sleep(time);
            std::fs::remove_file(control).unwrap();
        })
    }

    /// Renames in a while, on another thread; over an empty folder too.
    fn rename_in(time: Duration, from: &Path, to: &Path) -> std::thread::JoinHandle<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(time);
            std::fs::rename(from, to).unwrap();
        })
    }

    fn expected(&self) -> Vec<Taken> {
        let taken = take_epoch(&mut self.loader().attach().unwrap());
        let mut found = ids(&taken);
        found.sort_unstable();
        assert_eq!(found, (0..SAMPLES.cast_signed()).collect::<Vec<_>>());
        taken
    }
}

fn first_batch(loader: &mut Loader) -> Vec<Taken> {
    vec![Taken::of(&loader.next_batch().unwrap().unwrap())]
}

/// Takes what comes until the daemon says that its storage is away; what it says.
fn until_away(loader: &mut Loader, taken: &mut Vec<Taken>) -> Value {
    let mut outage = Value::Null;
    wait_until("the outage is announced", || match loader.try_next().unwrap() {
        Next::Batch(batch) => {
            taken.push(Taken::of(&batch));
            false
        }
        Next::End => panic!("the epoch ended without an outage"),
        Next::Waiting => {
            let stats: Value = serde_json::from_str(&loader.stats().unwrap()).unwrap();
            outage = stats["streams"][0]["outage"].clone();
            let told = stats["stalls"].as_array().unwrap();
            assert!(outage.is_null() || told.iter().any(|stall| stall["stage"] == "storage"));
            !outage.is_null()
        }
    });
    outage
}

#[test]
fn in_the_run_every_way_of_being_away_is_waited_for_and_named() {
    let place = Place::new("");
    let expected = place.expected();
    for errno in AWAY {
        let mut loader = place.loader().attach().unwrap();
        let mut taken = first_batch(&mut loader);
        place.fail(errno as i32);
        let outage = until_away(&mut loader, &mut taken);
        let sentence = outage["sentence"].as_str().unwrap();
        let said = std::io::Error::from(errno).to_string();
        assert!(sentence.contains(&said), "{errno}: {sentence}");
        assert!(outage["path"].as_str().unwrap().starts_with(place.images.to_str().unwrap()));
        let mended = place.mend_in(outage_time(Duration::ZERO));
        taken.extend(take_epoch(&mut loader));
        mended.join().unwrap();
        assert_eq!(taken, expected, "{errno}");
    }
    tell(AWAY.len());
}

#[test]
fn an_outage_that_lasts_longer_than_the_clients_time_out_counts_as_progress() {
    let place = Place::new("");
    let expected = place.expected();
    let mut loader = place.loader().timeout(Duration::from_secs(5)).attach().unwrap();
    let mut taken = first_batch(&mut loader);
    place.fail(Errno::EIO as i32);
    until_away(&mut loader, &mut taken);
    let mended = place.mend_in(Duration::from_secs(8));
    taken.extend(take_epoch(&mut loader));
    mended.join().unwrap();
    assert_eq!(taken, expected);
}

/// Reads under way at once by default.
const LANES: usize = 16;

#[test]
fn reads_that_hang_are_waited_for() {
    let place = Place::new("dataset.read_timeout = \"200ms\"");
    let expected = place.expected();
    let mut loader = place.loader().attach().unwrap();
    let mut taken = first_batch(&mut loader);
    place.fail(0);
    let outage = until_away(&mut loader, &mut taken);
    assert!(outage["sentence"].as_str().unwrap().contains("0.2 s"), "{outage}");
    let daemon = loader.private_process().unwrap();
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "forebay-fetch").count()
    };
    // On a busy machine the outage may have been a slow read before the hang: batches are taken until new reads hang.
    wait_until("hung threads are replaced", || {
        match loader.try_next().unwrap() {
            Next::Batch(batch) => taken.push(Taken::of(&batch)),
            Next::End => panic!("the epoch ended without a read that hangs"),
            Next::Waiting => {}
        }
        threads() > LANES
    });
    // All threads hang by then, those that replaced others too.
    std::thread::sleep(Duration::from_secs(3));
    assert!((LANES + 1..=8 * LANES).contains(&threads()), "{} threads", threads());
    place.mend();
    taken.extend(take_epoch(&mut loader));
    assert_eq!(taken, expected);
    wait_until("the threads are as many as before", || threads() == LANES);
}

/// An empty one is as a mount point whose file system is away, where a file that is gone would be substituted.
#[test]
fn a_class_folder_that_is_away_or_empty_for_a_while_is_waited_for() {
    for (keys, is_empty, said) in
        [("", false, "is not there"), ("errors.on_unreadable = \"substitute\"", true, "is empty")]
    {
        let place = Place::new(keys);
        let expected = place.expected();
        let mut loader = place.loader().attach().unwrap();
        let mut taken = first_batch(&mut loader);
        let (class, away) = (place.images.join("class-001"), place.dir.path("away"));
        std::fs::rename(&class, &away).unwrap();
        if is_empty {
            std::fs::create_dir(&class).unwrap();
        }
        let outage = until_away(&mut loader, &mut taken);
        let sentence = outage["sentence"].as_str().unwrap();
        assert!(sentence.contains(&format!("{} {said}", class.display())), "{sentence}");
        // Longer than a file would be waited for that is gone from a folder which is there.
        std::thread::sleep(Duration::from_secs(1));
        // Also over an empty folder.
        std::fs::rename(&away, &class).unwrap();
        taken.extend(take_epoch(&mut loader));
        assert_eq!(taken, expected);
    }
}

#[test]
fn an_outage_that_lasts_too_long_ends_the_run_and_says_what_was_tried() {
    let place = Place::new("dataset.outage_timeout = \"1s\"");
    let mut loader = place.loader().attach().unwrap();
    loader.next_batch().unwrap().unwrap();
    place.fail(Errno::EIO as i32);
    let error = loop {
        if let Err(error) = loader.next_batch() {
            break error;
        }
    };
    assert!(matches!(error, Error::Storage(_)), "{error:?}");
    for part in ["nput/output error", "1.0 s (dataset.outage_timeout)", "tried"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_start_waits_for_every_way_of_being_away() {
    let place = Place::new("");
    let expected = place.expected();
    for (number, errno) in AWAY.into_iter().enumerate() {
        // Every other time there is no index yet, and the folders have to be scanned.
        if number % 2 == 0 {
            std::fs::remove_file(place.dir.path("train.index")).unwrap();
        }
        place.fail(errno as i32);
        let mended = place.mend_in(outage_time(Duration::from_millis(500)));
        let mut loader = place.loader().attach().unwrap();
        mended.join().unwrap();
        assert_eq!(take_epoch(&mut loader), expected, "{errno}");
    }
    tell(AWAY.len());
}

#[test]
fn a_start_over_a_root_that_does_not_answer_says_so_and_goes_on_when_it_does() {
    let place = Place::new("");
    let expected = place.expected();
    place.fail(0);
    // Less than the hanging lasts: what is announced counts as progress.
    let mended = place.mend_in(Duration::from_secs(8));
    let mut loader = place.loader().timeout(Duration::from_secs(5)).attach().unwrap();
    mended.join().unwrap();
    assert_eq!(take_epoch(&mut loader), expected);
}

#[test]
fn a_root_that_is_absent_is_waited_for_where_it_was_before_and_refused_where_it_never_was() {
    let place = Place::new("");
    let (root, away) = (&place.images, place.dir.path("away"));
    std::fs::rename(root, &away).unwrap();
    let error = place.loader().attach().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(error.to_string().contains("does not exist"), "{error}");
    std::fs::rename(&away, root).unwrap();
    let expected = place.expected();
    std::fs::rename(root, &away).unwrap();
    let refused = program::run(place.dir.forebay(&["check"]).arg(&place.config));
    assert!(!refused.status.success() && refused.stderr.contains("does not exist"), "{refused:?}");
    let back = Place::rename_in(Duration::from_millis(700), &away, root);
    let mut loader = place.loader().attach().unwrap();
    back.join().unwrap();
    assert_eq!(take_epoch(&mut loader), expected);
    drop(loader);
    // So is the folder on which nothing is mounted yet.
    let away = place.dir.path("unmounted");
    std::fs::rename(root, &away).unwrap();
    std::fs::create_dir(root).unwrap();
    let refused = program::run(place.dir.forebay(&["check"]).arg(&place.config));
    assert!(refused.stderr.contains("holds no class folders"), "{refused:?}");
    let back = Place::rename_in(Duration::from_millis(700), &away, root);
    let mut loader = place.loader().attach().unwrap();
    back.join().unwrap();
    assert_eq!(take_epoch(&mut loader), expected);
}

#[test]
fn a_daemon_that_is_restarted_during_an_outage_waits_for_its_end() {
    let place = Place::new("");
    let expected = place.expected();
    let away = place.dir.path("away");
    let time = outage_time(Duration::from_millis(700));
    // Or the root is not there.
    let ways = || std::iter::once(None).chain(AWAY.map(Some));
    for errno in ways() {
        let mut loader = place.loader().attach().unwrap();
        let mut taken = first_batch(&mut loader);
        let mended = match errno {
            None => {
                std::fs::rename(&place.images, &away).unwrap();
                Place::rename_in(time, &away, &place.images)
            }
            Some(errno) => {
                place.fail(errno as i32);
                place.mend_in(time)
            }
        };
        let daemon = i32::try_from(loader.private_process().unwrap()).unwrap();
        kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
        taken.extend(take_epoch(&mut loader));
        mended.join().unwrap();
        assert_eq!(taken, expected, "{errno:?}");
        assert_eq!(loader.restarts(), 1);
    }
    tell(ways().count());
}

/// Clients of `serve` find its socket only once it listens.
#[test]
fn clients_of_a_served_daemon_wait_with_its_successor_longer_than_their_time_out() {
    let place = Place::new("");
    let expected = place.expected();
    let away = place.dir.path("away");
    let daemon = Daemon::serve(&place.dir, &place.config);
    let mut loader = daemon.loader(0, 1).timeout(Duration::from_secs(3)).attach().unwrap();
    let mut taken = first_batch(&mut loader);
    let _ = daemon.end(Signal::SIGKILL);
    std::fs::rename(&place.images, &away).unwrap();
    let daemon = Daemon::serve(&place.dir, &place.config);
    let back = Place::rename_in(Duration::from_secs(6), &away, &place.images);
    taken.extend(take_epoch(&mut loader));
    back.join().unwrap();
    assert_eq!(taken, expected);
    drop(daemon);
}

#[test]
fn a_check_waits_for_nothing() {
    let place = Place::new("");
    place.fail(Errno::ESTALE as i32);
    let mut check = place.dir.command(&place.dir.path("program"));
    let refused = program::run(check.arg("check").arg(&place.config));
    assert!(!refused.status.success(), "{refused:?}");
    let said = std::io::Error::from(Errno::ESTALE).to_string();
    assert!(refused.stderr.contains(&said), "{refused:?}");
}
