//! What the positions of an epoch draw from.
//!
//! If only some samples of the datasets are used, a selection is of their numbers: a sample's number is that of used samples
//! with smaller ids. The functions here with a [`Subset`] take and give ids.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_select::Subset;

use super::balanced::Balanced;
use super::blocks::Blocks;
use super::by_length::ByLength;
use super::grouped::Grouped;
use super::mixture::Mixture;
use super::substitute::substitute;
use super::weighted::Weighted;

/// How many substitutes are drawn until one is short enough.
const DRAWS_BY_LENGTH: u64 = 4_096;
/// The distance of the seeds of further draws: odd, with bits all over.
const KEY_OF_FURTHER_DRAWS: u64 = 0xd6e8_feb8_6659_fd93;

/// What the positions of an epoch draw from: numbers of used samples. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    /// This number of samples, each once.
    Once(u64),
    /// The samples of blocks, each once, in an order that opens a few blocks at a time.
    InBlocks(Arc<Blocks>),
    /// An exact count of each of several datasets; or of one, whose passes are longer or shorter than an epoch.
    Mixture(Arc<Mixture>),
    /// One dataset by weight, with replacement.
    Weighted(Arc<Weighted>),
    /// One dataset, each class equally often.
    Balanced(Arc<Balanced>),
    /// One dataset, each sample once at most, several samples of a group after each other.
    Grouped(Arc<Grouped>),
}

impl Selection {
    /// The positions of an epoch.
    pub fn draws_per_epoch(&self) -> u64 {
        match self {
            Self::Once(samples) => *samples,
            Self::InBlocks(blocks) => blocks.samples(),
            Self::Mixture(mixture) => mixture.draws_per_epoch(),
            Self::Weighted(weighted) => weighted.draws_per_epoch(),
            Self::Balanced(balanced) => balanced.draws_per_epoch(),
            Self::Grouped(grouped) => grouped.draws_per_epoch(),
        }
    }

    /// The `attempt`-th substitute of a sample that a position draws in a pass: any other sample if each occurs once,
    /// one of the same dataset in a mixture, one of the same class with classes or groups, and by weight if draws have
    /// weights. Otherwise as [`substitute()`]. `kept`: the samples that are used.
    pub fn substitute(
        &self,
        kept: Option<&Subset>,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        let bad = kept.map_or(bad, |kept| SampleId(kept.number_of(bad.0)));
        let other = match self {
            Self::Once(samples) => substitute(*samples, seed, pass, bad, attempt),
            Self::InBlocks(blocks) => substitute(blocks.samples(), seed, pass, bad, attempt),
            Self::Mixture(mixture) => mixture.substitute(seed, pass, bad, attempt),
            Self::Weighted(weighted) => weighted.substitute(seed, pass, bad, attempt),
            Self::Balanced(balanced) => balanced.classes().substitute(seed, pass, bad, attempt),
            Self::Grouped(grouped) => grouped.classes().substitute(seed, pass, bad, attempt),
        }?;
        Some(kept.map_or(other, |kept| SampleId(kept.id_of(other.0))))
    }

    /// As [`substitute`](Self::substitute): the first of many drawn samples with which a batch of `rows` rows stays within
    /// its budget, or keeps its shape.
    pub fn substitute_by_length(
        &self,
        kept: Option<&Subset>,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
        (lengths, rows): (&ByLength, u32),
    ) -> Option<SampleId> {
        let drawn = |number: u64| {
            let key = seed.wrapping_add(number.wrapping_mul(KEY_OF_FURTHER_DRAWS));
            self.substitute(kept, key, pass, bad, attempt)
        };
        let fits = |other: &SampleId| lengths.may_replace(bad.0, other.0, rows);
        (0..DRAWS_BY_LENGTH).map_while(drawn).find(fits)
    }
}
