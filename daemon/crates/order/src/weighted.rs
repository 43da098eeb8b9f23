//! Draws with replacement, by weight.
//!
//! The draw at a position is a uniform number that is looked up in the weights' running sums: a pure function of (seed,
//! epoch, position). The sums are computed in the samples' order, so they are equal on every machine.

use forebay_protocol::ids::SampleId;

use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::purpose;
use super::substitute::SUBSTITUTE_DRAWS;

/// The weights of all samples and the number of draws in an epoch. Takes eight bytes per sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    draws: u64,
    /// The sum of the weights up to and including each sample.
    sums: Vec<f64>,
}

impl Weighted {
    /// Draws by these weights, which are 0 or more.
    ///
    /// # Errors
    /// A weight is negative or NaN, the sum is 0 or infinite, or there are no draws.
    pub fn new(weights: &[f64], draws: u64) -> Result<Self, OrderError> {
        let mut sum = 0.0;
        let sums: Vec<f64> = weights
            .iter()
            .map(|weight| {
                sum += if *weight >= 0.0 { *weight } else { f64::NAN };
                sum
            })
            .collect();
        if !(sum > 0.0 && sum.is_finite()) || draws == 0 {
            return Err(OrderError::NoDraws);
        }
        Ok(Self { draws, sums })
    }

    /// The positions of an epoch.
    pub const fn draws_per_epoch(&self) -> u64 {
        self.draws
    }

    /// The draw at a position. Its pass is the number of the draw, counted over all epochs: each draw is augmented
    /// separately.
    pub(super) fn draw_at(&self, seed: u64, epoch: u64, position: u64) -> Drawn {
        let key = DrawKey { seed, epoch, sample: position };
        let drawn = Draws::new(key, purpose::WEIGHTED).uniform();
        let sample = self.find(drawn * self.sum_before(self.sums.len()));
        Drawn { sample, pass: epoch.wrapping_mul(self.draws).wrapping_add(position) }
    }

    /// Replaces a bad sample by another one, by the weights of the others.
    #[expect(clippy::cast_possible_truncation, reason = "an index of the sums")]
    pub(super) fn substitute(
        &self,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        let (before, until) =
            (self.sum_before(bad.0 as usize), self.sum_before(bad.0 as usize + 1));
        let others = before + (self.sum_before(self.sums.len()) - until);
        if attempt >= SUBSTITUTE_DRAWS || others <= 0.0 {
            return None;
        }
        let key = DrawKey { seed, epoch: pass, sample: bad.0 };
        let drawn = Draws::new(key, purpose::SUBSTITUTE_FIRST + attempt).uniform() * others;
        let found = self.find(if drawn < before { drawn } else { drawn - before + until });
        // Rounding may yield the bad sample itself: then this attempt has no substitute.
        (found != bad).then_some(found)
    }

    fn sum_before(&self, sample: usize) -> f64 {
        if sample == 0 { 0.0 } else { self.sums[sample - 1] }
    }

