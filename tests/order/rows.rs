//! Rows on request: the rows of a stream's batches, whatever is asked for with them, and whatever dies meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::rows::{RowKey, Rows};
use forebay_client::{Batch, Builder, Error};
use forebay_synth::parquet;
use forebay_tests::{Daemon, TestDir, data, test_dir, wait_until};
use nix::sys::signal::Signal;

/// The bytes of each row, over all fields.
fn rows_of(batch: &Batch) -> Vec<Vec<u8>> {
    let count = usize::try_from(batch.rows()).unwrap();
    let mut rows = vec![Vec::new(); count];
    for tensor in batch.tensors() {
        for (number, row) in rows.iter_mut().enumerate() {
            match tensor.ragged() {
                Some(ragged) => row.extend_from_slice(ragged.row_bytes(number).unwrap()),
                None => {
                    let bytes = tensor.bytes();
                    let pitch = bytes.len() / count;
                    row.extend_from_slice(&bytes[number * pitch..(number + 1) * pitch]);
                }
            }
        }
    }
    rows
}

/// The rows of an epoch of a stream, by sample.
fn rows_of_epoch(builder: Builder, epoch: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut loader = builder.attach().unwrap();
    loader.set_epoch(epoch).unwrap();
    let mut rows = BTreeMap::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
        rows.extend(ids.into_iter().map(i64::cast_unsigned).zip(rows_of(&batch)));
    }
    rows
}

fn keys(samples: impl IntoIterator<Item = u64>, pass: u64) -> Vec<RowKey> {
    samples.into_iter().map(|sample| RowKey { sample, pass }).collect()
}

fn got(rows: &mut Rows, keys: &[RowKey]) -> Vec<Vec<u8>> {
    rows_of(&rows.get(keys).unwrap())
}

/// Images with random crops; a batch holds eight.
fn images(dir: &TestDir, keys: &str) -> std::path::PathBuf {
    dir.image_stream(40, 4, &format!("batch.last = \"short\"\nring.slots = 3\n{keys}"))
}

#[test]
fn rows_are_those_of_the_streams_batches_in_any_request() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    let builder = || test_dir::loader(config.as_path(), 0, 1);
    for epoch in [0, 3] {
        let expected = rows_of_epoch(builder(), epoch);
        assert_eq!(expected.len(), 40);
        let mut rows = builder().attach_rows().unwrap();
        assert_eq!(rows.most_rows(), 8);
        let row = |sample: u64| expected[&sample].clone();
        for sample in [39, 0, 7, 7] {
            assert_eq!(got(&mut rows, &keys([sample], epoch)), [row(sample)]);
        }
        let mixed = [5, 31, 5, 12, 0, 39, 38, 1];
        assert_eq!(got(&mut rows, &keys(mixed, epoch)), mixed.map(row));
    }
    // Another pass has other draws.
    let mut rows = builder().attach_rows().unwrap();
    assert_ne!(got(&mut rows, &keys([3], 0)), got(&mut rows, &keys([3], 1)));
}

#[test]
fn sample_that_cannot_be_made_is_an_error_of_its_request_alone() {
    let dir = TestDir::new();
    let config = images(&dir, "errors.on_bad_sample = \"substitute\"\nerrors.budget = 100");
    let builder = || test_dir::loader(config.as_path(), 0, 1);
    let good = rows_of_epoch(builder(), 0);
    let files: Vec<_> = {
        let mut found: Vec<_> = std::fs::read_dir(dir.path("images/class-000")).unwrap().collect();
        found.sort_by_key(|entry| entry.as_ref().unwrap().path());
        found.into_iter().map(|entry| entry.unwrap().path()).collect()
    };
    std::fs::write(&files[2], "no image").unwrap();
    let mut rows = builder().attach_rows().unwrap();
    // More often than the ring has slots.
    for _ in 0..5 {
        let Err(Error::BadSample(message)) = rows.get(&keys([0, 2, 1], 0)) else {
            panic!("sample 2 is no image")
        };
        assert!(message.contains("bad sample 2 "), "{message}");
        assert!(!message.contains("substitute"), "{message}");
        assert_eq!(got(&mut rows, &keys([1, 0], 0)), [good[&1].clone(), good[&0].clone()]);
    }
}

