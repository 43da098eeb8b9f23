//! Records the samples under work in memory that outlives the daemon, to find a sample that crashes the daemon.
//!
//! Each work thread has a cell of the page; it writes its sample there before a stage and clears it afterwards. The
//! starter of the next daemon passes the page on; the next daemon creates its own page from it. A sample's state
//! belongs to one epoch, which determines its draws. The states, and what changes them:
//!
//! ```text
//!            next daemon, at its start: the last one was ended by a signal with it under work
//!   unknown ────────────────────────────────────────────────────────────► suspect, 0 deaths alone
//!      ▲                                                                        │  ▲
//!      │ work thread: it was processed alone, to its last stage or its error    │  │ next daemon, at its start: the last
//!      └────────────────────────────────────────────────────────────────────────┤  │ one was ended with it alone under work
//!                                                                               └──┘
//!   killer ◄──── next daemon, at its start: the third death alone
//! ```
//!
//! - A suspect is processed while no other sample is: its thread waits for all others. Without suspects nothing is
//!   locked.
//! - A killer is not processed: it is a bad sample, in this epoch. Another epoch draws other crops, and the contents of
//!   a batch must not depend on results of an earlier epoch; each epoch finds its killers independently.
//! - SIGKILL, as sent by the kernel when memory runs out, makes no sample a suspect if the starter reports the signal
//!   (a private daemon). Under `serve` and `run` the end of the last daemon is unknown: three deaths of any kind with
//!   the same sample alone under work count.
//! - While there are suspects, a thread of the idle class that is not scheduled can block the fallback pool. That ends
//!   with the last suspect.
//! - The last daemon's cells and states are read once, at the start. An invalid page, or one of other streams, counts
//!   as empty.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicUsize;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_protocol::segment::{Mapping, Segment, SegmentError};
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_protocol::words::Words;

use crate::ground::work_parking::GROUPS;

/// "FBWORK" and the layout's version.
const MAGIC: u64 = u64::from_le_bytes(*b"FBWORK\0\x01");
const WORD_MAGIC: usize = 0;
/// Maximal number of suspects and killers; each entry is a sample and its state.
const ENTRIES: usize = 256;
const FIRST_ENTRY: usize = 8;
const ENTRY_WORDS: usize = 4;
/// Threads per group that have cells; further threads record nothing.
const CELLS: usize = 512;
const FIRST_CELL: usize = FIRST_ENTRY + ENTRIES * ENTRY_WORDS;
/// A cache line, so that threads do not disturb each other.
const CELL_WORDS: usize = 8;
const WORDS: usize = FIRST_CELL + GROUPS * CELLS * CELL_WORDS;
const BYTES: u64 = WORDS as u64 * 8;

/// Maximal number of samples named in the log.
const NAMED: usize = 16;
/// Deaths alone after which a suspect is a killer.
const DEATHS: u64 = 3;
/// The state of a suspect that was processed to its end.
const CLEARED: u64 = u64::MAX;
/// Represents an unknown signal.
const UNKNOWN_SIGNAL: u64 = 0;
const SIGKILL: u64 = 9;

/// A sample of a stream in an epoch, which determines its draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkKey {
    /// The stream's [`work_key`](crate::ground::stream::Stream::work_key), never 0.
    pub(crate) stream: u64,
    pub(crate) epoch: u64,
    pub(crate) sample: u64,
}

impl WorkKey {
    fn read(word: impl Fn(usize) -> u64, first: usize) -> Option<Self> {
        let key = Self { stream: word(first), epoch: word(first + 1), sample: word(first + 2) };
        (key.stream != 0).then_some(key)
    }
}

/// Deaths alone and the last signal, in one word.
fn state_of(deaths: u64, signal: u64) -> u64 {
    deaths << 8 | signal & 0xff
}

/// How the previous daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastEnd {
    /// A signal ended it.
    Signal(u32),
    /// It exited, as after an error.
    Exit,
    /// The end is unknown.
    Unknown,
}

