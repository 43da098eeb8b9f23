//! The byte budget of samples that are fetched and not processed yet.
//!
//! Bytes are granted to the oldest waiter first; a sample larger than the whole budget is admitted alone. A row gets
//! its slot before it is admitted, so a row that holds bytes needs nothing more from the gate to finish: the budget
//! cannot deadlock. Work threads release bytes with one atomic addition. They wake the engine only if there are waiters
//! and enough bytes are free.
//!
//! Enough is the wake threshold: a quarter of the budget, at most 2 MiB. If storage is faster than work, each finished
//! row frees the bytes for one more; waking for each would cost one wake-up of the engine and one of a fetch thread per
//! sample. So free bytes accumulate up to the threshold, and lanes without rows pause until then ([`ByteGate::start`]):
//! one lane, woken once, reads some dozen rows. If storage is slower, most of the budget is free and no lane pauses. No
//! lane pauses forever: the release of granted bytes does not depend on paused lanes, so the whole budget becomes free
//! eventually, and the thread that releases the last bytes wakes the engine.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_protocol::sync::{AtomicU64, Ordering, fence};
use tokio::sync::oneshot;

use crate::ground::waker::Waker;

/// The age of a request, recomputed whenever bytes are granted: a waiter of one session ages only with that session's
/// batches, so ages from the time of the request could not be compared between sessions.
#[derive(Debug, Clone)]
pub(crate) struct Age {
    /// The next batch that the session publishes.
    pub next_to_publish: Arc<AtomicU64>,
    /// The request's batch.
    pub order: u64,
    pub row: usize,
}

impl Age {
    /// The distance of its batch from the next to publish, then the row; the smallest value is the oldest.
    fn now(&self) -> (u64, usize) {
        // Relaxed: only an estimate.
        (self.order.saturating_sub(self.next_to_publish.load(Ordering::Relaxed)), self.row)
    }
}

/// Maximal wake threshold.
const MAX_WAKE_THRESHOLD_BYTES: u64 = 2 << 20;

/// A byte budget.
#[derive(Debug)]
pub(crate) struct ByteGate {
    budget: u64,
    available: AtomicU64,
    /// Free bytes at which a release wakes the engine, and lanes start.
    wake_threshold: u64,
    /// Number of waiters. A release wakes the engine only if there are waiters or paused lanes.
    waiting: AtomicU64,
    /// Number of paused lanes.
    paused: AtomicU64,
    /// Number of lanes that pause until half the budget is free.
    held_back: AtomicU64,
    /// Bytes that started lanes are about to request.
    promised: AtomicU64,
    /// A running mean of the requests.
    mean_bytes: AtomicU64,
    /// In order of arrival. Locked by fetch threads and the engine only, never by a lowered thread. `None`: the daemon
    /// ends, and no thread waits any longer.
    waiters: Mutex<Option<Vec<Waiter>>>,
    waker: Arc<Waker>,
    /// Whether bytes may be kept for later rows ([`units`](crate::ground::units)); the engine releases them when it is
    /// woken.
    keeps_units: bool,
}

#[derive(Debug)]
struct Waiter {
    /// `None`: the caller holds bytes of the budget already, and goes first.
    age: Option<Age>,
    bytes: u64,
    granted: oneshot::Sender<()>,
}

/// The bytes that a lane is about to request, estimated by the mean; held until the request.
#[derive(Debug)]
pub(crate) struct Promise {
    gate: Arc<ByteGate>,
    bytes: u64,
}

/// A paused lane; the pause ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Pause {
    gate: Arc<ByteGate>,
    turn: LaneTurn,
}

/// The priority of a lane's rows relative to other streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneTurn {
    /// No other stream has rows to read.
    Alone,
    /// The lane's rows come before the rows of other streams.
    First,
    /// A session of another stream comes first. Half of the budget is left to it: rows that take long to process hold
    /// their bytes for long, and would take all of them.
    Later,
}

/// Granted bytes of the budget; released when dropped.
#[derive(Debug)]
pub(crate) struct BytePermit {
    gate: Arc<ByteGate>,
    bytes: u64,
}

