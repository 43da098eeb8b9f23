//! Samples that are broken.

use std::path::{Path, PathBuf};

use forebay_client::Error;
use forebay_tests::taken::{ids, take, take_epoch, until_error};
use forebay_tests::{Daemon, Taken, TestDir, data, program, test_dir};

const IMAGES: u64 = 60;

/// The file of a sample id: ids are places in the sorted list, pictures are dealt to the four classes in turn.
fn file_of(images: &Path, id: u64) -> PathBuf {
    let per_class = IMAGES / 4;
    let (class, dir) = (id / per_class, id % per_class);
    images.join(format!("class-{class:03}/{:08}.jpg", dir * 4 + class))
}

fn break_file(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

fn images(dir: &TestDir) -> PathBuf {
    let images = dir.path("images");
    data::images(&images, IMAGES, 4);
    images
}

#[test]
fn under_fail_a_broken_file_is_named_after_all_batches_before_it() {
    let dir = TestDir::new();
    let images = images(&dir);
    let config = dir.config("train.toml", &data::image_config(&images, "order.epochs = 1"));
    let mut whole = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let expected = take_epoch(&mut whole);
    drop(whole);
    // Two broken files of one batch and one of a later batch: the error always names the first row.
    let (first, second) = (expected[4].ids[3], expected[4].ids[6]);
    for id in [first, second, expected[5].ids[0]] {
        break_file(&file_of(&images, u64::try_from(id).unwrap()));
    }
    let named = file_of(&images, u64::try_from(first).unwrap());
    for round in 0..10 {
        let mut loader = test_dir::loader(config.as_path(), 0, 1)
            .override_key("stage.preprocess.concurrency", (1 + round % 8).to_string())
            .attach()
            .unwrap();
        let (batches, error) = until_error(&mut loader);
        let Error::BadSample(message) = error else { panic!("{error:?}") };
        assert_eq!(batches, expected[..4], "round {round}");
        assert!(message.contains(named.to_str().unwrap()), "{message}");
        for part in ["truncated", "on_bad_sample", &format!("sample {first} ")] {
            assert!(message.contains(part), "{message}");
        }
    }
    let bench = program::run(dir.forebay(&["bench"]).arg(&config));
    assert_eq!(bench.status.code(), Some(1));
    assert!(bench.stderr.contains(named.to_str().unwrap()), "{bench:?}");
}

#[test]
fn under_substitute_another_sample_stands_in_and_is_listed() {
    let dir = TestDir::new();
    let images = images(&dir);
    let keys = "order.epochs = 2\nerrors.on_bad_sample = \"substitute\"\nerrors.budget = 3\n\
                batch.last = \"short\"";
    let config = dir.config("train.toml", &data::image_config(&images, keys));
    let whole = take_epoch(&mut test_dir::loader(config.as_path(), 0, 1).attach().unwrap());
    let broken = [7, 31, 44];
    for id in broken {
        break_file(&file_of(&images, id));
    }
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let found = take_epoch(&mut loader);
    let stats = daemon.stats(&dir);
    let listed = stats["sessions"][0]["substituted"].as_array().unwrap();
    let mut places_taken = 0;
    for (position, (id, before)) in ids(&found).iter().zip(ids(&whole)).enumerate() {
        let was_broken = broken.iter().any(|broken| i64::try_from(*broken) == Ok(before));
        assert_eq!(*id != before, was_broken, "position {position}");
        if was_broken {
            places_taken += 1;
            let entry = listed
                .iter()
                .find(|entry| entry["epoch"] == 0 && entry["sample"] == before)
                .unwrap_or_else(|| panic!("sample {before} is not listed: {listed:?}"));
            assert_eq!(entry["substitute"], *id);
            let path = file_of(&images, u64::try_from(before).unwrap());
            assert_eq!(entry["path"], path.to_str().unwrap());
            assert!(entry["reason"].as_str().unwrap().contains("truncated"), "{entry}");
        }
    }
    assert_eq!(places_taken, 3);
    assert_eq!(loader.state(0).unwrap().substitutes, 0, "a new epoch has a budget of its own");
    drop(loader);
    let digest = |threads: &str| {
        let mut bench = dir.forebay(&["bench", "--json", "--digest"]);
        bench.arg(&config).args(["--set", &format!("stage.preprocess.concurrency={threads}")]);
        program::run(&mut bench).json()["digest"].clone()
    };
    let expected = digest("1");
    for threads in ["1", "2", "4", "8"] {
        assert_eq!(digest(threads), expected, "{threads} threads");
    }
    let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket));
    assert!(shown.status.success(), "{shown:?}");
}

#[test]
fn more_bad_samples_than_the_budget_end_the_run_at_the_same_batch() {
    let dir = TestDir::new();
    let images = images(&dir);
    let keys = "order.epochs = 1\nerrors.on_bad_sample = \"substitute\"\nerrors.budget = 2";
    let config = dir.config("train.toml", &data::image_config(&images, keys));
    let whole = take_epoch(&mut test_dir::loader(config.as_path(), 0, 1).attach().unwrap());
    for batch in [1, 2, 4, 5] {
        break_file(&file_of(&images, u64::try_from(whole[batch].ids[2]).unwrap()));
    }
    let mut seen = None;
    for threads in ["1", "2", "8", "8"] {
        let mut loader = test_dir::loader(config.as_path(), 0, 1)
            .override_key("stage.preprocess.concurrency", threads)
            .attach()
            .unwrap();
        let (batches, error) = until_error(&mut loader);
        let Error::BadSample(message) = error else { panic!("{error:?}") };
        assert!(message.contains("errors.budget") && message.contains("truncated"), "{message}");
        assert!((2..=4).contains(&batches.len()), "{}", batches.len());
        assert_eq!(&batches, seen.get_or_insert_with(|| batches.clone()));
        assert_eq!(batches[0], whole[0]);
    }
    // A state keeps the count: what was spent is spent.
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let first: Vec<Taken> = take(&mut loader, 2);
    let state = loader.state(0).unwrap();
    assert!(state.substitutes >= 1, "{state:?}");
    drop(loader);
    let mut loader = test_dir::loader(config.as_path(), 0, 1).state(state, false).attach().unwrap();
    let (rest, error) = until_error(&mut loader);
    assert!(matches!(error, Error::BadSample(_)), "{error:?}");
    assert_eq!([first, rest].concat(), seen.unwrap());
}