    /// The sample whose part of the sum contains a number. A sample without weight has no part.
    fn find(&self, drawn: f64) -> SampleId {
        let place = self.sums.partition_point(|sum| *sum <= drawn);
        if place < self.sums.len() {
            return SampleId(place as u64);
        }
        // The number was rounded up to the sum: it is the last sample with a weight.
        let all = self.sum_before(self.sums.len());
        SampleId(self.sums.partition_point(|sum| *sum < all) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::tests::chi_squared_deviations_of as deviations;

    fn ids(weights: &[f64], draws: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let weighted = Weighted::new(weights, draws).unwrap();
        (0..draws).map(|position| weighted.draw_at(seed, epoch, position).sample.0).collect()
    }

    #[test]
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small")]
    fn draws_follow_the_weights_and_samples_without_weight_are_never_drawn() {
        let weights: Vec<f64> =
            (0..200).map(|id| if id % 7 == 3 { 0.0 } else { 1.0 + f64::from(id % 11) }).collect();
        let (total, draws) = (weights.iter().sum::<f64>(), 400_000);
        for (seed, epoch) in [(0, 0), (1, 0), (1, 5)] {
            let mut counts = vec![0_u64; weights.len()];
            for id in ids(&weights, draws, seed, epoch) {
                counts[id as usize] += 1;
            }
            let with_weight: Vec<(f64, f64)> = std::iter::zip(&counts, &weights)
                .filter(|(count, weight)| {
                    assert!(**weight > 0.0 || **count == 0);
                    **weight > 0.0
                })
                .map(|(count, weight)| (*count as f64, weight / total * draws as f64))
                .collect();
            let found = deviations(&with_weight);
            assert!(found.abs() < 5.0, "{found}");
        }
    }

    #[test]
    fn draws_are_a_function_of_seed_epoch_and_position() {
        let weights = [1.0, 2.0, 3.0, 4.0];
        let first = ids(&weights, 100, 3, 0);
        assert_eq!(first, ids(&weights, 100, 3, 0));
        // A position's draw depends neither on the epoch's length nor on the scale of the weights.
        assert_eq!(first[..50], ids(&weights, 50, 3, 0));
        assert_eq!(first, ids(&weights.map(|weight| weight * 1024.0), 100, 3, 0));
        assert_ne!(first, ids(&weights, 100, 4, 0));
        assert_ne!(first, ids(&weights, 100, 3, 1));
    }

    #[test]
    fn every_draw_has_a_separate_pass() {
        let weighted = Weighted::new(&[1.0, 1.0], 10).unwrap();
        let pass = |epoch, position| weighted.draw_at(0, epoch, position).pass;
        assert_eq!([pass(0, 0), pass(0, 9), pass(1, 0), pass(3, 4)], [0, 9, 10, 34]);
        let _ = pass(u64::MAX, 9);
    }

    #[test]
    fn first_and_last_draws_have_a_weight() {
        let weighted = Weighted::new(&[0.0, 0.1, 0.0, 0.7, 0.0, 0.0], 1).unwrap();
        let sum = weighted.sum_before(6);
        for (drawn, id) in [(0.0, 1), (0.1, 3), (sum.next_down(), 3), (sum, 3)] {
            assert_eq!(weighted.find(drawn), SampleId(id), "{drawn}");
        }
        for weights in [&[0.0, 0.0][..], &[], &[1.0, -1.0], &[1.0, f64::NAN], &[f64::INFINITY, 1.0]]
        {
            assert_eq!(Weighted::new(weights, 5), Err(OrderError::NoDraws), "{weights:?}");
        }
        assert_eq!(Weighted::new(&[1.0], 0), Err(OrderError::NoDraws));
    }

    #[test]
    fn substitute_is_another_sample_with_a_weight() {
        let weighted = Weighted::new(&[1.0, 0.0, 2.0, 5.0, 0.0], 100).unwrap();
        let substitutes = |bad| {
            let mut seen = [0; 5];
            for pass in 0..500 {
                let other = weighted.substitute(1, pass, SampleId(bad), 0).unwrap();
                seen[usize::try_from(other.0).unwrap()] += 1;
            }
            seen
        };
        // A third and two thirds; a sixth and five sixths; two sevenths and five.
        for (bad, [one, other], least) in [(3, [0, 2], 120), (2, [0, 3], 55), (0, [2, 3], 105)] {
            let seen = substitutes(bad);
            assert_eq!(seen[one] + seen[other], 500, "{seen:?}");
            assert!((least..least + 95).contains(&seen[one]), "{seen:?}");
        }
        assert_eq!(weighted.substitute(1, 0, SampleId(3), SUBSTITUTE_DRAWS), None);
        let alone = Weighted::new(&[0.0, 1.0], 3).unwrap();
        assert_eq!(alone.substitute(1, 0, SampleId(1), 0), None);
    }
}
