//! What is planned ahead is what is used, and it is planned once.

use crate::{ByLength, Dealing, Last, Selection};

use super::*;

const SAMPLES: u64 = 500;

fn schedules(pool: u64, last: Last) -> (Arc<ByLength>, Vec<Schedule>) {
    let lengths: Arc<[u32]> =
        (0..SAMPLES).map(|id| 1 + u32::try_from(id * 7 % 40).unwrap()).collect();
    let by_length = Arc::new(ByLength::new(lengths, pool, 100, 1, 16));
    let dealing = Dealing { seed: 3, is_shuffled: true, epochs: Some(2), batch_size: 16, last };
    let rank = |rank| {
        Schedule::by_length(Selection::Once(SAMPLES), dealing, rank, 3, Arc::clone(&by_length))
    };
    let ranks = (0..3).map(|number| rank(number).unwrap()).collect();
    (by_length, ranks)
}

/// The thread that deals batches makes no plan and counts nothing, in any epoch and pool.
#[test]
fn batch_of_a_planned_position_needs_no_other_plan() {
    for (pool, last) in [(60, Last::Drop), (60, Last::Pad), (1_000, Last::Drop)] {
        let (by_length, ranks) = schedules(pool, last);
        let (_, others) = schedules(pool, last);
        let mut position = Position::default();
        let mut waits = 0;
        while !others[0].finished(position) {
            // As another thread does it, but at the last moment.
            while !ranks[0].is_planned(position) {
                waits += 1;
                ranks[1].batches_of(position.epoch);
                match ranks[0].pool_to_plan(position) {
                    Some(pool) => pool.plan(),
                    None => {
                        ranks[1].batches_of(position.epoch + 1);
                    }
                }
            }
            let made = by_length.results_kept();
            let batch = ranks[2].batch_at(position).unwrap();
            let left = ranks[2].batches_left(position);
            ranks[2].batches_left(batch.position_after);
            assert!(!ranks[2].finished(position));
            assert_eq!(by_length.results_kept(), made, "{position:?}");
            assert_eq!(Some(batch), others[2].batch_at(position));
            assert_eq!(left, others[2].batches_left(position));
            position = batch.position_after;
        }
        assert!(waits > 0 && ranks[0].is_planned(position), "nothing is left to plan");
    }
}

#[test]
fn pool_is_given_to_one_caller_until_it_is_planned_or_dropped() {
    let (_, ranks) = schedules(60, Last::Drop);
    let first = ranks[0].pool_to_plan(Position::default()).unwrap();
    let second = ranks[1].pool_to_plan(Position::default()).unwrap();
    assert_eq!([first.key.1, second.key.1], [0, 1], "the first, and the one after it");
    assert!(ranks[2].pool_to_plan(Position::default()).is_none());
    drop(first);
    let again = ranks[2].pool_to_plan(Position::default()).unwrap();
    assert_eq!(again.key.1, 0, "the first was not planned");
    again.plan();
    second.plan();
    assert!(ranks[0].pool_to_plan(Position::default()).is_none());
}

#[test]
fn prepared_position_is_planned() {
    let (_, ranks) = schedules(60, Last::Drop);
    for position in [Position::default(), Position { epoch: 1, samples: 120 }] {
        assert!(!ranks[0].is_planned(position));
        ranks[0].prepare(position, &[]);
        assert!(ranks[0].is_planned(position) && ranks[0].pool_to_plan(position).is_none());
    }
    // No order has it.
    ranks[0].prepare(Position { epoch: 0, samples: SAMPLES + 1 }, &[]);
}
