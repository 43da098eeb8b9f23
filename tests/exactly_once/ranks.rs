//! World sizes and what becomes of an epoch's rest.

use std::collections::BTreeSet;

use forebay_client::Loader;
use forebay_tests::taken::{sorted, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data, program};

const SAMPLES: u64 = 103;
const BATCH: u64 = 4;
const WORLDS: [u32; 4] = [1, 2, 3, 8];

/// Two epochs of every rank: by epoch, then by rank.
fn two_epochs(daemon: &Daemon, world_size: u32) -> Vec<Vec<Vec<Taken>>> {
    let mut ranks: Vec<Loader> =
        (0..world_size).map(|rank| daemon.loader(rank, world_size).attach().unwrap()).collect();
    (0..2).map(|_| ranks.iter_mut().map(take_epoch).collect()).collect()
}

/// The epoch's ids in the global order: rank by rank within each global batch.
fn global_order(ranks: &[Vec<Taken>]) -> Vec<i64> {
    let batches = ranks.iter().map(Vec::len).max().unwrap_or(0);
    (0..batches)
        .flat_map(|batch| ranks.iter().filter_map(move |rank| rank.get(batch)))
        .flat_map(|batch| batch.valid_ids.iter().copied())
        .collect()
}

fn serve(last: &str) -> (TestDir, Daemon) {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), SAMPLES);
    let keys = format!("order.seed = 5\nbatch.last = \"{last}\"\nlisten.max_sessions = 8");
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), &keys));
    let daemon = Daemon::serve(&dir, &config);
    (dir, daemon)
}

#[test]
fn dropping_leaves_out_only_what_fills_no_global_batch() {
    let (dir, daemon) = serve("drop");
    let alone = two_epochs(&daemon, 1);
    assert_ne!(
        global_order(&alone[0]),
        global_order(&alone[1]),
        "each epoch has an order of its own"
    );
    for world_size in WORLDS {
        let whole = SAMPLES - SAMPLES % (BATCH * u64::from(world_size));
        for (epoch, ranks) in two_epochs(&daemon, world_size).iter().enumerate() {
            let ids = global_order(ranks);
            assert_eq!(ids.len() as u64, whole, "world {world_size}");
            let distinct: BTreeSet<i64> = ids.iter().copied().collect();
            assert_eq!(distinct.len(), ids.len(), "world {world_size}, epoch {epoch}");
            // The order does not depend on the world size.
            assert_eq!(ids[..ids.len().min(96)], global_order(&alone[epoch])[..ids.len().min(96)]);
        }
        let plan = program::run(
            dir.forebay(&["check", "--plan-only", "--world-size", &world_size.to_string()])
                .arg(dir.path("train.toml")),
        );
        let words: Vec<&str> = plan.stdout.split_whitespace().collect();
        let left_out = format!("left out {} samples", SAMPLES - whole);
        assert!(words.join(" ").contains(&left_out), "{}", plan.stdout);
    }
}

#[test]
fn short_batches_deal_every_sample_out_once() {
    let (_place, daemon) = serve("short");
    for world_size in WORLDS {
        for ranks in two_epochs(&daemon, world_size) {
            assert_eq!(sorted(global_order(&ranks)), (0..103).collect::<Vec<_>>());
            let counts: Vec<usize> =
                ranks.iter().map(|rank| rank.iter().map(|batch| batch.ids.len()).sum()).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{counts:?}");
            for batch in ranks.iter().flatten() {
                assert!((1..=4).contains(&batch.ids.len()));
            }
        }
    }
}

#[test]
fn padding_makes_ranks_equal_and_says_which_rows_it_is() {
    let (_place, daemon) = serve("pad");
    for world_size in WORLDS {
        let global = BATCH * u64::from(world_size);
        for ranks in two_epochs(&daemon, world_size) {
            let valid: Vec<i64> =
                ranks.iter().flatten().flat_map(|batch| batch.valid_ids.clone()).collect();
            assert_eq!(sorted(valid), (0..103).collect::<Vec<_>>());
            for rank in &ranks {
                assert_eq!(rank.len() as u64, SAMPLES.div_ceil(global));
                assert!(rank.iter().all(|batch| batch.ids.len() as u64 == BATCH));
            }
            // Padding comes from the epoch's start.
            let start: BTreeSet<i64> =
                global_order(&ranks).into_iter().take(usize::try_from(global).unwrap()).collect();
            for batch in ranks.iter().flatten() {
                let padding = batch.ids.iter().filter(|id| !batch.valid_ids.contains(id));
                assert!(padding.clone().all(|id| start.contains(id)), "{batch:?}");
            }
        }
    }
}

#[test]
fn the_short_last_batch_has_its_own_shape() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 21, 3);
    let keys = "batch.last = \"short\"\norder.epochs = 1";
    let config = dir.config("train.toml", &data::image_config(&dir.path("images"), keys));
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        rows.push(batch.rows());
        assert_eq!(batch.require("image").unwrap().shape(), [batch.rows(), 3, 32, 32]);
        let bytes = batch.require("image").unwrap().bytes().len() as u64;
        assert_eq!(bytes, batch.rows() * 3 * 32 * 32);
        assert_eq!(batch.require("label").unwrap().shape(), [batch.rows()]);
        assert_eq!(batch.is_last_of_epoch(), rows.len() == 3);
    }
    assert_eq!(rows, [8, 8, 5]);
}
