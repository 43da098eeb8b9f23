//! Batches by length: each sample once an epoch over all ranks, as many batches for each of them as their loaders say, at
//! most the budget in each batch, and states that continue inside a pool at other world sizes and budgets.

use std::collections::BTreeMap;

use forebay_client::{Batch, Loader, Position, State};
use forebay_tests::kills::Random;
use forebay_tests::taken::{Taken, sorted, take_epoch};
use forebay_tests::{Daemon, TestDir, data, program, test_dir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Of 1 to 7 tokens: the remainder of the sample's number by 7, and 1.
const SAMPLES: u32 = 400;
const BUDGET: u64 = 40;

fn text(dir: &TestDir, keys: &str) -> String {
    format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\norder.seed = 9\norder.pool = 90\nlisten.max_sessions = 9\n\
         stage = [{{ name = \"copy\", concurrency = 2, operations = [] }}]\n\
         output.tokens = {{ ragged = true, max_bytes = \"64B\" }}\n\
         batch.budget = {{ tokens = {BUDGET} }}\nbatch.length = \"tokens\"\nbatch.max_rows = 16\n{keys}\n",
        dir.path("data").display()
    )
}

fn length(id: i64) -> u64 {
    1 + id.cast_unsigned() % 7
}

/// Checks a batch against its bounds.
fn check(taken: &Taken, budget: u64) {
    let longest = taken.ids.iter().map(|id| length(*id)).max().unwrap();
    assert!(taken.ids.len() <= 16);
    assert!(taken.ids.len() as u64 * longest <= budget, "{taken:?}");
}

fn tokens(batch: &Batch) {
    let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
    let tokens = batch.require("tokens").unwrap();
    let ragged = tokens.ragged().unwrap();
    assert_eq!(ragged.len(), ids.len());
    for (row, id) in ids.iter().enumerate() {
        let number = i32::try_from(*id).unwrap().to_le_bytes();
        let expected = number.repeat(usize::try_from(length(*id)).unwrap());
        assert_eq!(ragged.row_bytes(row).unwrap(), expected, "sample {id}");
    }
}

#[test]
fn each_sample_comes_once_an_epoch_in_as_many_batches_on_each_rank() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let daemon = Daemon::serve(&dir, &dir.config("train.toml", &text(&dir, "")));
    let mut ranks: Vec<Loader> =
        (0..3).map(|rank| daemon.loader(rank, 3).attach().unwrap()).collect();
    let mut counts = Vec::new();
    for epoch in 0..4 {
        let expected: Vec<u64> = ranks.iter().map(|rank| rank.batches_per_epoch()).collect();
        let mut delivered = Vec::new();
        let mut sums = Vec::new();
        for rank in &mut ranks {
            assert_eq!(rank.epoch(), epoch);
            let mut count = 0;
            while let Some(batch) = rank.next_batch().unwrap() {
                tokens(&batch);
                let taken = Taken::of(&batch);
                check(&taken, BUDGET);
                count += 1;
                delivered.extend(taken.ids);
            }
            sums.push(count);
        }
        assert_eq!(sums, expected, "epoch {epoch}");
        assert!(sums.iter().all(|count| *count == sums[0]), "{sums:?}");
        assert_eq!(sorted(delivered), (0..i64::from(SAMPLES)).collect::<Vec<_>>());
        counts.push(sums[0]);
    }
    // Lengths are learned once.
    let saved = std::fs::read_dir(dir.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let saved: Vec<_> = saved.filter(|name| name.to_string_lossy().contains(".lengths-")).collect();
    assert_eq!(saved.len(), 1, "{saved:?}");
}

#[test]
fn batches_of_an_epoch_are_known_when_the_one_before_was_given_up() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let config = dir.config("train.toml", &text(&dir, ""));
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let mut counts = Vec::new();
    for epoch in 0..8 {
        loader.begin_epoch().unwrap();
        let expected = loader.batches_per_epoch();
        assert_eq!(loader.epoch(), 2 * epoch);
        counts.push(expected);
        let batches = take_epoch(&mut loader);
        assert_eq!(batches.len() as u64, expected, "epoch {}", 2 * epoch);
        // The next one is given up after a batch.
        loader.next_batch().unwrap().unwrap();
        counts.push(loader.batches_per_epoch());
    }
    assert!(counts.chunks(2).any(|pair| pair[0] != pair[1]), "epochs differ: {counts:?}");
    assert!(loader.given_up() > 0);
}

#[test]
fn other_world_sizes_and_budgets_continue_inside_a_pool() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let places = [(); 2].map(|()| TestDir::new());
    let keys = ["", "batch.multiple_of = 4"];
    let daemons: Vec<Daemon> = places
        .iter()
        .zip(keys)
        .map(|(place, keys)| {
            let text = text(&dir, &format!("batch.last = \"pad\"\n{keys}"));
            Daemon::serve(place, &place.config("train.toml", &text))
        })
        .collect();
    let mut random = Random::new(3);
    let mut state: Option<State> = None;
    let mut longest_chain = 0;
    for epoch in 0..6 {
        let mut delivered = Vec::new();
        for world_size in [1, 3, 2, 4, 1] {
            let daemon = &daemons[usize::try_from(random.below(2)).unwrap()];
            let mut ranks = attach(daemon, world_size, state.as_ref());
            // Fewer samples than an epoch in all.
            let count = random.below(5);
            for rank in &mut ranks {
                for _ in 0..count {
                    let taken = Taken::of(&rank.next_batch().unwrap().expect("one more batch"));
                    assert_eq!(taken.epoch, epoch);
                    check(&taken, BUDGET);
                    delivered.extend(taken.valid_ids);
                }
            }
            let states: Vec<String> =
                ranks.iter().map(|rank| rank.state(0).unwrap().to_json()).collect();
            assert!(states.iter().all(|other| *other == states[0]), "{states:?}");
            let saved = State::from_json(&states[0]).unwrap();
            longest_chain = longest_chain.max(saved.cuts.len());
            state = Some(saved);
        }
        let mut alone = attach(&daemons[0], 1, state.as_ref()).remove(0);
        let rest = take_epoch(&mut alone);
        delivered.extend(rest.iter().flat_map(|taken| taken.valid_ids.iter().copied()));
        state = Some(alone.state(0).unwrap());
        assert_eq!(sorted(delivered), (0..i64::from(SAMPLES)).collect::<Vec<_>>(), "epoch {epoch}");
    }
    assert!(longest_chain >= 3, "pools were continued with other cuts: {longest_chain}");
}

fn attach(daemon: &Daemon, world_size: u32, state: Option<&State>) -> Vec<Loader> {
    let attach = |rank| {
        let builder = daemon.loader(rank, world_size);
        match state {
            Some(state) => builder.state(state.clone(), false),
            None => builder,
        }
    };
    (0..world_size).map(|rank| attach(rank).attach().unwrap()).collect()
}

#[test]
fn batches_are_the_same_after_a_daemon_is_killed_and_after_a_change_of_the_world() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let config = dir.config("train.toml", &text(&dir, ""));
    let loader = || test_dir::loader(config.as_path(), 0, 1);
    // A chain from two ranks.
    let mut ranks =
        [0, 1].map(|rank| test_dir::loader(config.as_path(), rank, 2).attach().unwrap());
    for rank in &mut ranks {
        for _ in 0..3 {
            rank.next_batch().unwrap().unwrap();
        }
    }
    let state = ranks[0].state(0).unwrap();
    assert_eq!(state.cuts.len(), 1, "{}", state.to_json());
    drop(ranks);
    let run = |kills: usize| {
        let mut loader = loader().state(state.clone(), false).attach().unwrap();
        let mut batches = Vec::new();
        for _ in 0..2 {
            while let Some(batch) = loader.next_batch().unwrap() {
                batches.push(Taken::of(&batch));
                if batches.len() % 5 == 4 && batches.len() / 5 < kills {
                    // Only after the answer it is the process of a daemon that runs: the last one's kill may not be known yet.
                    loader.stats().unwrap();
                    let process = loader.private_process().unwrap();
                    kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL).unwrap();
                }
            }
        }
        let restarts = loader.restarts();
        (batches, restarts, loader.state(0).unwrap().to_json())
    };
    let (expected, none, end) = run(0);
    let (found, restarts, other_end) = run(4);
    assert_eq!((none, restarts > 0), (0, true));
    assert_eq!(found, expected);
    assert_eq!(other_end, end);
    // A state from the middle continues with the same batches.
    let mut loader = loader().state(state.clone(), false).attach().unwrap();
    let mut saved = BTreeMap::new();
    for number in 0..12 {
        loader.next_batch().unwrap().unwrap();
        saved.insert(number + 1, loader.state(0).unwrap());
    }
    for (number, state) in saved {
        loader.load_state(&state, false).unwrap();
        assert_eq!(loader.state(0).unwrap(), state);
        let next = Taken::of(&loader.next_batch().unwrap().unwrap());
        assert_eq!(next, expected[number], "after {number} batches");
    }
}

