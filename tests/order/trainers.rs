//! Several trainers of one load: each gets what it would get alone, whatever the others do, and rows are made once.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_client::{Error, Loader};
use forebay_synth::{parquet, tar};
use forebay_tests::taken::{Taken, ids, take, take_epoch};
use forebay_tests::{Daemon, TestDir, data, test_dir};
use serde_json::Value;

/// A trainer's batches of these epochs.
fn take_epochs(loader: &mut Loader, epochs: usize, mut pause: impl FnMut()) -> Vec<Taken> {
    let mut taken = Vec::new();
    for _ in 0..epochs {
        while let Some(batch) = loader.next_batch().unwrap() {
            taken.push(Taken::of(&batch));
            // Whatever a trainer does to its batches is its own affair.
            batch.require("index").unwrap();
            drop(batch);
            pause();
        }
    }
    taken
}

/// What a private daemon delivers.
fn alone(config: &Path, batch_size: u32, epochs: usize) -> Vec<Taken> {
    let mut loader = test_dir::loader(config, 0, 1).batch_size(batch_size).attach().unwrap();
    take_epochs(&mut loader, epochs, || {})
}

fn sharing(stats: &Value) -> &Value {
    &stats["streams"][0]["sharing"]
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

const EPOCHS: usize = 2;

/// Trainers of several batch sizes and speeds, one of which leaves and one of which comes later.
fn differ_in_all(dir: &TestDir, config: &Path) -> Value {
    let sizes = [8, 5, 8, 3];
    let expected = sizes.map(|size| alone(config, size, EPOCHS));
    let daemon = Daemon::serve(dir, config);
    let attach = |name: &str, size: u32| {
        daemon.loader(0, 1).trainer(name).batch_size(size).attach().unwrap()
    };
    let mut leaves = attach("leaves", 8);
    let barrier = Barrier::new(4);
    let stats = std::thread::scope(|scope| {
        let trainers: Vec<_> = (0..3)
            .map(|number| {
                let (attach, barrier) = (&attach, &barrier);
                scope.spawn(move || {
                    let mut loader = attach(["a", "b", "slow"][number], sizes[number]);
                    barrier.wait();
                    let slow = number == 2;
                    take_epochs(&mut loader, EPOCHS, || {
                        std::thread::sleep(Duration::from_millis(if slow { 7 } else { 0 }));
                    })
                })
            })
            .collect();
        barrier.wait();
        let first = take(&mut leaves, 2);
        assert_eq!(first, expected[0][..2]);
        drop(leaves);
        let mut late = attach("late", sizes[3]);
        let found = take_epochs(&mut late, EPOCHS, || {});
        assert_eq!(found, expected[3], "the late one");
        let stats = daemon.stats(dir);
        for (number, trainer) in trainers.into_iter().enumerate() {
            assert!(trainer.join().unwrap() == expected[number], "trainer {number}");
        }
        stats
    });
    let report = sharing(&stats);
    assert!(count(report, "num_made") > 0, "{report}");
    stats
}

/// Images with random crops, of which one is no image; batches of 8.
fn images(dir: &TestDir, keys: &str) -> PathBuf {
    let keys = format!(
        "batch.last = \"short\"\nring.slots = 4\nlisten.max_sessions = 9\nerrors.on_bad_sample = \"substitute\"\n\
         errors.budget = 100\n{keys}"
    );
    data::images(&dir.path("images"), 101, 4);
    std::fs::write(dir.path("images/class-001/00000005.jpg"), "no image").unwrap();
    dir.config("train.toml", &data::image_config(&dir.path("images"), &keys))
}

#[test]
fn each_trainer_gets_what_it_would_get_alone() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    differ_in_all(&dir, &config);
}

