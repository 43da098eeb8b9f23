//! The draws of each dataset of a mixture whose weights change at positions.
//!
//! Positions count over all epochs from the run's start. Each epoch is divided where weights change; a piece has exact
//! counts, like an epoch. Whole epochs between two changes are one piece that repeats, so there are at most three per
//! change, and the draws of a dataset before an epoch follow from one of them.

use super::counts::draws_of_weights;

/// The weights of a mixture's datasets from a position on.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightChange {
    /// The first position, counted over all epochs.
    pub from: u64,
    /// One per dataset.
    pub weights: Vec<f64>,
}

/// The draws of each dataset in a part of an epoch. A piece that is a whole epoch repeats until the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first epoch that has the piece.
    pub(super) epoch: u64,
    /// Its start in that epoch.
    pub(super) start: u64,
    /// By dataset: the sum of the piece's draws from all datasets before it; at the end the total.
    pub(super) first_draws: Vec<u64>,
    /// The draws of each dataset before the piece.
    before: Vec<u128>,
}

impl Piece {
    /// A piece with these draws of each dataset in every epoch.
    pub(super) fn first(draws: &[u64]) -> Self {
        Self::new(0, 0, draws, vec![0; draws.len()])
    }

    fn new(epoch: u64, start: u64, draws: &[u64], before: Vec<u128>) -> Self {
        let mut first_draws = vec![0];
        first_draws.extend(draws.iter().scan(0, |sum, draws| {
            *sum += draws;
            Some(*sum)
        }));
        Self { epoch, start, first_draws, before }
    }

    /// The number of datasets.
    pub(super) const fn parts(&self) -> usize {
        self.before.len()
    }

    /// The number of its positions.
    pub(super) fn length(&self) -> u64 {
        self.first_draws[self.parts()]
    }

    /// The number of its draws of a dataset.
    pub(super) fn draws(&self, part: usize) -> u64 {
        self.first_draws[part + 1] - self.first_draws[part]
    }

    /// The draws of a dataset before this piece, in an epoch that has the piece.
    pub(super) fn drawn_before(&self, part: usize, epoch: u64) -> u128 {
        self.before[part] + u128::from(epoch - self.epoch) * u128::from(self.draws(part))
    }
}

/// The pieces of epochs with this number of draws. `None`: the changes do not begin at 0 or do not increase, or the
/// weights cannot divide the draws.
pub(super) fn of_changes(draws_per_epoch: u64, changes: &[WeightChange]) -> Option<Vec<Piece>> {
    let rise = changes.windows(2).all(|pair| pair[0].from < pair[1].from);
    let parts = changes.first().filter(|change| change.from == 0)?.weights.len();
    if !rise || draws_per_epoch == 0 || changes.iter().any(|change| change.weights.len() != parts) {
        return None;
    }
    let mut before = vec![0_u128; parts];
    let mut pieces = Vec::new();
    for (place, change) in changes.iter().enumerate() {
        let until = changes.get(place + 1).map(|next| next.from);
        let mut from = change.from;
        while until.is_none_or(|until| from < until) {
            let (epoch, start) = (from / draws_per_epoch, from % draws_per_epoch);
            let left = until.map_or(u64::MAX, |until| until - from);
            let length = (draws_per_epoch - start).min(left);
            let draws = draws_of_weights(length, &change.weights)?;
            pieces.push(Piece::new(epoch, start, &draws, before.clone()));
            let is_epoch = length == draws_per_epoch;
            if is_epoch && until.is_none() {
                break;
            }
            // Consecutive whole epochs are one piece.
            let times = if is_epoch { left / length } else { 1 };
            for (before, draws) in before.iter_mut().zip(&draws) {
                *before += u128::from(times) * u128::from(*draws);
            }
            from += times * length;
        }
    }
    Some(pieces)
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