#[test]
fn positions_and_lengths_that_do_not_fit_are_refused_by_name() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let config = dir.config("train.toml", &text(&dir, ""));
    let loader = |world_size| test_dir::loader(config.as_path(), 0, world_size);
    let mut two = loader(2).attach().unwrap();
    two.next_batch().unwrap().unwrap();
    let state = two.state(0).unwrap();
    // A step of three ranks has three samples at least.
    let inside = Position { epoch: 0, samples: 1 };
    let error = loader(3).position(inside).attach().unwrap_err().to_string();
    assert!(error.contains("no step ends after 1 samples of epoch 0"), "{error}");
    let wrong = State { cuts: vec![state.cuts[0].starting_at(1)], ..state };
    let error = loader(3).state(wrong, false).attach().unwrap_err().to_string();
    assert!(error.contains("the cuts in the saved state do not lead to"), "{error}");
    let check = |keys: &[&str]| {
        let mut command = dir.forebay(&["check", "--plan-only", "--world-size", "3"]);
        command.arg(&config);
        keys.iter().for_each(|key| {
            command.args(["--set", key]);
        });
        program::run(&mut command)
    };
    let long = ["batch.budget={tokens=6}"];
    let found = check(&long);
    assert!(
        found.stderr.contains("57 of 400 samples are longer than `batch.budget` (6 tokens)"),
        "{}",
        found.stderr
    );
    let found = check(&[long[0], "batch.too_long=drop"]);
    assert!(found.stdout.contains("343 an epoch"), "{}\n{}", found.stdout, found.stderr);
    let found = check(&[long[0], "batch.too_long=truncate"]);
    assert!(found.stdout.contains("at most 6; pools of 90"), "{}\n{}", found.stdout, found.stderr);
    let found = check(&["batch.length=token"]);
    assert!(found.stderr.contains("no field `token`; did you mean `tokens`?"), "{}", found.stderr);
    let found = check(&[]);
    assert!(found.stdout.contains("at most 16 and 40 tokens"), "{}", found.stdout);
}

