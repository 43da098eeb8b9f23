//! Passes rows to threads that may be asleep: which rows wait, whether their stage has room, which threads sleep.
//!
//! States of a thread, and what changes them:
//! ```text
//!   Searching ─itself: nothing to claim─► Announced ─itself: still nothing─► Asleep
//!      ▲  └─itself: claims─► Working         │ itself: there is something       │ a waker clears its bit, unparks it
//!      └────────────────────────┴────────────┴──────────────────────────────────┘
//! ```
//! A row can be claimed while its bit is set and its stage has room. While a thread sleeps, at least as many threads
//! search as there are rows to claim, since each event that makes a row claimable adds a searcher:
//!
//! | event | searcher |
//! |---|---|
//! | a bit is set | a sleeper that the setter wakes, if the stage has room; else the next thread to leave the stage |
//! | a place becomes free | the leaving thread, which searches next |
//! | a limit is raised | sleepers that the engine wakes, one for each place |
//!
//! A setter passes a sequentially consistent fence between setting its bit and checking the room and the sleepers; a
//! thread that goes to sleep announces it, passes such a fence and checks once more. So either the waker sees the
//! announcement (or the room) or the sleeper sees the row: no thread sleeps while its row waits, and no timeout is
//! needed. The model in `tests/model` checks these types under every interleaving. This module knows nothing about
//! rows, and does not block.

use forebay_protocol::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words that share a count: a block with count 0 is skipped.
const WORDS_PER_BLOCK: usize = if cfg!(loom) { 1 } else { 64 };

/// Larger sets also count all their numbers: most searches are in empty sets.
const UNCOUNTED_WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// A set of small numbers; any thread may add and take numbers.
#[derive(Debug)]
pub(crate) struct BitSet {
    words: Box<[AtomicU64]>,
    /// Number of elements of a large set; updated like the blocks' counts.
    total: Option<AtomicU32>,
    /// By block of words, if there are several: its number of elements. Raised before a number is added and lowered
    /// after it was taken, so it is never too low: a thread that must see a number sees its count.
    counts: Box<[AtomicU32]>,
}

