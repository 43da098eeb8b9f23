//! A far position, and a state of another stream. That every batch is the same from any position on is tested in
//! `exactly_once/states.rs` and `exactly_once/worlds.rs`.

use forebay_client::{Error, Position};
use forebay_config::Config;
use forebay_order::{Dealing, Last, Schedule};
use forebay_tests::taken::{ids, take};
use forebay_tests::{Daemon, TestDir, data, test_dir};

#[test]
fn a_state_of_another_stream_is_refused_by_what_differs() {
    let dir = TestDir::new();
    let config = dir.image_stream(50, 5, "order.seed = 1");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    take(&mut loader, 2);
    let state = loader.state(0).unwrap();
    drop(loader);
    drop(daemon);
    let refused = |arguments: &[&str]| {
        let daemon = Daemon::serve_with(&dir, &[&config], arguments);
        match daemon.loader(0, 1).state(state.clone(), false).attach() {
            Err(Error::StateMismatch(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    let message = refused(&["--set", "order.seed=2"]);
    assert!(
        message.contains("configuration differs in order.seed;")
            && !message.contains("dataset differs"),
        "{message}"
    );
    std::fs::remove_file(dir.path("images/class-001/00000001.jpg")).unwrap();
    let message = refused(&[]);
    assert!(
        message.contains("dataset differs") && !message.contains("configuration differs"),
        "{message}"
    );
}

/// No epoch is walked through to get there, and it is the right place. The data set is one `.npy` file, which needs no
/// index. The time is printed; `scripts/prove` judges it.
#[test]
fn the_middle_of_epoch_40_of_a_billion_samples_is_reached_at_once() {
    let dir = TestDir::new();
    data::sparse_stack(&dir.path("data"), 1_000_000_000);
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), ""));
    let outcome = |position: &str| {
        let mut bench = dir.forebay(&["bench", "--json", "--digest", "--batches", "2"]);
        forebay_tests::program::run(bench.args(["--position", position]).arg(&config)).json()
    };
    let there = outcome("40:500000000");
    println!("{} milliseconds to the first batch", {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        let milliseconds =
            (there["time_to_first_batch_seconds"].as_f64().unwrap() * 1000.0).ceil() as u64;
        milliseconds
    });
    assert_eq!(there["samples"], 8);
    let position = Position { epoch: 40, samples: 500_000_000 };
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    loader.seek(position).unwrap();
    let found = ids(&take(&mut loader, 2));
    let keys = Config::from_file(&config, &[]).unwrap();
    let dealing = Dealing {
        seed: keys.order.seed,
        is_shuffled: true,
        epochs: None,
        batch_size: keys.batch.size.get(),
        last: Last::Drop,
    };
    let schedule = Schedule::new(1_000_000_000, dealing, 0, 1).unwrap();
    let order = schedule.epoch(position.epoch);
    let expected: Vec<i64> =
        (0..8).map(|row| order.sample_at(position.samples + row).0.cast_signed()).collect();
    assert_eq!(found, expected);
}