/// See the module's head.
#[derive(Debug)]
pub struct WorkPage {
    segment: Segment,
    words: Mapping,
    /// The page's entries at this daemon's start, in their order.
    entries: Vec<WorkKey>,
    /// Number of suspects that were not processed yet.
    suspects: AtomicUsize,
    /// While there are suspects, held for reading during a sample's work, and for writing during a suspect's.
    turns: RwLock<()>,
}

/// One sample under work. Dropping it clears the cell.
#[derive(Debug)]
pub(crate) struct UnderWork<'a> {
    page: &'a WorkPage,
    cell: Option<usize>,
    /// The suspect's entry.
    entry: Option<usize>,
    // Released after the cell is cleared.
    _turn: Turn<'a>,
}

#[derive(Debug)]
enum Turn<'a> {
    Free,
    Beside { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl WorkPage {
    /// The page of a private daemon: memory that its client keeps. `before` is the previous daemon's page.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn in_memory(before: Option<(&File, LastEnd)>) -> Result<Self, SegmentError> {
        let found = before.map(|(file, end)| read(file, end)).unwrap_or_default();
        let segment = Segment::create("work", BYTES)?;
        segment.seal(forebay_protocol::segment::Access::ReadWrite)?;
        Self::of(segment, &found)
    }

    /// The page in a file, which contains the previous daemon's page.
    ///
    /// # Errors
    /// There is not enough space, or the file cannot be mapped.
    pub fn in_file(file: File) -> Result<Self, SegmentError> {
        let found = read(&file, LastEnd::Unknown);
        Self::of(Segment::in_file(file.into(), "work", BYTES)?, &found)
    }

    fn of(segment: Segment, found: &[(WorkKey, u64)]) -> Result<Self, SegmentError> {
        let words = segment.map()?;
        let put = |word: usize, value: u64| {
            // Relaxed, here and below: the next daemon reads the page after this one has died.
            words.word(word).store(value, Ordering::Relaxed);
        };
        put(WORD_MAGIC, 0);
        (WORD_MAGIC + 1..WORDS).for_each(|word| put(word, 0));
        for (number, (key, state)) in found.iter().enumerate() {
            let first = FIRST_ENTRY + number * ENTRY_WORDS;
            [key.stream, key.epoch, key.sample, *state]
                .iter()
                .enumerate()
                .for_each(|(word, value)| put(first + word, *value));
        }
        put(WORD_MAGIC, MAGIC);
        let is_suspect = |(_, state): &&(WorkKey, u64)| *state >> 8 < DEATHS;
        let suspects = AtomicUsize::new(found.iter().filter(is_suspect).count());
        let entries = found.iter().map(|(key, _)| *key).collect();
        Ok(Self { segment, words, entries, suspects, turns: RwLock::default() })
    }

    /// The page's descriptor, for the next daemon.
    #[must_use]
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.segment.descriptor()
    }

    /// Called before work on a sample: waits for its turn. The error is why it is a bad sample.
    pub(crate) fn begin(
        &self,
        (group, number): (usize, usize),
        key: WorkKey,
    ) -> Result<UnderWork<'_>, String> {
        let entry = self.entries.iter().position(|entry| *entry == key);
        let state = entry.map(|entry| self.state(entry).load(Ordering::Relaxed));
        let (entry, turn) = match (entry, state) {
            (Some(entry), Some(state)) if state != CLEARED => {
                if state >> 8 >= DEATHS {
                    return Err(reason(state & 0xff));
                }
                let guard = self.turns.write().unwrap_or_else(PoisonError::into_inner);
                (Some(entry), Turn::Alone { _guard: guard })
            }
            _ => (None, self.beside()),
        };
        let first = FIRST_CELL + (group * CELLS + number) * CELL_WORDS;
        let cell = (number < CELLS).then_some(first);
        if let Some(cell) = cell {
            self.words.word(cell + 1).store(key.epoch, Ordering::Relaxed);
            self.words.word(cell + 2).store(key.sample, Ordering::Relaxed);
            self.words.word(cell).store(key.stream, Ordering::Relaxed);
        }
        Ok(UnderWork { page: self, cell, entry, _turn: turn })
    }

    /// Makes suspects wait as long as the result is held: for work on a whole batch.
    pub(crate) fn beside_suspects(&self) -> impl Drop + '_ {
        UnderWork { page: self, cell: None, entry: None, _turn: self.beside() }
    }

    fn beside(&self) -> Turn<'_> {
        // Relaxed: the count only falls, and a thread that sees it late holds a lock that no other thread needs.
        if self.suspects.load(Ordering::Relaxed) == 0 {
            return Turn::Free;
        }
        let guard = self.turns.read().unwrap_or_else(PoisonError::into_inner);
        Turn::Beside { _guard: guard }
    }

    fn state(&self, entry: usize) -> &AtomicU64 {
        self.words.word(FIRST_ENTRY + entry * ENTRY_WORDS + 3)
    }
}

