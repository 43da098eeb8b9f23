//! The byte budget for samples that were fetched and are not worked yet.
//!
//! Grants go to the oldest waiter first; a sample larger than the whole budget is admitted alone. A holder needs nothing
//! more from the gate to get on, since its slot was given before it was admitted: so the budget cannot deadlock.
//! Permits are given back by work threads: one atomic addition, and a ring when somebody waits and enough is free.
//!
//! Enough is the mark, a quarter of the budget and 2 MiB at most. Where storage is faster than work, each row that ends
//! frees the bytes of one more; a ring for each would wake the engine and a fetch thread a sample. So bytes gather up to the
//! mark, and lanes of the fetch stage that have no rows rest until then ([`ByteGate::start`]): one lane, woken once, reads
//! some dozen rows. Where storage is slower the budget is mostly free, and no lane rests. Nobody rests for ever: bytes that
//! are held come back without the help of those that rest, so that in the end the whole budget is free, and the one who
//! frees the last of it rings.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_protocol::sync::{AtomicU64, Ordering, fence};
use tokio::sync::oneshot;

use super::waker::Waker;

/// How old a request is. Asked whenever bytes are granted: a waiter of one session grows older by that session's
/// batches alone, so an age from the time of asking would be out of date beside another session's.
#[derive(Debug, Clone)]
pub(crate) struct Age {
    /// The batch that the session publishes next.
    pub next_to_publish: Arc<AtomicU64>,
    /// The request's batch.
    pub order: u64,
    pub row: usize,
}

impl Age {
    /// Batches from being published, then the row; the least is the oldest.
    fn now(&self) -> (u64, usize) {
        // Relaxed: a figure.
        (self.order.saturating_sub(self.next_to_publish.load(Ordering::Relaxed)), self.row)
    }
}

/// The mark is not higher.
const HIGHEST_MARK_BYTES: u64 = 2 << 20;

/// The budget.
#[derive(Debug)]
pub(crate) struct ByteGate {
    budget: u64,
    available: AtomicU64,
    /// Free bytes at which a giver rings, and lanes start.
    mark: u64,
    /// The number of waiters; a giver looks here before it rings.
    waiting: AtomicU64,
    /// Lanes that rest; a giver looks here too.
    resting: AtomicU64,
    /// What lanes that have started are about to ask for.
    promised: AtomicU64,
    /// A running mean of what was asked for.
    mean_bytes: AtomicU64,
    /// In order of arrival. Locked by fetch threads and the engine only, never by a lowered thread. `None`: the daemon
    /// ends and nobody waits any more.
    waiters: Mutex<Option<Vec<Waiter>>>,
    waker: Arc<Waker>,
    /// Whether bytes may be held for rows to come ([`units`](super::units)), which the engine gives back when it is rung for.
    keeps_units: bool,
}

#[derive(Debug)]
struct Waiter {
    /// `None`: it holds bytes of the budget already, and goes first.
    age: Option<Age>,
    bytes: u64,
    granted: oneshot::Sender<()>,
}

/// What a lane is about to ask for, by the mean; until it asks.
#[derive(Debug)]
pub(crate) struct Promise {
    gate: Arc<ByteGate>,
    bytes: u64,
}

/// A lane rests until this is dropped.
#[derive(Debug)]
pub(crate) struct Rest(Arc<ByteGate>);

