//! The return ring: slots that one client returns to the daemon, and the client's counters.
//!
//! One writer (the client), one reader (the daemon, which validates everything it reads here). A return word is
//! `generation << 16 | slot`. The ring has at least as many entries as there are slots, and each lease is returned once,
//! so a correct client never waits to write. Each word is read once into a local.

use crate::ids::{Generation, SlotIndex};
use crate::publish::{PublishReader, capacity};
use crate::sync::{Ordering, fence};
use crate::words::Words;

const WORD_RETURNED: usize = 0;
const WORD_SLEEPING: usize = 8;
const WORD_TAKEN: usize = 16;
const WORD_TAKEN_AT: usize = 17;
const WORD_WAITED: usize = 18;
const FIRST_ENTRY: usize = 24;

/// The size in words of a return ring for `slots` slots.
#[must_use]
pub fn return_words(slots: u16) -> usize {
    FIRST_ENTRY + capacity(slots)
}

/// A client's return of a slot with its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnWord {
    /// The slot.
    pub slot: SlotIndex,
    /// The generation in the batch's descriptor; the lower 48 bits are sent.
    pub generation: Generation,
}

impl ReturnWord {
    /// The word in the ring.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.generation.0 << 16 | u64::from(self.slot.0)
    }

    /// Decodes any word.
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let [low, high, ..] = word.to_le_bytes();
        Self {
            slot: SlotIndex(u16::from_le_bytes([low, high])),
            generation: Generation(word >> 16),
        }
    }
}

/// The client's side. Used by one thread at a time: the client guards it with a lock.
#[derive(Debug)]
pub struct ReturnWriter<W> {
    words: W,
    capacity: u64,
    returned: u64,
    rung_at: u64,
}

impl<W: Words> ReturnWriter<W> {
    /// Opens the return segment of a ring with `slots` slots.
    pub fn new(words: W, slots: u16) -> Self {
        Self { words, capacity: capacity(slots) as u64, returned: 0, rung_at: 0 }
    }

    /// Returns a slot. True: the daemon requested a wake-up for this count, and the caller must ring the doorbell.
    pub fn give_back<P: Words>(&mut self, word: ReturnWord, publish: &PublishReader<P>) -> bool {
        let entry = FIRST_ENTRY + usize::try_from(self.returned % self.capacity).unwrap_or(0);
        // Relaxed: ordered by the release store of the count.
        self.words.word(entry).store(word.encode(), Ordering::Relaxed);
        self.returned += 1;
        // Release: pairs with the acquire load in `ReturnReader::take_return`.
        self.words.word(WORD_RETURNED).store(self.returned, Ordering::Release);
        // SeqCst fence: pairs with the one in `PublishWriter::ask_wake_at`.
        fence(Ordering::SeqCst);
        let wake_at = publish.wake_at();
        let due = self.returned >= wake_at && wake_at > self.rung_at;
        if due {
            self.rung_at = self.returned;
        }
        due
    }

    /// Announces that the client is about to sleep. The caller must check the publish ring once more afterwards.
    /// True: slots were returned without a doorbell, and the daemon may not look at them; the caller must ring it now,
    /// or both sides could sleep.
    pub fn announce_sleep<P: Words>(&mut self, publish: &PublishReader<P>) -> bool {
        // Relaxed: ordered by the fence.
        self.words.word(WORD_SLEEPING).store(1, Ordering::Relaxed);
        // SeqCst fence: pairs with those in `PublishWriter::publish` and `PublishWriter::ask_wake_at`.
        fence(Ordering::SeqCst);
        let due = self.returned > self.rung_at && !publish.looks_soon();
        if due {
            self.rung_at = self.returned;
        }
        due
    }

    /// Announces that the client is awake.
    pub fn announce_wake(&self) {
        // Relaxed: a superfluous doorbell is harmless.
        self.words.word(WORD_SLEEPING).store(0, Ordering::Relaxed);
    }

    /// Stores the number of batches taken from the ring and the time of the last one, in nanoseconds of
    /// [`crate::clock::monotonic_ns`]: statistics.
    pub fn show_taken(&self, taken: u64, at_ns: u64) {
        // Relaxed: nothing is ordered by them.
        self.words.word(WORD_TAKEN).store(taken, Ordering::Relaxed);
        self.words.word(WORD_TAKEN_AT).store(at_ns, Ordering::Relaxed);
    }

    /// Stores the client's total wait for batches after its first, in nanoseconds: a statistic.
    pub fn show_waited(&self, waited_ns: u64) {
        // Relaxed: nothing is ordered by it.
        self.words.word(WORD_WAITED).store(waited_ns, Ordering::Relaxed);
    }
}

/// A return count that exceeds the ring's capacity. It ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client claims {claimed} unread returns in a ring of {capacity}")]
pub struct ReturnOverrun {
    /// The unread returns by the client's count.
    pub claimed: u64,
    /// The ring's capacity.
    pub capacity: u64,
}

/// The daemon's side.
#[derive(Debug)]
pub struct ReturnReader<W> {
    words: W,
    capacity: u64,
    consumed: u64,
}

impl<W: Words> ReturnReader<W> {
    /// Opens the return segment of a ring with `slots` slots.
    pub fn new(words: W, slots: u16) -> Self {
        Self { words, capacity: capacity(slots) as u64, consumed: 0 }
    }

    /// The next unread return. The word is not validated here: `SlotTable::accept_return` does that.
    ///
    /// # Errors
    /// The client's count exceeds the ring's capacity.
    pub fn take_return(&mut self) -> Result<Option<ReturnWord>, ReturnOverrun> {
        // Acquire: pairs with the release store in `ReturnWriter::give_back`.
        let returned = self.words.word(WORD_RETURNED).load(Ordering::Acquire);
        let claimed = returned.wrapping_sub(self.consumed);
        if claimed == 0 {
            return Ok(None);
        }
        if claimed > self.capacity {
            return Err(ReturnOverrun { claimed, capacity: self.capacity });
        }
        let entry = FIRST_ENTRY + usize::try_from(self.consumed % self.capacity).unwrap_or(0);
        // Relaxed: ordered by the acquire load above.
        let word = self.words.word(entry).load(Ordering::Relaxed);
        self.consumed += 1;
        Ok(Some(ReturnWord::decode(word)))
    }

    /// The returns read so far.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Whether the client sleeps. Read after [`crate::publish::PublishWriter::publish`].
    pub fn client_sleeps(&self) -> bool {
        // Relaxed: ordered by the fence in `publish`.
        self.words.word(WORD_SLEEPING).load(Ordering::Relaxed) != 0
    }

    /// The batches taken, as reported by the client: a statistic, never ownership.
    pub fn claimed_taken(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_TAKEN).load(Ordering::Relaxed)
    }

    /// The time of the last batch taken, as reported by the client; 0 before the first: a statistic.
    pub fn claimed_taken_at_ns(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_TAKEN_AT).load(Ordering::Relaxed)
    }

    /// The total wait after the first batch, as reported by the client: a statistic.
    pub fn claimed_waited_ns(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_WAITED).load(Ordering::Relaxed)
    }
}
