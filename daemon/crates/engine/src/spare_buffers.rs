//! Emptied buffers on their way back from the work threads to the fetch threads.
//!
//! No side ever waits for the other: a lowered thread that is set aside in the middle of giving a buffer back takes one
//! place with it, nothing else. (In a queue of the usual kind those that take would spin until it has gone on.)

use std::sync::{Mutex, PoisonError};

use super::work_parking::BitSet;

/// Buffers kept.
const PLACES: usize = 64;
/// A larger buffer is not kept.
const LARGEST_BYTES: usize = 1 << 20;

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

    /// A kept buffer, or a new one; empty.
    pub(crate) fn take(&self) -> Vec<u8> {
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
        for _ in 0..PLACES {
            assert!(store.take().capacity() >= 100);
        }
        assert_eq!(store.take().capacity(), 0);
    }
}