impl ByteGate {
    pub(crate) fn new(budget: u64, waker: Arc<Waker>, keeps_units: bool) -> Self {
        let budget = budget.max(1);
        Self {
            budget,
            available: AtomicU64::new(budget),
            wake_threshold: (budget / 4).clamp(1, MAX_WAKE_THRESHOLD_BYTES),
            waiting: AtomicU64::new(0),
            paused: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            mean_bytes: AtomicU64::new(0),
            waiters: Mutex::new(Some(Vec::new())),
            waker,
            keeps_units,
        }
    }

    /// The whole budget, in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes granted now.
    pub(crate) fn in_use(&self) -> u64 {
        // Relaxed: statistics.
        self.budget - self.available.load(Ordering::Relaxed)
    }

    /// Whether another lane may take rows: there are no waiters, and in addition to the promised bytes the wake
    /// threshold is free. A lane whose turn is first waits for bytes with its row's age instead of waiting until other
    /// streams' waiters have gone. Engine thread.
    fn may_start(&self, turn: LaneTurn) -> bool {
        // Relaxed: a caller that pauses has passed a fence.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return turn == LaneTurn::First;
        }
        let promised = self.promised.load(Ordering::Relaxed);
        self.available.load(Ordering::Relaxed) >= self.threshold(turn).saturating_add(promised)
    }

    /// Free bytes required to start a lane.
    fn threshold(&self, turn: LaneTurn) -> u64 {
        let half = if turn == LaneTurn::Later { self.budget / 2 } else { 0 };
        self.wake_threshold.max(half)
    }

    /// Number of lanes that pause for the same number of free bytes as this one.
    fn pausing(&self, turn: LaneTurn) -> &AtomicU64 {
        if turn == LaneTurn::Later { &self.held_back } else { &self.paused }
    }

    /// Starts a lane, or pauses it until the engine is woken. Engine thread.
    pub(crate) fn start(self: &Arc<Self>, turn: LaneTurn) -> Result<Promise, Pause> {
        if !self.may_start(turn) {
            // Relaxed: ordered by the fence.
            self.pausing(turn).fetch_add(1, Ordering::Relaxed);
            let pause = Pause { gate: Arc::clone(self), turn };
            // SeqCst fence: pairs with the one in `BytePermit::drop`. Either the release sees this pause and wakes the
            // engine, or the check below sees its bytes.
            fence(Ordering::SeqCst);
            if !self.may_start(turn) {
                return Err(pause);
            }
        }
        // Relaxed, here and below: estimates.
        let bytes = self.mean_bytes.load(Ordering::Relaxed);
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        Ok(Promise { gate: Arc::clone(self), bytes })
    }

    /// Takes bytes, and waits for them if necessary. Called by fetch threads only. `None`: the daemon ends.
    pub(crate) fn acquire(self: &Arc<Self>, age: &Age, bytes: u64) -> Option<BytePermit> {
        self.acquire_as(Some(age), bytes)
    }

    /// As [`acquire`](Self::acquire), for the single caller that already holds bytes for which others may wait: it goes
    /// before all others. There must be at most one such caller, and its request plus the bytes that it holds must not
    /// exceed the budget.
    pub(crate) fn acquire_more(self: &Arc<Self>, bytes: u64) -> Option<BytePermit> {
        self.acquire_as(None, bytes)
    }

    fn acquire_as(self: &Arc<Self>, age: Option<&Age>, bytes: u64) -> Option<BytePermit> {
        let bytes = bytes.min(self.budget);
        let mean = self.mean_bytes.load(Ordering::Relaxed);
        self.mean_bytes.store(mean - mean / 8 + bytes / 8, Ordering::Relaxed);
        // Relaxed: only a hint, so that no waiter is overtaken; `try_take` ensures correctness.
        if self.waiting.load(Ordering::Relaxed) == 0 && self.try_take(bytes) {
            return Some(BytePermit { gate: Arc::clone(self), bytes });
        }
        let (sender, granted) = oneshot::channel();
        {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            waiters.as_mut()?.push(Waiter { age: age.cloned(), bytes, granted: sender });
            // Relaxed: ordered by the fence.
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        // SeqCst fence: pairs with the one in `BytePermit::drop`. Either the release sees this waiter and wakes the
        // engine, or the grant below sees its bytes.
        fence(Ordering::SeqCst);
        self.grant();
        if self.keeps_units && self.is_awaited() {
            self.waker.wake();
        }
        granted.blocking_recv().ok()?;
        Some(BytePermit { gate: Arc::clone(self), bytes })
    }

    /// Grants waiting requests, the oldest first, as far as the free bytes suffice.
    pub(crate) fn grant(&self) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiters) = waiters.as_mut() else { return };
        loop {
            let ages = waiters
                .iter()
                .enumerate()
                .map(|(place, waiter)| (waiter.age.as_ref().map(Age::now), place));
            let Some((_, oldest)) = ages.min() else { return };
            if !self.try_take(waiters[oldest].bytes) {
                return;
            }
            let waiter = waiters.remove(oldest);
            // Relaxed: the lock orders it among waiters; a release that sees the old count causes one needless wake-up.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if waiter.granted.send(()).is_err() {
                self.available.fetch_add(waiter.bytes, Ordering::AcqRel);
            }
        }
    }

    /// Whether there are waiters.
    pub(crate) fn is_awaited(&self) -> bool {
        // Relaxed: the caller has passed a fence, or was woken.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether lanes are paused for lack of bytes while all granted bytes are idle, so that no release will follow.
    /// Engine thread.
    pub(crate) fn is_paused_for(&self, idle_bytes: impl FnOnce() -> u64) -> bool {
        // Relaxed: the engine is woken when a row ends.
        self.paused.load(Ordering::Relaxed) > 0
            && self.available.load(Ordering::Relaxed) < self.wake_threshold
            && self.in_use() <= idle_bytes()
    }

    /// Wakes the engine if there are waiters. The caller has just made bytes idle, which the engine can release.
    pub(crate) fn wake_if_awaited(&self) {
        // SeqCst fence: pairs with the one in `acquire`. Either this thread sees the waiter, or the engine, which the
        // waiter wakes, sees the caller's writes.
        fence(Ordering::SeqCst);
        if self.is_awaited() {
            self.waker.wake();
        }
    }

    /// Called when the daemon ends: no current or later waiter gets bytes.
    pub(crate) fn close(&self) {
        *self.waiters.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn try_take(&self, bytes: u64) -> bool {
        // AcqRel: a thread that takes bytes sees the writes made before their release.
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |available| {
                available.checked_sub(bytes)
            })
            .is_ok()
    }
}