#[test]
fn trainers_of_archives_share_rows() {
    let dir = TestDir::new();
    images(&dir, "");
    tar::pack_classes(&dir.path("images"), &dir.path("packed"), 30).unwrap();
    let keys = "dataset.format = \"webdataset\"\nring.slots = 4\nlisten.max_sessions = 9\nerrors.on_bad_sample = \"substitute\"\nerrors.budget = 100\n\
                batch.last = \"pad\"";
    let config = dir.config("tars.toml", &data::image_config(&dir.path("packed"), keys));
    differ_in_all(&dir, &config);
}

#[test]
fn trainers_of_compressed_pages_share_rows_in_a_small_window() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 101, 4);
    parquet::pack_classes(&dir.path("images"), &dir.path("packed"), 30, true).unwrap();
    let keys = "dataset.format = \"parquet\"\nring.slots = 4\nlisten.max_sessions = 9\norder.shuffle = \"blocks\"\nbatch.last = \"short\"\n\
                share.window = \"10KiB\"";
    let config = dir.config("pages.toml", &data::image_config(&dir.path("packed"), keys));
    let stats = differ_in_all(&dir, &config);
    assert!(count(sharing(&stats), "window_in_use_bytes") <= 10 << 10);
    assert_eq!(count(sharing(&stats), "window_bytes"), 10 << 10);
}

#[test]
fn trainers_that_keep_together_make_each_row_once() {
    let dir = TestDir::new();
    let config = images(&dir, "share = { pace = \"together\", start_together = 3 }");
    let expected = alone(&config, 8, EPOCHS);
    let daemon = Daemon::serve(&dir, &config);
    std::thread::scope(|scope| {
        let trainers = ["a", "b", "c"].map(|name| {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut loader = daemon.loader(0, 1).trainer(name).attach().unwrap();
                let taken = take_epochs(&mut loader, EPOCHS, || {});
                // Whoever leaves first would let the others go on alone.
                (taken, loader)
            })
        });
        let taken: Vec<_> = trainers.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(taken.iter().all(|(taken, _)| *taken == expected));
        let stats = daemon.stats(&dir);
        let report = sharing(&stats);
        // An epoch has 101 rows; rows of the next epoch are in the rings, and a substitute is a row too.
        let (made, copied) = (
            count(report, "num_made"),
            count(report, "num_copied") + count(report, "num_copied_later"),
        );
        assert!((202..=260).contains(&made), "{report}");
        assert!(copied >= 2 * 202, "{report}");
        let names: Vec<&str> = stats["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|session| session["trainer"].as_str().unwrap())
            .collect();
        assert_eq!(names.len(), 3);
        assert!(["a", "b", "c"].iter().all(|name| names.contains(name)), "{names:?}");
    });
}

#[test]
fn trainer_ahead_waits_until_the_last_one_has_had_a_full_ring_for_long() {
    let dir = TestDir::new();
    // The window has room for fewer rows than a batch: one batch ahead is the most.
    let config =
        images(&dir, "share = { pace = \"together\", window = 1 }\nerrors.stall_after = \"2s\"");
    let expected = alone(&config, 8, 1);
    let daemon = Daemon::serve(&dir, &config);
    let mut ahead = daemon.loader(0, 1).trainer("ahead").attach().unwrap();
    let mut last = daemon.loader(0, 1).trainer("last").attach().unwrap();
    let begun = Instant::now();
    // The last one's ring is filled; the other's trainer gets no further than one batch beyond.
    let found = take(&mut ahead, 4);
    assert_eq!(found, expected[..4]);
    let more = take_epoch(&mut ahead);
    assert!(begun.elapsed() >= Duration::from_secs(2), "it waited for {:?}", begun.elapsed());
    assert_eq!(more, expected[4..], "it was let go");
    assert_eq!(take_epoch(&mut last), expected);
}

