//! What the positions of an epoch draw from.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use super::blocks::Blocks;
use super::by_length::ByLength;
use super::except::Except;
use super::mixture::Mixture;
use super::substitute::substitute;
use super::weighted::Weighted;

/// How many substitutes are drawn until one is short enough.
const DRAWS_BY_LENGTH: u64 = 4_096;
/// The distance of the seeds of further draws: odd, with bits all over.
const KEY_OF_FURTHER_DRAWS: u64 = 0xd6e8_feb8_6659_fd93;

/// What the positions of an epoch draw from. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    /// This number of samples, each once.
    Once(u64),
    /// The samples of a dataset without some, each once.
    Except(Arc<Except>),
    /// The samples of blocks, each once, in an order that opens a few blocks at a time.
    InBlocks(Arc<Blocks>),
    /// An exact count of each of several datasets; or of one, whose passes are longer or shorter than an epoch.
    Mixture(Arc<Mixture>),
    /// One dataset by weight, with replacement.
    Weighted(Arc<Weighted>),
}

impl Selection {
    /// The positions of an epoch.
    pub fn draws_per_epoch(&self) -> u64 {
        match self {
            Self::Once(samples) => *samples,
            Self::Except(except) => except.kept(),
            Self::InBlocks(blocks) => blocks.samples(),
            Self::Mixture(mixture) => mixture.draws_per_epoch(),
            Self::Weighted(weighted) => weighted.draws_per_epoch(),
        }
    }

    /// The `attempt`-th substitute of a sample that a position draws in a pass: any other sample if each occurs once,
    /// one of the same dataset in a mixture, and by weight if draws have weights. Otherwise as [`substitute()`].
    pub fn substitute(
        &self,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        match self {
            Self::Once(samples) => substitute(*samples, seed, pass, bad, attempt),
            Self::Except(except) => except.substitute(seed, pass, bad, attempt),
            Self::InBlocks(blocks) => substitute(blocks.samples(), seed, pass, bad, attempt),
            Self::Mixture(mixture) => mixture.substitute(seed, pass, bad, attempt),
            Self::Weighted(weighted) => weighted.substitute(seed, pass, bad, attempt),
        }
    }

    /// As [`substitute`](Self::substitute): the first of many drawn samples with which a batch of `rows` rows stays within
    /// its budget, or keeps its shape.
    pub fn substitute_by_length(
        &self,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
        (lengths, rows): (&ByLength, u32),
    ) -> Option<SampleId> {
        let drawn = |number: u64| {
            let key = seed.wrapping_add(number.wrapping_mul(KEY_OF_FURTHER_DRAWS));
            self.substitute(key, pass, bad, attempt)
        };
        let fits = |other: &SampleId| lengths.may_replace(bad.0, other.0, rows);
        (0..DRAWS_BY_LENGTH).map_while(drawn).find(fits)
    }
}