/// With bytes of whole files as lengths, and a bad file that is substituted.
#[test]
fn sizes_of_files_are_lengths() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 60, 4);
    std::fs::write(images.join("class-001/00000005.jpg"), "no image").unwrap();
    let text =
        data::image_config(&images, "order.pool = 30\nerrors.on_bad_sample = \"substitute\"")
            .replace("batch.size = 8", "batch.budget = { bytes = 9_000 }\nbatch.max_rows = 8");
    let config = dir.config("train.toml", &text);
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let files: BTreeMap<i64, u64> = (0..60)
        .map(|id| {
            let id = u64::try_from(id).unwrap();
            let path = &loader.paths(&[id]).unwrap()[0];
            (id.cast_signed(), std::fs::metadata(path).unwrap().len())
        })
        .collect();
    let batches = take_epoch(&mut loader);
    let mut rows = 0;
    for batch in &batches {
        let longest = batch.ids.iter().map(|id| files[id]).max().unwrap();
        assert!(batch.ids.len() as u64 * longest <= 9_000, "{batch:?}");
        rows += batch.ids.len();
    }
    assert_eq!(rows, 60);
    let distinct = sorted(batches.iter().flat_map(|batch| batch.ids.clone()).collect());
    let bad = files.iter().find(|(_, bytes)| **bytes == 8).unwrap().0;
    assert!(!distinct.contains(bad), "it is substituted");
}

