//! The cache on disk under whole daemons: the same batches with it and without, through kills, by several ranks, on disks
//! that fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_storage_remote::testing::{Fault, Server};
use forebay_tests::taken::{take, take_epoch};
use forebay_tests::{Taken, TestDir, data, program, test_dir, wait_until};
use nix::sys::signal::Signal;

const SAMPLES: u64 = 96;

/// Archives are read through the cache twice: as what is unpacked, and as files.
#[test]
fn a_cache_that_cannot_be_used_is_said_once() {
    let dir = TestDir::new();
    data::image_tars(&dir.path("tars"), 20, 2);
    fs::write(dir.path("taken"), "a file where the cache would be").unwrap();
    let keys = format!("dataset.format = \"webdataset\"\ncache.path = {:?}", dir.path("taken"));
    let config = dir.config("train.toml", &data::image_config(&dir.path("tars"), &keys));
    let checked = program::run(dir.forebay(&["check", "--plan-only"]).arg(&config));
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(checked.stderr.matches("the cache is not used").count(), 1, "{checked:?}");
}

/// Images behind a URL, with a cache and without one.
struct Cached {
    dir: TestDir,
    server: Server,
    plain: PathBuf,
    cached: PathBuf,
}

impl Cached {
    fn new(keys: &str) -> Self {
        let dir = TestDir::new();
        data::images(&dir.path("images"), SAMPLES, 2);
        let server = Server::of(&dir.path(""));
        let url = server.url("s3", "images");
        let keys = format!(
            "order.epochs = 3\nring.slots = 3\n\
             storage = {{ endpoint = \"http://127.0.0.1:{}\", anonymous = true }}\n{keys}",
            server.port()
        );
        let plain = dir.config("plain.toml", &data::image_config(Path::new(&url), &keys));
        let keys = format!("{keys}\ncache.path = {:?}\ncache.keep_free = 0\n", dir.path("cache"));
        let cached = dir.config("cached.toml", &data::image_config(Path::new(&url), &keys));
        Self { dir, server, plain, cached }
    }

    /// Counts requests for objects from now on.
    fn count_reads(&self) -> Arc<AtomicU64> {
        let reads = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reads);
        self.server.set_weather(move |request| {
            counted.fetch_add((!request.is_listing()).into(), Ordering::SeqCst);
            Fault::None
        });
        reads
    }

    fn forebay(&self, arguments: &[&str]) -> String {
        let output = program::run(self.dir.forebay(&["cache"]).arg(&self.cached).args(arguments));
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    /// The files of the cache that are entries, and those that are anything else.
    fn entries(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mut found = (Vec::new(), Vec::new());
        let mut folders = vec![self.dir.path("cache")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match (path.is_dir(), path.file_name().unwrap().len()) {
                    (true, _) => folders.push(path),
                    (false, 38) => found.0.push(path),
                    (false, _) => found.1.push(path),
                }
            }
        }
        found
    }
}

fn epochs(config: &Path, count: usize) -> Vec<Taken> {
    let mut loader = test_dir::loader(config, 0, 1).attach().unwrap();
    (0..count).flat_map(|_| take_epoch(&mut loader)).collect()
}

#[test]
fn later_epochs_and_runs_ask_nobody_and_give_the_same_batches() {
    let cached = Cached::new("");
    let expected = epochs(&cached.plain, 3);
    assert!(cached.forebay(&["fill"]).contains(&format!("{SAMPLES} samples")));
    let reads = cached.count_reads();
    assert_eq!(epochs(&cached.cached, 3), expected);
    assert_eq!(reads.load(Ordering::SeqCst), 0, "all of it was kept");
    assert_eq!(cached.entries().0.len() as u64, SAMPLES);
    let shown = cached.forebay(&["show"]);
    assert!(
        shown.contains("s3://bucket/images") && shown.contains("this configuration's"),
        "{shown}"
    );
    // Damaged entries are told, removed, and fetched again by the next run.
    for entry in cached.entries().0.iter().take(7) {
        fs::write(entry, b"rubbish").unwrap();
    }
    assert_eq!(epochs(&cached.cached, 1), expected[..expected.len() / 3]);
    // Nothing is kept while what lies there is counted: some may have been fetched for two epochs.
    assert!(reads.load(Ordering::SeqCst) >= 7);
    cached.forebay(&["fill"]);
    assert!(cached.forebay(&["verify"]).contains("96 entries"));
    fs::write(&cached.entries().0[0], b"rubbish").unwrap();
    assert!(cached.forebay(&["verify"]).contains("1 damaged"));
    // What belongs to this configuration is kept.
    cached.forebay(&["trim"]);
    assert_eq!(cached.entries().0.len() as u64, SAMPLES - 1);
}

#[test]
fn a_cache_without_room_or_rights_changes_nothing() {
    let cached = Cached::new("cache.size = \"8KiB\"");
    let expected = epochs(&cached.plain, 2);
    assert_eq!(epochs(&cached.cached, 2), expected);
    // A file where the folder should be. A daemon that is about to end may still write into the folder.
    wait_until("it is removed", || fs::remove_dir_all(cached.dir.path("cache")).is_ok());
    fs::write(cached.dir.path("cache"), "").unwrap();
    assert_eq!(epochs(&cached.cached, 1), expected[..expected.len() / 2]);
}

#[test]
fn daemons_that_are_killed_while_they_fill_it_leave_whole_entries_alone() {
    let cached = Cached::new("");
    let expected = epochs(&cached.plain, 3);
    for kill in 0..12_usize {
        let mut loader = test_dir::loader(cached.cached.as_path(), 0, 1).attach().unwrap();
        let found = take(&mut loader, 1 + kill % 5);
        assert_eq!(found, expected[..found.len()]);
        wait_until("there is a daemon to kill", || {
            forebay_tests::signal(loader.private_process().unwrap(), Signal::SIGKILL)
        });
        let rest = take(&mut loader, 3);
        assert_eq!(rest, expected[found.len()..found.len() + 3], "after kill {kill}");
    }
    let (entries, others) = cached.entries();
    assert!(!entries.is_empty());
    let names = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut others: Vec<_> = others.iter().map(names).collect();
    others.sort();
    assert_eq!(others, ["count", "grants", "live", "name", "space", "users"]);
    assert!(cached.forebay(&["verify"]).contains(" 0 damaged"));
    assert_eq!(epochs(&cached.cached, 3), expected);
}

#[test]
fn a_folder_of_this_machine_may_have_a_cache_and_a_file_that_changes_is_read_again() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), SAMPLES, 2);
    let text = data::image_config(&dir.path("images"), "order.epochs = 2\nring.slots = 3");
    let plain = dir.config("plain.toml", &text);
    let text = format!("cache.path = {:?}\ncache.keep_free = 0\n{text}", dir.path("cache"));
    let cached = dir.config("cached.toml", &text);
    for _ in 0..2 {
        let expected = epochs(&plain, 2);
        assert_eq!(epochs(&cached, 2), expected);
        // Two samples change places.
        let names = ["class-000/00000000.jpg", "class-000/00000002.jpg"];
        let [one, other] = names.map(|name| dir.path("images").join(name));
        let kept = dir.path("kept");
        fs::rename(&one, &kept).unwrap();
        fs::rename(&other, &one).unwrap();
        fs::rename(&kept, &other).unwrap();
        assert_ne!(epochs(&plain, 2), expected);
    }
}
