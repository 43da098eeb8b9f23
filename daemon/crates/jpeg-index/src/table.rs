//! Places of records by key, with open addressing: eight bytes per slot, half to three quarters of them used.
//!
//! One thread writes, any thread reads at the same time. A slot contains a part of the key and the record's offset in
//! the file; readers verify the record, so neither two keys with the same part nor a slot that is rewritten can mislead
//! them.

use forebay_protocol::sync::{AtomicU64, Ordering};

use crate::record::{ALIGNMENT, Key};

/// Layout of a slot's 64 bits: the part of the key at the top, the offset in units of the alignment below.
const OFFSET_BITS: u32 = 40;

#[derive(Debug)]
pub(crate) struct Table {
    /// Zero: empty. There is never a record at the file's start.
    places: Box<[AtomicU64]>,
    used: AtomicU64,
}

impl Table {
    /// With room for this number of records.
    pub(crate) fn new(records: u64) -> Self {
        let places = (0..Self::places_for(records)).map(|_| AtomicU64::new(0)).collect();
        Self { places, used: AtomicU64::new(0) }
    }

    fn places_for(records: u64) -> u64 {
        (records.saturating_mul(4) / 3 + 2).next_power_of_two()
    }

    /// The memory of a table for this number of records.
    pub(crate) fn bytes_for(records: u64) -> u64 {
        Self::places_for(records) * 8
    }

    /// The number of its records.
    pub(crate) fn len(&self) -> u64 {
        // Relaxed: a metric.
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.places.len() as u64 / 4 * 3
    }

    /// Offsets in the file at which a key's record may be.
    pub(crate) fn offsets(&self, key: Key) -> impl Iterator<Item = u64> {
        let (first, part) = self.parts(key);
        let places = self.places[first..].iter().chain(&self.places[..first]);
        // Acquire: pairs with the release in `put`; the record was in the file before.
        let found =
            places.map(|place| place.load(Ordering::Acquire)).take_while(|place| *place != 0);
        found
            .filter(move |place| place >> OFFSET_BITS == part)
            .map(|place| (place & ((1 << OFFSET_BITS) - 1)) * ALIGNMENT as u64)
    }

    /// Adds a record's offset. False: the table is full. Only for the writing thread.
    pub(crate) fn put(&self, key: Key, offset: u64) -> bool {
        let (first, part) = self.parts(key);
        let units = offset / ALIGNMENT as u64;
        if units == 0 || units >> OFFSET_BITS != 0 {
            return false;
        }
        let places = self.places[first..].iter().chain(&self.places[..first]);
        for place in places {
            // Relaxed: only this thread writes.
            let before = place.load(Ordering::Relaxed);
            let is_empty = before == 0;
            if is_empty && self.is_full() {
                return false;
            }
            // The same part: a record that was cut off, or one of another key, which is then learned again.
            if is_empty || before >> OFFSET_BITS == part {
                // Release: pairs with the acquire in `offsets`.
                place.store(part << OFFSET_BITS | units, Ordering::Release);
                self.used.fetch_add(is_empty.into(), Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Removes all records. Only for the writing thread.
    pub(crate) fn clear(&self) {
        // Relaxed: a reader of an old slot finds no record at the offset, or the right one.
        self.places.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        self.used.store(0, Ordering::Relaxed);
    }

    /// The first slot to probe, and the part of the key in a slot.
    fn parts(&self, key: Key) -> (usize, u64) {
        let [low, high] = [key.hash, key.hash >> 64].map(|half| half & u128::from(u64::MAX));
        let [low, high] = [low, high].map(|half| u64::try_from(half).unwrap_or(0));
        let place = low & (self.places.len() as u64 - 1);
        (usize::try_from(place).unwrap_or(0), high >> OFFSET_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::of_any(&number.to_le_bytes(), &crate::record::Secret([7; 192]))
    }

    #[test]
    fn records_are_found_until_the_table_is_full() {
        let table = Table::new(1000);
        let stored = (1..3000_u64).take_while(|number| table.put(key(*number), number * 8)).count();
        assert!((1000..2049).contains(&stored) && table.is_full() && table.len() == stored as u64);
        for number in 1..=stored as u64 {
            assert!(table.offsets(key(number)).any(|offset| offset == number * 8), "{number}");
        }
        assert_eq!(table.offsets(key(9999)).next(), None);
        // Moved.
        assert!(table.put(key(5), 80_000) && table.len() == stored as u64);
        assert_eq!(table.offsets(key(5)).next(), Some(80_000));
        table.clear();
        assert_eq!((table.len(), table.offsets(key(5)).next()), (0, None));
        assert!(!table.put(key(1), 8 << OFFSET_BITS), "beyond what a place can hold");
    }
}
