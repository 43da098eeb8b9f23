//! The number of draws of each dataset in an epoch.

/// The draws of a dataset whose samples are each repeated `repeat` times in an epoch: rounded, half a draw upwards.
/// `None`: too many to count, or `repeat` is negative or NaN.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to lie between 0 and 2^63; repeats are not finer than a double"
)]
pub fn draws_of_repeat(samples: u64, repeat: f64) -> Option<u64> {
    let draws = (samples as f64 * repeat).round();
    (0.0..i64::MAX as f64).contains(&draws).then_some(draws as u64)
}

/// Divides `draws` by weights: exact quotas rounded down, and the remaining draws to the largest remainders, to the
/// first of equal ones. `None`: a weight is negative or NaN, or none is above 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "scaled to at most 2^53"
)]
pub fn draws_of_weights(draws: u64, weights: &[f64]) -> Option<Vec<u64>> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) || largest <= 0.0 {
        return None;
    }
    // Integers in the same proportions: scaling by a power of two changes only weights far smaller than the largest.
    let scale = 52 - exponent(largest);
    let scaled: Vec<u128> =
        weights.iter().map(|weight| times_power_of_two(*weight, scale) as u64 as u128).collect();
    let all: u128 = scaled.iter().sum();
    let quota =
        |weight: &u128| (u128::from(draws) * weight / all, u128::from(draws) * weight % all);
    let mut counts: Vec<u64> = scaled.iter().map(|weight| quota(weight).0 as u64).collect();
    let mut places: Vec<usize> = (0..counts.len()).collect();
    places.sort_by_key(|place| std::cmp::Reverse(quota(&scaled[*place]).1));
    let missing = draws - counts.iter().sum::<u64>();
    for place in places.into_iter().take(missing as usize) {
        counts[place] += 1;
    }
    Some(counts)
}

/// The *e* of a finite number above 0 that is between 2^e and 2^(e + 1).
fn exponent(value: f64) -> i32 {
    let bits = (value.to_bits() >> 52) as i32 & 0x7ff;
    // A subnormal number has the exponent of the smallest normal one, so its scaled value is smaller than the others'.
    bits.max(1) - 1023
}

/// Exact unless the result is subnormal or too large.
fn times_power_of_two(mut value: f64, mut power: i32) -> f64 {
    #[expect(clippy::cast_sign_loss, reason = "1 to 2046")]
    let two_to = |power: i32| f64::from_bits(((power + 1023) as u64) << 52);
    while power != 0 {
        let step = power.clamp(-1000, 1000);
        value *= two_to(step);
        power -= step;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_round_to_whole_draws() {
        for (samples, repeat, draws) in [
            (10, 1.0, 10),
            (10, 2.5, 25),
            (5, 2.5, 13),
            (3, 0.1, 0),
            (5, 0.1, 1),
            (7, 0.0, 0),
            (1_281_167, 0.1, 128_117),
            (1 << 40, 3.0, 3 << 40),
        ] {
            assert_eq!(draws_of_repeat(samples, repeat), Some(draws), "{samples} × {repeat}");
        }
        for (samples, repeat) in [(10, -0.1), (10, f64::NAN), (10, f64::INFINITY), (1 << 62, 2.0)] {
            assert_eq!(draws_of_repeat(samples, repeat), None, "{samples} × {repeat}");
        }
    }

    #[test]
    fn weights_divide_exactly() {
        for (draws, weights, counts) in [
            (10, &[0.7, 0.3][..], &[7, 3][..]),
            (1000, &[0.7, 0.2, 0.1], &[700, 200, 100]),
            (10, &[1.0, 1.0, 1.0], &[4, 3, 3]),
            (2, &[1.0, 3.0], &[1, 1]),
            (1, &[1.0, 3.0], &[0, 1]),
            (0, &[1.0, 2.0], &[0, 0]),
            (7, &[0.0, 2.0, 0.0], &[0, 7, 0]),
            (5, &[3e300, 1e300, 1e-300], &[4, 1, 0]),
            (8, &[3e-320, 1e-320], &[6, 2]),
            (i64::MAX as u64, &[1.0, 1.0], &[(1 << 62), (1 << 62) - 1]),
        ] {
            assert_eq!(draws_of_weights(draws, weights).as_deref(), Some(counts), "{weights:?}");
        }
        for weights in [&[][..], &[0.0], &[1.0, -1.0], &[f64::NAN], &[f64::INFINITY, 1.0]] {
            assert_eq!(draws_of_weights(10, weights), None, "{weights:?}");
        }
    }

    #[test]
    fn counts_differ_from_quotas_by_less_than_one() {
        let weights: Vec<f64> = (1..40).map(|n| 1.0 / f64::from(n)).collect();
        let all: f64 = weights.iter().sum();
        for draws in [1, 17, 1000, 123_457] {
            let counts = draws_of_weights(draws, &weights).unwrap();
            assert_eq!(counts.iter().sum::<u64>(), draws);
            for (count, weight) in counts.iter().zip(&weights) {
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let off = *count as f64 - draws as f64 * weight / all;
                assert!(off.abs() < 1.0, "{off}");
            }
        }
    }
}
