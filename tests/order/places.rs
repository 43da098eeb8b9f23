//! Coming into a stream anywhere: by state, by seek, by epoch, after a restart.

use forebay_client::{Error, Loader, Position, State};
use forebay_config::Config;
use forebay_order::Schedule;
use forebay_tests::taken::{digests, take, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data, test_dir};
use nix::sys::signal::Signal;

fn images(keys: &str) -> (TestDir, std::path::PathBuf) {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 50, 5);
    let config = dir.config("train.toml", &data::image_config(&dir.path("images"), keys));
    (dir, config)
}

/// Two whole epochs and the state before each batch.
fn two_epochs(loader: &mut Loader) -> (Vec<Taken>, Vec<State>) {
    let (mut batches, mut states) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        loop {
            let state = loader.state(0).unwrap();
            let Some(batch) = loader.next_batch().unwrap() else { break };
            states.push(state);
            batches.push(Taken::of(&batch));
        }
    }
    (batches, states)
}

#[test]
fn every_batch_is_the_same_when_a_client_comes_in_just_there() {
    let (dir, config) = images("order.epochs = 2\nbatch.last = \"short\"");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let (batches, states) = two_epochs(&mut loader);
    assert_eq!(batches.len(), 14);
    drop(loader);
    for (start, state) in states.iter().enumerate() {
        let line = state.to_json();
        assert!(!line.contains('\n'));
        let state = State::from_json(&line).unwrap();
        let mut loader = daemon.loader(0, 1).state(state, false).attach().unwrap();
        let mut found = take_epoch(&mut loader);
        if batches[start].epoch == 0 {
            found.extend(take_epoch(&mut loader));
        }
        assert_eq!(found, batches[start..], "from batch {start}");
        assert!(matches!(loader.next_batch(), Err(Error::EpochsFinished { epochs: 2 })));
    }
}

