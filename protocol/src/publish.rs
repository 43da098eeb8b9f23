//! The publish ring: descriptors of finished batches, from the daemon to one client.
//!
//! One writer (the daemon), one reader (the client, which maps it read-only). Word 8 counts the published batches; entry
//! `k mod capacity` describes batch `k`. The ring has at least as many entries as there are slots and a slot is refilled
//! only after the client returned it, so the writer never overwrites an unread entry and never waits.
//!
//! The daemon writes all words of this segment. The client's `sleeping` flag, which decides whether a doorbell is sent, is
//! in the return segment ([`crate::returns`]).

use crate::ids::{BatchNumber, Generation, Position, SlotIndex};
use crate::sync::{Ordering, fence};
use crate::tensor::{DType, MAX_RANK, MAX_TENSORS};
use crate::words::Words;

/// The first word of the segment: "FOREBAY" and the layout's number.
pub const PUBLISH_MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY\x01");

const WORD_MAGIC: usize = 0;
const WORD_CAPACITY: usize = 1;
const WORD_ENTRY_WORDS: usize = 2;
const WORD_PUBLISHED: usize = 8;
const WORD_WAKE_AT: usize = 16;
const WORD_LOOKS_SOON: usize = 17;
const WORD_PROGRESS: usize = 24;
/// Entries start on the segment's second page.
#[cfg(not(loom))]
const FIRST_ENTRY: usize = 512;
#[cfg(loom)]
const FIRST_ENTRY: usize = 32;
const ENTRY_HEADER_WORDS: usize = 16;
const TENSOR_WORDS: usize = 12;

const FLAG_LAST_OF_EPOCH: u64 = 1 << 16;
const FLAG_REPLAYED: u64 = 1 << 17;

/// One tensor of one batch in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorEntry {
    /// The type of the elements.
    pub dtype: DType,
    /// Whether rows differ in length; their table is then at `table_offset_bytes`.
    pub ragged: bool,
    /// From the slot's start to the first row.
    pub offset_bytes: u64,
    /// The bytes of all rows, from the first one's start to the last one's end.
    pub length_bytes: u64,
    /// From the slot's start to the table before the rows: offsets and lengths of a ragged tensor, in elements, or the
    /// mixes of a tensor that the client finishes; 0 without a table.
    pub table_offset_bytes: u64,
    /// The number of dimensions, including the batch dimension; at most [`MAX_RANK`].
    pub rank: u8,
    /// The shape; entries past `rank` are 0.
    pub dims: [u64; MAX_RANK],
}

/// One finished batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Counted from 0 over the session.
    pub sequence: BatchNumber,
    /// The batch's slot.
    pub slot: SlotIndex,
    /// Sent back with the slot.
    pub generation: Generation,
    /// The number of bytes of the slot that contain data.
    pub payload_bytes: u64,
    /// The epoch that the batch belongs to.
    pub epoch: u64,
    /// The stream's position once this batch is consumed.
    pub position_after: Position,
    /// The serial of the seek that this batch belongs to; 0 before the first.
    pub seek_serial: u64,
    /// The number of samples in the batch, including padding.
    pub rows: u64,
    /// The number of substitutes in this epoch, including this batch's.
    pub substitutes: u64,
    /// The number of this rank's batches after this one in the epoch of `position_after`.
    pub batches_after: u64,
    /// Whether it is this rank's last batch of the epoch.
    pub last_of_epoch: bool,
    /// Whether it is a replay of an earlier batch, for a measurement.
    pub replayed: bool,
    /// At most [`MAX_TENSORS`].
    pub tensors: Vec<TensorEntry>,
}

/// An unusable publish segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// This version does not write such a segment head.
    #[error(
        "the publish segment's head does not fit this client; daemon and client differ in version"
    )]
    Head,
    /// A descriptor that no daemon writes.
    #[error("descriptor {sequence} is malformed: {what}")]
    Malformed {
        /// The batch.
        sequence: u64,
        /// The field.
        what: &'static str,
    },
}

/// The size in words of a ring of at least `slots` entries for `tensors` tensors.
#[must_use]
pub fn publish_words(slots: u16, tensors: usize) -> usize {
    FIRST_ENTRY + capacity(slots) * entry_words(tensors)
}

pub(crate) fn capacity(slots: u16) -> usize {
    usize::from(slots).next_power_of_two()
}

fn entry_words(tensors: usize) -> usize {
    (ENTRY_HEADER_WORDS + tensors * TENSOR_WORDS).next_multiple_of(8)
}

