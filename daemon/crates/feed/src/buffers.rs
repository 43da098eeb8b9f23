//! Memory of messages that is used again: fresh memory costs a page fault for each of its pages.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_engine::FEEDER_BUFFER_BYTES;

/// The buffers that are kept.
const MOST: usize = 8;
/// Their bytes together; a larger one, of a single large row, is not kept. The daemon's plan of memory has them.
const MOST_BYTES: u64 = FEEDER_BUFFER_BYTES;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A message's bytes, whose memory is given back.
#[derive(Debug)]
struct Lent {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// An empty buffer with room for so many bytes.
    pub(crate) fn take(&self, room: usize) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|buffer| buffer.capacity() >= room);
        // One that is too small makes room for the one that comes back.
        let found = if let Some(place) = place {
            Some(kept.swap_remove(place))
        } else {
            drop(kept.pop());
            None
        };
        found.unwrap_or_else(|| Vec::with_capacity(room))
    }

    /// A buffer as a message's bytes: once the last of them is dropped, it is kept.
    pub(crate) fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { bytes, buffers: Arc::clone(self) })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut kept = self.buffers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = kept.iter().chain([&bytes]).map(Vec::capacity).sum();
        if kept.len() < MOST && all as u64 <= MOST_BYTES {
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_all_pieces_are_dropped() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(100);
        first.extend_from_slice(&[7; 90]);
        let memory = first.as_ptr();
        let mut whole = buffers.lend(first);
        let piece = whole.split_to(30);
        drop(whole);
        let other = buffers.take(100);
        assert!(other.as_ptr() != memory, "a piece still has it");
        assert_eq!(piece, vec![7; 30]);
        drop(piece);
        let again = buffers.take(50);
        assert!(again.as_ptr() == memory && again.is_empty());
        drop(buffers.lend(again));
        assert!(buffers.take(101).capacity() >= 101);
        let kept: Vec<Bytes> = (0..20).map(|_| buffers.lend(Vec::with_capacity(10))).collect();
        drop(kept);
        assert_eq!(buffers.0.lock().unwrap().len(), MOST);
        let large = buffers.take(usize::try_from(MOST_BYTES).unwrap() + 1);
        assert_eq!(buffers.0.lock().unwrap().len(), MOST - 1, "one made room");
        drop(buffers.lend(large));
        assert_eq!(buffers.0.lock().unwrap().len(), MOST - 1);
    }

    #[test]
    fn buffers_are_kept_up_to_a_size_together() {
        let buffers = Arc::new(Buffers::default());
        let half = usize::try_from(MOST_BYTES / 2).unwrap();
        drop([half, half, half].map(|room| buffers.lend(buffers.take(room))));
        let kept = buffers.0.lock().unwrap();
        assert_eq!(kept.iter().map(Vec::capacity).collect::<Vec<_>>(), [half, half]);
    }
}
