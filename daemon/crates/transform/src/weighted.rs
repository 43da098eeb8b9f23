//! A choice between operations by probabilities.

use forebay_keys::{ConfigError, Section};
use forebay_order::Draws;

/// A choice between at least one alternative.
#[derive(Debug)]
pub(crate) struct WeightedChoice {
    /// Upper bound of the draw for each alternative; 1 for the last.
    until: Vec<f64>,
}

impl std::fmt::Display for WeightedChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.until.iter().try_for_each(|until| write!(formatter, "{:016x} ", until.to_bits()))
    }
}

impl WeightedChoice {
    /// Between `count` entries of the section's `operations`, with its `probabilities`; without them all are equally
    /// likely.
    ///
    /// # Errors
    /// Nothing to choose from, or probabilities that do not fit.
    pub(crate) fn new(
        section: &Section,
        count: usize,
        probabilities: Option<Vec<f64>>,
    ) -> Result<Self, ConfigError> {
        if count == 0 {
            let path = section.key_path("operations");
            let message = format!("`{path}` needs at least one operation");
            return Err(section.error_at("operations", message));
        }
        let weights = probabilities.unwrap_or_else(|| vec![1.0; count]);
        let total: f64 = weights.iter().sum();
        let is_valid =
            total.is_finite() && total > 0.0 && weights.iter().all(|weight| *weight >= 0.0);
        if weights.len() != count || !is_valid {
            let path = section.key_path("probabilities");
            let message = format!(
                "`{path}` must be one number from 0 for each of the {count} operations, one of them above 0"
            );
            return Err(section.error_at("probabilities", message));
        }
        let mut sum = 0.0;
        let until = weights.iter().map(|weight| {
            sum += weight / total;
            sum
        });
        Ok(Self { until: until.collect() })
    }

    /// The number of the chosen alternative.
    pub(crate) fn draw(&self, draws: &mut Draws) -> usize {
        let draw = draws.uniform();
        // Rounding may leave the last bound just below 1.
        self.until.partition_point(|until| *until <= draw).min(self.until.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::test_images::draws;

    #[test]
    fn each_is_chosen_with_its_probability() {
        let weighted = |weights| WeightedChoice::new(&Section::default(), 3, weights).unwrap();
        for (choice, expected) in [
            (weighted(Some(vec![3.0, 0.0, 1.0])), [22_500, 0, 7_500]),
            (weighted(None), [10_000; 3]),
        ] {
            let (mut draws, mut counts) = (draws(1), [0_u32; 3]);
            for _ in 0..30_000 {
                counts[choice.draw(&mut draws)] += 1;
            }
            for (count, expected) in counts.into_iter().zip(expected) {
                assert!(count.abs_diff(expected) < 410, "{counts:?}");
            }
            assert_eq!(counts[1] == 0, expected[1] == 0);
        }
        for wrong in [vec![1.0, 1.0], vec![1.0, -1.0, 1.0], vec![0.0; 3], vec![f64::MAX; 3]] {
            WeightedChoice::new(&Section::default(), 3, Some(wrong)).unwrap_err();
        }
    }
}
