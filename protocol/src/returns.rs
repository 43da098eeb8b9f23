//! The return ring: slots that one client gives back to the daemon, and what it says of itself.
//!
//! One writer (the client), one reader (the daemon, which trusts nothing it reads here). A return word is
//! `generation << 16 | slot`. The ring has at least as many entries as there are slots, and each lease is returned once,
//! so an honest client never waits to write. Each word is read once into a local.

use crate::ids::{Generation, SlotIndex};
use crate::publish::PublishReader;
use crate::sync::{Ordering, fence};
use crate::words::Words;

const WORD_RETURNED: usize = 0;
const WORD_SLEEPING: usize = 8;
const WORD_TAKEN: usize = 16;
const WORD_TAKEN_AT: usize = 17;
const WORD_WAITED: usize = 18;
const FIRST_ENTRY: usize = 24;

/// The words that a return ring for so many slots needs.
#[must_use]
pub fn return_words(slots: u16) -> usize {
    FIRST_ENTRY + capacity(slots)
}

fn capacity(slots: u16) -> usize {
    usize::from(slots).next_power_of_two()
}

/// What a client asks for: this slot, filled for this time, is free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnWord {
    /// The slot.
    pub slot: SlotIndex,
    /// As the descriptor gave it; the lower 48 bits travel.
    pub generation: Generation,
}

impl ReturnWord {
    /// As it travels.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.generation.0 << 16 | u64::from(self.slot.0)
    }

    /// From any word.
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let [low, high, ..] = word.to_le_bytes();
        Self {
            slot: SlotIndex(u16::from_le_bytes([low, high])),
            generation: Generation(word >> 16),
        }
    }
}

/// The client's end. One thread at a time: the client guards it with a lock of its own.
#[derive(Debug)]
pub struct ReturnWriter<W> {
    words: W,
    capacity: u64,
    returned: u64,
    rung_at: u64,
}

impl<W: Words> ReturnWriter<W> {
    /// Over the return segment of a ring with so many slots.
    pub fn new(words: W, slots: u16) -> Self {
        Self { words, capacity: capacity(slots) as u64, returned: 0, rung_at: 0 }
    }

    /// Gives a slot back. True: the daemon asked to be woken by now, so a doorbell is due.
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

    /// Says that this side is about to sleep. The caller must look at the publish ring once more after it.
    /// True: slots were given back without a doorbell; one is due now, lest both sides wait for each other.
    pub fn announce_sleep(&mut self) -> bool {
        // Relaxed: ordered by the fence.
        self.words.word(WORD_SLEEPING).store(1, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `PublishWriter::publish`.
        fence(Ordering::SeqCst);
        let due = self.returned > self.rung_at;
        self.rung_at = self.returned;
        due
    }

    /// Says that this side is awake.
    pub fn announce_wake(&self) {
        // Relaxed: a doorbell too many does no harm.
        self.words.word(WORD_SLEEPING).store(0, Ordering::Relaxed);
    }

    /// Tells how many batches were taken from the ring, and when the last one was, in nanoseconds of
    /// [`crate::clock::monotonic_ns`]: statistics.
    pub fn show_taken(&self, taken: u64, at_ns: u64) {
        // Relaxed: nothing is ordered by them.
        self.words.word(WORD_TAKEN).store(taken, Ordering::Relaxed);
        self.words.word(WORD_TAKEN_AT).store(at_ns, Ordering::Relaxed);
    }

    /// Tells how long the client has waited for batches after its first, in nanoseconds: a statistic.
    pub fn show_waited(&self, waited_ns: u64) {
        // Relaxed: nothing is ordered by it.
        self.words.word(WORD_WAITED).store(waited_ns, Ordering::Relaxed);
    }
}

/// A client that breaks the rules of the ring. The session ends with this as its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client claims {claimed} unread returns in a ring of {capacity}")]
pub struct ReturnOverrun {
    /// What the client's count says.
    pub claimed: u64,
    /// What a ring can hold.
    pub capacity: u64,
}

/// The daemon's end.
#[derive(Debug)]
pub struct ReturnReader<W> {
    words: W,
    capacity: u64,
    consumed: u64,
}

impl<W: Words> ReturnReader<W> {
    /// Over the return segment of a ring with so many slots.
    pub fn new(words: W, slots: u16) -> Self {
        Self { words, capacity: capacity(slots) as u64, consumed: 0 }
    }

    /// The next return that was not read yet. The word may be anything: [`crate::lease::SlotTable`] judges it.
    ///
    /// # Errors
    /// When the client's count is beyond what a ring can hold.
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
        // Relaxed: the acquire load above came first.
        let word = self.words.word(entry).load(Ordering::Relaxed);
        self.consumed += 1;
        Ok(Some(ReturnWord::decode(word)))
    }

    /// The returns read so far.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Whether the client said that it sleeps. Asked after [`crate::publish::PublishWriter::publish`].
    pub fn client_sleeps(&self) -> bool {
        // Relaxed: the fence in `publish` came first.
        self.words.word(WORD_SLEEPING).load(Ordering::Relaxed) != 0
    }

    /// What the client says it has taken: a statistic, never ownership.
    pub fn claimed_taken(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_TAKEN).load(Ordering::Relaxed)
    }

    /// When the client says it took its last batch; 0 before the first: a statistic.
    pub fn claimed_taken_at_ns(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_TAKEN_AT).load(Ordering::Relaxed)
    }

    /// How long the client says it has waited for batches after its first: a statistic.
    pub fn claimed_waited_ns(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(WORD_WAITED).load(Ordering::Relaxed)
    }
}
