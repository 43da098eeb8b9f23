//! Every sample in one batch, no batch above its bounds, and costs of ranks and padding on usual lengths.

use proptest::prelude::*;

use super::*;
use crate::draw::{DrawKey, Draws};

fn cut(world_size: u32, budget: u64, multiple_of: u32, max_rows: u32) -> Cut {
    Cut { from: 0, world_size, budget, multiple_of, max_rows }
}

fn all(lengths: &[u32]) -> Vec<u32> {
    (0..).take(lengths.len()).collect()
}

/// Rows, longest row and sum of lengths of each batch, by step.
pub(crate) fn batches(steps: &Steps, lengths: &[u32], cut: &Cut) -> Vec<Vec<(usize, u64, u64)>> {
    let mut begin = 0;
    let of_batch = |end: &u32| {
        let rows = &steps.rows[begin..*end as usize];
        begin = *end as usize;
        let length = |row: &u32| lengths[*row as usize];
        let longest = rows.iter().map(length).max().unwrap_or(0);
        let sum = rows.iter().map(|row| u64::from(length(row))).sum();
        (rows.len(), counted(longest, cut.multiple_of), sum)
    };
    let flat: Vec<_> = steps.ends.iter().map(of_batch).collect();
    flat.chunks(cut.world_size as usize).map(<[_]>::to_vec).collect()
}

proptest! {
    #[test]
    fn every_sample_is_in_one_batch_within_its_bounds(
        lengths in prop::collection::vec(prop_oneof![0u32..20, 0u32..300, 250u32..260], 1..400),
        world_size in 1u32..9,
        budget in 1u64..2000,
        multiple_of in 1u32..20,
        max_rows in 1u32..40,
    ) {
        let cut = cut(world_size, budget, multiple_of, max_rows);
        let steps = cut_into_steps(&all(&lengths), &lengths, &cut);
        let mut seen = [steps.rows.clone(), steps.rest.clone()].concat();
        seen.sort_unstable();
        prop_assert_eq!(seen, all(&lengths));
        prop_assert!(steps.rest.len() < world_size as usize);
        prop_assert_eq!(steps.ends.len() % world_size as usize, 0);
        prop_assert!(steps.ends.is_sorted_by(|one, next| one < next), "empty batches");
        for (rows, longest, _) in batches(&steps, &lengths, &cut).concat() {
            prop_assert!(rows <= max_rows as usize);
            prop_assert!(rows == 1 || rows as u64 * longest <= budget, "{rows} of {longest}");
        }
    }

    #[test]
    fn samples_are_left_over_only_if_batches_have_one_row(
        lengths in prop::collection::vec(1u32..50, 8..200),
        world_size in 1u32..9,
    ) {
        // Each batch may have two rows of any length.
        let steps = cut_into_steps(&all(&lengths), &lengths, &cut(world_size, 100, 1, 64));
        prop_assert!(steps.rest.is_empty(), "{:?}", steps.rest);
    }
}

#[test]
fn samples_of_one_length_are_dealt_as_batches_of_one_size() {
    let lengths = [10; 64];
    let cut = cut(4, 40, 1, 64);
    let steps = cut_into_steps(&all(&lengths), &lengths, &cut);
    assert_eq!(steps.rows, all(&lengths), "in the order of the pool");
    assert!(batches(&steps, &lengths, &cut).concat().iter().all(|(rows, ..)| *rows == 4));
}

#[test]
fn long_rows_and_short_ones_share_a_step_rather_than_being_left_over() {
    // The first two are batches of their own; with batches of one row each the others would be left over.
    let lengths = [90, 80, 10, 10, 10];
    let cut = cut(3, 100, 1, 64);
    let steps = cut_into_steps(&all(&lengths), &lengths, &cut);
    let rows: Vec<_> = batches(&steps, &lengths, &cut).concat().iter().map(|one| one.0).collect();
    assert_eq!((rows, steps.rest.len()), (vec![1, 1, 3], 0));
}

#[test]
fn fewer_samples_than_ranks_are_the_rest() {
    let steps = cut_into_steps(&[0, 1], &[5, 9], &cut(3, 100, 1, 8));
    assert_eq!(steps, Steps { rest: vec![1, 0], rest_ends: vec![2], ..Steps::default() });
}

/// Log-normal lengths with a median of 400 and a shape of 0.8, at most the budget.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn usual_lengths(count: u64) -> Vec<u32> {
    let length = |sample| {
        let mut draws = Draws::new(DrawKey { seed: 1, epoch: 0, sample }, 0);
        let sum: f64 = (0..12).map(|_| draws.uniform()).sum();
        ((sum - 6.0) * 0.8 + 400f64.ln()).exp().clamp(1.0, 16_384.0) as u32
    };
    (0..count).map(length).collect()
}

#[test]
fn ranks_cost_the_same_and_little_is_padding() {
    let lengths = usual_lengths(16_384);
    for world_size in [1, 2, 8, 16] {
        let cut = cut(world_size, 16_384, 1, 4096);
        let steps = cut_into_steps(&all(&lengths), &lengths, &cut);
        let batches = batches(&steps, &lengths, &cut);
        let cost = |(rows, longest, _): &(usize, u64, u64)| *rows as u64 * longest;
        let padded: u64 = batches.iter().flatten().map(cost).sum();
        let full: u64 = batches.iter().flatten().map(|one| one.2).sum();
        let padding = 1.0 - full as f64 / padded as f64;
        let mut spreads: Vec<f64> = batches
            .iter()
            .map(|step| {
                let costs = || step.iter().map(cost);
                costs().max().unwrap() as f64 / costs().min().unwrap() as f64
            })
            .collect();
        spreads.sort_by(f64::total_cmp);
        let median = spreads[spreads.len() / 2];
        assert!(padding <= 0.03, "{padding} of {world_size} ranks");
        assert!(median <= 1.03, "{median} of {world_size} ranks");
    }
}
