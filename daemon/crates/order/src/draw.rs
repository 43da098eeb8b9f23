//! Random draws that depend on their key only, never on time or place.

use forebay_protocol::ids::SampleId;

/// The key of a draw. The same key gives the same draws on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawKey {
    /// The stream's seed.
    pub seed: u64,
    /// The epoch, counted from 0; or the sample's pass ([`PlannedRow::pass`](crate::PlannedRow::pass)), if a sample may
    /// occur more than once per epoch.
    pub epoch: u64,
    /// The sample that is drawn for: a substitute draws under its own id.
    pub sample: u64,
}

impl DrawKey {
    /// What a dataset draws by: which part of a sample is read. It depends on no operation.
    #[must_use]
    pub fn of_sample(self) -> u64 {
        Draws::new(self, u64::MAX).of_part("sample").next_u64()
    }
}

/// The draw at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// The sample.
    pub sample: SampleId,
    /// See [`PlannedRow::pass`](crate::PlannedRow::pass).
    pub pass: u64,
}

/// A stream of draws for one operation on one sample.
///
/// The generator is counter-based: draw *n* is `mix(key + n · γ)` with SplitMix64's finaliser and γ (Steele, Lea and
/// Flood, 2014); the key folds seed, epoch, sample and operation through the same finaliser.
#[derive(Debug, Clone)]
pub struct Draws {
    state: u64,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser (variant 13 of Stafford's).
pub(super) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draws {
    /// The draws of the `operation`-th operation of a stream (counted over all its stages) for a key.
    pub const fn new(key: DrawKey, operation: u64) -> Self {
        let mut state = mix(key.seed.wrapping_add(GAMMA));
        state = mix(state ^ key.epoch.wrapping_add(GAMMA));
        state = mix(state ^ key.sample.wrapping_add(GAMMA));
        state = mix(state ^ operation.wrapping_add(GAMMA));
        Self { state }
    }

    /// The draws of a named part of this operation. They do not depend on other parts.
    #[must_use]
    pub fn of_part(&self, name: &str) -> Self {
        let fold = |state, value: u64| mix(state ^ value.wrapping_add(GAMMA));
        let state = fold(self.state, name.len() as u64);
        Self { state: name.bytes().fold(state, |state, byte| fold(state, byte.into())) }
    }

    /// The draws of the `place`-th operation in the list that this operation contains.
    #[must_use]
    pub const fn of_entry(&self, place: u64) -> Self {
        Self { state: mix(self.state ^ place.wrapping_add(GAMMA)) }
    }

    /// 64 uniform bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// Uniform in [0, 1), a multiple of 2⁻⁵³.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub const fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [0, `bound`), without bias (Lemire's multiplication with rejection, 2019).
    ///
    /// # Panics
    /// The bound is 0.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a product")]
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw below 0");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = self.next_u64() as u128 * bound as u128;
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::tests::chi_squared_deviations as deviations;

    const KEY: DrawKey = DrawKey { seed: 1, epoch: 2, sample: 3 };

    #[test]
    fn every_part_of_the_key_changes_the_draws() {
        let first = |key, operation| Draws::new(key, operation).next_u64();
        let base = first(KEY, 0);
        assert_eq!(base, first(KEY, 0));
        assert_ne!(base, first(DrawKey { seed: 2, ..KEY }, 0));
        assert_ne!(base, first(DrawKey { epoch: 3, ..KEY }, 0));
        assert_ne!(base, first(DrawKey { sample: 4, ..KEY }, 0));
        assert_ne!(base, first(KEY, 1));
        // Swapped parts are another key.
        let swapped = DrawKey { seed: 2, epoch: 1, sample: 3 };
        assert_ne!(base, first(swapped, 0));
    }

    #[test]
    fn parts_and_entries_have_different_draws() {
        let mut all = Vec::new();
        for operation in [0, 1] {
            let draws = Draws::new(KEY, operation);
            for part in ["global_0", "global_1", "0_global", "local_0", ""] {
                for entry in 0..3 {
                    let mut draws = draws.of_part(part).of_entry(entry);
                    all.extend([draws.next_u64(), draws.next_u64()]);
                }
            }
            all.push(draws.clone().next_u64());
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        // Otherwise saved states would give other views.
        let first = Draws::new(KEY, 1).of_part("global_0").of_entry(2).next_u64();
        assert_eq!(first, 8_244_211_194_597_625_585);
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 99")]
    fn draws_are_uniform_within_a_stream_and_over_keys() {
        let mut within = Draws::new(KEY, 0);
        let mut counts = [[0u64; 100]; 4];
        for sample in 0..100_000 {
            counts[0][(within.uniform() * 100.0) as usize] += 1;
            counts[1][within.below(100) as usize] += 1;
            let key = DrawKey { sample, ..KEY };
            counts[2][Draws::new(key, 0).below(100) as usize] += 1;
            counts[3][Draws::new(KEY, sample).below(100) as usize] += 1;
        }
        for counts in &counts {
            assert!(deviations(counts) < 5.0, "{counts:?}");
        }
    }

    /// A bound just above half the range rejects almost half of all words; a plain product would favour values.
    #[test]
    fn bounds_that_divide_badly_are_drawn_without_bias() {
        let bound = (1u64 << 63) + (1 << 62);
        let mut draws = Draws::new(KEY, 0);
        let mut counts = [0u64; 3];
        for _ in 0..60_000 {
            let value = draws.below(bound);
            assert!(value < bound);
            counts[usize::try_from(value % 3).unwrap()] += 1;
        }
        assert!(deviations(&counts) < 5.0, "{counts:?}");
    }
}