/// Sizes from the index of archives, and values of a column, also in compressed pages; in a mixture, too.
#[test]
fn lengths_are_of_every_source() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 120, 4);
    let packed = |name: &str| dir.path(name);
    forebay_synth::tar::pack_classes(&images, &packed("tars"), 50).unwrap();
    forebay_synth::arrow::pack_classes(&images, &packed("arrow"), 50).unwrap();
    forebay_synth::parquet::pack_classes(&images, &packed("parquet"), 50, false).unwrap();
    forebay_synth::parquet::pack_classes(&images, &packed("pages"), 50, true).unwrap();
    let by_label = "batch.budget = { tokens = 12 }\nbatch.length = \"label\"";
    let by_bytes = "batch.budget = { bytes = 12_000 }";
    let mut by_format = BTreeMap::new();
    for (folder, format, lengths) in [
        ("tars", "webdataset", by_bytes),
        ("tars", "webdataset", by_label),
        ("arrow", "arrow", by_label),
        ("parquet", "parquet", by_label),
        ("pages", "parquet", by_label),
    ] {
        let keys = format!("dataset.format = {format:?}\norder.pool = 50\n{lengths}");
        let text = data::image_config(&packed(folder), &keys)
            .replace("batch.size = 8", "batch.max_rows = 9");
        let name = format!("{folder}-{}.toml", lengths.len());
        let config = dir.config(&name, &text);
        let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
        let expected = loader.batches_per_epoch();
        let mut batches = Vec::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            let labels = batch.require("label").unwrap().as_slice::<i64>().unwrap().to_vec();
            let longest = labels.iter().max().unwrap().cast_unsigned();
            assert!(batch.rows() <= 9);
            assert!(lengths == by_bytes || longest * batch.rows() <= 12, "{labels:?}");
            batches.push(Taken::of(&batch));
        }
        assert_eq!(batches.len() as u64, expected, "{name}");
        let ids = sorted(batches.iter().flat_map(|batch| batch.ids.clone()).collect());
        assert_eq!(ids, (0..120).collect::<Vec<_>>(), "{name}");
        if lengths == by_label {
            let rows: Vec<Vec<i64>> = batches.into_iter().map(|batch| batch.ids).collect();
            by_format.insert(folder, rows);
        }
    }
    // The same samples in the same order have the same batches.
    assert_eq!(by_format["parquet"], by_format["pages"]);
    assert_eq!(by_format["parquet"], by_format["arrow"]);
}

/// Each dataset of a mixture has its share of every epoch, whatever its lengths.
#[test]
fn mixtures_keep_their_shares() {
    let dir = TestDir::new();
    data::sentences(&dir.path("data"), SAMPLES);
    let dataset = |name: &str, more: &str| {
        format!(
            "[[dataset]]\nname = {name:?}\nformat = \"npz\"\npath = {:?}\nindex = {:?}\n{more}\n",
            dir.path("data").display(),
            dir.path(&format!("{name}.index")).display(),
        )
    };
    let (_, rest) =
        text(&dir, "").split_once("order.seed").map(|(_, rest)| ((), rest.to_owned())).unwrap();
    let text = format!(
        "cpu.policy = \"normal\"\norder.seed{rest}{}{}",
        dataset("all", ""),
        dataset("few", "limit = 50\nrepeat = 2")
    );
    let config = dir.path("mixture.toml");
    std::fs::write(&config, text).unwrap();
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    for _ in 0..2 {
        let mut times = BTreeMap::new();
        for batch in take_epoch(&mut loader) {
            for id in batch.ids {
                *times.entry(id).or_insert(0) += 1;
            }
        }
        let total = i64::from(SAMPLES);
        let expected = (0..total + 50).map(|id| (id, if id < total { 1 } else { 2 }));
        assert_eq!(times, expected.collect::<BTreeMap<_, _>>());
    }
}
