//! Counts are exact, every pass has each sample once, and nothing is lost at an epoch's end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::permutation::tests::chi_squared_deviations as deviations;

fn part(samples: u64, draws: u64) -> MixturePart {
    MixturePart { samples, draws }
}

fn mixture(parts: &[(u64, u64)]) -> Arc<Mixture> {
    let parts: Vec<_> = parts.iter().map(|(samples, draws)| part(*samples, *draws)).collect();
    Arc::new(Mixture::new(&parts).unwrap())
}

/// Each position's dataset, sample within it, and pass.
fn epoch(mixture: &Arc<Mixture>, seed: u64, epoch: u64, shuffle: bool) -> Vec<(usize, u64, u64)> {
    let order = MixedEpoch::new(Arc::clone(mixture), seed, epoch, shuffle);
    let drawn = |position| {
        let Drawn { sample, pass } = order.draw_at(position);
        let part = mixture.part_of(sample);
        (part, sample.0 - mixture.first_samples[part], pass)
    };
    (0..mixture.draws_per_epoch()).map(drawn).collect()
}

fn counts(parts: usize, drawn: &[(usize, u64, u64)]) -> Vec<u64> {
    let mut counts = vec![0; parts];
    for (part, ..) in drawn {
        counts[*part] += 1;
    }
    counts
}