#[test]
fn trainers_begin_together() {
    let dir = TestDir::new();
    let config = images(&dir, "share.start_together = 2");
    let daemon = Daemon::serve(&dir, &config);
    let mut first = daemon.loader(0, 1).trainer("a").attach().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let published = |stats: &Value| count(&stats["sessions"][0], "batches_published");
    assert_eq!(published(&daemon.stats(&dir)), 0);
    let mut second = daemon.loader(0, 1).trainer("b").attach().unwrap();
    assert_eq!(take_epoch(&mut first), take_epoch(&mut second));
    // Who comes later does not wait.
    drop(second);
    let mut third = daemon.loader(0, 1).trainer("c").attach().unwrap();
    assert!(third.next_batch().unwrap().is_some());
}

/// Two data-parallel ranks, each of two tensor-parallel ones that need the same batch.
#[test]
fn tensor_parallel_ranks_have_the_same_batch_at_each_step() {
    let dir = TestDir::new();
    let config = images(&dir, "share = { pace = \"together\", start_together = 2 }");
    let daemon = Daemon::serve(&dir, &config);
    let taken: Vec<Vec<Taken>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4)
            .map(|rank: u32| {
                let daemon = &daemon;
                let name = format!("tp{}", rank % 2);
                scope.spawn(move || {
                    let loader = daemon.loader(rank / 2, 2).trainer(&name).compare_ranks(None);
                    take_epochs(&mut loader.attach().unwrap(), EPOCHS, || {})
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(taken[0], taken[1], "data-parallel rank 0");
    assert_eq!(taken[2], taken[3], "data-parallel rank 1");
    let mut all = [ids(&taken[0]), ids(&taken[2])].concat();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() >= 100, "together they have every sample but the bad one");
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn trainer_that_seeks_or_leaves_disturbs_no_other() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    let expected = alone(&config, 8, 6);
    let daemon = Daemon::serve(&dir, &config);
    let stop = AtomicBool::new(false);
    let is_stopped = || stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let restless = scope.spawn(|| {
            let mut round = 0;
            while !is_stopped() {
                let name = format!("restless {}", round % 3);
                let mut loader = daemon.loader(0, 1).trainer(&name).attach().unwrap();
                for epoch in [1 + round % 2, 0, 3] {
                    loader.set_epoch(epoch).unwrap();
                    let place = expected.iter().position(|batch| batch.epoch == epoch).unwrap();
                    let count = usize::try_from(round % 5).unwrap();
                    assert_eq!(take(&mut loader, count), expected[place..place + count]);
                }
                round += 1;
            }
        });
        // A failed comparison ends the other thread too.
        let stopping = SetOnDrop(&stop);
        let mut trainers = ["a", "b"].map(|name| {
            let attach = daemon.loader(0, 1).trainer(name).attach();
            attach.unwrap()
        });
        for trainer in &mut trainers {
            assert!(take_epochs(trainer, 6, || {}) == expected);
        }
        drop(stopping);
        restless.join().unwrap();
    });
}

#[test]
fn wrong_names_and_sizes_and_a_rank_in_use_are_refused() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    let daemon = Daemon::serve(&dir, &config);
    let _first = daemon.loader(0, 1).trainer("a").attach().unwrap();
    let refused = |builder: forebay_client::Builder| match builder.attach() {
        Err(Error::Config(message) | Error::Memory(message)) => message,
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was taken"),
    };
    let message = refused(daemon.loader(0, 1).trainer("a"));
    assert!(
        message.contains("rank 0 of 1 of trainer `a` of stream `train` is in use"),
        "{message}"
    );
    let message = refused(daemon.loader(0, 1).trainer("a\nb"));
    assert!(message.contains("no control characters"), "{message}");
    let message = refused(daemon.loader(0, 1).trainer(&"x".repeat(65)));
    assert!(message.contains("at most 64 bytes"), "{message}");
    let message = refused(daemon.loader(0, 1).trainer("b").batch_size(0));
    assert!(message.contains("at least one sample"), "{message}");
    let message = refused(daemon.loader(0, 1).trainer("b").batch_size(4_000_000));
    assert!(message.contains("ring.memory"), "{message}");
    assert!(daemon.loader(0, 1).attach().is_ok(), "the trainer without a name is another one");
}
