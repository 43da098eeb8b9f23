//! Batches of whole tuples of different groups, each sample once.

use std::collections::BTreeMap;

use forebay_protocol::ids::Position;
use proptest::prelude::*;

use super::*;
use crate::dealing::{Dealing, Last};
use crate::schedule::Schedule;
use crate::selection::Selection;

/// Groups of these sizes, one after the other.
fn groups(sizes: &[u32]) -> Arc<Classes> {
    let class_of: Vec<u32> = (0_u32..)
        .zip(sizes)
        .flat_map(|(group, size)| std::iter::repeat_n(group, *size as usize))
        .collect();
    Arc::new(Classes::new(class_of, u32::try_from(sizes.len()).unwrap()).unwrap())
}

fn grouped(sizes: &[u32], size: u32, batch_size: u32) -> Arc<Grouped> {
    Arc::new(Grouped::new(groups(sizes), size, batch_size).unwrap())
}

/// The tuples of an epoch: the group and the samples of each.
fn tuples(grouped: &Arc<Grouped>, seed: u64, epoch: u64) -> Vec<(u32, Vec<u64>)> {
    let order = GroupEpoch::new(Arc::clone(grouped), seed, epoch);
    let ids: Vec<_> =
        (0..grouped.draws_per_epoch()).map(|position| order.draw_at(position).sample).collect();
    ids.chunks(index(grouped.size))
        .map(|ids| {
            let of: Vec<u32> =
                ids.iter().map(|id| grouped.classes.class_of(*id).unwrap()).collect();
            assert!(of.iter().all(|group| *group == of[0]), "a tuple is of one group: {of:?}");
            (of[0], ids.iter().map(|id| id.0).collect())
        })
        .collect()
}

/// The most tuples of one group in any batch.
fn most_alike(grouped: &Grouped, tuples: &[(u32, Vec<u64>)]) -> u64 {
    let most = |batch: &[(u32, Vec<u64>)]| {
        let mut counts = BTreeMap::new();
        batch.iter().for_each(|(group, _)| *counts.entry(*group).or_insert(0_u64) += 1);
        counts.into_values().max().unwrap_or(0)
    };
    tuples.chunks(index(grouped.width)).map(most).max().unwrap()
}

proptest! {
    #[test]
    fn each_sample_once_and_groups_of_a_batch_differ(
        sizes in prop::collection::vec(1_u32..60, 1..40),
        size in 1_u32..6,
        width in 1_u32..9,
        seed in 0_u64..4,
    ) {
        let Ok(grouped) = Grouped::new(groups(&sizes), size, size * width) else {
            prop_assert!(sizes.iter().all(|samples| *samples < size));
            return Ok(());
        };
        let grouped = Arc::new(grouped);
        let samples: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let lost = grouped.left_out() + grouped.too_small().1;
        prop_assert_eq!(grouped.draws_per_epoch() + lost, samples);
        let mut counts = vec![0_u64; usize::try_from(samples).unwrap()];
        for epoch in 0..6 {
            let tuples = tuples(&grouped, seed, epoch);
            let mut ids: Vec<u64> = tuples.iter().flat_map(|(_, ids)| ids.clone()).collect();
            ids.iter().for_each(|id| counts[usize::try_from(*id).unwrap()] += 1);
            ids.sort_unstable();
            let all = ids.len();
            ids.dedup();
            prop_assert_eq!((ids.len(), all as u64), (all, grouped.draws_per_epoch()));
            let batches = (grouped.tuples / grouped.width).max(1);
            let largest = sizes.iter().map(|samples| u64::from(samples / size)).max().unwrap();
            let most = most_alike(&grouped, &tuples);
            prop_assert_eq!(grouped.differ(), largest <= batches);
            prop_assert!(!grouped.differ() || most == 1, "{} tuples of a group in a batch", most);
            prop_assert!(most <= largest.div_ceil(batches) + 1);
        }
        // Over all epochs a group leaves out each of its samples as often as another, or once more.
        let mut start = 0;
        for samples in sizes {
            let own = &counts[start..][..samples as usize];
            start += samples as usize;
            prop_assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 1, "{:?}", own);
        }
    }

    /// A run that is continued with another world size has the batches that it would have had.
    #[test]
    fn batches_do_not_depend_on_the_world(
        sizes in prop::collection::vec(1_u32..30, 8..30),
        worlds in (1_u32..4, 1_u32..4),
        last in prop_oneof![Just(Last::Drop), Just(Last::Pad)],
    ) {
        let grouped = grouped(&[&sizes[..], &[30]].concat(), 3, 6);
        let all: Vec<u64> = tuples(&grouped, 6, 1).into_iter().flat_map(|(_, ids)| ids).collect();
        let mut rows = Vec::new();
        let mut position = Position { epoch: 1, samples: 0 };
        for (world, batches) in [(worlds.0, 2), (worlds.1, usize::MAX)] {
            let dealing = Dealing { seed: 6, is_shuffled: true, epochs: None, batch_size: 6, last };
            let of = |rank| {
                let selection = Selection::Grouped(Arc::clone(&grouped));
                Schedule::of(selection, dealing, rank, world)
            };
            let Ok(ranks) = (0..world).map(of).collect::<Result<Vec<_>, _>>() else { return Ok(()) };
            let (ranks, begins): (Vec<_>, Vec<_>) = ranks
                .iter()
                .map(|rank| rank.beginning_at(position, &[]).unwrap())
                .unzip();
            position = begins[0];
            let order = ranks[0].epoch(1);
            for _ in 0..batches {
                if position.epoch != 1 {
                    break;
                }
                let mut after = position;
                for rank in &ranks {
                    let batch = rank.batch_at(position).unwrap();
                    prop_assert_eq!(batch.rows.valid % 3, 0);
                    rows.extend(batch.rows.iter(&order).filter(|row| row.valid).map(|row| row.sample.0));
                    after = batch.position_after;
                }
                position = after;
            }
        }
        prop_assert_eq!(&rows[..], &all[..rows.len()]);
        let left = all.len() - rows.len();
        let most_left = if last == Last::Pad { 0 } else { 6 * 3 - 1 };
        prop_assert!(left <= most_left, "{} samples are left out", left);
    }
}