/// The daemon's side. There is one per ring.
#[derive(Debug)]
pub struct PublishWriter<W> {
    words: W,
    capacity: usize,
    entry_words: usize,
    published: u64,
}

impl<W: Words> PublishWriter<W> {
    /// Writes the header of a new, zeroed segment of [`publish_words`] words.
    pub fn new(words: W, slots: u16, tensors: usize) -> Self {
        let (capacity, entry_words) = (capacity(slots), entry_words(tensors));
        // Relaxed: the client receives the segment through a socket, which orders this.
        words.word(WORD_CAPACITY).store(capacity as u64, Ordering::Relaxed);
        words.word(WORD_ENTRY_WORDS).store(entry_words as u64, Ordering::Relaxed);
        words.word(WORD_MAGIC).store(PUBLISH_MAGIC, Ordering::Relaxed);
        Self { words, capacity, entry_words, published: 0 }
    }

    /// The number of batches published so far.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Publishes a batch. The caller ensures that the entry is free: see the module documentation.
    ///
    /// Afterwards the caller checks `ReturnReader::client_sleeps` to decide whether to send a doorbell.
    pub fn publish(&mut self, batch: &Descriptor) {
        let index = usize::try_from(self.published % self.capacity as u64).unwrap_or(0);
        let base = FIRST_ENTRY + index * self.entry_words;
        // Relaxed: the release store of the count below orders every word of the entry before it.
        let put = |word: usize, value: u64| {
            self.words.word(base + word).store(value, Ordering::Relaxed);
        };
        let mut flags = u64::from(batch.slot.0);
        if batch.last_of_epoch {
            flags |= FLAG_LAST_OF_EPOCH;
        }
        if batch.replayed {
            flags |= FLAG_REPLAYED;
        }
        put(0, batch.sequence.0);
        put(1, flags);
        put(2, batch.generation.0);
        put(3, batch.payload_bytes);
        put(4, batch.position_after.epoch);
        put(5, batch.position_after.samples);
        put(6, batch.seek_serial);
        put(7, batch.rows);
        put(8, batch.tensors.len() as u64);
        put(9, batch.substitutes);
        put(10, batch.epoch);
        put(11, batch.batches_after);
        for (tensor, entry) in batch.tensors.iter().enumerate() {
            let first = ENTRY_HEADER_WORDS + tensor * TENSOR_WORDS;
            let kind = u64::from(entry.dtype as u8)
                | u64::from(entry.ragged) << 8
                | u64::from(entry.rank) << 16;
            put(first, kind);
            put(first + 1, entry.offset_bytes);
            put(first + 2, entry.length_bytes);
            put(first + 3, entry.table_offset_bytes);
            for (axis, dim) in entry.dims.iter().enumerate() {
                put(first + 4 + axis, *dim);
            }
        }
        self.published += 1;
        // Release: pairs with the acquire load in `PublishReader::published`; the entry and the slot's bytes come first.
        self.words.word(WORD_PUBLISHED).store(self.published, Ordering::Release);
        // SeqCst fence: pairs with the one in `ReturnWriter::announce_sleep`. Either the client sees this batch before it
        // sleeps, or this side sees the `sleeping` flag.
        fence(Ordering::SeqCst);
    }

    /// Requests a doorbell once the client has returned `returned` slots in total; `u64::MAX`: never. With `looks_soon`
    /// a client that goes to sleep after fewer returns sends none: the caller looks at the returns in any case, when its
    /// work wakes it.
    ///
    /// Afterwards the caller must check the return ring once more before it sleeps.
    pub fn ask_wake_at(&self, returned: u64, looks_soon: bool) {
        // Relaxed: ordered by the fence.
        self.words.word(WORD_WAKE_AT).store(returned, Ordering::Relaxed);
        self.words.word(WORD_LOOKS_SOON).store(looks_soon.into(), Ordering::Relaxed);
        // SeqCst fence: pairs with those in `ReturnWriter::give_back` and `ReturnWriter::announce_sleep`. Either the
        // client sees the new marks, or this side sees the return.
        fence(Ordering::SeqCst);
    }

    /// Stores the daemon's progress for the client's time-outs; any increasing number.
    pub fn show_progress(&self, count: u64) {
        // Relaxed: a progress counter that orders nothing.
        self.words.word(WORD_PROGRESS).store(count, Ordering::Relaxed);
    }
}

/// The client's side. It trusts the daemon, but validates everything that it reads.
#[derive(Debug)]
pub struct PublishReader<W> {
    words: W,
    capacity: u64,
    entry_words: usize,
}