#[test]
fn killed_daemon_changes_no_row() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    let builder = || test_dir::loader(config.as_path(), 0, 1);
    let expected = rows_of_epoch(builder(), 1);
    let mut rows = builder().attach_rows().unwrap();
    let held = rows.get(&keys([8, 9], 1)).unwrap();
    for round in 0..6 {
        let daemon = rows.private_process().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(round * 7));
            forebay_tests::signal(daemon, Signal::SIGKILL)
        });
        for first in (0..40).step_by(8) {
            let samples = first..first + 8;
            let found = got(&mut rows, &keys(samples.clone(), 1));
            let expected: Vec<_> = samples.map(|sample| expected[&sample].clone()).collect();
            assert_eq!(found, expected, "round {round}");
        }
        assert!(killer.join().unwrap());
        wait_until("the daemon has a successor", || {
            let _ = got(&mut rows, &keys([0], 1));
            rows.private_process().is_some_and(|process| process != daemon)
        });
    }
    assert_eq!(rows_of(&held), [expected[&8].clone(), expected[&9].clone()]);
}

#[test]
fn sessions_of_rows_stand_beside_ranks_and_wrong_requests_are_refused() {
    let dir = TestDir::new();
    let config = images(&dir, "");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let first = loader.next_batch().unwrap().unwrap();
    let ids = first.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
    let asked = keys(ids.into_iter().map(i64::cast_unsigned), 0);
    let mut sessions = [(); 2].map(|()| daemon.loader(0, 1).attach_rows().unwrap());
    for rows in &mut sessions {
        assert_eq!(got(rows, &asked), rows_of(&first));
    }
    let [rows, other] = &mut sessions;
    for wrong in [Vec::new(), keys(0..9, 0)] {
        let Err(Error::Config(message)) = rows.get(&wrong) else { panic!("it is refused") };
        assert!(message.contains("1 to 8"), "{message}");
    }
    let Err(Error::Config(message)) = rows.get(&keys([40], 0)) else { panic!("it is refused") };
    assert!(message.contains("sample 40 "), "{message}");
    for rows in [rows, other] {
        assert_eq!(got(rows, &asked), rows_of(&first), "the session goes on");
    }
}

/// An interrupt at any time, with a daemon that has died or not: the next request has its rows.
#[test]
fn interrupted_request_leaves_a_session_that_works() {
    let dir = TestDir::new();
    let delay = "{ op = \"delay\", milliseconds = 60 }";
    let stage = format!("{{ name = \"copy\", operations = [{delay}] }}");
    let config = dir.staged_stream(16, "ring.slots = 3\nring.hold = 1", &stage);
    let (asked, limit) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let interrupt = {
        let (asked, limit) = (Arc::clone(&asked), Arc::clone(&limit));
        move || asked.fetch_add(1, Ordering::SeqCst) >= limit.load(Ordering::SeqCst)
    };
    let builder = test_dir::loader(config.as_path(), 0, 1).interrupt(interrupt);
    let mut rows = builder.attach_rows().unwrap();
    let expected = got(&mut rows, &keys([3, 4], 0));
    // More often than requests fit in the queue.
    for round in 0..9 {
        if round % 3 == 2 {
            forebay_tests::signal(rows.private_process().unwrap(), Signal::SIGKILL);
        }
        limit.store(asked.load(Ordering::SeqCst) + round % 4, Ordering::SeqCst);
        if let Err(error) = rows.get(&keys([7, 8], 0)) {
            assert!(matches!(error, Error::Interrupted(_)), "{error}");
        }
        limit.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(got(&mut rows, &keys([3, 4], 0)), expected, "round {round}");
    }
}

#[test]
fn rows_of_shared_pages_and_of_differing_lengths_are_those_of_the_stream() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 40, 4);
    parquet::pack_classes(&dir.path("images"), &dir.path("packed"), 50, true).unwrap();
    let stage = "stage = [{ name = \"unpack\", operations = [] }]";
    let output = "output.image = { ragged = true, max_bytes = \"256KiB\", compact = true }";
    let fields = "dataset.fields = { image = { from = \"image\", as = \"bytes\" } }";
    for (name, keys) in [
        ("decoded", "preset = \"imagenet-train\""),
        ("whole", &*format!("{fields}\n{stage}\n{output}")),
    ] {
        let text = format!(
            "{keys}\ndataset.format = \"parquet\"\ndataset.path = {:?}\nbatch.size = 8\nbatch.last = \"pad\"\n",
            dir.path("packed").display().to_string()
        );
        let config = dir.config(&format!("{name}.toml"), &text);
        let builder = || test_dir::loader(config.as_path(), 0, 1);
        let expected = rows_of_epoch(builder(), 0);
        assert_eq!(expected.len(), 40, "{name}");
        let mut rows = builder().attach_rows().unwrap();
        for samples in [vec![39, 0, 20, 0, 39], vec![1], (8..16).collect(), vec![38, 2, 37]] {
            let wanted: Vec<_> = samples.iter().map(|sample| expected[sample].clone()).collect();
            assert_eq!(got(&mut rows, &keys_of(&samples)), wanted, "{name}: {samples:?}");
        }
    }
}

fn keys_of(samples: &[u64]) -> Vec<RowKey> {
    keys(samples.iter().copied(), 0)
}
