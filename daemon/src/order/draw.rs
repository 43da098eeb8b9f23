//! Random draws that depend on what is drawn for, never on when or where.

/// What a draw is keyed by. The same key gives the same draws on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawKey {
    /// The stream's seed.
    pub seed: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// The sample whose position it is: a substitute draws under its own id.
    pub sample: u64,
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
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draws {
    /// The draws of the `operation`-th operation of a stream (counted over all its stages) for a key.
    #[must_use]
    pub const fn new(key: DrawKey, operation: u64) -> Self {
        let mut state = mix(key.seed.wrapping_add(GAMMA));
        state = mix(state ^ key.epoch.wrapping_add(GAMMA));
        state = mix(state ^ key.sample.wrapping_add(GAMMA));
        state = mix(state ^ operation.wrapping_add(GAMMA));
        Self { state }
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
    /// When the bound is 0.
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
