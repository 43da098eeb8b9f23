//! Where a stream stands as handed over to the user, and where it stood some batches ago.
//!
//! Between an epoch's last batch and the end of its iteration the place is still in that epoch, so that the end is told
//! once; what a checkpoint keeps is the next epoch's start already.

use std::collections::VecDeque;

use forebay_protocol::ids::Position;

use crate::error::Error;

/// The most batches that [`crate::Loader::state`] can look back.
pub const MAX_HELD_BACK: usize = 1024;

/// A place in a stream with its recent past.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    position: Position,
    batches_left: u64,
    /// Position and substitutes after each of the last batches handed over, the newest last; the first is where this run
    /// of batches began. Never empty.
    history: VecDeque<(Position, u64)>,
}

impl Place {
    /// A place without a past.
    pub(crate) fn new(position: Position, substitutes: u64, batches_left: u64) -> Self {
        // All of it at once, lest taking a batch allocate.
        let mut history = VecDeque::with_capacity(MAX_HELD_BACK + 1);
        history.push_back((position, substitutes));
        Self { position, batches_left, history }
    }

    /// The epoch of the batches that come next, or whose end comes next.
    pub(crate) fn epoch(&self) -> u64 {
        self.position.epoch
    }

    /// This rank's batches left in the epoch.
    pub(crate) fn batches_left(&self) -> u64 {
        self.batches_left
    }

    /// The next epoch's start.
    pub(crate) fn next_epoch(&self) -> Position {
        Position { epoch: self.position.epoch + 1, samples: 0 }
    }

    /// A batch is handed over, and the stream stands after it.
    pub(crate) fn advance(&mut self, position_after: Position, substitutes: u64) {
        self.batches_left = self.batches_left.saturating_sub(1);
        if self.batches_left == 0 {
            self.remember(self.next_epoch(), 0);
        } else {
            self.position = position_after;
            self.remember(position_after, substitutes);
        }
    }

    /// So many batches of the epoch are left: for who follows another place and did not hear the answer to a seek.
    pub(crate) fn expect(&mut self, batches_left: u64) {
        self.batches_left = batches_left;
    }

    /// The iteration of an epoch is over.
    pub(crate) fn enter_next_epoch(&mut self, batches: u64) {
        let next = self.next_epoch();
        // Where the rank had no batch at all, nothing stands there yet.
        if self.history.back() != Some(&(next, 0)) {
            self.remember(next, 0);
        }
        self.position = next;
        self.batches_left = batches;
    }

    /// The daemon's answer to a seek: how many batches are left, and where it stands if not where it was asked to.
    pub(crate) fn settle(&mut self, position: Position, batches_left: u64) {
        if position != self.position {
            *self = Self::new(position, 0, batches_left);
        }
        self.batches_left = batches_left;
    }

    fn remember(&mut self, position: Position, substitutes: u64) {
        if self.history.len() > MAX_HELD_BACK {
            self.history.pop_front();
        }
        self.history.push_back((position, substitutes));
    }

    /// Position and substitutes after all but the last `held_back` batches.
    ///
    /// # Errors
    /// [`Error::Config`] when they are not remembered.
    pub(crate) fn look_back(&self, held_back: usize) -> Result<(Position, u64), Error> {
        let known = self.history.len() - 1;
        let found = known.checked_sub(held_back).and_then(|place| self.history.get(place));
        found.copied().ok_or_else(|| {
            Error::Config(format!(
                "held_back = {held_back}, but only {known} batches were handed over since the last jump (at most \
                 {MAX_HELD_BACK} are remembered)"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, samples: u64) -> Position {
        Position { epoch, samples }
    }

    #[test]
    fn the_last_batch_stands_at_the_next_epoch_and_the_end_is_told_once() {
        let mut place = Place::new(at(0, 4), 1, 2);
        place.advance(at(0, 8), 2);
        place.advance(at(0, 12), 3);
        assert_eq!((place.epoch(), place.batches_left()), (0, 0));
        assert_eq!(place.look_back(0).unwrap(), (at(1, 0), 0));
        place.enter_next_epoch(3);
        assert_eq!((place.epoch(), place.batches_left()), (1, 3));
        assert_eq!(place.look_back(1).unwrap(), (at(0, 8), 2));
        assert_eq!(place.look_back(2).unwrap(), (at(0, 4), 1));
        assert!(place.look_back(3).is_err());
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut place = Place::new(at(0, 0), 0, u64::MAX);
        for batch in 1..=5000 {
            place.advance(at(0, batch), 0);
        }
        assert_eq!(place.look_back(MAX_HELD_BACK).unwrap().0, at(0, 5000 - 1024));
        assert!(place.look_back(MAX_HELD_BACK + 1).is_err());
    }

    #[test]
    fn an_answer_elsewhere_moves_the_place() {
        let mut place = Place::new(at(2, 8), 5, 0);
        place.settle(at(2, 8), 4);
        assert_eq!((place.look_back(0).unwrap(), place.batches_left()), ((at(2, 8), 5), 4));
        place.settle(at(3, 0), 6);
        assert_eq!((place.look_back(0).unwrap(), place.batches_left()), ((at(3, 0), 0), 6));
    }
}
