//! World sizes and what becomes of an epoch's rest: each rank gets what its schedule says. That schedules deal every
//! sample out once is tested beside them, in `crates/order`.

use forebay_client::{Loader, Position};
use forebay_config::Config;
use forebay_order::{Dealing, Last, Schedule};
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, Taken, TestDir, program};

const SAMPLES: u64 = 103;

#[test]
fn each_rank_gets_the_rows_of_its_schedule() {
    for (last, of_order) in [("drop", Last::Drop), ("short", Last::Short), ("pad", Last::Pad)] {
        let dir = TestDir::new();
        let keys = format!("order.seed = 5\nbatch.last = \"{last}\"\nlisten.max_sessions = 8");
        let config = dir.stack_stream(SAMPLES, &keys);
        let keys = Config::from_file(&config, &[]).unwrap();
        let dealing = Dealing {
            seed: 5,
            is_shuffled: true,
            epochs: keys.order.epochs,
            batch_size: keys.batch.size.get(),
            last: of_order,
        };
        let daemon = Daemon::serve(&dir, &config);
        for world_size in [1, 2, 3, 8] {
            let mut ranks: Vec<Loader> = (0..world_size)
                .map(|rank| daemon.loader(rank, world_size).attach().unwrap())
                .collect();
            for (rank, loader) in (0..world_size).zip(&mut ranks) {
                let schedule = Schedule::new(SAMPLES, dealing, rank, world_size).unwrap();
                let mut position = Position::default();
                let batches: Vec<Taken> = (0..2).flat_map(|_| take_epoch(loader)).collect();
                assert_eq!(batches.len() as u64, 2 * schedule.batches_per_epoch());
                for batch in batches {
                    let mut planned = schedule.batch_at(position).unwrap();
                    // A rank without a share of the last global batch has none there.
                    if planned.rows.is_empty() {
                        planned = schedule.batch_at(planned.position_after).unwrap();
                    }
                    let order = schedule.epoch(planned.epoch);
                    let rows: Vec<_> = planned.rows.iter(&order).collect();
                    let ids = |is_wanted: fn(&forebay_order::PlannedRow) -> bool| {
                        let rows = rows.iter().filter(|row| is_wanted(row));
                        rows.map(|row| row.sample.0.cast_signed()).collect::<Vec<_>>()
                    };
                    assert_eq!(batch.ids, ids(|_| true), "rank {rank} of {world_size}, {last}");
                    assert_eq!(batch.valid_ids, ids(|row| row.valid));
                    assert_eq!(batch.position_after, planned.position_after);
                    position = planned.position_after;
                }
            }
        }
    }
}

#[test]
fn check_says_how_many_samples_a_world_leaves_out() {
    let dir = TestDir::new();
    let config = dir.stack_stream(SAMPLES, "");
    for (world_size, left_out) in [("1", 3), ("8", 7)] {
        let mut check = dir.forebay(&["check", "--plan-only", "--world-size", world_size]);
        let plan = program::run(check.arg(&config)).stdout;
        let words: Vec<&str> = plan.split_whitespace().collect();
        assert!(words.join(" ").contains(&format!("left out {left_out} samples")), "{plan}");
    }
}

#[test]
fn the_short_last_batch_has_its_own_shape() {
    let dir = TestDir::new();
    let config = dir.image_stream(21, 3, "batch.last = \"short\"\norder.epochs = 1");
    let mut loader = forebay_tests::test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        rows.push(batch.rows());
        let image = batch.require("image").unwrap();
        assert_eq!(image.shape(), [batch.rows(), 3, 32, 32]);
        assert_eq!(image.bytes().len() as u64, batch.rows() * 3 * 32 * 32);
        assert_eq!(batch.require("label").unwrap().shape(), [batch.rows()]);
        assert_eq!(batch.is_last_of_epoch(), rows.len() == 3);
    }
    assert_eq!(rows, [8, 8, 5]);
}
