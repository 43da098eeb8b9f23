//! Emptied buffers on their way back from the work threads to the fetch threads.
//!
//! Neither side ever waits for the other: a lowered thread that is preempted while it returns a buffer blocks one
//! entry, nothing else. (In a queue of the usual kind consumers would spin until it continues.)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::ground::work_parking::BitSet;

/// Maximal number of kept buffers.
const PLACES: usize = 64;
/// Maximal total size of the kept buffers. It matters most for large buffers: memory that was returned to the kernel is
/// allocated again page by page, which costs more than reading the bytes into it.
const KEPT_BYTES: usize = 16 << 20;
/// Maximal number of kept buffers that are examined until one is not much too large.
const TRIES: usize = 4;
/// Maximal unused capacity of a buffer: this fraction (1/n) of the bytes that are read into it, plus `SPARE_BYTES`.
const SPARE_SHARE: usize = 8;
const SPARE_BYTES: usize = 256;

/// See [`KEPT_BYTES`].
pub(crate) const MAX_KEPT_BYTES: u64 = KEPT_BYTES as u64;

/// See the module's head. An entry's mutex is owned together with its bit, so it is never contended.
#[derive(Debug)]
pub(crate) struct SpareBuffers {
    places: Box<[Mutex<Vec<u8>>]>,
    empty: BitSet,
    full: BitSet,
    kept_bytes: AtomicUsize,
}

impl Default for SpareBuffers {
    fn default() -> Self {
        let empty = BitSet::new(PLACES);
        (0..PLACES).for_each(|place| empty.add(place));
        Self {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            empty,
            full: BitSet::new(PLACES),
            kept_bytes: AtomicUsize::new(0),
        }
    }
}

impl SpareBuffers {
    /// Keeps a buffer for later, unless all entries are used or it is too large.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let bytes = buffer.capacity();
        if !(1..=KEPT_BYTES).contains(&bytes) {
            return;
        }
        // Relaxed, here and below: a count, nothing is ordered by it.
        if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BYTES
            && let Some(place) = self.empty.take_first()
        {
            *self.places[place].lock().unwrap_or_else(PoisonError::into_inner) = buffer;
            self.full.add(place);
            return;
        }
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An empty buffer for `bytes` bytes: a kept one, or a new one if all examined ones are much too large. Unused
    /// capacity must be small, since a buffer in use is counted by its length.
    pub(crate) fn take(&self, bytes: u64) -> Vec<u8> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let most = bytes.saturating_add(bytes / SPARE_SHARE + SPARE_BYTES);
        let mut passed: [Vec<u8>; TRIES] = Default::default();
        let mut found = Vec::new();
        for place in &mut passed {
            let Some(kept) = self.take_any() else { break };
            if kept.capacity() <= most {
                found = kept;
                break;
            }
            *place = kept;
        }
        // The first one is freed, so that buffers of sizes that are no longer requested disappear.
        passed.into_iter().skip(1).for_each(|buffer| self.give(buffer));
        found
    }

    fn take_any(&self) -> Option<Vec<u8>> {
        let place = self.full.take_first()?;
        let buffer =
            std::mem::take(&mut *self.places[place].lock().unwrap_or_else(PoisonError::into_inner));
        self.empty.add(place);
        self.kept_bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use crate::ground::spare_buffers::*;

    #[test]
    fn buffers_are_reused_up_to_a_number() {
        let store = SpareBuffers::default();
        for _ in 0..PLACES + 10 {
            store.give(Vec::with_capacity(100));
        }
        assert_eq!(store.take(1 << 20).capacity(), 100);
        // It is kept in the entry that has become empty, which is examined first.
        store.give(Vec::with_capacity(KEPT_BYTES / 2));
        assert_eq!(store.take(90).capacity(), 100);
        for _ in 0..PLACES - 2 {
            assert_eq!(store.take(90).capacity(), 100, "the much larger one was let go");
        }
        assert_eq!(store.take(1 << 20).capacity(), 0, "there is no more");
        assert_eq!(store.kept_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn large_buffers_are_reused_up_to_a_number_of_bytes() {
        let store = SpareBuffers::default();
        let large = KEPT_BYTES / 4;
        for _ in 0..5 {
            store.give(Vec::with_capacity(large));
        }
        store.give(Vec::with_capacity(KEPT_BYTES + 1));
        let taken = (0..5).map(|_| store.take(large as u64).capacity()).collect::<Vec<_>>();
        assert_eq!(taken, [large, large, large, large, 0]);
    }
}