impl BytePermit {
    /// The number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another permit of the same gate.
    pub(crate) fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.gate, &other.gate));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Splits off `bytes` bytes, or all that are left, as a separate permit.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { gate: Arc::clone(&self.gate), bytes }
    }

    /// The gate that granted the bytes.
    pub(crate) fn gate(&self) -> Arc<ByteGate> {
        Arc::clone(&self.gate)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.gate.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.gate.pausing(self.turn).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        let gate = &self.gate;
        // AcqRel: pairs with `try_take`. Of several concurrent releases one sees the sum of all.
        let available = gate.available.fetch_add(self.bytes, Ordering::AcqRel) + self.bytes;
        if available < gate.wake_threshold {
            return;
        }
        // SeqCst fence: pairs with the ones in `acquire` and `start`.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        if gate.waiting.load(Ordering::Relaxed) > 0
            || gate.paused.load(Ordering::Relaxed) > 0
            || (available >= gate.threshold(LaneTurn::Later)
                && gate.held_back.load(Ordering::Relaxed) > 0)
        {
            gate.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ground::gate::*;
    use std::thread;

    fn gate(budget: u64) -> Arc<ByteGate> {
        Arc::new(ByteGate::new(budget, Arc::new(Waker::new().unwrap()), false))
    }

    fn age(order: u64) -> Age {
        Age { next_to_publish: Arc::default(), order, row: 0 }
    }

    /// A waiting request for ten bytes, as in `acquire`; without a thread, whose own grant might come at any moment.
    fn wait(gate: &Arc<ByteGate>, age: Age) -> oneshot::Receiver<()> {
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter { age: Some(age), bytes: 10, granted: sender };
        gate.waiters.lock().unwrap().as_mut().unwrap().push(waiter);
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        granted
    }

    /// Releases ten bytes as long as there are waiters; returns the waiters' indices in the order of their grants.
    fn order_of(
        gate: &Arc<ByteGate>,
        held: BytePermit,
        waiting: Vec<oneshot::Receiver<()>>,
    ) -> Vec<usize> {
        let (mut held, mut order) = (Some(held), Vec::new());
        let mut waiting: Vec<_> = waiting.into_iter().enumerate().collect();
        while !waiting.is_empty() {
            drop(held.take());
            gate.grant();
            let granted = waiting.iter_mut().position(|(_, granted)| granted.try_recv().is_ok());
            order.push(waiting.remove(granted.unwrap()).0);
            held = Some(BytePermit { gate: Arc::clone(gate), bytes: 10 });
        }
        order
    }

    #[test]
    fn sample_larger_than_the_budget_is_admitted_alone() {
        let gate = gate(10);
        let permit = gate.acquire(&age(0), 1000).unwrap();
        assert_eq!(gate.in_use(), 10);
        drop(permit);
        assert_eq!(gate.in_use(), 0);
    }

    #[test]
    fn paused_lanes_need_kept_bytes_if_nothing_else_is_granted() {
        let gate = gate(100);
        let [kept, read] = [60, 30].map(|bytes| gate.acquire(&age(0), bytes).unwrap());
        assert!(!gate.is_paused_for(|| 90), "no lane is paused");
        let pause = gate.start(LaneTurn::Alone).unwrap_err();
        assert!(!gate.is_paused_for(|| 60), "what is read is released by itself");
        drop(read);
        assert!(!gate.is_paused_for(|| 60), "the threshold is free");
        let other = gate.acquire(&age(0), 20).unwrap();
        assert!(gate.is_paused_for(|| 80));
        drop((kept, other, pause));
    }

    #[test]
    fn lane_pauses_until_the_wake_threshold_is_free() {
        use std::os::fd::AsFd;
        let gate = gate(100);
        let woken = || rustix::io::read(gate.waker.as_fd(), &mut [0u8; 8]).is_ok();
        let [small, large] = [20, 80].map(|bytes| gate.acquire(&age(0), bytes).unwrap());
        let pause = gate.start(LaneTurn::Alone).unwrap_err();
        drop(small);
        assert!(!woken(), "20 are free, and the threshold is 25");
        drop(large);
        assert!(woken());
        drop(pause);
        // The bytes that another lane is about to request are no longer free.
        let promise = gate.start(LaneTurn::Alone).unwrap();
        let held = gate.acquire(&age(0), 70).unwrap();
        assert!(gate.start(LaneTurn::Alone).is_err());
        drop(promise);
        assert!(gate.start(LaneTurn::Alone).is_ok());
        drop(held);
        assert!(!woken(), "no lane is paused or waits");
        assert_eq!(gate.promised.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn oldest_waiter_goes_first() {
        let gate = gate(10);
        let held = gate.acquire(&age(0), 10).unwrap();
        let waiting = [3, 1, 2].map(|order| wait(&gate, age(order)));
        assert_eq!(order_of(&gate, held, waiting.into()), [1, 2, 0]);
        assert_eq!((gate.in_use(), gate.waiting.load(Ordering::Relaxed)), (0, 0));
    }

    /// Batch 9 of a session that has published eight since is older than batch 2 of a session that has published none.
    #[test]
    fn waiter_ages_with_its_own_session() {
        let gate = gate(10);
        let held = gate.acquire(&age(0), 10).unwrap();
        let fast = age(9);
        let published = Arc::clone(&fast.next_to_publish);
        let waiting = vec![wait(&gate, age(2)), wait(&gate, fast)];
        published.store(8, Ordering::Relaxed);
        assert_eq!(order_of(&gate, held, waiting), [1, 0]);
    }

    #[test]
    fn waiters_return_when_the_daemon_ends() {
        let gate = gate(10);
        let held = gate.acquire(&age(0), 10).unwrap();
        let waiting = Arc::clone(&gate);
        let thread = thread::spawn(move || waiting.acquire(&age(1), 10).is_none());
        while gate.waiting.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        gate.close();
        assert!(thread.join().unwrap());
        assert!(gate.acquire(&age(1), 10).is_none());
        drop(held);
    }
}