fn any_parts() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let one = prop_oneof![
        4 => (1u64..300, 0u64..1500),
        1 => (1u64..4, 0u64..100),
        1 => Just((0, 0)),
    ];
    prop::collection::vec(one, 1..9)
        .prop_filter("some draws", |parts| parts.iter().any(|(_, draws)| *draws > 0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_pass_has_each_sample_once(
        parts in any_parts(),
        seed in 0u64..5,
        first in 0u64..1000,
        shuffle: bool,
    ) {
        const EPOCHS: u64 = 3;
        let mixture = mixture(&parts);
        let mut seen: Vec<BTreeMap<u64, Vec<u64>>> = vec![BTreeMap::new(); parts.len()];
        for number in first..first + EPOCHS {
            let drawn = epoch(&mixture, seed, number, shuffle);
            let expected: Vec<u64> = parts.iter().map(|(_, draws)| *draws).collect();
            prop_assert_eq!(counts(parts.len(), &drawn), expected);
            for (part, sample, pass) in drawn {
                seen[part].entry(pass).or_default().push(sample);
            }
        }
        for (passes, (samples, draws)) in seen.iter_mut().zip(&parts) {
            let (begin, end) = (first * draws, (first + EPOCHS) * draws);
            for (pass, ids) in passes {
                let count = ids.len() as u64;
                ids.sort_unstable();
                ids.dedup();
                prop_assert_eq!(ids.len() as u64, count, "a sample twice in a pass");
                // All of it, except at the start of the first epoch and the end of the last one.
                let pass_begin = (pass * samples).max(begin);
                let pass_end = ((pass + 1) * samples).min(end);
                prop_assert_eq!(count, pass_end - pass_begin);
            }
        }
    }

    /// In any part of an epoch a dataset has its share, up to the rounding of each halving and the shuffle of the
    /// blocks at both ends.
    #[test]
    fn every_block_has_the_proportions_of_the_epoch(
        parts in prop::collection::vec((50u64..300, 0u64..20_000), 1..9),
    ) {
        let total: u64 = parts.iter().map(|(_, draws)| draws).sum();
        prop_assume!(total > 0);
        let mixture = mixture(&parts);
        let drawn = epoch(&mixture, 3, 1, true);
        for block in drawn.chunks(usize::try_from(BLOCK).unwrap()) {
            for (count, (_, draws)) in counts(parts.len(), block).iter().zip(&parts) {
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let off = *count as f64 - block.len() as f64 * *draws as f64 / total as f64;
                prop_assert!(off.abs() < 4.0, "{}", off);
            }
        }
    }
}

#[test]
fn mixture_of_one_dataset_has_its_order() {
    for samples in [1, 10, 5000, TABLE_SAMPLES + 1] {
        let mixture = mixture(&[(samples, samples)]);
        for number in [0, 1, 7] {
            let permutation = Permutation::new(samples, 9, number);
            let plain: Vec<_> = (0..samples).map(|p| (0, permutation.at(p), number)).collect();
            assert_eq!(epoch(&mixture, 9, number, true), plain);
        }
        let plain: Vec<_> = (0..samples).map(|position| (0, position, 2)).collect();
        assert_eq!(epoch(&mixture, 9, 2, false), plain);
    }
}

#[test]
fn two_and_a_half_repeats_are_two_and_half_of_the_samples_a_third_time() {
    let mixture = mixture(&[(40, 100), (1000, 1000)]);
    let mut times = [[0_u64; 40]; 3];
    for number in 0..2 {
        for (part, sample, _) in epoch(&mixture, 5, number, true) {
            if part == 0 {
                times[usize::try_from(number).unwrap()][usize::try_from(sample).unwrap()] += 1;
            }
        }
    }
    for (of, expected) in [(2, 20), (3, 20)] {
        assert_eq!(times[0].iter().filter(|times| **times == of).count(), expected);
    }
    // The second epoch begins with the remaining half.
    assert!(times[0].iter().zip(&times[1]).all(|(first, second)| first + second == 5));
}

/// The samples of a dataset are in the same order as without other datasets, except for the shuffle of blocks.
#[test]
fn dataset_follows_its_own_passes() {
    let (small, large) = (mixture(&[(100, 40), (7, 3)]), mixture(&[(100, 40), (5000, 30_000)]));
    for number in 0..5 {
        let of_first = |mixture| {
            let mut drawn = epoch(mixture, 1, number, true);
            drawn.retain(|(part, ..)| *part == 0);
            drawn.sort_unstable();
            drawn
        };
        assert_eq!(of_first(&small), of_first(&large));
    }
    // Passes begin in order: several passes in one block are consecutive.
    let drawn = epoch(&mixture(&[(5_000, 20_000), (100, 10_000)]), 1, 0, true);
    let passes: Vec<_> = drawn.iter().filter(|(part, ..)| *part == 0).map(|(.., p)| *p).collect();
    let block = usize::try_from(BLOCK).unwrap();
    assert!(passes.windows(block).all(|passes| passes[0] <= passes[block - 1]));
}

#[test]
fn without_shuffle_datasets_are_consecutive() {
    let drawn = epoch(&mixture(&[(3, 4), (5, 0), (0, 0), (2, 2)]), 1, 1, false);
    assert_eq!(drawn, [(0, 1, 1), (0, 2, 1), (0, 0, 2), (0, 1, 2), (3, 0, 1), (3, 1, 1)]);
}

#[test]
fn orders_differ_between_epochs_seeds_and_datasets() {
    let mixture = mixture(&[(3000, 3000), (3000, 3000)]);
    let base = epoch(&mixture, 1, 0, true);
    assert_eq!(base, epoch(&mixture, 1, 0, true));
    let whose =
        |drawn: &[(usize, u64, u64)]| drawn.iter().map(|(part, ..)| *part).collect::<Vec<_>>();
    for other in [epoch(&mixture, 1, 1, true), epoch(&mixture, 2, 0, true)] {
        assert_ne!(base, other);
        assert_ne!(whose(&base), whose(&other));
    }
    // The samples of two datasets of one size in the same block differ.
    let block = usize::try_from(BLOCK).unwrap();
    let of = |part: usize| -> BTreeSet<u64> {
        base[..block].iter().filter(|drawn| drawn.0 == part).map(|drawn| drawn.1).collect()
    };
    let same = of(0).intersection(&of(1)).count();
    assert!(same < 200, "{same} of 512 in step");
}

/// A row of a block belongs to any dataset, as often as its share requires.
#[test]
fn rows_do_not_follow_datasets() {
    let mixture = mixture(&[(100, 32 * 1024), (100, 32 * 1024)]);
    let mut counts = vec![0; 1024];
    for number in 0..20 {
        for (position, (part, ..)) in epoch(&mixture, 4, number, true).into_iter().enumerate() {
            counts[position % 1024] += part as u64;
        }
    }
    // Exactly half of each block is drawn: the counts vary half as much as independent ones.
    let found = deviations(&counts);
    assert!(found < 5.0 && counts.iter().all(|count| *count > 200), "{found}");
    let pairs = epoch(&mixture, 4, 0, true);
    let alike = pairs.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    assert!((32_000..33_500).contains(&alike), "{alike} neighbours of one dataset");
}

#[test]
fn substitutes_come_from_the_same_dataset() {
    let mixture = mixture(&[(3, 3), (4, 9), (1, 5)]);
    let mut seen = [0; 8];
    for pass in 0..50 {
        let other = mixture.substitute(2, pass, SampleId(4), 0).unwrap();
        seen[usize::try_from(other.0).unwrap()] += 1;
    }
    assert!(seen[3] > 5 && seen[5] > 5 && seen[6] > 5, "{seen:?}");
    assert_eq!(seen[3] + seen[5] + seen[6], 50, "{seen:?}");
    assert_eq!(mixture.substitute(2, 0, SampleId(7), 0), None);
}

#[test]
fn mixtures_without_draws_are_refused() {
    assert_eq!(Mixture::new(&[]), Err(OrderError::NoDraws));
    assert_eq!(Mixture::new(&[part(5, 0)]), Err(OrderError::NoDraws));
    assert_eq!(Mixture::new(&[part(5, 5), part(0, 1)]), Err(OrderError::NoDraws));
    let huge = part(i64::MAX as u64, i64::MAX as u64);
    assert!(matches!(Mixture::new(&[huge, huge]), Err(OrderError::TooManySamples { .. })));
    let mixture = Arc::new(Mixture::new(&[huge]).unwrap());
    let order = MixedEpoch::new(mixture, 0, i64::MAX as u64, true);
    assert_eq!(order.draw_at(i64::MAX as u64 - 1).pass, i64::MAX as u64);
}
