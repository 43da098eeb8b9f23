//! Several datasets in one epoch, each with an exact count of draws.
//!
//! An epoch is cut into blocks of [`BLOCK`] positions. Each block holds of every dataset what its share of the epoch
//! says, rounded, so that any stretch of an epoch has the mixture's proportions; within a block a keyed permutation
//! says which row is whose. The draws of one dataset, counted over all epochs, walk through its own permutations: draw
//! *g* is place *g* mod samples of pass *g* div samples, whatever is drawn of others. So nothing is lost where an epoch
//! ends within a pass, and an epoch's dropped positions are counted like any other.

use std::cell::RefCell;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::permutation::{Feistel, Permutation, TABLE_SAMPLES};
use super::purpose;
use super::substitute::substitute;

/// The positions among which rows are shuffled. A pass of a dataset begins within a block after the one before has
/// ended, and both may be in it.
const BLOCK: u64 = 1024;

/// How much of one dataset an epoch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixturePart {
    /// The dataset's samples.
    pub samples: u64,
    /// How many of an epoch's positions are its own.
    pub draws: u64,
}

/// Datasets in an order that counts, and the draws of each in an epoch. Samples are numbered over all datasets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixture {
    parts: Vec<MixturePart>,
    /// The number of each dataset's first sample; one more at the end.
    first_samples: Vec<u64>,
    /// The draws of all datasets before each; one more at the end.
    first_draws: Vec<u64>,
}

impl Mixture {
    /// A mixture of these datasets.
    ///
    /// # Errors
    /// Draws of a dataset without samples, no draws at all, or more samples or draws than can be counted.
    pub fn new(parts: &[MixturePart]) -> Result<Self, OrderError> {
        if parts.iter().all(|part| part.draws == 0)
            || parts.iter().any(|part| part.draws > 0 && part.samples == 0)
        {
            return Err(OrderError::NoDraws);
        }
        let sums = |counts: &dyn Fn(&MixturePart) -> u64| {
            let mut sums = vec![0_u64];
            for part in parts {
                let sum = sums[sums.len() - 1].saturating_add(counts(part));
                if i64::try_from(sum).is_err() {
                    return Err(OrderError::TooManySamples { samples: sum });
                }
                sums.push(sum);
            }
            Ok(sums)
        };
        Ok(Self {
            parts: parts.to_vec(),
            first_samples: sums(&|part| part.samples)?,
            first_draws: sums(&|part| part.draws)?,
        })
    }

    /// The datasets.
    pub fn parts(&self) -> &[MixturePart] {
        &self.parts
    }

    /// The positions of an epoch.
    pub fn draws_per_epoch(&self) -> u64 {
        self.first_draws[self.parts.len()]
    }

    /// The dataset that a sample belongs to.
    ///
    /// # Panics
    /// When there is no such sample.
    pub fn part_of(&self, sample: SampleId) -> usize {
        let part = self.first_samples.partition_point(|first| *first <= sample.0) - 1;
        assert!(part < self.parts.len(), "sample {} of {:?}", sample.0, self.parts);
        part
    }

    /// As [`substitute()`], of the bad sample's own dataset.
    pub(super) fn substitute(
        &self,
        seed: u64,
        pass: u64,
        bad: SampleId,
        attempt: u64,
    ) -> Option<SampleId> {
        let part = self.part_of(bad);
        let first = self.first_samples[part];
        let other = substitute(
            self.parts[part].samples,
            part_seed(seed, part),
            pass,
            SampleId(bad.0 - first),
            attempt,
        );
        Some(SampleId(other?.0 + first))
    }