#[test]
fn a_state_goes_on_after_a_restart_and_on_another_world_size() {
    let (dir, config) = images("order.epochs = 1\nbatch.last = \"short\"");
    let small = ["--set", "batch.size=4"];
    let daemon = Daemon::serve_with(&dir, &[&config], &small);
    let mut ranks: Vec<Loader> =
        (0..2).map(|rank| daemon.loader(rank, 2).attach().unwrap()).collect();
    let mut before = Vec::new();
    for loader in &mut ranks {
        before.extend(take(loader, 3));
    }
    let states: Vec<State> = ranks.iter().map(|loader| loader.state(0).unwrap()).collect();
    assert_eq!(states[0], states[1], "a state is the same on every rank");
    assert_eq!(states[0].position, Position { epoch: 0, samples: 24 });
    drop(ranks);
    assert!(daemon.end(Signal::SIGKILL).0.code().is_none());

    let daemon = Daemon::serve_with(&dir, &[&config], &small);
    let mut ids: Vec<i64> = before.iter().flat_map(|batch| batch.ids.clone()).collect();
    for rank in 0..3 {
        let mut loader = daemon.loader(rank, 3).state(states[0].clone(), false).attach().unwrap();
        ids.extend(take_epoch(&mut loader).iter().flat_map(|batch| batch.ids.clone()));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}

#[test]
fn a_state_of_another_stream_is_refused_by_what_differs() {
    let (dir, config) = images("order.seed = 1");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    take(&mut loader, 2);
    let state = loader.state(0).unwrap();
    drop(loader);
    drop(daemon);
    let daemon = Daemon::serve_with(&dir, &[&config], &["--set", "order.seed=2"]);
    let Err(Error::StateMismatch(message)) =
        daemon.loader(0, 1).state(state.clone(), false).attach()
    else {
        panic!("a state of another seed is refused");
    };
    assert!(
        message.contains("configuration differs in order.seed;") && !message.contains("data set"),
        "{message}"
    );
    drop(daemon);
    std::fs::remove_file(dir.path("images/class-001/00000001.jpg")).unwrap();
    let daemon = Daemon::serve(&dir, &config);
    let Err(Error::StateMismatch(message)) = daemon.loader(0, 1).state(state, false).attach()
    else {
        panic!("a state of other data is refused");
    };
    assert!(
        message.contains("dataset differs") && !message.contains("configuration differs"),
        "{message}"
    );
}

#[test]
fn early_breaks_seeks_and_set_epoch_lead_to_the_same_batches() {
    let (dir, config) = images("order.epochs = 4");
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let epochs: Vec<Vec<Taken>> = (0..4).map(|_| take_epoch(&mut loader)).collect();
    assert!(epochs.iter().all(|epoch| epoch.len() == 6));
    drop(loader);

    let mut loader = daemon.loader(0, 1).attach().unwrap();
    assert_eq!(take(&mut loader, 2), epochs[0][..2]);
    loader.begin_epoch().unwrap();
    assert_eq!(loader.given_up(), 4);
    assert_eq!(take(&mut loader, 1), epochs[1][..1]);
    loader.set_epoch(1).unwrap();
    assert_eq!(take(&mut loader, 1), epochs[1][1..2], "the current epoch goes on");
    loader.set_epoch(3).unwrap();
    assert_eq!(take_epoch(&mut loader), epochs[3]);
    assert!(matches!(loader.next_batch(), Err(Error::EpochsFinished { .. })));
    loader.seek(Position { epoch: 2, samples: 16 }).unwrap();
    assert_eq!(take_epoch(&mut loader), epochs[2][2..]);
    // Many jumps in a row while the daemon is at work on what nobody wants any more.
    for round in 0..30 {
        let (epoch, batch) = (round % 4, round % 6);
        let samples = batch * 8;
        loader.seek(Position { epoch, samples }).unwrap();
        let expected = &epochs[usize::try_from(epoch).unwrap()][usize::try_from(batch).unwrap()];
        assert_eq!(&take(&mut loader, 1)[0], expected, "round {round}");
    }
}

#[test]
fn bad_samples_of_an_epoch_left_early_do_not_touch_the_next() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 96, 4);
    // A third is broken, so that some row fails while its batch is being given up.
    for number in (2..96).step_by(3) {
        let path = images.join(format!("class-{:03}/{number:08}.jpg", number % 4));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    let keys = "order.epochs = 40\nerrors.on_bad_sample = \"substitute\"\nerrors.budget = 96";
    let config = dir.config("train.toml", &data::image_config(&images, keys));
    let daemon = Daemon::serve(&dir, &config);
    let mut calm = daemon.loader(0, 1).attach().unwrap();
    let expected: Vec<Vec<Taken>> = (0..40).map(|_| take_epoch(&mut calm)).collect();
    drop(calm);
    let mut hasty = daemon.loader(0, 1).attach().unwrap();
    for epoch in &expected {
        hasty.begin_epoch().unwrap();
        let found = take(&mut hasty, 2);
        assert_eq!(digests(&found), digests(&epoch[..2]), "epoch {}", epoch[0].epoch);
        assert_eq!(found, epoch[..2]);
    }
}

#[test]
fn ragged_rows_moved_together_survive_epochs_left_early() {
    let dir = TestDir::new();
    data::sentences(&dir.path("sentences"), 96);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 4\norder.epochs = 150\n\
         stage = [{{ name = \"unpack\", concurrency = 2, operations = [] }}]\n\
         output.tokens = {{ ragged = true, max_bytes = \"1KiB\", compact = true }}\n",
        dir.path("sentences").display()
    );
    let config = dir.config("train.toml", &text);
    let daemon = Daemon::serve(&dir, &config);
    let mut calm = daemon.loader(0, 1).attach().unwrap();
    let expected: Vec<Vec<Taken>> = (0..150).map(|_| take_epoch(&mut calm)).collect();
    drop(calm);
    let mut hasty = daemon.loader(0, 1).attach().unwrap();
    for epoch in &expected {
        hasty.begin_epoch().unwrap();
        assert_eq!(take(&mut hasty, 2), epoch[..2]);
    }
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
    let found: Vec<i64> = take(&mut loader, 2).iter().flat_map(|batch| batch.ids.clone()).collect();
    let keys = Config::from_file(&config, &[]).unwrap();
    let schedule = Schedule::new(1_000_000_000, &keys.order, &keys.batch, 0, 1).unwrap();
    let order = schedule.epoch(position.epoch);
    let expected: Vec<i64> =
        (0..8).map(|row| order.sample_at(position.samples + row).0.cast_signed()).collect();
    assert_eq!(found, expected);
}
