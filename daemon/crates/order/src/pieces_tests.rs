//! Counts of each piece are exact, every dataset continues across changes, and epochs before a change do not depend on
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::error::OrderError;
use crate::mixture::{MixedEpoch, Mixture, MixturePart};

/// The weights of datasets by the positions from which they apply.
type Changes = Vec<(u64, Vec<f64>)>;

fn changing(samples: &[u64], epoch: u64, changes: &Changes) -> Result<Arc<Mixture>, OrderError> {
    let change =
        |(from, weights): &(u64, Vec<f64>)| WeightChange { from: *from, weights: weights.clone() };
    let changes: Vec<_> = changes.iter().map(change).collect();
    Mixture::with_changes(samples, epoch, &changes).map(Arc::new)
}

/// Each position's dataset, sample within it, and pass, over this number of epochs.
fn drawn(
    mixture: &Arc<Mixture>,
    samples: &[u64],
    epochs: u64,
    shuffle: bool,
) -> Vec<(usize, u64, u64)> {
    let firsts: Vec<u64> = (0..samples.len()).map(|part| samples[..part].iter().sum()).collect();
    let of_epoch = |epoch| {
        let order = MixedEpoch::new(Arc::clone(mixture), 5, epoch, shuffle);
        (0..mixture.draws_per_epoch()).map(move |position| order.draw_at(position))
    };
    let named = |drawn: crate::Drawn| {
        let part = mixture.part_of(drawn.sample);
        (part, drawn.sample.0 - firsts[part], drawn.pass)
    };
    (0..epochs).flat_map(of_epoch).map(named).collect()
}

fn counts(parts: usize, drawn: &[(usize, u64, u64)]) -> Vec<u64> {
    let mut counts = vec![0; parts];
    for (part, ..) in drawn {
        counts[*part] += 1;
    }
    counts
}

/// Samples of two to five datasets, the draws of an epoch, and changes of their weights.
fn any_changes() -> impl Strategy<Value = (Vec<u64>, u64, Changes)> {
    (2usize..6, 1u64..3000).prop_flat_map(|(parts, epoch)| {
        let samples = prop::collection::vec(1u64..400, parts);
        let weights = prop::collection::vec((0u32..9).prop_map(f64::from), parts)
            .prop_filter("one above 0", |weights| weights.iter().any(|weight| *weight > 0.0));
        let from = prop_oneof![1..=4 * epoch, (1u64..4).prop_map(move |number| number * epoch)];
        let later = prop::collection::btree_map(from, weights.clone(), 0..6);
        let all = (weights, later).prop_map(|(first, later)| {
            std::iter::once((0, first)).chain(later).collect::<Changes>()
        });
        (samples, Just(epoch), all)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_piece_has_exact_counts_and_every_pass_each_sample_once(
        (samples, epoch, changes) in any_changes(),
        shuffle: bool,
    ) {
        const EPOCHS: u64 = 5;
        let mixture = changing(&samples, epoch, &changes).unwrap();
        let all = drawn(&mixture, &samples, EPOCHS, shuffle);
        // Divided at epoch borders, and at changes of weights.
        let mut cuts: Vec<u64> = (0..=EPOCHS).map(|number| number * epoch).collect();
        cuts.extend(changes.iter().map(|(from, _)| *from));
        cuts.sort_unstable();
        cuts.dedup();
        for piece in cuts.windows(2) {
            let (_, weights) = changes.iter().rfind(|(from, _)| *from <= piece[0]).unwrap();
            let expected = draws_of_weights(piece[1] - piece[0], weights).unwrap();
            let [from, until] = [piece[0], piece[1]].map(|place| usize::try_from(place).unwrap());
            prop_assert_eq!(counts(samples.len(), &all[from..until]), expected);
        }
        let mut passes: BTreeMap<(usize, u64), Vec<u64>> = BTreeMap::new();
        for (part, sample, pass) in &all {
            passes.entry((*part, *pass)).or_default().push(*sample);
        }
        let totals = counts(samples.len(), &all);
        for ((part, pass), ids) in &mut passes {
            let count = ids.len() as u64;
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len() as u64, count, "a sample twice in a pass");
            let left = totals[*part] - pass * samples[*part];
            prop_assert_eq!(count, left.min(samples[*part]));
        }
    }
}

#[test]
fn single_list_of_weights_keeps_its_order() {
    let (samples, weights) = ([900, 70, 3000], vec![0.5, 3.0, 1.0]);
    let draws = draws_of_weights(5000, &weights).unwrap();
    let parts =
        std::iter::zip(samples, draws).map(|(samples, draws)| MixturePart { samples, draws });
    let plain = Mixture::new(&parts.collect::<Vec<_>>()).unwrap();
    assert_eq!(*changing(&samples, 5000, &vec![(0, weights)]).unwrap(), plain);
}

#[test]
fn epochs_before_a_change_do_not_depend_on_it() {
    let samples = [900, 70, 300];
    let plain: Changes = vec![(0, vec![3.0, 1.0, 1.0]), (700, vec![1.0, 1.0, 1.0])];
    let mut more = plain.clone();
    more.push((4000, vec![0.0, 1.0, 2.0]));
    let of = |changes| drawn(&changing(&samples, 2000, changes).unwrap(), &samples, 4, true);
    let (plain, more) = (of(&plain), of(&more));
    assert_eq!(plain[..4000], more[..4000]);
    assert!(plain[4000..].iter().any(|drawn| drawn.0 == 0));
    assert!(more[4000..].iter().all(|drawn| drawn.0 != 0));
}

/// Blocks on either side of a change are shuffled separately, even if both begin at the same number.
#[test]
fn rows_of_a_later_piece_do_not_repeat_the_first_piece() {
    let changes = vec![(0, vec![1.0, 1.0]), (1024, vec![2.0, 2.0])];
    let mixture = changing(&[50, 50], 2048, &changes).unwrap();
    let drawn = drawn(&mixture, &[50, 50], 1, true);
    let whose = |drawn: &[(usize, u64, u64)]| drawn.iter().map(|drawn| drawn.0).collect::<Vec<_>>();
    let (first, later) = (whose(&drawn[..1024]), whose(&drawn[1024..]));
    let alike = std::iter::zip(first, later).filter(|(first, later)| first == later).count();
    assert!((400..624).contains(&alike), "{alike} of 1024");
}

#[test]
fn invalid_changes_are_refused() {
    let weights = || vec![1.0, 1.0];
    for changes in [
        vec![],
        vec![(1, weights())],
        vec![(0, weights()), (0, weights())],
        vec![(0, weights()), (9, weights()), (5, weights())],
        vec![(0, weights()), (9, vec![0.0, 0.0])],
        vec![(0, weights()), (9, vec![1.0])],
    ] {
        assert_eq!(changing(&[5, 5], 100, &changes), Err(OrderError::NoDraws), "{changes:?}");
    }
    // No piece may draw from a dataset without samples.
    let changes = vec![(0, vec![1.0, 0.0]), (150, vec![1.0, 1.0])];
    assert_eq!(changing(&[5, 0], 100, &changes), Err(OrderError::NoDraws));
    assert!(changing(&[5, 0], 100, &vec![(0, vec![1.0, 0.0])]).is_ok());
    // The last possible position does not overflow, either.
    let huge = i64::MAX as u64;
    let changes = vec![(0, weights()), (huge - 1, weights()), (huge, weights())];
    for epoch in [1, 3, huge] {
        let mixture = changing(&[5, 5], epoch, &changes).unwrap();
        let order = MixedEpoch::new(mixture, 0, huge, true);
        let _ = order.draw_at(epoch - 1);
    }
}
