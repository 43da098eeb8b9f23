//! The keyed permutation that shuffles an epoch.
//!
//! Up to [`TABLE_SAMPLES`] samples it is a table, drawn by the Fisher–Yates shuffle without bias. For more samples it
//! is a balanced Feistel network over the smallest number of bits for the count, since a table would grow with the
//! count; it is iterated until the value is below the count (Black and Rogaway, "Ciphers with arbitrary finite
//! domains", 2002). Either way it is a pure function of (samples, seed, epoch), in integers only.
//!
//! It shuffles; it is not a cipher and has no secret.

use std::sync::Arc;

use super::draw::{DrawKey, Draws, mix};
use super::purpose;

/// Up to this number of samples the permutation is a table of two bytes per sample.
pub(super) const TABLE_SAMPLES: u64 = 65_536;

/// Luby and Rackoff need four rounds for ideal round functions; eight or more hide the small halves (Patarin, 2010),
/// and ten still cost some tens of nanoseconds.
const FEISTEL_ROUNDS: usize = 10;

/// A bijection of 0..samples.
#[derive(Debug, Clone)]
pub(super) enum Permutation {
    /// Shared, so that a clone is cheap.
    Table(Arc<[u16]>),
    /// Computed for every position.
    Feistel(Feistel),
}

impl Permutation {
    /// The permutation of one epoch.
    pub(super) fn new(samples: u64, seed: u64, epoch: u64) -> Self {
        let key = DrawKey { seed, epoch, sample: samples };
        Self::drawn(samples, Draws::new(key, purpose::PERMUTATION))
    }

    /// The permutation from these draws.
    pub(super) fn drawn(samples: u64, draws: Draws) -> Self {
        if samples <= TABLE_SAMPLES {
            Self::Table(shuffled_table(samples, draws))
        } else {
            Self::Feistel(Feistel::new(samples, draws))
        }
    }

    /// The value at a position, which is below the count.
    #[expect(clippy::cast_possible_truncation, reason = "a table's positions are below 65,536")]
    pub(super) fn at(&self, position: u64) -> u64 {
        match self {
            Self::Table(table) => u64::from(table[position as usize]),
            Self::Feistel(feistel) => feistel.at(position),
        }
    }
}

/// Up to this number of values a permutation of one use is drawn as a table.
const FEW: usize = 16;

/// The value at a place of a permutation of `count` values that is used for this place only: as
/// [`Permutation::drawn`], without a table of more than a few values.
pub(super) fn shuffled(count: u64, place: u64, mut draws: Draws) -> u64 {
    if count > FEW as u64 {
        return Feistel::new(count, draws).at(place);
    }
    let mut table: [u64; FEW] = std::array::from_fn(|value| value as u64);
    for last in (1..count).rev() {
        let other = draws.below(last + 1);
        #[expect(clippy::cast_possible_truncation, reason = "below sixteen")]
        table.swap(last as usize, other as usize);
    }
    usize::try_from(place).ok().and_then(|place| table.get(place).copied()).unwrap_or(place)
}

#[expect(clippy::cast_possible_truncation, reason = "at most 65,536 values, each below it")]
fn shuffled_table(samples: u64, mut draws: Draws) -> Arc<[u16]> {
    let mut table: Vec<u16> = (0..samples).map(|id| id as u16).collect();
    for last in (1..table.len()).rev() {
        let other = draws.below(last as u64 + 1) as usize;
        table.swap(last, other);
    }
    table.into()
}

/// A balanced Feistel network with cycle walking; these few words are its whole state.
#[derive(Debug, Clone)]
pub(super) struct Feistel {
    samples: u64,
    half_bits: u32,
    round_keys: [u64; FEISTEL_ROUNDS],
}

impl Feistel {
    pub(super) fn new(samples: u64, mut draws: Draws) -> Self {
        let bits = u64::BITS - samples.saturating_sub(1).leading_zeros();
        Self {
            samples,
            half_bits: bits.div_ceil(2).max(1),
            round_keys: std::array::from_fn(|_| draws.next_u64()),
        }
    }

    /// The network permutes 0..2^bits, which is less than four times the count. Iterating it from a position below the
    /// count leads below the count again (at the latest back at the start), after fewer than four steps on average.
    pub(super) fn at(&self, position: u64) -> u64 {
        let mut value = self.network(position);
        while value >= self.samples {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            let mixed = mix(key ^ right) >> (u64::BITS - self.half_bits);
            (left, right) = (right, left ^ mixed);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
#[path = "permutation_tests.rs"]
pub(super) mod tests;
