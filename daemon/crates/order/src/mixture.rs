//! Several datasets in one epoch, each with an exact count of draws.
//!
//! An epoch is divided into blocks of [`BLOCK`] positions. Each block has every dataset's share of the epoch, rounded,
//! so that any part of an epoch has the mixture's proportions; within a block a keyed permutation assigns rows to
//! datasets. The draws of one dataset, counted over all epochs, follow its own permutations: draw *g* is place *g* mod
//! samples of pass *g* div samples, independent of the other datasets. So nothing is lost if an epoch ends within a
//! pass, and an epoch's dropped positions are counted like any other.
//!
//! If weights change at a position, an epoch is divided there and each piece is treated as a small epoch; see
//! [`pieces`](super::pieces).

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::permutation::{Feistel, Permutation, TABLE_SAMPLES};
use super::pieces::{Piece, WeightChange, of_changes};
use super::purpose;
use super::substitute::substitute;

/// The number of positions that are shuffled together. A pass of a dataset begins within a block after the previous one
/// has ended, and both may be in it.
const BLOCK: u64 = 1024;

/// The share of one dataset in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixturePart {
    /// The dataset's samples.
    pub samples: u64,
    /// The number of its positions in an epoch.
    pub draws: u64,
}

/// Datasets in a fixed order, and the draws of each in an epoch. Samples are numbered over all datasets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixture {
    /// The number of each dataset's first sample; one more at the end.
    first_samples: Vec<u64>,
    draws_per_epoch: u64,
    /// In order. The first begins with the run, the last one continues in all later epochs.
    pieces: Vec<Piece>,
}

impl Mixture {
    /// A mixture of these datasets, the same in every epoch.
    ///
    /// # Errors
    /// A dataset without samples has draws, there are no draws at all, or more samples or draws than can be counted.
    pub fn new(parts: &[MixturePart]) -> Result<Self, OrderError> {
        let draws: Vec<u64> = parts.iter().map(|part| part.draws).collect();
        let samples: Vec<u64> = parts.iter().map(|part| part.samples).collect();
        let draws_per_epoch = *sums(&draws)?.last().unwrap_or(&0);
        Self::of(&samples, draws_per_epoch, vec![Piece::first(&draws)])
    }

    /// A mixture of datasets with these numbers of samples, whose weights change at positions.
    ///
    /// # Errors
    /// As [`new`](Self::new); weights are negative or NaN, or none is above 0; changes do not begin at 0 or do not
    /// increase.
    pub fn with_changes(
        samples: &[u64],
        draws_per_epoch: u64,
        changes: &[WeightChange],
    ) -> Result<Self, OrderError> {
        if i64::try_from(draws_per_epoch).is_err() {
            return Err(OrderError::TooManySamples { samples: draws_per_epoch });
        }
        let pieces = of_changes(draws_per_epoch, changes).ok_or(OrderError::NoDraws)?;
        Self::of(samples, draws_per_epoch, pieces)
    }

    fn of(samples: &[u64], draws_per_epoch: u64, pieces: Vec<Piece>) -> Result<Self, OrderError> {
        let lacks_samples = |piece: &Piece| {
            (0..samples.len()).any(|part| piece.draws(part) > 0 && samples[part] == 0)
        };
        if draws_per_epoch == 0 || pieces.iter().any(lacks_samples) {
            return Err(OrderError::NoDraws);
        }
        Ok(Self { first_samples: sums(samples)?, draws_per_epoch, pieces })
    }

    /// The positions of an epoch.
    pub const fn draws_per_epoch(&self) -> u64 {
        self.draws_per_epoch
    }

    const fn parts(&self) -> usize {
        self.first_samples.len() - 1
    }

    fn samples(&self, part: usize) -> u64 {
        self.first_samples[part + 1] - self.first_samples[part]
    }

    /// The dataset that a sample belongs to.
    ///
    /// # Panics
    /// The sample does not exist.
    pub(super) fn part_of(&self, sample: SampleId) -> usize {
        let part = self.first_samples.partition_point(|first| *first <= sample.0) - 1;
        assert!(part < self.parts(), "sample {} of {:?}", sample.0, self.first_samples);
        part
    }

    /// As [`substitute()`], from the bad sample's dataset.
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
            self.samples(part),
            part_seed(seed, part),
            pass,
            SampleId(bad.0 - first),
            attempt,
        );
        Some(SampleId(other?.0 + first))
    }

    /// The pieces of an epoch. The first may have begun in an earlier epoch.
    fn pieces_of(&self, epoch: u64) -> Range<usize> {
        let first = self.pieces.partition_point(|piece| (piece.epoch, piece.start) <= (epoch, 0));
        let end = self.pieces.partition_point(|piece| piece.epoch <= epoch);
        first - 1..end
    }
}