impl<W: Words> PublishReader<W> {
    /// Opens a segment that a daemon created.
    ///
    /// # Errors
    /// The header is invalid or does not fit the segment's size.
    pub fn new(words: W) -> Result<Self, PublishError> {
        // Relaxed: the socket that carried the segment orders its header.
        let head = |word: usize| words.word(word).load(Ordering::Relaxed);
        let count = words.count();
        if count < FIRST_ENTRY || head(WORD_MAGIC) != PUBLISH_MAGIC {
            return Err(PublishError::Head);
        }
        let (capacity, entry_words) = (head(WORD_CAPACITY), head(WORD_ENTRY_WORDS));
        let fits = usize::try_from(capacity)
            .ok()
            .zip(usize::try_from(entry_words).ok())
            .filter(|(capacity, words)| *capacity > 0 && *words >= ENTRY_HEADER_WORDS)
            .and_then(|(capacity, words)| capacity.checked_mul(words)?.checked_add(FIRST_ENTRY))
            .is_some_and(|needed| needed <= count);
        if !fits {
            return Err(PublishError::Head);
        }
        let entry_words = usize::try_from(entry_words).map_err(|_| PublishError::Head)?;
        Ok(Self { words, capacity, entry_words })
    }

    /// The number of batches published so far.
    pub fn published(&self) -> u64 {
        // Acquire: pairs with the release store in `PublishWriter::publish`.
        self.words.word(WORD_PUBLISHED).load(Ordering::Acquire)
    }

    /// The mark set by [`PublishWriter::ask_wake_at`].
    pub fn wake_at(&self) -> u64 {
        // Relaxed: read after the fence in `ReturnWriter::give_back`.
        self.words.word(WORD_WAKE_AT).load(Ordering::Relaxed)
    }

    /// Whether the daemon looks at the returns without a doorbell, as set by [`PublishWriter::ask_wake_at`].
    pub fn looks_soon(&self) -> bool {
        // Relaxed: read after the fence in `ReturnWriter::announce_sleep`.
        self.words.word(WORD_LOOKS_SOON).load(Ordering::Relaxed) != 0
    }

    /// The number set by [`PublishWriter::show_progress`].
    pub fn progress(&self) -> u64 {
        // Relaxed: a progress counter.
        self.words.word(WORD_PROGRESS).load(Ordering::Relaxed)
    }

    /// Reads the descriptor of batch `sequence`, which must be below [`published`](Self::published) and not yet returned.
    ///
    /// # Errors
    /// The words are invalid: the daemon is broken or has a different version.
    pub fn read(&self, sequence: u64) -> Result<Descriptor, PublishError> {
        let malformed = |what| PublishError::Malformed { sequence, what };
        let index = usize::try_from(sequence % self.capacity).unwrap_or(0);
        let base = FIRST_ENTRY + index * self.entry_words;
        // Relaxed: ordered by the acquire load of the count.
        let get = |word: usize| self.words.word(base + word).load(Ordering::Relaxed);
        if get(0) != sequence {
            return Err(malformed("sequence"));
        }
        let flags = get(1);
        let tensor_count = usize::try_from(get(8)).map_err(|_| malformed("tensor count"))?;
        if tensor_count > MAX_TENSORS || entry_words(tensor_count) > self.entry_words {
            return Err(malformed("tensor count"));
        }
        let mut tensors = Vec::with_capacity(tensor_count);
        for tensor in 0..tensor_count {
            let first = ENTRY_HEADER_WORDS + tensor * TENSOR_WORDS;
            let [dtype, ragged, rank, ..] = get(first).to_le_bytes();
            let dtype = DType::from_code(dtype).ok_or_else(|| malformed("dtype"))?;
            if usize::from(rank) > MAX_RANK {
                return Err(malformed("rank"));
            }
            tensors.push(TensorEntry {
                dtype,
                ragged: ragged != 0,
                offset_bytes: get(first + 1),
                length_bytes: get(first + 2),
                table_offset_bytes: get(first + 3),
                rank,
                dims: std::array::from_fn(|axis| get(first + 4 + axis)),
            });
        }
        Ok(Descriptor {
            sequence: BatchNumber(sequence),
            slot: SlotIndex(u16::try_from(flags & 0xffff).unwrap_or(u16::MAX)),
            generation: Generation(get(2)),
            payload_bytes: get(3),
            epoch: get(10),
            position_after: Position { epoch: get(4), samples: get(5) },
            seek_serial: get(6),
            rows: get(7),
            substitutes: get(9),
            batches_after: get(11),
            last_of_epoch: flags & FLAG_LAST_OF_EPOCH != 0,
            replayed: flags & FLAG_REPLAYED != 0,
            tensors,
        })
    }
}
