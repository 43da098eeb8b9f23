//! The world size changes in the middle of an epoch, four times: 1, 2, 3, 8 ranks and one again, and with it the batch size
//! of a rank, each resumed from the state of the ranks before. `FOREBAY_TEST_WORLD_CHANGES` says in how many epochs;
//! `scripts/prove` asks for many.

use forebay_client::{Loader, State};
use forebay_tests::kills::Random;
use forebay_tests::taken::{ids, sorted, take, take_epoch};
use forebay_tests::{Daemon, TestDir, data};

const SAMPLES: u64 = 997;
/// The ranks, the most batches that each of them takes, less than an epoch in all, and the batch size, by its daemon.
const WORLDS: [(u32, u64, usize); 4] = [(1, 20, 0), (2, 20, 1), (3, 20, 2), (8, 10, 0)];
const BATCH_SIZES: [u32; 3] = [4, 7, 1];

#[test]
fn an_epoch_is_whole_whatever_the_world_sizes_that_it_went_through() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), SAMPLES);
    let text = data::stack_config(&dir.path("data"), KEYS);
    change_worlds(&text);
}

#[test]
fn an_epoch_of_archives_is_whole_whatever_the_world_sizes() {
    let dir = TestDir::new();
    data::number_tars(&dir.path("data"), SAMPLES);
    change_worlds(&format!(
        "dataset.path = {:?}\ndataset.format = \"webdataset\"\nbatch.size = 4\n\
         stage = [{{ name = \"copy\", concurrency = 2, operations = [] }}]\n{KEYS}\n",
        dir.path("data").display()
    ));
}

const KEYS: &str = "order.seed = 9\nbatch.last = \"short\"\nlisten.max_sessions = 9";

fn change_worlds(text: &str) {
    let epochs =
        std::env::var("FOREBAY_TEST_WORLD_CHANGES").map_or(6, |text| text.parse().unwrap());
    let places = BATCH_SIZES.map(|_| TestDir::new());
    let daemons: Vec<Daemon> = BATCH_SIZES
        .iter()
        .zip(&places)
        .map(|(size, dir)| {
            let text = text.replace("batch.size = 4", &format!("batch.size = {size}"));
            Daemon::serve(dir, &dir.config("train.toml", &text))
        })
        .collect();
    let mut random = Random::new(7);
    let mut state: Option<State> = None;
    for epoch in 0..epochs {
        let mut delivered = Vec::new();
        for (world_size, most, daemon) in WORLDS {
            let mut ranks = attach(&daemons[daemon], world_size, state.as_ref());
            let count = usize::try_from(random.below(most + 1)).unwrap();
            let taken: Vec<_> = ranks.iter_mut().map(|rank| take(rank, count)).collect();
            // The global order: rank by rank within each global batch.
            let batches = (0..count).flat_map(|batch| taken.iter().map(move |rank| &rank[batch]));
            delivered.extend(batches.flat_map(|batch| batch.ids.iter().copied()));
            let states: Vec<String> =
                ranks.iter().map(|rank| rank.state(0).unwrap().to_json()).collect();
            assert!(states.iter().all(|other| *other == states[0]), "{states:?}");
            // As a checkpoint keeps it.
            state = Some(State::from_json(&states[0]).unwrap());
        }
        let mut alone = attach(&daemons[1], 1, state.as_ref()).remove(0);
        delivered.extend(ids(&take_epoch(&mut alone)));
        state = Some(alone.state(0).unwrap());
        drop(alone);
        let mut undisturbed = daemons[0].loader(0, 1).attach().unwrap();
        undisturbed.set_epoch(epoch).unwrap();
        assert_eq!(delivered, ids(&take_epoch(&mut undisturbed)), "epoch {epoch}");
        assert_eq!(sorted(delivered), (0..SAMPLES.cast_signed()).collect::<Vec<_>>());
    }
    println!("{epochs} epochs were whole");
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
