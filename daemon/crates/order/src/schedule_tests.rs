//! Every sample once per epoch over all ranks, for any sizes, even if they change within the epoch.

use proptest::prelude::*;

use super::*;

fn schedule(
    samples: u64,
    batch_size: u32,
    last: Last,
    rank: u32,
    world_size: u32,
) -> Result<Schedule, OrderError> {
    let dealing = Dealing { seed: 5, is_shuffled: true, epochs: Some(3), batch_size, last };

    Schedule::new(samples, dealing, rank, world_size)
}

fn world(samples: u64, batch_size: u32, last: Last, world_size: u32) -> Vec<Schedule> {
    (0..world_size)
        .map(|rank| schedule(samples, batch_size, last, rank, world_size).unwrap())
        .collect()
}

/// The rows that a world of ranks delivers from a position, in global order, and the position reached.
struct Delivered {
    rows: Vec<PlannedRow>,
    position: Position,
    batches: Vec<u64>,
}

/// Runs `limit` global batches, or to the end of the position's epoch.
fn deliver(ranks: &[Schedule], from: Position, limit: usize) -> Delivered {
    let mut delivered =
        Delivered { rows: Vec::new(), position: from, batches: vec![0; ranks.len()] };
    for _ in 0..limit {
        if delivered.position.epoch != from.epoch {
            break;
        }
        let order = ranks[0].epoch(from.epoch);
        let mut after = None;
        for (schedule, batches) in ranks.iter().zip(&mut delivered.batches) {
            let left = schedule.batches_left(delivered.position);
            let batch = schedule.batch_at(delivered.position).unwrap();
            assert_eq!(batch.epoch, from.epoch);
            assert_eq!(*after.get_or_insert(batch.position_after), batch.position_after);
            assert_eq!(batch.last_of_epoch, batch.position_after.epoch > from.epoch);
            assert_eq!(left == 0, batch.rows.is_empty());
            assert_eq!(batch.last_of_rank, left <= 1);
            assert!(batch.rows.len() <= schedule.dealing.batch_size);
            *batches += u64::from(!batch.rows.is_empty());
            delivered.rows.extend(batch.rows.iter(&order));
        }
        delivered.position = after.unwrap();
    }
    delivered
}

/// The samples of the valid rows, sorted; fails on a repeat.
fn distinct_samples(rows: &[PlannedRow]) -> Vec<u64> {
    let mut ids: Vec<u64> = rows.iter().filter(|row| row.valid).map(|row| row.sample.0).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an id twice");
    ids
}

const START: Position = Position { epoch: 0, samples: 0 };

fn any_last() -> impl Strategy<Value = Last> {
    prop_oneof![Just(Last::Drop), Just(Last::Short), Just(Last::Pad)]
}

proptest! {
    #[test]
    fn every_sample_occurs_once_per_epoch(
        samples in 1u64..400,
        batch_size in 1u32..40,
        world_size in 1u32..9,
        last in any_last(),
    ) {
        let global = u64::from(batch_size * world_size);
        if schedule(samples, batch_size, last, 0, world_size).is_err() {
            prop_assert!(samples < global, "refused though there is a batch");
            return Ok(());
        }
        let ranks = world(samples, batch_size, last, world_size);
        let epoch = deliver(&ranks, START, usize::MAX);
        prop_assert_eq!(epoch.position, Position { epoch: 1, samples: 0 });

        let ids = distinct_samples(&epoch.rows);
        let left_out = ranks[0].samples_left_out_per_epoch();
        prop_assert_eq!(ids.len() as u64, samples - left_out);
        let padding = epoch.rows.iter().filter(|row| !row.valid).count() as u64;
        prop_assert_eq!(padding, ranks[0].padding_per_epoch());
        for (schedule, batches) in ranks.iter().zip(&epoch.batches) {
            prop_assert_eq!(schedule.batches_per_epoch(), *batches);
            prop_assert!(*batches > 0);
        }
        let over_ranks = (
            *epoch.batches.iter().min().unwrap(),
            *epoch.batches.iter().max().unwrap(),
        );
        prop_assert_eq!(ranks[0].batches_per_epoch_over_ranks(), over_ranks);
        if last != Last::Short {
            prop_assert!(epoch.batches.iter().all(|batches| *batches == epoch.batches[0]));
        }
        // Over all ranks the rows are the epoch's positions in order, for any world size; padding repeats from its
        // start.
        let order = schedule(samples, 1, Last::Pad, 0, 1).unwrap().epoch(0);
        for (place, row) in epoch.rows.iter().enumerate() {
            let place = place as u64;
            prop_assert_eq!(row.sample, order.sample_at(place % samples));
            prop_assert_eq!(row.position, place % samples);
            prop_assert_eq!(row.valid, place < samples);
        }
    }

    #[test]
    fn sizes_may_change_within_an_epoch(
        samples in 1u64..400,
        first in (1u32..40, 1u32..9),
        second in (1u32..40, 1u32..9),
        batches in 0usize..20,
        last in any_last(),
    ) {
        for (batch_size, world_size) in [first, second] {
            if schedule(samples, batch_size, last, 0, world_size).is_err() {
                return Ok(());
            }
        }
        let before = deliver(&world(samples, first.0, last, first.1), START, batches);
        if before.position.epoch == 1 {
            return Ok(());
        }
        let ranks = world(samples, second.0, last, second.1);
        let resumed = ranks[0].normalise(before.position).unwrap();
        let after = deliver(&ranks, resumed, usize::MAX);
        let left_out = ranks[0].samples_left_out_from(before.position.samples);
        prop_assert!(left_out == 0 || last == Last::Drop);
        let expected = samples - left_out;
        let mut rows = before.rows;
        if resumed.epoch == 0 {
            rows.extend(after.rows);
        }
        prop_assert_eq!(distinct_samples(&rows).len() as u64, expected);
    }

    #[test]
    fn short_batch_is_distributed_in_parts_that_differ_by_at_most_one(
        rest in 1u64..64,
        batch_size in 8u32..10,
        world_size in 1u32..9,
    ) {
        let global = u64::from(batch_size * world_size);
        let samples = global + rest % global;
        let last_batch = Position { epoch: 0, samples: global };
        let lengths: Vec<u32> = world(samples, batch_size, Last::Short, world_size)
            .iter()
            .filter(|_| samples > global)
            .map(|schedule| schedule.batch_at(last_batch).unwrap().rows.len())
            .collect();
        prop_assert!(lengths.windows(2).all(|pair| pair[0] >= pair[1]), "{:?}", lengths);
        if let (Some(longest), Some(shortest)) = (lengths.first(), lengths.last()) {
            prop_assert!(longest - shortest <= 1, "{:?}", lengths);
        }
    }
}

