//! Distributions of draws other than integers and numbers from 0 to 1.
//!
//! Logarithms and the like are libm's, not the system's: machines must agree to the last bit.

use forebay_order::Draws;

/// Uniform between two numbers.
pub(crate) fn between(draws: &mut Draws, (low, high): (f64, f64)) -> f64 {
    low + (high - low) * draws.uniform()
}

/// Whether an event of this probability occurs.
pub(crate) fn happens(draws: &mut Draws, probability: f64) -> bool {
    draws.uniform() < probability
}

/// A uniform index below `count`, which is at least 1.
pub(crate) fn place(draws: &mut Draws, count: usize) -> usize {
    usize::try_from(draws.below(count.max(1) as u64)).unwrap_or(0)
}

/// A uniform random permutation.
pub(crate) fn shuffle<T>(draws: &mut Draws, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, place(draws, last + 1));
    }
}

/// A standard normal number (Box and Muller, 1958).
pub(crate) fn normal(draws: &mut Draws) -> f64 {
    // 1 − u is never 0.
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - draws.uniform()));
    radius * libm::cos(std::f64::consts::TAU * draws.uniform())
}

/// The logarithm of a gamma-distributed number with this shape (above 0) and scale 1.
///
/// Marsaglia and Tsang's method (2000). With a small shape the numbers are too small for a double, their logarithms are
/// not.
fn log_gamma(draws: &mut Draws, shape: f64) -> f64 {
    let boost = if shape < 1.0 { libm::log(1.0 - draws.uniform()) / shape } else { 0.0 };
    let shape = if shape < 1.0 { shape + 1.0 } else { shape };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = normal(draws);
        let root = 1.0 + c * x;
        let u = 1.0 - draws.uniform();
        if root <= 0.0 {
            continue;
        }
        let v = root * root * root;
        if libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return libm::log(d * v) + boost;
        }
    }
}

/// Shares that add up to 1, Dirichlet-distributed with the same parameter (above 0) for each.
pub(crate) fn dirichlet<const N: usize>(draws: &mut Draws, alpha: f64) -> [f64; N] {
    let mut shares = [0.0; N];
    fill_dirichlet(draws, alpha, &mut shares);
    shares
}

/// As [`dirichlet`].
pub(crate) fn fill_dirichlet(draws: &mut Draws, alpha: f64, shares: &mut [f64]) {
    shares.iter_mut().for_each(|share| *share = log_gamma(draws, alpha));
    let greatest = shares.iter().copied().fold(f64::MIN, f64::max);
    let mut sum = 0.0;
    for share in &mut *shares {
        *share = libm::exp(*share - greatest);
        sum += *share;
    }
    shares.iter_mut().for_each(|share| *share /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::test_images::draws;

    fn mean_and_variance(values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for value in values {
            (count, sum, squares) = (count + 1.0, sum + value, squares + value * value);
        }
        (sum / count, squares / count - (sum / count).powi(2))
    }

    #[test]
    fn normals_have_their_moments_and_tails() {
        let mut draws = draws(1);
        let values: Vec<f64> = (0..100_000).map(|_| normal(&mut draws)).collect();
        let (mean, variance) = mean_and_variance(values.iter().copied());
        assert!(mean.abs() < 0.016 && (variance - 1.0).abs() < 0.023, "{mean} {variance}");
        let beyond_two = values.iter().filter(|value| value.abs() > 2.0).count();
        assert!((4220..=4880).contains(&beyond_two), "{beyond_two} of about 4550");
    }

    /// Beta(a, a): the first of two shares. Mean 1/2, variance 1 / (4 (2a + 1)).
    #[test]
    fn shares_of_two_are_beta_distributed_for_small_and_large_parameters() {
        for alpha in [0.01, 0.2, 0.8, 1.0, 3.5, 40.0] {
            let mut draws = draws(2);
            let shares = (0..50_000).map(|_| dirichlet::<2>(&mut draws, alpha)[0]);
            let shares: Vec<f64> = shares.collect();
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{alpha}");
            let (mean, variance) = mean_and_variance(shares.iter().copied());
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            let deviation = f64::sqrt(expected / 50_000.0);
            assert!((mean - 0.5).abs() < 5.0 * deviation, "{alpha}: {mean}");
            assert!((variance - expected).abs() < 0.03 * expected, "{alpha}: {variance}");
        }
        // Beta(1, 1) is uniform, and Beta(2, 2) has the probability 5/32 below a quarter.
        let below = |alpha| {
            let mut draws = draws(3);
            (0..50_000).filter(|_| dirichlet::<2>(&mut draws, alpha)[0] < 0.25).count()
        };
        assert!(below(1.0).abs_diff(12_500) < 490, "{}", below(1.0));
        assert!(below(2.0).abs_diff(7_812) < 410, "{}", below(2.0));
    }

    #[test]
    fn three_shares_add_up_and_are_identically_distributed() {
        let mut draws = draws(4);
        let mut sums = [0.0; 3];
        for _ in 0..30_000 {
            let shares = dirichlet::<3>(&mut draws, 1.0);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            sums = [0, 1, 2].map(|place| sums[place] + shares[place]);
        }
        assert!(sums.iter().all(|sum| (sum / 30_000.0 - 1.0 / 3.0).abs() < 0.007), "{sums:?}");
    }
}