    /// The dataset whose a position of an epoch is, and how many positions before it are that dataset's in the order in
    /// which it is walked through.
    fn place(&self, seed: u64, epoch: u64, position: u64) -> (usize, u64) {
        if self.parts.len() == 1 {
            return (0, position);
        }
        let (block, offset) = (position / BLOCK, position % BLOCK);
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.draws_per_epoch());
        let key = DrawKey { seed, epoch, sample: block };
        let shuffle = Feistel::new(end - start, Draws::new(key, purpose::MIXTURE_BLOCK));
        self.descend(start, end, shuffle.at(offset))
    }

    /// Finds the `offset`-th of the positions from `start` to `end`, which are sorted by dataset.
    ///
    /// The datasets are halved until one is left. Of the first *n* positions of a group of datasets, ⌊n·L/T⌋ are those
    /// of its first half, which has L of the group's T draws; the others are the second half's. Both counts only grow
    /// with *n*, and are exact at the epoch's end.
    fn descend(&self, mut start: u64, mut end: u64, mut offset: u64) -> (usize, u64) {
        let (mut first, mut last) = (0, self.parts.len());
        while last - first > 1 {
            let middle = first.midpoint(last);
            let all = self.first_draws[last] - self.first_draws[first];
            let left = self.first_draws[middle] - self.first_draws[first];
            let (left_start, left_end) = (share(start, left, all), share(end, left, all));
            let left_length = left_end - left_start;
            if offset < left_length {
                (start, end, last) = (left_start, left_end, middle);
            } else {
                (start, end, first) = (start - left_start, end - left_end, middle);
                offset -= left_length;
            }
        }
        (first, start + offset)
    }

    /// As [`place`](Self::place) where nothing is shuffled: one dataset after the other.
    fn place_in_turn(&self, position: u64) -> (usize, u64) {
        // A dataset without draws begins where the next one does.
        let part = self.first_draws.partition_point(|first| *first <= position) - 1;
        (part, position - self.first_draws[part])
    }
}

/// ⌊count · part / whole⌋, where `part` is at most `whole`.
#[expect(clippy::cast_possible_truncation, reason = "at most the count")]
fn share(count: u64, part: u64, whole: u64) -> u64 {
    (u128::from(count) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// The seed of a dataset's permutations. That of the first is the stream's, so a mixture of one dataset has the order
/// of that dataset alone; others have their own, so that datasets of one size are not walked through in step.
fn part_seed(seed: u64, part: usize) -> u64 {
    if part == 0 {
        return seed;
    }
    let key = DrawKey { seed, epoch: 0, sample: part as u64 };
    Draws::new(key, purpose::MIXTURE_PART).next_u64()
}

/// The order of one epoch of a mixture.
#[derive(Debug, Clone)]
pub(super) struct MixedEpoch {
    mixture: Arc<Mixture>,
    seed: u64,
    epoch: u64,
    shuffle: bool,
    walks: Vec<Walk>,
}

/// Where one dataset is at an epoch's start.
#[derive(Debug, Clone)]
struct Walk {
    seed: u64,
    pass: u64,
    place: u64,
    /// The tables of the passes asked for last, which would take long to draw anew.
    tables: RefCell<[Option<(u64, Permutation)>; 2]>,
}

impl MixedEpoch {
    pub(super) fn new(mixture: Arc<Mixture>, seed: u64, epoch: u64, shuffle: bool) -> Self {
        let walk = |(part, of): (usize, &MixturePart)| {
            let before = u128::from(epoch) * u128::from(of.draws);
            let samples = u128::from(of.samples.max(1));
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a key: what it wraps to is as good"
            )]
            let pass = (before / samples) as u64;
            #[expect(clippy::cast_possible_truncation, reason = "below the samples")]
            let place = (before % samples) as u64;
            Walk { seed: part_seed(seed, part), pass, place, tables: RefCell::default() }
        };
        let walks = mixture.parts.iter().enumerate().map(walk).collect();
        Self { mixture, seed, epoch, shuffle, walks }
    }

    pub(super) fn draw_at(&self, position: u64) -> Drawn {
        let mixture = &*self.mixture;
        let (part, taken) = match self.shuffle {
            true => mixture.place(self.seed, self.epoch, position),
            false => mixture.place_in_turn(position),
        };
        let (walk, samples) = (&self.walks[part], mixture.parts[part].samples);
        let place = walk.place + taken;
        let (pass, place) = (walk.pass.wrapping_add(place / samples), place % samples);
        let id = if self.shuffle { walk.at(samples, pass, place) } else { place };
        Drawn { sample: SampleId(mixture.first_samples[part] + id), pass }
    }
}

impl Walk {
    fn at(&self, samples: u64, pass: u64, place: u64) -> u64 {
        let made = || Permutation::new(samples, self.seed, pass);
        if samples > TABLE_SAMPLES {
            return made().at(place);
        }
        // A block has rows of two passes of all but tiny datasets, whose tables are drawn in microseconds.
        let mut tables = self.tables.borrow_mut();
        let [table, other] = &mut *tables;
        if table.as_ref().is_none_or(|(known, _)| *known != pass) {
            std::mem::swap(table, other);
        }
        match table {
            Some((known, permutation)) if *known == pass => permutation.at(place),
            _ => table.insert((pass, made())).1.at(place),
        }
    }
}

#[cfg(test)]
#[path = "mixture_tests.rs"]
mod tests;
