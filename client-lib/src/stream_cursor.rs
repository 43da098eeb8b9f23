//! The stream's position as handed over to the user, with its recent history.
//!
//! Between an epoch's last batch and the end of its iteration the cursor is still in that epoch, so that the end is
//! reported once; the position for a checkpoint is the next epoch's start already.

use std::collections::VecDeque;

use forebay_protocol::ids::Position;

use crate::error::Error;

/// The maximum `held_back` of [`SessionStatus::state`](crate::SessionStatus::state), in batches.
pub const MAX_HELD_BACK: usize = 1024;

/// A position in a stream with its recent history.
#[derive(Debug, Clone)]
pub(crate) struct StreamCursor {
    position: Position,
    batches_left: u64,
    /// Position and substitutes after each of the last batches handed over, oldest first; the first entry is the position
    /// before them. Never empty.
    history: VecDeque<(Position, u64)>,
}

impl StreamCursor {
    /// A cursor without history.
    pub(crate) fn new(position: Position, substitutes: u64, batches_left: u64) -> Self {
        // Allocated in full, so that taking a batch does not allocate.
        let mut history = VecDeque::with_capacity(MAX_HELD_BACK + 1);
        history.push_back((position, substitutes));
        Self { position, batches_left, history }
    }

    /// The epoch of the next batch, or the epoch whose end comes next.
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

    /// Advances past a batch that is handed over.
    pub(crate) fn advance(&mut self, position_after: Position, substitutes: u64) {
        self.batches_left = self.batches_left.saturating_sub(1);
        if self.batches_left == 0 {
            self.record(self.next_epoch(), 0);
        } else {
            self.position = position_after;
            self.record(position_after, substitutes);
        }
    }

    /// Sets the batches left in the epoch: for a copy of a cursor that does not see the answer to a seek.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn set_batches_left(&mut self, batches_left: u64) {
        self.batches_left = batches_left;
    }

    /// Ends the iteration of an epoch.
    pub(crate) fn enter_next_epoch(&mut self, batches: u64) {
        let next = self.next_epoch();
        // A rank without a batch in the epoch still lacks this entry.
        if self.history.back() != Some(&(next, 0)) {
            self.record(next, 0);
        }
        self.position = next;
        self.batches_left = batches;
    }

    /// Applies the daemon's answer to a seek: the batches left, and the position if it differs from the requested one.
    pub(crate) fn apply_seek(&mut self, position: Position, batches_left: u64) {
        if position != self.position {
            *self = Self::new(position, 0, batches_left);
        }
        self.batches_left = batches_left;
    }

    fn record(&mut self, position: Position, substitutes: u64) {
        if self.history.len() > MAX_HELD_BACK {
            self.history.pop_front();
        }
        self.history.push_back((position, substitutes));
    }

    /// Position and substitutes after the last batch handed over.
    pub(crate) fn newest(&self) -> (Position, u64) {
        self.history.back().copied().unwrap_or((self.position, 0))
    }

    /// Position and substitutes after all but the last `held_back` batches.
    ///
    /// # Errors
    /// [`Error::Config`] when they are not in the history.
    pub(crate) fn lookback(&self, held_back: usize) -> Result<(Position, u64), Error> {
        let known = self.history.len() - 1;
        let found = known.checked_sub(held_back).and_then(|index| self.history.get(index));
        found.copied().ok_or_else(|| {
            Error::Config(format!(
                "held_back = {held_back}, but only {known} batches were handed over since the last seek (at most \
                 {MAX_HELD_BACK} are recorded)"
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
    fn position_after_the_last_batch_is_the_next_epochs_start() {
        let mut cursor = StreamCursor::new(at(0, 4), 1, 2);
        cursor.advance(at(0, 8), 2);
        cursor.advance(at(0, 12), 3);
        assert_eq!((cursor.epoch(), cursor.batches_left()), (0, 0));
        assert_eq!(cursor.lookback(0).unwrap(), (at(1, 0), 0));
        cursor.enter_next_epoch(3);
        assert_eq!((cursor.epoch(), cursor.batches_left()), (1, 3));
        assert_eq!(cursor.lookback(1).unwrap(), (at(0, 8), 2));
        assert_eq!(cursor.lookback(2).unwrap(), (at(0, 4), 1));
        assert!(cursor.lookback(3).is_err());
    }

    #[test]
    fn history_is_bounded() {
        let mut cursor = StreamCursor::new(at(0, 0), 0, u64::MAX);
        for batch in 1..=5000 {
            cursor.advance(at(0, batch), 0);
        }
        assert_eq!(cursor.lookback(MAX_HELD_BACK).unwrap().0, at(0, 5000 - 1024));
        assert!(cursor.lookback(MAX_HELD_BACK + 1).is_err());
    }

    #[test]
    fn answer_with_another_position_moves_the_cursor() {
        let mut cursor = StreamCursor::new(at(2, 8), 5, 0);
        cursor.apply_seek(at(2, 8), 4);
        assert_eq!((cursor.lookback(0).unwrap(), cursor.batches_left()), ((at(2, 8), 5), 4));
        cursor.apply_seek(at(3, 0), 6);
        assert_eq!((cursor.lookback(0).unwrap(), cursor.batches_left()), ((at(3, 0), 0), 6));
    }
}
