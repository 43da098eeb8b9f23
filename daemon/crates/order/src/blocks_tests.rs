//! Every sample once, from a few blocks at a time, mixed within these, for any world size and start.

use std::collections::BTreeSet;

use forebay_protocol::ids::{Position, SampleId};
use proptest::prelude::*;

use super::*;
use crate::permutation::tests::chi_squared_deviations as deviations;
use crate::{Dealing, Last, Schedule, Selection};

/// Blocks of these lengths.
fn blocks(lengths: &[u64], open: u64) -> Arc<Blocks> {
    let mut samples = 0;
    let firsts = lengths.iter().map(|length| {
        samples += length;
        samples - length
    });
    let firsts = firsts.collect();
    Arc::new(Blocks::new(firsts, samples, open).unwrap())
}

fn samples(blocks: &Arc<Blocks>, seed: u64, epoch: u64) -> Vec<u64> {
    let order = BlockEpoch::new(Arc::clone(blocks), seed, epoch);
    (0..blocks.samples()).map(|position| order.at(position)).collect()
}

/// The block of a sample.
fn block_of(blocks: &Blocks, sample: u64) -> usize {
    blocks.firsts.partition_point(|first| *first <= sample) - 1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn epoch_has_every_sample_once_and_a_group_all_samples_of_its_blocks(
        lengths in prop::collection::vec(prop_oneof![3 => 1u64..40, 1 => Just(1), 1 => 500u64..600], 1..60),
        open in 1u64..12,
        seed in 0u64..4,
        epoch in 0u64..1000,
    ) {
        let blocks = blocks(&lengths, open);
        let order = BlockEpoch::new(Arc::clone(&blocks), seed, epoch);
        let mut begins = 0;
        let mut seen = BTreeSet::new();
        while begins < blocks.samples() {
            let group = order.group_of(begins);
            let in_group = |position: &u64| order.group_of(*position) == group;
            let ends = (begins..blocks.samples()).take_while(in_group).count() as u64 + begins;
            let found: Vec<u64> = (begins..ends).map(|position| order.at(position)).collect();
            let of: BTreeSet<usize> = found.iter().map(|one| block_of(&blocks, *one)).collect();
            let is_last = ends == blocks.samples();
            prop_assert!(of.len() == blocks.open() || is_last && of.len() <= blocks.open());
            let whole: u64 = of.iter().map(|block| lengths[*block]).sum();
            prop_assert_eq!(whole, ends - begins, "all of the blocks' samples are in the group");
            prop_assert!(found.iter().all(|sample| seen.insert(*sample)));
            begins = ends;
        }
        prop_assert_eq!(seen.len() as u64, blocks.samples());
        prop_assert!(seen.iter().copied().eq(0..blocks.samples()));
    }

    #[test]
    fn draws_are_independent_of_world_size_and_start(
        lengths in prop::collection::vec(1u64..30, 1..30),
        open in 1u64..6,
        batch_size in 1u32..9,
        after in 0u64..200,
    ) {
        let blocks = blocks(&lengths, open);
        let whole = samples(&blocks, 7, 2);
        let after = after.min(blocks.samples() - 1);
        for world_size in [1, 2, 3, 8] {
            for from in [0, after] {
                let found = world(&blocks, batch_size, world_size, Position { epoch: 2, samples: from });
                let expected = whole[usize::try_from(from).unwrap()..].to_vec();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

/// The draws of a world from a position to the epoch's end, in the order of its batches.
fn world(blocks: &Arc<Blocks>, batch_size: u32, world_size: u32, from: Position) -> Vec<u64> {
    let dealing = Dealing { seed: 7, is_shuffled: true, epochs: None, batch_size, last: Last::Pad };

    let (mut found, mut position) = (Vec::new(), from);
    while position.epoch == from.epoch {
        let mut next = position;
        for rank in 0..world_size {
            let selection = Selection::InBlocks(Arc::clone(blocks));
            let schedule = Schedule::of(selection, dealing, rank, world_size).unwrap();
            let planned = schedule.batch_at(position).unwrap();
            let order = schedule.epoch(planned.epoch);
            for row in planned.rows.iter(&order).filter(|row| row.valid) {
                assert!(order.group_at(row.position).is_some() && row.pass == from.epoch);
                found.push(row.sample.0);
            }
            next = planned.position_after;
        }
        position = next;
    }
    found
}

#[test]
fn epochs_and_seeds_differ_in_blocks_and_mixing() {
    let blocks = blocks(&[10; 40], 8);
    let first = samples(&blocks, 3, 0);
    assert_eq!(first, samples(&blocks, 3, 0));
    for other in [samples(&blocks, 3, 1), samples(&blocks, 4, 0)] {
        let opened = |found: &[u64]| -> BTreeSet<usize> {
            found[..80].iter().map(|sample| block_of(&blocks, *sample)).collect()
        };
        assert_ne!(opened(&first), opened(&other));
    }
    // Most neighbouring samples of a block are separated, and groups of the same size are permuted differently.
    let runs = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(runs < 20, "{runs} of 400");
    let places = |group: usize| -> Vec<u64> {
        first[80 * group..80 * (group + 1)].iter().map(|sample| sample % 10).collect()
    };
    assert_ne!(places(0), places(1));
}

/// Each sample of a group is at each of its positions equally often, over many epochs.
#[test]
fn group_is_permuted_without_bias() {
    const EPOCHS: u64 = 20_000;
    let blocks = blocks(&[1, 2, 3], 3);
    let mut counts = [[0_u64; 6]; 6];
    for epoch in 0..EPOCHS {
        for (place, sample) in samples(&blocks, 1, epoch).into_iter().enumerate() {
            counts[place][usize::try_from(sample).unwrap()] += 1;
        }
    }
    for of_place in counts {
        let found = deviations(&of_place);
        assert!(found < 5.0, "{found}: {of_place:?}");
    }
}

#[test]
fn group_has_all_blocks_or_a_single_one_by_the_number_of_open_blocks() {
    let lengths = [5, 9, 2, 7];
    let all = blocks(&lengths, 1000);
    let order = BlockEpoch::new(Arc::clone(&all), 0, 0);
    assert!((0..23).all(|position| order.group_of(position) == 0));
    assert_eq!(all.open(), 4);
    let single = blocks(&lengths, 1);
    let found = samples(&single, 0, 0);
    let of: Vec<usize> = found.iter().map(|sample| block_of(&single, *sample)).collect();
    assert_eq!(of.chunk_by(|one, other| one == other).count(), 4);
}

#[test]
fn invalid_blocks_are_refused() {
    let refused = |firsts: &[u64], samples, open| Blocks::new(firsts.to_vec(), samples, open);
    for (firsts, samples, open) in [
        (&[][..], 5, 1),
        (&[1], 5, 1),
        (&[0, 3, 3], 5, 1),
        (&[0, 5], 5, 1),
        (&[0, 4, 2], 5, 1),
        (&[0], 5, 0),
    ] {
        assert_eq!(refused(firsts, samples, open), Err(OrderError::NoBlocks), "{firsts:?}");
    }
    assert_eq!(refused(&[0], 0, 1), Err(OrderError::NoSamples));
    let samples = 1 << 63;
    assert_eq!(refused(&[0], samples, 1), Err(OrderError::TooManySamples { samples }));
}

#[test]
fn substitute_is_any_other_sample() {
    let selection = Selection::InBlocks(blocks(&[10, 20], 1));
    let seen: BTreeSet<u64> = (0..500)
        .map(|pass| selection.substitute(None, 1, pass, SampleId(3), 0).unwrap().0)
        .collect();
    assert_eq!(seen.len(), 29);
}
