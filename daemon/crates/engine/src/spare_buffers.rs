//! Emptied buffers on their way back from the work threads to the fetch threads.
//!
//! No side ever waits for the other: a lowered thread that is set aside in the middle of giving a buffer back takes one
//! place with it, nothing else. (In a queue of the usual kind those that take would spin until it has gone on.)

use std::sync::{Mutex, PoisonError};

use super::work_parking::BitSet;

/// Buffers kept.
const PLACES: usize = 64;
/// A larger buffer is not kept.
const LARGEST_BYTES: usize = 256 << 10;
/// A buffer has at most so much room beyond what is read into it, as a share of that and in bytes.
const SPARE_SHARE: usize = 8;
const SPARE_BYTES: usize = 256;

/// What all kept buffers may be together.
pub(crate) const MAX_KEPT_BYTES: u64 = (PLACES * LARGEST_BYTES) as u64;

/// See the module's head. A place's mutex goes with its bit, so it is never contended.
#[derive(Debug)]
pub(crate) struct SpareBuffers {
    places: Box<[Mutex<Vec<u8>>]>,
    empty: BitSet,
    full: BitSet,
}

impl Default for SpareBuffers {
    fn default() -> Self {
        let empty = BitSet::new(PLACES);
        (0..PLACES).for_each(|place| empty.add(place));
        Self {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            empty,
            full: BitSet::new(PLACES),
        }
    }
}

impl SpareBuffers {
    /// Keeps a buffer for later, unless there is no place or it is too large.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if !(1..=LARGEST_BYTES).contains(&buffer.capacity()) {
            return;
        }
        if let Some(place) = self.empty.take_first() {
            *self.places[place].lock().unwrap_or_else(PoisonError::into_inner) = buffer;
            self.full.add(place);
        }
    }

    /// An empty buffer for so many bytes: a kept one, unless that is much too large; what is in use is counted by length.
    pub(crate) fn take(&self, bytes: u64) -> Vec<u8> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let most = bytes.saturating_add(bytes / SPARE_SHARE + SPARE_BYTES);
        Some(self.take_any()).filter(|kept| kept.capacity() <= most).unwrap_or_default()
    }

    fn take_any(&self) -> Vec<u8> {
        let Some(place) = self.full.take_first() else {
            return Vec::new();
        };
        let buffer =
            std::mem::take(&mut *self.places[place].lock().unwrap_or_else(PoisonError::into_inner));
        self.empty.add(place);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_store_has_an_end() {
        let store = SpareBuffers::default();
        for _ in 0..PLACES + 10 {
            store.give(Vec::with_capacity(100));
        }
        store.give(Vec::with_capacity(LARGEST_BYTES * 2));
        assert_eq!(store.take(1 << 20).capacity(), 100);
        // It is kept in the place that has become empty, which is looked at first.
        store.give(Vec::with_capacity(LARGEST_BYTES));
        assert_eq!(store.take(90).capacity(), 0, "a much larger one is let go");
        for _ in 0..PLACES - 1 {
            assert_eq!(store.take(90).capacity(), 100);
        }
        assert_eq!(store.take(1 << 20).capacity(), 0, "there is no more");
    }
}