impl UnderWork<'_> {
    /// The sample was processed to its end: a suspect is cleared.
    pub(crate) fn finish(self) {
        if let Some(entry) = self.entry
            && self.page.state(entry).swap(CLEARED, Ordering::Relaxed) != CLEARED
        {
            self.page.suspects.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for UnderWork<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            self.page.words.word(cell).store(0, Ordering::Relaxed);
        }
    }
}

/// Why a killer is a bad sample.
fn reason(signal: u64) -> String {
    let how = match signal {
        UNKNOWN_SIGNAL => String::new(),
        signal => format!(" (signal {signal})"),
    };
    format!("ends the daemon{how}: {DEATHS} times alone under work")
}

/// The suspects and killers after the death of a daemon with this page.
fn read(page: &File, end: LastEnd) -> Vec<(WorkKey, u64)> {
    let mut bytes = vec![0; WORDS * 8];
    if page.read_exact_at(&mut bytes, 0).is_err() {
        return Vec::new();
    }
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    judge(&|word: usize| words.get(word).copied().unwrap_or(0), end)
}

fn judge(word: &dyn Fn(usize) -> u64, end: LastEnd) -> Vec<(WorkKey, u64)> {
    if word(WORD_MAGIC) != MAGIC {
        return Vec::new();
    }
    let mut found: Vec<(WorkKey, u64)> = (0..ENTRIES)
        .map(|entry| FIRST_ENTRY + entry * ENTRY_WORDS)
        .filter_map(|first| Some((WorkKey::read(word, first)?, word(first + 3))))
        .filter(|(_, state)| *state != CLEARED)
        .collect();
    let signal = match end {
        LastEnd::Exit => return found,
        LastEnd::Signal(signal) => u64::from(signal),
        LastEnd::Unknown => UNKNOWN_SIGNAL,
    };
    let mut under_work: Vec<WorkKey> = (0..GROUPS * CELLS)
        .filter_map(|cell| WorkKey::read(word, FIRST_CELL + cell * CELL_WORDS))
        .collect();
    under_work.dedup();
    if !under_work.is_empty() {
        let named = under_work.iter().take(NAMED).map(|key| key.sample.to_string());
        let samples = named.collect::<Vec<_>>().join(", ");
        let count = under_work.len();
        tracing::warn!(count, samples, "samples were under work when the daemon before ended");
    }
    if signal == SIGKILL {
        return found;
    }
    if let [alone] = under_work[..]
        && let Some((_, state)) = found.iter_mut().find(|(key, _)| *key == alone)
    {
        *state = state_of((*state >> 8).saturating_add(1).min(DEATHS), signal);
        return found;
    }
    for key in under_work {
        if !found.iter().any(|(known, _)| *known == key) {
            found.push((key, state_of(0, signal)));
        }
    }
    // Suspects of the oldest epochs are dropped.
    found.sort_by_key(|(key, state)| std::cmp::Reverse((key.epoch, *state)));
    found.truncate(ENTRIES);
    found
}

#[cfg(test)]
mod tests;
