//! Batches of one shape: every sample once over all ranks, the same shape on all ranks of a step, counts that are exact,
//! and a continuation at other worlds anywhere.

use std::sync::Arc;

use forebay_protocol::ids::Position;
use proptest::prelude::*;

use crate::{ByLength, Dealing, Last, OrderError, PlannedRow, Schedule, Selection};

const SIZE: u32 = 4;

#[derive(Debug, Clone)]
struct Case {
    shapes: Vec<u32>,
    pool: u64,
    last: Last,
}

impl Case {
    fn rank(&self, rank: u32, world_size: u32) -> Result<Schedule, OrderError> {
        let by_shape = ByLength::by_shape(self.shapes.clone().into(), self.pool, SIZE);
        let dealing = Dealing {
            seed: 7,
            is_shuffled: true,
            epochs: Some(3),
            batch_size: SIZE,
            last: self.last,
        };
        let selection = Selection::Once(self.shapes.len() as u64);
        Schedule::by_length(selection, dealing, rank, world_size, Arc::new(by_shape))
    }

    fn world(&self, world_size: u32) -> Vec<Schedule> {
        (0..world_size).map(|rank| self.rank(rank, world_size).unwrap()).collect()
    }

    /// The rows of at most so many steps of an epoch, the position that is reached, and the number of steps. Asserts
    /// that all rows of a step have one shape.
    fn deliver(
        &self,
        ranks: &[Schedule],
        from: Position,
        limit: u64,
    ) -> (Vec<PlannedRow>, Position, u64) {
        let (mut rows, mut position, mut steps) = (Vec::new(), from, 0);
        let order = ranks[0].epoch(from.epoch);
        while position.epoch == from.epoch && steps < limit {
            let mut step = Vec::new();
            let mut sizes = Vec::new();
            let mut after = None;
            for rank in ranks {
                let left = rank.batches_left(position);
                let batch = rank.batch_at(position).unwrap();
                assert_eq!(*after.get_or_insert(batch.position_after), batch.position_after);
                assert_eq!((batch.last_of_rank, batch.last_of_epoch), (left == 1, left == 1));
                if !batch.last_of_epoch {
                    assert_eq!(rank.batches_left(batch.position_after), left - 1);
                }
                sizes.push(batch.rows.len());
                step.extend(batch.rows.iter(&order));
            }
            let shape = |row: &PlannedRow| self.shapes[usize::try_from(row.sample.0).unwrap()];
            assert!(step.iter().all(|row| shape(row) == shape(&step[0])), "{step:?}");
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(*least > 0 && *most <= SIZE && most - least <= 1, "{sizes:?}");
            rows.extend(step);
            position = after.unwrap();
            steps += 1;
        }
        (rows, position, steps)
    }
}

fn distinct(rows: &[PlannedRow]) -> Vec<u64> {
    let mut ids: Vec<u64> = rows.iter().filter(|row| row.valid).map(|row| row.sample.0).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "a sample is repeated");
    ids
}

fn cases() -> impl Strategy<Value = Case> {
    let shapes = prop::collection::vec(prop_oneof![Just(1u32), 0u32..5], 20..160);
    let last = prop_oneof![Just(Last::Drop), Just(Last::Pad)];
    // Five shapes and at most four ranks.
    (shapes, prop_oneof![16u64..60, Just(1_000)], last).prop_map(|(shapes, pool, last)| Case {
        shapes,
        pool,
        last,
    })
}

proptest! {
    #[test]
    fn every_sample_occurs_once_in_steps_of_one_shape(
        case in cases(), world_size in 1u32..5, epoch in 0u64..3,
    ) {
        let ranks = case.world(world_size);
        let start = Position { epoch, samples: 0 };
        let (rows, end, steps) = case.deliver(&ranks, start, u64::MAX);
        prop_assert_eq!(end, Position { epoch: epoch + 1, samples: 0 });
        prop_assert_eq!(steps, ranks[0].batches_of(epoch));
        let left_out = ranks[0].left_out_by_length(epoch);
        prop_assert_eq!(distinct(&rows).len() as u64 + left_out, case.shapes.len() as u64);
        // In each pool fewer than ranks of each shape.
        let pools = ranks[0].pools().unwrap().count();
        prop_assert!(left_out <= pools * 5 * u64::from(world_size - 1));
        let padding = rows.iter().filter(|row| !row.valid).count() as u64;
        prop_assert_eq!(padding, ranks[0].padding_by_length(epoch));
        prop_assert!(case.last == Last::Pad || padding == 0);
        prop_assert!(case.last == Last::Drop || left_out == 0);
    }

    #[test]
    fn other_worlds_continue_anywhere(
        case in cases(), runs in prop::collection::vec((1u32..5, 0u64..9), 1..7),
    ) {
        let case = Case { last: Last::Pad, ..case };
        let (mut position, mut cuts) = (Position::default(), Vec::new());
        let (mut rows, mut steps_so_far) = (Vec::new(), 0);
        for (number, (world_size, steps)) in runs.iter().enumerate() {
            let steps = if number + 1 == runs.len() { u64::MAX } else { *steps };
            let ranks: Vec<_> = case
                .world(*world_size)
                .iter()
                .map(|rank| rank.beginning_at(position, &cuts).unwrap().0)
                .collect();
            let (more, after, done) = case.deliver(&ranks, position, steps);
            rows.extend(more);
            steps_so_far += done;
            cuts = ranks[0].pools().unwrap().chain_at(after, (position, &cuts));
            position = after;
            if position.epoch > 0 {
                if case.pool >= case.shapes.len() as u64 {
                    prop_assert_eq!(steps_so_far, ranks[0].batches_of(0));
                }
                break;
            }
        }
        let found = distinct(&rows).len();
        prop_assert!(position.epoch == 0 || found == case.shapes.len());
    }
}

#[test]
fn pools_that_may_give_no_batch_are_refused() {
    let case = Case { shapes: (0..60).map(|id| id % 6).collect(), pool: 18, last: Last::Drop };
    let error = case.rank(0, 4).unwrap_err();
    assert_eq!(error, OrderError::PoolBelowShapes { pool: 18, world_size: 4, needed: 19 });
    assert!(error.to_string().contains("raise `order.pool` to 19 samples"), "{error}");
    assert!(Case { pool: 19, ..case.clone() }.rank(0, 4).is_ok());
    assert!(Case { last: Last::Pad, ..case }.rank(0, 4).is_ok());
}

#[test]
fn substitutes_have_the_shape_of_the_sample() {
    let shapes: Arc<[u32]> = (0..90).map(|id| u32::from(id % 9 == 0)).collect();
    let by_shape = ByLength::by_shape(Arc::clone(&shapes), 50, SIZE);
    let selection = Selection::Once(90);
    for bad in 0..90 {
        for attempt in 0..3 {
            let bad = forebay_protocol::ids::SampleId(bad);
            let found =
                selection.substitute_by_length(None, 3, 0, bad, attempt, (&by_shape, 2)).unwrap();
            assert_eq!(by_shape.length(found.0), by_shape.length(bad.0));
            assert_ne!(found, bad);
        }
    }
    assert_eq!((by_shape.usual_rows(), by_shape.is_by_shape()), (SIZE, true));
}