/// So many bytes of the budget; given back when dropped.
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
            mark: (budget / 4).clamp(1, HIGHEST_MARK_BYTES),
            waiting: AtomicU64::new(0),
            resting: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            mean_bytes: AtomicU64::new(0),
            waiters: Mutex::new(Some(Vec::new())),
            waker,
            keeps_units,
        }
    }

    /// The whole budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// The bytes granted now.
    pub(crate) fn in_use(&self) -> u64 {
        // Relaxed: a figure.
        self.budget - self.available.load(Ordering::Relaxed)
    }

    /// Whether another lane may take rows: nobody waits, and beside what is promised as much is free as the mark.
    /// Engine thread.
    fn may_start(&self) -> bool {
        // Relaxed: the caller has passed a fence if it goes to rest.
        let promised = self.promised.load(Ordering::Relaxed);
        self.waiting.load(Ordering::Relaxed) == 0
            && self.available.load(Ordering::Relaxed) >= self.mark.saturating_add(promised)
    }

    /// A lane starts, or rests until a ring. Engine thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<Promise, Rest> {
        if !self.may_start() {
            // Relaxed: ordered by the fence.
            self.resting.fetch_add(1, Ordering::Relaxed);
            let rest = Rest(Arc::clone(self));
            // SeqCst fence: pairs with the one in `BytePermit::drop`. Either the giver sees this rest and rings, or the
            // look below sees its bytes.
            fence(Ordering::SeqCst);
            if !self.may_start() {
                return Err(rest);
            }
        }
        // Relaxed, here and below: estimates.
        let bytes = self.mean_bytes.load(Ordering::Relaxed);
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        Ok(Promise { gate: Arc::clone(self), bytes })
    }

    /// Takes bytes, waiting for them if need be. Called by fetch threads only. `None`: the daemon ends.
    pub(crate) fn acquire(self: &Arc<Self>, age: &Age, bytes: u64) -> Option<BytePermit> {
        self.acquire_as(Some(age), bytes)
    }

    /// As [`acquire`](Self::acquire), for the one who holds bytes already and may be waited for: it goes before all others.
    /// There must not be a second one, and it must ask for no more than is not its own.
    pub(crate) fn acquire_more(self: &Arc<Self>, bytes: u64) -> Option<BytePermit> {
        self.acquire_as(None, bytes)
    }

    fn acquire_as(self: &Arc<Self>, age: Option<&Age>, bytes: u64) -> Option<BytePermit> {
        let bytes = bytes.min(self.budget);
        let mean = self.mean_bytes.load(Ordering::Relaxed);
        self.mean_bytes.store(mean - mean / 8 + bytes / 8, Ordering::Relaxed);
        // Relaxed: only a hint that nobody is passed over; correctness lies in `try_take`.
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
        // SeqCst fence: pairs with the one in `BytePermit::drop`. Either the giver sees this waiter and rings, or the
        // grant below sees its bytes.
        fence(Ordering::SeqCst);
        self.grant();
        if self.keeps_units && self.is_awaited() {
            self.waker.wake();
        }
        granted.blocking_recv().ok()?;
        Some(BytePermit { gate: Arc::clone(self), bytes })
    }

    /// Grants waiting requests in order of age as far as the bytes go.
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
            // Relaxed: the lock orders it among waiters; a giver that sees the old count rings once too often.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if waiter.granted.send(()).is_err() {
                self.available.fetch_add(waiter.bytes, Ordering::AcqRel);
            }
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_awaited(&self) -> bool {
        // Relaxed: the caller has passed a fence, or was rung for.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether lanes rest for want of bytes, and so many are all that are granted: nobody gives any back by himself.
    /// Engine thread.
    pub(crate) fn rests_for(&self, idle_bytes: impl FnOnce() -> u64) -> bool {
        // Relaxed: the engine is rung for when a row ends.
        self.resting.load(Ordering::Relaxed) > 0
            && self.available.load(Ordering::Relaxed) < self.mark
            && self.in_use() <= idle_bytes()
    }

    /// Rings for the engine if somebody waits for bytes. The caller has just made some that can be given back.
    pub(crate) fn ring_if_awaited(&self) {
        // SeqCst fence: pairs with the one in `acquire`. Either this sees the waiter, or the engine, which the waiter rings
        // for, sees what the caller has done.
        fence(Ordering::SeqCst);
        if self.is_awaited() {
            self.waker.wake();
        }
    }

    /// The daemon ends: whoever waits, now or later, gets nothing.
    pub(crate) fn close(&self) {
        *self.waiters.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn try_take(&self, bytes: u64) -> bool {
        // AcqRel: a taker sees what the giver of its bytes did before.
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |available| {
                available.checked_sub(bytes)
            })
            .is_ok()
    }
}

