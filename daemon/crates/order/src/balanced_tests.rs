//! Each class equally often, in any epoch and at any world size.

use proptest::prelude::*;

use super::*;
use crate::dealing::{Dealing, Last};
use crate::schedule::Schedule;
use crate::selection::Selection;
use crate::{EpochOrder, PlannedRow};
use forebay_protocol::ids::Position;

/// Samples of classes of these sizes, of which no two neighbours are of one class if it can be avoided.
fn classes(sizes: &[u32]) -> Arc<Classes> {
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let class_of: Vec<u32> = (0..longest)
        .flat_map(|number| {
            (0_u32..).zip(sizes).filter(move |(_, size)| number < **size).map(|(class, _)| class)
        })
        .collect();
    Arc::new(Classes::new(class_of, u32::try_from(sizes.len()).unwrap()).unwrap())
}

fn spread(counts: &[u64]) -> u64 {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

fn orders(balanced: &Balanced, seed: u64, epoch: u64) -> Vec<(u32, u64)> {
    (0..balanced.draws)
        .map(|position| {
            let drawn = balanced.draw_at(seed, epoch, position);
            (balanced.classes.class_of(drawn.sample).unwrap(), drawn.sample.0)
        })
        .collect()
}

#[test]
fn usual_epoch_has_each_class_equally_often() {
    let balanced = Balanced::new(classes(&[100, 10, 1, 7]), None).unwrap();
    assert_eq!((balanced.draws_per_epoch(), balanced.draws_of_class()), (120, (30, 30)));
    let classes: Vec<u32> = orders(&balanced, 1, 0).iter().map(|(class, _)| *class).collect();
    for round in classes.chunks(4) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, [0, 1, 2, 3]);
    }
    // The orders of rounds differ.
    assert!(classes.chunks(4).any(|round| round != &classes[..4]));
}

proptest! {
    #[test]
    fn counts_are_exact(
        sizes in prop::collection::vec(1_u32..30, 1..20),
        draws in 1_u64..200,
        seed in 0_u64..4,
    ) {
        let balanced = Balanced::new(classes(&sizes), Some(draws)).unwrap();
        let (fewest, most) = balanced.draws_of_class();
        let (mut of_class, mut of_sample) =
            (vec![0_u64; sizes.len()], vec![0_u64; usize::try_from(balanced.classes.samples()).unwrap()]);
        for epoch in 0..5 {
            let (mut classes, mut samples) = (vec![0_u64; of_class.len()], vec![0_u64; of_sample.len()]);
            for (class, sample) in orders(&balanced, seed, epoch) {
                classes[class as usize] += 1;
                samples[usize::try_from(sample).unwrap()] += 1;
            }
            prop_assert!(classes.iter().all(|count| (fewest..=most).contains(count)));
            for (all, own) in [(&mut of_class, &classes), (&mut of_sample, &samples)] {
                all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
            }
            prop_assert!(spread(&of_class) <= 1, "{:?}", of_class);
            for samples in [&samples, &of_sample] {
                for class in 0..balanced.classes.count() {
                    let own: Vec<u64> = (0..).zip(samples)
                        .filter(|(id, _)| balanced.classes.class_of(forebay_protocol::ids::SampleId(*id)) == Some(class))
                        .map(|(_, count)| *count)
                        .collect();
                    prop_assert!(spread(&own) <= 1, "{:?}", own);
                }
            }
        }
    }

    /// A run that is continued with another world and batch size has the rows that it would have had.
    #[test]
    fn rows_do_not_depend_on_the_world(
        sizes in prop::collection::vec(1_u32..30, 2..9),
        first in (1_u32..5, 1_u32..4),
        second in (1_u32..5, 1_u32..4),
    ) {
        let balanced = Arc::new(Balanced::new(classes(&sizes), Some(120)).unwrap());
        let expected: Vec<(u32, u64)> = orders(&balanced, 6, 0);
        let mut rows = Vec::new();
        let mut position = Position { epoch: 0, samples: 0 };
        for ((batch_size, world), batches) in [(first, 2), (second, usize::MAX)] {
            let dealing = Dealing { seed: 6, is_shuffled: true, epochs: Some(1), batch_size, last: Last::Short };
            let ranks: Vec<Schedule> = (0..world)
                .map(|rank| Schedule::of(Selection::Balanced(Arc::clone(&balanced)), dealing, rank, world).unwrap())
                .collect();
            let order: EpochOrder = ranks[0].epoch(0);
            for _ in 0..batches {
                let Some(after) = ranks.iter().filter_map(|rank| {
                    let batch = rank.batch_at(position)?;
                    rows.extend(batch.rows.iter(&order).map(|row: PlannedRow| row.sample.0));
                    Some(batch.position_after)
                }).last() else { break };
                position = after;
            }
        }
        prop_assert_eq!(rows, expected.iter().map(|(_, sample)| *sample).collect::<Vec<_>>());
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let balanced = Balanced::new(classes(&[50, 9, 20]), None).unwrap();
    let first = orders(&balanced, 1, 0);
    assert_eq!(first, orders(&balanced, 1, 0));
    assert_ne!(first, orders(&balanced, 1, 1));
    assert_ne!(first, orders(&balanced, 2, 0));
}

/// Epochs that are shorter than a round take other classes each time, in an order that is not that of their numbers.
#[test]
fn rests_go_round() {
    let balanced = Balanced::new(classes(&[3; 40]), Some(10)).unwrap();
    let of_epoch = |seed, epoch| {
        let mut classes: Vec<u32> =
            orders(&balanced, seed, epoch).iter().map(|(class, _)| *class).collect();
        classes.sort_unstable();
        classes
    };
    let mut all: Vec<u32> = (0..4).flat_map(|epoch| of_epoch(3, epoch)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
    assert_ne!(of_epoch(3, 0), (0..10).collect::<Vec<_>>());
    assert_ne!(of_epoch(3, 0), of_epoch(4, 0));
}

#[test]
fn longest_epochs_and_lasts_do_not_overflow() {
    let most = i64::MAX as u64;
    let balanced = Balanced::new(classes(&[3, 1, 1]), Some(most)).unwrap();
    for (epoch, position) in [(0, most - 1), (u64::MAX, 0), (u64::MAX, most - 1), (most, most / 2)]
    {
        assert!(balanced.draw_at(1, epoch, position).sample.0 < 5);
    }
    let shared = classes(&[1]);
    assert_eq!(Balanced::new(Arc::clone(&shared), Some(0)), Err(OrderError::NoDraws));
    let samples = most + 1;
    assert_eq!(Balanced::new(shared, Some(samples)), Err(OrderError::TooManySamples { samples }));
}
