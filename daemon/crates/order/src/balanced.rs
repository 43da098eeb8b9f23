//! Draws of which each class has equally many.
//!
//! Consecutive positions, as many as there are classes, have each class once, in an order of their own. If the draws of
//! an epoch are not a multiple of the classes, the rest is drawn from some of them; which ones goes round from epoch to
//! epoch. So in an epoch, and over all epochs, no class has two draws more than another. Everything is a function of
//! (classes, seed, epoch, position) in constant time, without memory for draws.

use std::sync::Arc;

use super::classes::{ClassDraws, Classes};
use super::draw::{DrawKey, Drawn, Draws};
use super::error::OrderError;
use super::permutation::shuffled;
use super::purpose;

/// Classes, and the number of draws in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balanced {
    classes: Arc<Classes>,
    draws: u64,
}

impl Balanced {
    /// An epoch of so many draws; `None`: of as many as there are samples, rounded up to a multiple of the classes.
    ///
    /// # Errors
    /// There are no draws, or more than can be counted.
    pub fn new(classes: Arc<Classes>, draws: Option<u64>) -> Result<Self, OrderError> {
        let usual = || classes.samples().next_multiple_of(classes.count().into());
        let draws = draws.unwrap_or_else(usual);
        match draws {
            0 => Err(OrderError::NoDraws),
            draws if i64::try_from(draws).is_err() => {
                Err(OrderError::TooManySamples { samples: draws })
            }
            draws => Ok(Self { classes, draws }),
        }
    }

    /// The positions of an epoch.
    #[must_use]
    pub const fn draws_per_epoch(&self) -> u64 {
        self.draws
    }

    /// The classes.
    #[must_use]
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The draws of a class in an epoch: the fewest and the most of any class.
    #[must_use]
    pub fn draws_of_class(&self) -> (u64, u64) {
        let count = u64::from(self.classes.count());
        (self.draws / count, self.draws.div_ceil(count))
    }

    /// The draw at a position.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of classes")]
    pub(super) fn draw_at(&self, seed: u64, epoch: u64, position: u64) -> Drawn {
        let count = u64::from(self.classes.count());
        let (rounds, rest) = (self.draws / count, self.draws % count);
        let (round, place) = (position / count, position % count);
        let key = DrawKey { seed, epoch, sample: round };
        let draws = Draws::new(key, purpose::CLASSES_ALIKE);
        // The rests of all epochs go round in one order of the classes, in which they have these numbers.
        let rests_before = u128::from(epoch) * u128::from(rest);
        let is_rest = round == rounds;
        let number = match is_rest {
            false => shuffled(count, place, draws),
            true => {
                ((rests_before + u128::from(shuffled(rest, place, draws))) % u128::from(count))
                    as u64
            }
        };
        // Before the rest a class has had one draw in each round.
        let first_of_rest = (rests_before % u128::from(count)) as u64;
        let has_rest = (number + count - first_of_rest) % count < rest;
        let of_epoch = ClassDraws {
            before: u128::from(epoch) * u128::from(rounds)
                + rests_before / u128::from(count)
                + u128::from(number < first_of_rest),
            draws: rounds + u64::from(has_rest),
        };
        let key = DrawKey { seed, epoch: 0, sample: u64::MAX };
        let class = shuffled(count, number, Draws::new(key, purpose::CLASSES_ALIKE)) as u32;
        self.classes.draw((seed, epoch), (class, of_epoch), round, 1)
    }
}

#[cfg(test)]
#[path = "balanced_tests.rs"]
mod tests;