#[test]
fn groups_that_divide_come_whole() {
    let grouped = grouped(&[4, 8, 12, 4], 4, 8);
    assert_eq!(
        (grouped.draws_per_epoch(), grouped.left_out(), grouped.too_small()),
        (28, 0, (0, 0))
    );
    let order = GroupEpoch::new(grouped, 1, 5);
    assert!((0..28).all(|position| order.draw_at(position).pass == 5));
}

/// Samples that fill no tuple are left out, others in each epoch; groups without a tuple never come.
#[test]
fn what_is_left_over_differs_by_epoch() {
    let grouped = grouped(&[5, 3, 4], 4, 4);
    assert_eq!((grouped.left_out(), grouped.too_small(), grouped.differ()), (1, (1, 3), true));
    let left_out: std::collections::BTreeSet<u64> = (0..5)
        .map(|epoch| {
            let tuples = tuples(&grouped, 1, epoch);
            (0..5).find(|id| tuples.iter().all(|(_, ids)| !ids.contains(id))).unwrap()
        })
        .collect();
    assert_eq!(left_out.len(), 5);
    let none = Grouped::new(groups(&[3, 3]), 4, 8);
    assert_eq!(none, Err(OrderError::NoGroups { size: 4 }));
    for (size, batch_size) in [(3, 8), (0, 8), (4, 0)] {
        let split = Grouped::new(groups(&[9]), size, batch_size);
        assert_eq!(split, Err(OrderError::SplitGroups { batch_size, size }));
    }
}

/// Any two groups meet in an epoch, or in the next ones, and not the same ones in all batches of an epoch.
#[test]
fn groups_meet_each_other() {
    let grouped = grouped(&[40; 40], 4, 16);
    let mut meetings = BTreeMap::new();
    for epoch in 0..20 {
        let tuples = tuples(&grouped, 2, epoch);
        let with_first: std::collections::BTreeSet<u32> = tuples
            .chunks(4)
            .filter(|batch| batch.iter().any(|(group, _)| *group == 0))
            .flatten()
            .map(|(group, _)| *group)
            .collect();
        assert!(with_first.len() > 12, "{} groups meet the first one", with_first.len());
        for group in with_first {
            *meetings.entry(group).or_insert(0) += 1;
        }
    }
    assert_eq!(meetings.len(), 40);
    assert!(meetings.values().all(|count| *count >= 4), "{meetings:?}");
}

#[test]
fn one_group_a_batch_and_one_large_group() {
    let whole = grouped(&[8, 16, 8], 8, 8);
    assert_eq!((whole.tuples, whole.width), (4, 1));
    let mut of: Vec<u32> = tuples(&whole, 1, 0).iter().map(|(group, _)| *group).collect();
    of.sort_unstable();
    assert_eq!(of, [0, 1, 1, 2]);
    // Of ten batches of four tuples, more than one has two of a group of fifteen.
    let large = grouped(&[30, 10, 10, 10, 10, 10], 2, 8);
    assert_eq!((large.tuples, large.differ()), (40, false));
    assert!(most_alike(&large, &tuples(&large, 1, 0)) <= 3);
    // Fewer tuples than a batch has: there is only a rest.
    let few = grouped(&[4, 4, 5], 4, 16);
    assert_eq!((tuples(&few, 1, 0).len(), few.differ()), (3, true));
}

#[test]
fn positions_between_batches_are_refused() {
    let grouped = grouped(&[40, 40], 4, 8);
    let dealing =
        Dealing { seed: 1, is_shuffled: true, epochs: None, batch_size: 8, last: Last::Drop };
    let schedule = Schedule::of(Selection::Grouped(grouped), dealing, 0, 1).unwrap();
    for samples in [0, 8, 72, 80] {
        schedule.normalise(Position { epoch: 0, samples }).unwrap();
    }
    let error = schedule.normalise(Position { epoch: 2, samples: 12 }).unwrap_err();
    assert_eq!(error, OrderError::WithinGroups { samples: 12, epoch: 2, batch_size: 8 });
    let (of_rest, _) = schedule.beginning_at(Position { epoch: 0, samples: 16 }, &[]).unwrap();
    assert_eq!(of_rest.batches_left(Position { epoch: 0, samples: 16 }), 8);
}
