//! The byte budget for samples that were fetched and are not worked yet.
//!
//! Grants go to the oldest waiter first; a sample larger than the whole budget is admitted alone. A holder needs nothing
//! more from the gate to get on, since its slot was given before it was admitted: so the budget cannot deadlock.
//! Permits are given back by work threads: one atomic addition, and a ring when somebody waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_protocol::sync::{AtomicU64, Ordering, fence};
use tokio::sync::oneshot;

use super::bell::Bell;

/// The age of a request: batch distance from publishing, then row; ties are broken by arrival.
pub(crate) type Ticket = (u64, u64, u64);

/// The budget.
#[derive(Debug)]
pub(crate) struct ByteGate {
    budget: u64,
    available: AtomicU64,
    /// The number of waiters; a giver looks here before it rings.
    waiting: AtomicU64,
    /// Locked by fetch threads and the engine only, never by a lowered thread.
    waiters: Mutex<Waiters>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Waiters {
    arrivals: u64,
    queue: BTreeMap<Ticket, (u64, oneshot::Sender<()>)>,
}

/// So many bytes of the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct BytePermit {
    gate: Arc<ByteGate>,
    bytes: u64,
}

impl ByteGate {
    pub(crate) fn new(budget: u64, bell: Arc<Bell>) -> Self {
        let budget = budget.max(1);
        Self {
            budget,
            available: AtomicU64::new(budget),
            waiting: AtomicU64::new(0),
            waiters: Mutex::default(),
            bell,
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

    /// Takes bytes, waiting for them if need be. Called by fetch threads only. `None`: the daemon ends.
    pub(crate) fn acquire(self: &Arc<Self>, age: (u64, u64), bytes: u64) -> Option<BytePermit> {
        let bytes = bytes.min(self.budget);
        // Relaxed: only a hint that nobody is passed over; correctness lies in `try_take`.
        if self.waiting.load(Ordering::Relaxed) == 0 && self.try_take(bytes) {
            return Some(BytePermit { gate: Arc::clone(self), bytes });
        }
        let (sender, granted) = oneshot::channel();
        {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            waiters.arrivals += 1;
            let ticket = (age.0, age.1, waiters.arrivals);
            waiters.queue.insert(ticket, (bytes, sender));
            // Relaxed: ordered by the fence.
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        // SeqCst fence: pairs with the one in `BytePermit::drop`. Either the giver sees this waiter and rings, or the
        // grant below sees its bytes.
        fence(Ordering::SeqCst);
        self.grant();
        granted.blocking_recv().ok()?;
        Some(BytePermit { gate: Arc::clone(self), bytes })
    }

    /// Grants waiting requests in order of age as far as the bytes go.
    pub(crate) fn grant(&self) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = waiters.queue.first_entry() {
            if !self.try_take(oldest.get().0) {
                return;
            }
            let (bytes, sender) = oldest.remove();
            // Relaxed: the lock orders it among waiters; a giver that sees the old count rings once too often.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if sender.send(()).is_err() {
                self.available.fetch_add(bytes, Ordering::AcqRel);
            }
        }
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

impl Drop for BytePermit {
    fn drop(&mut self) {
        // AcqRel: pairs with `try_take`.
        self.gate.available.fetch_add(self.bytes, Ordering::AcqRel);
        // SeqCst fence: pairs with the one in `acquire`.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        if self.gate.waiting.load(Ordering::Relaxed) > 0 {
            self.gate.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn gate(budget: u64) -> Arc<ByteGate> {
        Arc::new(ByteGate::new(budget, Arc::new(Bell::new().unwrap())))
    }

    #[test]
    fn a_sample_larger_than_the_budget_is_admitted_alone() {
        let gate = gate(10);
        let permit = gate.acquire((0, 0), 1000).unwrap();
        assert_eq!(gate.in_use(), 10);
        drop(permit);
        assert_eq!(gate.in_use(), 0);
    }

    #[test]
    fn the_oldest_waiter_goes_first() {
        let gate = gate(10);
        let held = gate.acquire((0, 0), 10).unwrap();
        let (sender, order) = std::sync::mpsc::channel();
        let waiter = |age: u64| {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            thread::spawn(move || {
                let permit = gate.acquire((age, 0), 10).unwrap();
                sender.send(age).unwrap();
                drop(permit);
                gate.grant();
            })
        };
        let threads = [waiter(3), waiter(1), waiter(2)];
        while gate.waiting.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        drop(held);
        gate.grant();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(sender);
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(gate.in_use(), 0);
    }
}