impl BytePermit {
    /// How many.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another permit of the same gate.
    pub(crate) fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.gate, &other.gate));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// A part of it, or all that is left, as a permit of its own.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { gate: Arc::clone(&self.gate), bytes }
    }

    /// The gate that its bytes are of.
    pub(crate) fn gate(&self) -> Arc<ByteGate> {
        Arc::clone(&self.gate)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.gate.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.resting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        let gate = &self.gate;
        // AcqRel: pairs with `try_take`. Of several givers at once one sees the sum of all.
        let available = gate.available.fetch_add(self.bytes, Ordering::AcqRel) + self.bytes;
        if available < gate.mark {
            return;
        }
        // SeqCst fence: pairs with those in `acquire` and `start`.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        if gate.waiting.load(Ordering::Relaxed) > 0 || gate.resting.load(Ordering::Relaxed) > 0 {
            gate.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn gate(budget: u64) -> Arc<ByteGate> {
        Arc::new(ByteGate::new(budget, Arc::new(Waker::new().unwrap()), false))
    }

    fn age(order: u64) -> Age {
        Age { next_to_publish: Arc::default(), order, row: 0 }
    }

    /// A request for ten bytes that waits, as in `acquire`; without a thread, whose own grant may come at any moment.
    fn wait(gate: &Arc<ByteGate>, age: Age) -> oneshot::Receiver<()> {
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter { age: Some(age), bytes: 10, granted: sender };
        gate.waiters.lock().unwrap().as_mut().unwrap().push(waiter);
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        granted
    }

    /// Gives ten bytes as often as somebody waits; the places of those who got them, in order.
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
    fn a_sample_larger_than_the_budget_is_admitted_alone() {
        let gate = gate(10);
        let permit = gate.acquire(&age(0), 1000).unwrap();
        assert_eq!(gate.in_use(), 10);
        drop(permit);
        assert_eq!(gate.in_use(), 0);
    }

    #[test]
    fn lanes_that_rest_want_what_is_kept_where_nothing_else_is_granted() {
        let gate = gate(100);
        let [kept, read] = [60, 30].map(|bytes| gate.acquire(&age(0), bytes).unwrap());
        assert!(!gate.rests_for(|| 90), "nobody rests");
        let rest = gate.start().unwrap_err();
        assert!(!gate.rests_for(|| 60), "what is read comes back by itself");
        drop(read);
        assert!(!gate.rests_for(|| 60), "the mark is free");
        let other = gate.acquire(&age(0), 20).unwrap();
        assert!(gate.rests_for(|| 80));
        drop((kept, other, rest));
    }

    #[test]
    fn a_lane_rests_until_the_mark_is_free_and_is_then_rung_for() {
        use std::os::fd::AsFd;
        let gate = gate(100);
        let rang = || rustix::io::read(gate.waker.as_fd(), &mut [0u8; 8]).is_ok();
        let [small, large] = [20, 80].map(|bytes| gate.acquire(&age(0), bytes).unwrap());
        let rest = gate.start().unwrap_err();
        drop(small);
        assert!(!rang(), "20 are free, and the mark is 25");
        drop(large);
        assert!(rang());
        drop(rest);
        // What another lane is about to ask for is not free any more.
        let promise = gate.start().unwrap();
        let held = gate.acquire(&age(0), 70).unwrap();
        assert!(gate.start().is_err());
        drop(promise);
        assert!(gate.start().is_ok());
        drop(held);
        assert!(!rang(), "nobody rests or waits");
        assert_eq!(gate.promised.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_waiter_goes_first() {
        let gate = gate(10);
        let held = gate.acquire(&age(0), 10).unwrap();
        let waiting = [3, 1, 2].map(|order| wait(&gate, age(order)));
        assert_eq!(order_of(&gate, held, waiting.into()), [1, 2, 0]);
        assert_eq!((gate.in_use(), gate.waiting.load(Ordering::Relaxed)), (0, 0));
    }

    /// Batch 9 of a session that has published eight meanwhile is older than batch 2 of one that has published none.
    #[test]
    fn a_waiter_grows_older_with_its_own_session() {
        let gate = gate(10);
        let held = gate.acquire(&age(0), 10).unwrap();
        let fast = age(9);
        let published = Arc::clone(&fast.next_to_publish);
        let waiting = vec![wait(&gate, age(2)), wait(&gate, fast)];
        published.store(8, Ordering::Relaxed);
        assert_eq!(order_of(&gate, held, waiting), [1, 0]);
    }

    #[test]
    fn nobody_waits_for_a_daemon_that_ends() {
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