#[test]
fn epochs_differ_and_shuffle_false_is_the_identity() {
    let schedule = schedule(100, 10, Last::Drop, 0, 1).unwrap();
    let ids = |epoch: u64| -> Vec<u64> {
        let order = schedule.epoch(epoch);
        (0..100).map(|p| order.sample_at(p).0).collect()
    };
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(0), ids(1));

    let dealing =
        Dealing { seed: 5, is_shuffled: false, epochs: None, batch_size: 1, last: Last::Drop };

    let plain = Schedule::new(100_000, dealing, 0, 1).unwrap();
    assert_eq!(plain.epoch(9).sample_at(70_000), SampleId(70_000));
}

#[test]
fn positions_are_normalised_at_the_end_of_an_epoch() {
    let drop = schedule(10, 4, Last::Drop, 0, 1).unwrap();
    let at = |epoch, samples| Position { epoch, samples };
    assert_eq!(drop.normalise(at(0, 6)).unwrap(), at(0, 6));
    assert_eq!(drop.normalise(at(0, 7)).unwrap(), at(1, 0));
    assert_eq!(drop.normalise(at(0, 10)).unwrap(), at(1, 0));
    assert_eq!(drop.batches_left(at(0, 7)), 0);
    let short = schedule(10, 4, Last::Short, 0, 1).unwrap();
    assert_eq!(short.normalise(at(0, 9)).unwrap(), at(0, 9));
    assert_eq!(short.normalise(at(0, 10)).unwrap(), at(1, 0));
    assert_eq!(short.batch_at(at(0, 9)).unwrap().rows.len(), 1);
}

#[test]
fn position_of_another_dataset_is_refused_with_both_numbers() {
    let schedule = schedule(10, 4, Last::Drop, 0, 1).unwrap();
    let error = schedule.normalise(Position { epoch: 2, samples: 11 }).unwrap_err().to_string();
    assert!(error.contains("11") && error.contains("10"), "{error}");
    let far = Position { epoch: u64::MAX, samples: 0 };
    assert!(schedule.normalise(far).is_err());
    assert!(schedule.batch_at(far).is_none());
}

#[test]
fn the_configured_epochs_end() {
    let schedule = schedule(8, 4, Last::Drop, 0, 1).unwrap();
    let at = |epoch, samples| Position { epoch, samples };
    assert!(!schedule.finished(at(2, 0)));
    assert!(!schedule.finished(at(2, 4)));
    assert!(schedule.finished(at(2, 8)));
    assert!(schedule.finished(at(3, 0)));
    assert!(schedule.batch_at(at(3, 0)).is_none());
    let last = schedule.batch_at(at(2, 4)).unwrap();
    assert_eq!((last.position_after, last.last_of_epoch), (at(3, 0), true));
}

#[test]
fn ranks_without_a_batch_are_refused_with_the_numbers() {
    let error = schedule(100, 64, Last::Drop, 0, 2).unwrap_err().to_string();
    for part in ["100 samples", "128", "64", "world size 2", "batch.last"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = schedule(3, 64, Last::Short, 0, 4).unwrap_err().to_string();
    for part in ["3 samples", "64", "4 ranks", "pad"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(schedule(3, 64, Last::Pad, 3, 4).is_ok());
    assert_eq!(
        schedule(3, 1, Last::Drop, 2, 2).unwrap_err(),
        OrderError::NoSuchRank { rank: 2, world_size: 2 }
    );
    assert!(schedule(3, 1, Last::Drop, 0, 0).is_err());
    assert!(schedule(0, 1, Last::Pad, 0, 1).is_err());
    assert!(schedule(u64::MAX, 1, Last::Pad, 0, 1).is_err());
}

#[test]
fn the_largest_sizes_do_not_overflow() {
    let samples = i64::MAX as u64;
    for last in [Last::Drop, Last::Short, Last::Pad] {
        let Ok(schedule) = schedule(samples, u32::MAX, last, u32::MAX - 1, u32::MAX) else {
            continue;
        };
        let batch = schedule.batch_at(START).unwrap();
        let order = schedule.epoch(0);
        assert!(batch.rows.row(batch.rows.len() - 1, &order).position < samples);
    }
}
