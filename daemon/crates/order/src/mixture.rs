//! Several datasets in one epoch, each with an exact count of draws.
//!
//! An epoch is cut into blocks of [`BLOCK`] positions. Each block holds of every dataset what its share of the epoch
//! says, rounded, so that any stretch of an epoch has the mixture's proportions; within a block a keyed permutation
//! says which row is whose. The draws of one dataset, counted over all epochs, walk through its own permutations: draw
//! *g* is place *g* mod samples of pass *g* div samples, whatever is drawn of others. So nothing is lost where an epoch
//! ends within a pass, and an epoch's dropped positions are counted like any other.
//!
//! Where weights change at a position, an epoch is cut there and each piece is a small epoch of its own; see
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
    /// The number of each dataset's first sample; one more at the end.
    first_samples: Vec<u64>,
    draws_per_epoch: u64,
    /// By their places. The first begins with the run, the last one goes on in all later epochs.
    pieces: Vec<Piece>,
}

impl Mixture {
    /// A mixture of these datasets, the same in every epoch.
    ///
    /// # Errors
    /// Draws of a dataset without samples, no draws at all, or more samples or draws than can be counted.
    pub fn new(parts: &[MixturePart]) -> Result<Self, OrderError> {
        let draws: Vec<u64> = parts.iter().map(|part| part.draws).collect();
        let samples: Vec<u64> = parts.iter().map(|part| part.samples).collect();
        let draws_per_epoch = *sums(&draws)?.last().unwrap_or(&0);
        Self::of(&samples, draws_per_epoch, vec![Piece::first(&draws)])
    }

    /// A mixture of datasets of so many samples, whose weights change at positions.
    ///
    /// # Errors
    /// As [`new`](Self::new); weights that are negative or no numbers, or of which none is above 0; changes that do not
    /// begin at 0 or do not rise.
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
    /// When there is no such sample.
    pub fn part_of(&self, sample: SampleId) -> usize {
        let part = self.first_samples.partition_point(|first| *first <= sample.0) - 1;
        assert!(part < self.parts(), "sample {} of {:?}", sample.0, self.first_samples);
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
            self.samples(part),
            part_seed(seed, part),
            pass,
            SampleId(bad.0 - first),
            attempt,
        );
        Some(SampleId(other?.0 + first))
    }

    /// The pieces of an epoch. The first of them may have begun in an earlier one.
    fn pieces_of(&self, epoch: u64) -> Range<usize> {
        let first = self.pieces.partition_point(|piece| (piece.epoch, piece.start) <= (epoch, 0));
        let end = self.pieces.partition_point(|piece| piece.epoch <= epoch);
        first - 1..end
    }
}

impl Piece {
    /// The dataset whose a position of the piece is, and how many positions of the piece before it are that dataset's in
    /// the order in which it is walked through.
    fn place(&self, seed: u64, epoch: u64, position: u64) -> (usize, u64) {
        if self.parts() == 1 {
            return (0, position);
        }
        let (block, offset) = (position / BLOCK, position % BLOCK);
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.length());
        // Blocks of a later piece of the epoch are named by where they begin: their numbers are those of the first.
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
    /// The datasets are halved until one is left. Of the first *n* positions of a group of datasets, ⌊n·L/T⌋ are those
    /// of its first half, which has L of the group's T draws; the others are the second half's. Both counts only grow
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

    /// As [`place`](Self::place) where nothing is shuffled: one dataset after the other.
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
    /// One a dataset.
    walks: Vec<Walk>,
    /// The mixture's pieces in this epoch.
    pieces: Range<usize>,
    /// Pass and place of each dataset where each piece of the epoch begins.
    begins: Vec<Vec<(u64, u64)>>,
}

/// One dataset's permutations.
#[derive(Debug, Clone)]
struct Walk {
    seed: u64,
    /// The tables of the passes asked for last, which would take long to draw anew.
    tables: RefCell<[Option<(u64, Permutation)>; 2]>,
}

impl MixedEpoch {
    pub(super) fn new(mixture: Arc<Mixture>, seed: u64, epoch: u64, shuffle: bool) -> Self {
        let begin_of = |piece: &Piece, part: usize| {
            let samples = u128::from(mixture.samples(part).max(1));
            let before = piece.drawn_before(part, epoch);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a key: what it wraps to is as good"
            )]
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
        // The first may have begun in an earlier epoch: it begins at this one's start, too.
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
