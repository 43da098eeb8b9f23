//! The permutation is a bijection and, as far as chi-squared tests show, a uniform one.
//!
//! All seeds are fixed, so each statistic is a constant. A test fails if its statistic deviates by more than five
//! standard deviations: a structural fault (too few rounds, a constant round key) deviates by hundreds.

use super::*;

fn feistel(samples: u64, seed: u64, epoch: u64) -> Permutation {
    let key = DrawKey { seed, epoch, sample: samples };
    Permutation::Feistel(Feistel::new(samples, Draws::new(key, purpose::PERMUTATION)))
}

fn assert_bijective(permutation: &Permutation, samples: u64) {
    let mut seen = vec![false; usize::try_from(samples).unwrap()];
    for position in 0..samples {
        let value = permutation.at(position);
        assert!(value < samples, "{value} of {samples}");
        let seen = &mut seen[usize::try_from(value).unwrap()];
        assert!(!*seen, "{value} occurs twice of {samples}");
        *seen = true;
    }
}

/// By how many standard deviations Pearson's statistic of `counts` exceeds its mean under uniformity.
#[expect(clippy::cast_precision_loss, reason = "a statistic")]
pub(crate) fn chi_squared_deviations(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let pairs: Vec<_> = counts.iter().map(|count| (*count as f64, expected)).collect();
    chi_squared_deviations_of(&pairs)
}

/// As [`chi_squared_deviations`], for counts with their expected values.
#[expect(clippy::cast_precision_loss, reason = "a statistic")]
pub(crate) fn chi_squared_deviations_of(counts: &[(f64, f64)]) -> f64 {
    let statistic: f64 =
        counts.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    let freedom = (counts.len() - 1) as f64;
    (statistic - freedom) / (2.0 * freedom).sqrt()
}

/// Counts values of 0..samples in equal cells.
struct Cells {
    counts: Vec<u64>,
    samples: u64,
}

impl Cells {
    fn new(cells: usize, samples: u64) -> Self {
        Self { counts: vec![0; cells], samples }
    }

    fn add(&mut self, value: u64) {
        let cell = u128::from(value) * self.counts.len() as u128 / u128::from(self.samples);
        self.counts[usize::try_from(cell).unwrap()] += 1;
    }

    fn assert_uniform(&self, what: &str) {
        let deviations = chi_squared_deviations(&self.counts);
        assert!(deviations < 5.0, "{what} of {}: {deviations:.1} deviations", self.samples);
    }
}

#[test]
fn small_counts_are_permuted_exhaustively() {
    for samples in 0..=300 {
        for epoch in 0..3 {
            assert_bijective(&Permutation::new(samples, 7, epoch), samples);
            assert_bijective(&feistel(samples, 7, epoch), samples);
        }
    }
}

#[test]
fn counts_around_powers_of_two_are_permuted() {
    for power in [256u64, 4096, 16_384, 65_536, 131_072, 262_144] {
        for samples in [power - 1, power, power + 1] {
            assert_bijective(&Permutation::new(samples, 1, 2), samples);
            assert_bijective(&feistel(samples, 1, 2), samples);
        }
    }
}

#[test]
fn the_largest_counts_stay_in_range() {
    for samples in [1 << 32, (1 << 32) + 1, (1 << 62) + 1, u64::MAX] {
        let permutation = Permutation::new(samples, 3, 4);
        for position in [0, 1, samples / 2, samples - 1] {
            assert!(permutation.at(position) < samples);
        }
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_samples() {
    let Permutation::Feistel(large) = Permutation::new(1_000_000_000, 0, 0) else {
        panic!("a table of a billion samples");
    };
    assert_eq!(large.half_bits, 15);
    assert!(std::mem::size_of::<Permutation>() <= 128);
    assert!(large.at(0) < 1_000_000_000);
}

/// Every position of a few thousand epochs gets every region of the dataset equally often.
#[test]
fn position_gets_every_id_equally_often() {
    type Make = fn(u64, u64, u64) -> Permutation;
    let cases: [(&str, u64, u64, Make); 3] = [
        ("table", 50, 5_000, Permutation::new),
        ("small network", 50, 5_000, feistel),
        ("network", 70_000, 20_000, Permutation::new),
    ];
    for (name, samples, epochs, make) in cases {
        let positions = [0, 1, samples / 2, samples - 1];
        let mut cells = positions.map(|_| Cells::new(50, samples));
        for epoch in 0..epochs {
            let permutation = make(samples, 11, epoch);
            for (cells, position) in cells.iter_mut().zip(positions) {
                cells.add(permutation.at(position));
            }
        }
        for cells in &cells {
            cells.assert_uniform(name);
        }
    }
}

/// The steps from one position to the next, two and 512 further are uniform within an epoch.
#[test]
fn neighbours_are_independent() {
    for samples in [65_536, 65_537, 100_003] {
        let permutation = Permutation::new(samples, 5, 0);
        for distance in [1, 2, 512] {
            let mut cells = Cells::new(256, samples);
            for position in 0..samples - distance {
                let (here, there) = (permutation.at(position), permutation.at(position + distance));
                cells.add((there + samples - here) % samples);
            }
            cells.assert_uniform("steps to a neighbour");
        }
    }
}

/// Pairs of (region of the position, region of the id) are uniform within an epoch.
#[test]
fn ids_do_not_follow_positions() {
    for samples in [60_000u64, 80_000] {
        let permutation = Permutation::new(samples, 9, 1);
        let mut cells = Cells::new(16 * 16, 16 * 16);
        for position in 0..samples {
            cells.add(position * 16 / samples * 16 + permutation.at(position) * 16 / samples);
        }
        cells.assert_uniform("position and id");
    }
}

/// The same position's ids in successive epochs, and under successive seeds, differ by uniform steps.
#[test]
fn epochs_and_seeds_are_independent() {
    for samples in [40_000, 80_000] {
        let base = Permutation::new(samples, 21, 0);
        for (name, other) in [
            ("next epoch", Permutation::new(samples, 21, 1)),
            ("epoch 1024", Permutation::new(samples, 21, 1024)),
            ("next seed", Permutation::new(samples, 22, 0)),
            ("last seed", Permutation::new(samples, u64::MAX, 0)),
        ] {
            let mut cells = Cells::new(256, samples);
            for position in 0..samples {
                let step = (other.at(position) + samples - base.at(position)) % samples;
                cells.add(step);
            }
            cells.assert_uniform(name);
        }
    }
}

/// A uniform permutation has one fixed point on average, regardless of its size.
#[test]
fn fixed_points_are_as_frequent_as_expected() {
    for samples in [1_000, 70_000] {
        let epochs = if samples > TABLE_SAMPLES { 20 } else { 500 };
        let fixed_points: usize = (0..epochs)
            .map(|epoch| {
                let permutation = Permutation::new(samples, 2, epoch);
                (0..samples).filter(|p| permutation.at(*p) == *p).count()
            })
            .sum();
        let expected = usize::try_from(epochs).unwrap();
        // Poisson: the deviation is the square root of the mean.
        let allowed = 5 * expected.isqrt();
        assert!(
            fixed_points.abs_diff(expected) <= allowed,
            "{fixed_points} fixed points in {epochs} epochs of {samples}"
        );
    }
}
