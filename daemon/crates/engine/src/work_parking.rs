//! Handing rows over to threads that may be asleep: which rows wait, whether their stage has room, who sleeps.
//!
//! A thread's states, and who moves it:
//! ```text
//!   Searching ─itself: nothing to claim─► Announced ─itself: still nothing─► Asleep
//!      ▲  └─itself: claims─► Working         │ itself: there is something       │ whoever clears its bit, and unparks it
//!      └────────────────────────┴────────────┴──────────────────────────────────┘
//! ```
//! A row can be claimed while its bit is set and its stage has room. While anybody sleeps, there are at least as many
//! threads searching as there are rows to claim, since each thing that makes one claimable brings a searcher:
//!
//! | what | who comes for it |
//! |---|---|
//! | a bit is set | a sleeper that the setter wakes, if the stage has room; else whoever leaves the stage next |
//! | a place comes free | the leaver, who searches next |
//! | a limit is raised | sleepers that the engine wakes, one for each place |
//!
//! A setter passes a sequentially consistent fence between its bit and its look at room and sleepers; a thread that goes
//! to sleep announces it, passes such a fence and looks once more. So either the waker sees the announcement (or the room)
//! or the sleeper sees the row: nobody sleeps over a row, and nobody needs a clock to find one. The model in `tests/model`
//! checks these types under every interleaving. Nothing here knows what a row is, and nothing blocks.

use forebay_protocol::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words that share a count: what has none is not looked through.
const WORDS_PER_BLOCK: usize = if cfg!(loom) { 1 } else { 64 };

/// Sets of more words count all their numbers: most looks are at sets that are empty.
const UNCOUNTED_WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// A set of small numbers that any thread adds to and takes from.
#[derive(Debug)]
pub(crate) struct BitSet {
    words: Box<[AtomicU64]>,
    /// How many numbers are in a large set; raised and lowered as the counts of blocks are.
    total: Option<AtomicU32>,
    /// By block of words, where there are several: how many numbers are in it. Raised before a number is added and lowered
    /// after it was taken, so it is never too low: whoever must see a number sees its count.
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

    /// The counts that a number in a word belongs to.
    fn counts_of(&self, word: usize) -> impl Iterator<Item = &AtomicU32> {
        self.total.iter().chain(self.counts.get(word / WORDS_PER_BLOCK))
    }

    /// The blocks that may hold numbers, each with the number of its first word.
    fn blocks(&self) -> impl Iterator<Item = (usize, &[AtomicU64])> {
        // Relaxed: as below.
        let is_empty = self.total.as_ref().is_some_and(|total| total.load(Ordering::Relaxed) == 0);
        let words = if is_empty { &[] } else { &self.words[..] };
        let blocks = words.chunks(WORDS_PER_BLOCK).enumerate();
        let blocks = blocks.filter(|(block, _)| {
            // Relaxed: whoever sees a number that was added, or has passed a fence after it, sees it counted.
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

    /// Adds a number. What was done before it is seen by whoever takes it.
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

    /// Takes the least number out.
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

    /// Takes a number out. False: it was not in.
    pub(crate) fn take(&self, bit: usize) -> bool {
        let mask = 1 << (bit % 64);
        // Acquire: pairs with the release in `add`.
        let was_in = self.words[bit / 64].fetch_and(!mask, Ordering::Acquire) & mask != 0;
        if was_in {
            self.uncount(bit / 64);
        }
        was_in
    }

    /// Whether any number is in. A look: `take_first` decides.
    pub(crate) fn any(&self) -> bool {
        self.first().is_some()
    }

    /// The least number that is in. A look: `take_first` decides.
    pub(crate) fn first(&self) -> Option<usize> {
        self.blocks().find_map(|(first, words)| {
            (first..).zip(words).find_map(|(index, word)| {
                // Relaxed: callers that must not miss a number have passed a fence.
                let bits = word.load(Ordering::Relaxed);
                (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize)
            })
        })
    }

    /// Empties the set while nobody else uses it.
    pub(crate) fn clear(&self) {
        for word in &self.words {
            // Relaxed: whatever hands the set over orders this.
            word.store(0, Ordering::Relaxed);
        }
        for count in self.counts.iter().chain(&self.total) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// The two groups of threads: see `engine/pool.rs`.
pub(crate) const GROUPS: usize = 2;

/// How many threads may be in a stage, and how many are.
///
/// Counted by group: lowered threads that are kept from running in the middle of a row shall not keep the other group
/// out.
#[derive(Debug)]
pub(crate) struct StageGate {
    limit: AtomicU32,
    active: [AtomicU32; GROUPS],
}

impl StageGate {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: AtomicU32::new(limit), active: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The most threads of a group at once.
    pub(crate) fn limit(&self) -> u32 {
        // Relaxed: a count; whoever raised it passes a fence before it looks for sleepers.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the most threads at once; those inside stay. The caller wakes threads afterwards.
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether another thread of the group may enter. A look: [`enter`](Self::enter) decides.
    pub(crate) fn has_room(&self, group: usize) -> bool {
        // Relaxed: callers that must not miss a place have passed a fence.
        self.active[group].load(Ordering::Relaxed) < self.limit()
    }

    /// Whether a thread of the group may enter for a row that was just marked ready; else the next to leave looks.
    pub(crate) fn has_room_for_marked(&self, group: impl FnOnce() -> usize) -> bool {
        // SeqCst fence: pairs with the one in `Sleepers::sleep_unless`. Either this side sees the room, or the leaver the row.
        fence(Ordering::SeqCst);
        self.has_room(group())
    }

    /// Enters, if there is room. Never counts beyond the limit, not for a moment: a setter that looks meanwhile would
    /// leave its row to a leaver who does not exist.
    pub(crate) fn enter(&self, group: usize) -> bool {
        let limit = self.limit();
        // Relaxed: a plain count; the rows' bits carry the data.
        self.active[group]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
                (active < limit).then_some(active + 1)
            })
            .is_ok()
    }

    /// Leaves. The leaver searches next, and looks once more after a fence before it sleeps: it finds a row whose setter
    /// saw the stage full.
    pub(crate) fn leave(&self, group: usize) {
        // Relaxed: ordered by the fence in `Sleepers::sleep_unless`, which pairs with that of a setter.
        self.active[group].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which threads of a group sleep or are about to.
#[derive(Debug)]
pub(crate) struct Sleepers {
    asleep: BitSet,
}

impl Sleepers {
    /// For threads numbered below `threads`.
    pub(crate) fn new(threads: usize) -> Self {
        Self { asleep: BitSet::new(threads) }
    }

    /// Puts a thread to sleep, unless there is something to do after all. `park` may return at any time. True: somebody
    /// picked this thread for a row.
    pub(crate) fn sleep_unless(
        &self,
        number: usize,
        is_something_to_do: impl FnOnce() -> bool,
        park: impl FnOnce(),
    ) -> bool {
        self.asleep.add(number);
        // SeqCst fence: pairs with the one in `wake_one`, and with that of a setter before its look at the room. Either the
        // other side sees the bit, or the place that this thread has left; or this side sees the row and the room.
        fence(Ordering::SeqCst);
        if !is_something_to_do() {
            park();
        }
        !self.asleep.take(number)
    }

    /// Wakes one sleeper, if there is any. Called after something became claimable.
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
    fn a_set_gives_its_least_number_first() {
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
    fn what_is_in_a_large_set_is_found_and_counted() {
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

    /// Four threads add, two take: nothing is lost, and no count is left over.
    #[test]
    fn a_large_set_that_many_threads_use_loses_nothing() {
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
    fn a_gate_counts_each_group_and_follows_its_limit() {
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