impl BitSet {
    /// An empty set with room for the numbers below `bits`.
    pub(crate) fn new(bits: usize) -> Self {
        let words = bits.div_ceil(64);
        let blocks = if words > WORDS_PER_BLOCK { words.div_ceil(WORDS_PER_BLOCK) } else { 0 };
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            total: (words > UNCOUNTED_WORDS).then(|| AtomicU32::new(0)),
            counts: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The counts that include a word's numbers.
    fn counts_of(&self, word: usize) -> impl Iterator<Item = &AtomicU32> {
        self.total.iter().chain(self.counts.get(word / WORDS_PER_BLOCK))
    }

    /// The blocks that may contain numbers, each with the index of its first word.
    fn blocks(&self) -> impl Iterator<Item = (usize, &[AtomicU64])> {
        // Relaxed: as below.
        let is_empty = self.total.as_ref().is_some_and(|total| total.load(Ordering::Relaxed) == 0);
        let words = if is_empty { &[] } else { &self.words[..] };
        let blocks = words.chunks(WORDS_PER_BLOCK).enumerate();
        let blocks = blocks.filter(|(block, _)| {
            // Relaxed: a thread that sees an added number, or has passed a fence after the addition, sees it counted.
            self.counts.get(*block).is_none_or(|count| count.load(Ordering::Relaxed) > 0)
        });
        blocks.map(|(block, words)| (block * WORDS_PER_BLOCK, words))
    }

    fn uncount(&self, word: usize) {
        for count in self.counts_of(word) {
            // Relaxed: the number's acquire orders it after its own addition.
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Adds a number. Writes made before are visible to the thread that takes it.
    pub(crate) fn add(&self, bit: usize) {
        let word = bit / 64;
        for count in self.counts_of(word) {
            // Relaxed: ordered before the number by its release.
            count.fetch_add(1, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `take_first`.
        let before = self.words[word].fetch_or(1 << (bit % 64), Ordering::Release);
        if before & (1 << (bit % 64)) != 0 {
            self.uncount(word);
        }
    }

    /// Takes the smallest number.
    pub(crate) fn take_first(&self) -> Option<usize> {
        for (first, words) in self.blocks() {
            for (index, word) in (first..).zip(words) {
                let mut bits = word.load(Ordering::Relaxed);
                while bits != 0 {
                    let bit = bits & bits.wrapping_neg();
                    // Acquire: pairs with the release in `add`.
                    bits = word.fetch_and(!bit, Ordering::Acquire);
                    if bits & bit != 0 {
                        self.uncount(index);
                        return Some(index * 64 + bit.trailing_zeros() as usize);
                    }
                }
            }
        }
        None
    }

    /// Takes a number. False: it is not in the set.
    pub(crate) fn take(&self, bit: usize) -> bool {
        let mask = 1 << (bit % 64);
        // Acquire: pairs with the release in `add`.
        let was_in = self.words[bit / 64].fetch_and(!mask, Ordering::Acquire) & mask != 0;
        if was_in {
            self.uncount(bit / 64);
        }
        was_in
    }

    /// Whether the set contains a number. A snapshot: `take_first` decides.
    pub(crate) fn any(&self) -> bool {
        self.first().is_some()
    }

    /// The smallest number. A snapshot: `take_first` decides.
    pub(crate) fn first(&self) -> Option<usize> {
        self.blocks().find_map(|(first, words)| {
            (first..).zip(words).find_map(|(index, word)| {
                // Relaxed: callers that must not miss a number have passed a fence.
                let bits = word.load(Ordering::Relaxed);
                (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize)
            })
        })
    }

    /// Empties the set while no other thread uses it.
    pub(crate) fn clear(&self) {
        for word in &self.words {
            // Relaxed: whatever passes the set on orders this.
            word.store(0, Ordering::Relaxed);
        }
        for count in self.counts.iter().chain(&self.total) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// The two groups of threads: see `actors/pool.rs`.
pub(crate) const GROUPS: usize = 2;

/// The maximal and the current number of threads in a stage.
///
/// Counted by group: lowered threads that are preempted in the middle of a row must not keep the other group out.
#[derive(Debug)]
pub(crate) struct StageGate {
    limit: AtomicU32,
    active: [AtomicU32; GROUPS],
}

impl StageGate {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: AtomicU32::new(limit), active: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Maximal number of threads of a group.
    pub(crate) fn limit(&self) -> u32 {
        // Relaxed: a count; the thread that raised it passes a fence before it checks the sleepers.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the maximal number of threads; threads inside stay. The caller wakes threads afterwards.
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether another thread of the group may enter. A snapshot: [`enter`](Self::enter) decides.
    pub(crate) fn has_room(&self, group: usize) -> bool {
        // Relaxed: callers that must not miss a place have passed a fence.
        self.active[group].load(Ordering::Relaxed) < self.limit()
    }

    /// Whether a thread of the group may enter for a row that was just marked ready; otherwise the next thread to leave
    /// finds it.
    pub(crate) fn has_room_for_marked(&self, group: impl FnOnce() -> usize) -> bool {
        // SeqCst fence: pairs with the one in `Sleepers::sleep_unless`. Either this thread sees the room, or the
        // leaving thread sees the row.
        fence(Ordering::SeqCst);
        self.has_room(group())
    }

    /// Enters, if there is room. Never counts beyond the limit, not even temporarily: a setter that checks meanwhile
    /// would leave its row to a leaving thread that does not exist.
    pub(crate) fn enter(&self, group: usize) -> bool {
        let limit = self.limit();
        // Relaxed: a plain count; the rows' bits carry the data.
        self.active[group]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
                (active < limit).then_some(active + 1)
            })
            .is_ok()
    }

    /// Leaves. The thread searches next, and checks once more after a fence before it sleeps: it finds a row whose
    /// setter saw the stage full.
    pub(crate) fn leave(&self, group: usize) {
        // Relaxed: ordered by the fence in `Sleepers::sleep_unless`, which pairs with a setter's.
        self.active[group].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The threads of a group that sleep or are about to.
#[derive(Debug)]
pub(crate) struct Sleepers {
    asleep: BitSet,
}

impl Sleepers {
    /// For threads numbered below `threads`.
    pub(crate) fn new(threads: usize) -> Self {
        Self { asleep: BitSet::new(threads) }
    }

    /// Puts a thread to sleep, unless a last check finds work. `park` may return at any time. True: another thread
    /// picked this thread for a row.
    pub(crate) fn sleep_unless(
        &self,
        number: usize,
        is_something_to_do: impl FnOnce() -> bool,
        park: impl FnOnce(),
    ) -> bool {
        self.asleep.add(number);
        // SeqCst fence: pairs with the one in `wake_one`, and with a setter's before its check of the room. Either the
        // other thread sees the bit, or the place that this thread has left; or this thread sees the row and the room.
        fence(Ordering::SeqCst);
        if !is_something_to_do() {
            park();
        }
        !self.asleep.take(number)
    }

    /// Wakes one sleeper, if there is any. Called after a row became claimable.
    pub(crate) fn wake_one(&self, unpark: impl FnOnce(usize)) {
        // SeqCst fence: pairs with the one in `sleep_unless`.
        fence(Ordering::SeqCst);
        if let Some(number) = self.asleep.take_first() {
            unpark(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn set_yields_its_smallest_number_first() {
        let set = BitSet::new(200);
        for number in [130, 3, 64] {
            set.add(number);
        }
        assert!(set.take(64) && !set.take(64));
        assert_eq!(
            [set.take_first(), set.take_first(), set.take_first()],
            [Some(3), Some(130), None]
        );
        set.add(199);
        assert!(set.any());
        set.clear();
        assert!(!set.any());
    }

    #[test]
    fn numbers_in_a_large_set_are_found_and_counted() {
        const BITS: usize = 3 * 64 * WORDS_PER_BLOCK + 5;
        let set = BitSet::new(BITS);
        let numbers = || (0..BITS).rev().step_by(997);
        numbers().for_each(|number| set.add(number));
        set.add(BITS - 1);
        assert!(set.take(BITS - 1) && !set.take(BITS - 1));
        let mut expected: Vec<usize> = numbers().skip(1).collect();
        expected.sort_unstable();
        assert_eq!(set.first(), expected.first().copied());
        let taken: Vec<usize> = std::iter::from_fn(|| set.take_first()).collect();
        assert_eq!(taken, expected);
        let mut counts = set.counts.iter().chain(&set.total);
        assert!(!set.any() && counts.all(|count| count.load(Ordering::Relaxed) == 0));
        set.add(BITS - 1);
        set.clear();
        assert!(set.first().is_none() && set.blocks().next().is_none());
    }

    /// Four threads add, two take: no number is lost, and all counts return to 0.
    #[test]
    fn large_set_used_by_many_threads_loses_no_number() {
        const BITS: usize = 4 * 64 * WORDS_PER_BLOCK;
        let (set, taken) = (BitSet::new(BITS), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for adder in 0..4 {
                let set = &set;
                scope.spawn(move || (adder..BITS).step_by(4).for_each(|number| set.add(number)));
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while (taken.load(Ordering::Relaxed) as usize) < BITS {
                        if set.take_first().is_some() {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!(set.blocks().next().is_none());
    }

    #[test]
    fn gate_counts_each_group_and_follows_its_limit() {
        let gate = StageGate::new(1);
        assert!(gate.enter(0) && !gate.enter(0) && gate.enter(1));
        gate.set_limit(2);
        assert!(gate.has_room(0) && gate.enter(0) && !gate.has_room(0));
        gate.set_limit(1);
        gate.leave(0);
        assert!(!gate.enter(0), "one is still inside");
        gate.leave(0);
        assert!(gate.enter(0));
    }
}