impl Piece {
    /// The dataset of a position of the piece, and the number of that dataset's draws that precede it in the piece.
    fn place(&self, seed: u64, epoch: u64, position: u64) -> (usize, u64) {
        if self.parts() == 1 {
            return (0, position);
        }
        let (block, offset) = (position / BLOCK, position % BLOCK);
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.length());
        // Blocks of a later piece of the epoch are keyed by their start: their numbers would repeat those of the first
        // piece.
        let (block, purpose) = match self.start {
            0 => (block, purpose::MIXTURE_BLOCK),
            first => (first + start, purpose::MIXTURE_LATER_BLOCK),
        };
        let key = DrawKey { seed, epoch, sample: block };
        let shuffle = Feistel::new(end - start, Draws::new(key, purpose));
        self.descend(start, end, shuffle.at(offset))
    }

    /// Finds the `offset`-th of the positions from `start` to `end`, which are sorted by dataset.
    ///
    /// The datasets are halved until one is left. Of the first *n* positions of a group of datasets, ⌊n·L/T⌋ belong to
    /// its first half, which has L of the group's T draws; the others belong to the second half. Both counts only grow
    /// with *n*, and are exact at the piece's end.
    fn descend(&self, mut start: u64, mut end: u64, mut offset: u64) -> (usize, u64) {
        let (mut first, mut last) = (0, self.parts());
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

    /// As [`place`](Self::place), without a shuffle: one dataset after the other.
    fn place_in_turn(&self, position: u64) -> (usize, u64) {
        // A dataset without draws begins where the next one does.
        let part = self.first_draws.partition_point(|first| *first <= position) - 1;
        (part, position - self.first_draws[part])
    }
}

/// The sums of all numbers before each, and of all.
fn sums(numbers: &[u64]) -> Result<Vec<u64>, OrderError> {
    let mut sums = vec![0_u64];
    for number in numbers {
        let sum = sums[sums.len() - 1].saturating_add(*number);
        if i64::try_from(sum).is_err() {
            return Err(OrderError::TooManySamples { samples: sum });
        }
        sums.push(sum);
    }
    Ok(sums)
}

/// ⌊count · part / whole⌋, where `part` is at most `whole`.
#[expect(clippy::cast_possible_truncation, reason = "at most the count")]
fn share(count: u64, part: u64, whole: u64) -> u64 {
    (u128::from(count) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// The seed of a dataset's permutations. The first dataset's is the stream's seed, so a mixture of one dataset has the
/// order of that dataset; the others differ, so that datasets of one size have different orders.
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
    /// One per dataset.
    walks: Vec<Walk>,
    /// The mixture's pieces in this epoch.
    pieces: Range<usize>,
    /// Pass and place of each dataset at the start of each piece of the epoch.
    begins: Vec<Vec<(u64, u64)>>,
}

/// One dataset's permutations.
#[derive(Debug, Clone)]
struct Walk {
    seed: u64,
    /// The tables of the last two requested passes, which are slow to draw.
    tables: RefCell<[Option<(u64, Permutation)>; 2]>,
}

impl MixedEpoch {
    pub(super) fn new(mixture: Arc<Mixture>, seed: u64, epoch: u64, shuffle: bool) -> Self {
        let begin_of = |piece: &Piece, part: usize| {
            let samples = u128::from(mixture.samples(part).max(1));
            let before = piece.drawn_before(part, epoch);
            #[expect(clippy::cast_possible_truncation, reason = "a key: any value will do")]
            let pass = (before / samples) as u64;
            #[expect(clippy::cast_possible_truncation, reason = "below the samples")]
            let place = (before % samples) as u64;
            (pass, place)
        };
        let of_piece =
            |piece: &Piece| (0..mixture.parts()).map(|part| begin_of(piece, part)).collect();
        let pieces = mixture.pieces_of(epoch);
        let begins = mixture.pieces[pieces.clone()].iter().map(of_piece).collect();
        let walk = |part| Walk { seed: part_seed(seed, part), tables: RefCell::default() };
        let walks = (0..mixture.parts()).map(walk).collect();
        Self { mixture, seed, epoch, shuffle, walks, pieces, begins }
    }

    pub(super) fn draw_at(&self, position: u64) -> Drawn {
        let pieces = &self.mixture.pieces[self.pieces.clone()];
        // The first piece is not compared: it applies from this epoch's start, even if it began in an earlier epoch.
        let number = pieces[1..].partition_point(|piece| piece.start <= position);
        let piece = &pieces[number];
        let within = position - piece.start;
        let (part, taken) = match self.shuffle {
            true => piece.place(self.seed, self.epoch, within),
            false => piece.place_in_turn(within),
        };
        let (first_pass, first_place) = self.begins[number][part];
        let samples = self.mixture.samples(part);
        let place = first_place + taken;
        let (pass, place) = (first_pass.wrapping_add(place / samples), place % samples);
        let id = if self.shuffle { self.walks[part].at(samples, pass, place) } else { place };
        Drawn { sample: SampleId(self.mixture.first_samples[part] + id), pass }
    }
}

impl Walk {
    fn at(&self, samples: u64, pass: u64, place: u64) -> u64 {
        let made = || Permutation::new(samples, self.seed, pass);
        if samples > TABLE_SAMPLES {
            return made().at(place);
        }
        // Except for tiny datasets, whose tables are drawn in microseconds, a block has rows of at most two passes.
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
