//! Records on their way from the work threads to the writer.
//!
//! Neither side ever waits for the other or makes a system call: a slot's mutex is only ever tried. A low-priority
//! thread that is preempted while it fills a slot blocks only that slot for the writer. (With a usual queue the writer
//! would spin until the thread runs again, or be woken by it.)

use std::sync::Mutex;

use forebay_protocol::sync::{AtomicU64, Ordering};

const PLACES: usize = 2048;
/// Slots that are tried before a record is dropped.
const TRIES: usize = 8;
/// Limit of all waiting records.
pub(crate) const MOST_BYTES: u64 = 2 << 20;
/// A slot keeps its memory up to this size, so that it does not move between threads' heaps.
const KEPT_BYTES: usize = 1 << 10;
/// Including the memory that slots keep.
pub(crate) const MOST_HELD_BYTES: u64 = MOST_BYTES + (PLACES * KEPT_BYTES) as u64;

#[derive(Debug)]
pub(crate) struct Waiting {
    /// Empty if no record waits.
    places: Box<[Mutex<Vec<u8>>]>,
    next: AtomicU64,
    bytes: AtomicU64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

impl Waiting {
    /// False: no room. For any thread.
    pub(crate) fn put(&self, record: &[u8]) -> bool {
        // Relaxed, all of them: a limit and a hint; the slots' locks order their contents.
        let bytes = record.len() as u64;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_put = before + bytes <= MOST_BYTES
            && (0..TRIES).any(|_| {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) % PLACES as u64;
                let place = usize::try_from(turn).unwrap_or(0);
                let Ok(mut place) = self.places[place].try_lock() else { return false };
                let is_empty = place.is_empty();
                if is_empty {
                    place.extend_from_slice(record);
                }
                is_empty
            });
        if !is_put {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_put
    }

    /// Takes all waiting records. Only for the writer.
    pub(crate) fn take_all(&self, mut each: impl FnMut(&[u8])) {
        for place in &self.places {
            let Ok(mut place) = place.try_lock() else { continue };
            if place.is_empty() {
                continue;
            }
            each(&place);
            self.bytes.fetch_sub(place.len() as u64, Ordering::Relaxed);
            place.clear();
            if place.capacity() > KEPT_BYTES {
                *place = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_records_are_dropped_and_the_others_arrive_once() {
        let waiting = Waiting::default();
        let put = (0..3000_u32).filter(|number| waiting.put(&number.to_le_bytes())).count();
        assert_eq!(put, PLACES);
        let mut taken = Vec::new();
        waiting.take_all(|record| taken.push(u32::from_le_bytes(record.try_into().unwrap())));
        taken.sort_unstable();
        assert_eq!(taken, (0..2048).collect::<Vec<_>>());
        assert!(waiting.put(&vec![1; 2 << 20]) && !waiting.put(&[1]), "the bytes have an end");
        let mut bytes = 0;
        waiting.take_all(|record| bytes += record.len() as u64);
        assert_eq!(bytes, MOST_BYTES);
        assert!(waiting.put(&[1]));
    }

    #[test]
    fn preempted_thread_blocks_one_slot() {
        let waiting = Waiting::default();
        let held = waiting.places[0].lock().unwrap();
        assert!(waiting.put(b"first") && waiting.put(b"second"));
        let mut taken = 0;
        waiting.take_all(|_| taken += 1);
        assert_eq!(taken, 2);
        drop(held);
    }
}
