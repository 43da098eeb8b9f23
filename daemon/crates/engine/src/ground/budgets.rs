//! The two byte budgets of a daemon, and why rows that wait for them cannot deadlock.
//!
//! ```text
//!   fetch thread:  opens the sample ─► bytes of the fetch budget ─► reads ─► bytes of the work budget ─► Ready(0)
//!   work thread:   runs the stages ─► the row is done ─► releases its bytes to the two budgets
//! ```
//! The fetch budget counts the bytes that were read. The work budget counts the bytes for unpacking them, if more than
//! a work thread's own memory, and the bytes that wait with the row between stages; both are known from the headers of
//! the file ([`Needs`]). Most samples fit the threads' scratch memory and take no bytes of the work budget.
//!
//! - The order is always the same, and a row that holds bytes of the work budget needs only a work thread, which never
//!   waits for bytes. So a row that waits for the work budget waits for rows that will end, and a row that waits for
//!   the fetch budget waits for such rows or for reads.
//! - Each budget is granted to the oldest row first, and a row that needs more than the whole budget gets all of it,
//!   alone.
//! - A file larger than the fetch budget takes the rest from the work budget before it is read. It holds the whole
//!   fetch budget, so it is the only such row. Its request for unpacking is reduced to the bytes that it does not hold
//!   already, and goes before all waiting requests: one of them may need what this row holds.
//!
//! Whether a sample is accepted does not depend on budgets: they decide when it is unpacked, limits decide whether.

use std::sync::Arc;

use crate::ground::gate::{Age, ByteGate, BytePermit};
use crate::ground::waker::Waker;
use forebay_transform::Needs;

/// Bytes counted for a row in addition to its data: allocator overhead, lists.
const ROW_BYTES: u64 = 256;

/// The sizes of a daemon's budgets, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct ByteBudgets {
    /// Samples between fetch and work.
    pub fetch_bytes: u64,
    /// Samples that need more than [`covered_bytes`](Self::covered_bytes), and bytes that wait between stages.
    pub work_bytes: u64,
    /// Memory that each work thread has for its current sample.
    pub covered_bytes: u64,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub(crate) struct Gates {
    pub(crate) fetch: Arc<ByteGate>,
    pub(crate) work: Arc<ByteGate>,
    covered_bytes: u64,
}

/// The bytes that a row holds of the fetch budget and of the work budget.
#[derive(Debug, Default)]
pub(crate) struct RowPermits {
    pub(crate) fetch: Option<BytePermit>,
    pub(crate) work: Option<BytePermit>,
}

impl Gates {
    pub(crate) fn new(budgets: ByteBudgets, waker: &Arc<Waker>, keeps_units: bool) -> Self {
        let ByteBudgets { fetch_bytes, work_bytes, covered_bytes } = budgets;
        Self {
            fetch: Arc::new(ByteGate::new(fetch_bytes, Arc::clone(waker), keeps_units)),
            work: Arc::new(ByteGate::new(work_bytes, Arc::clone(waker), false)),
            covered_bytes,
        }
    }

    /// Bytes for fetching a sample. `None`: the daemon ends.
    pub(crate) fn acquire_to_fetch(&self, age: &Age, bytes: u64) -> Option<BytePermit> {
        self.fetch.acquire(age, bytes.saturating_add(ROW_BYTES))
    }

    /// The part of a sample's bytes that exceeds the fetch budget.
    pub(crate) fn beyond_fetch(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.fetch.budget())
    }

    /// Bytes of the work budget that a sample needs.
    pub(crate) fn work_bytes(&self, needs: Needs) -> u64 {
        let is_covered = needs.scratch_bytes <= self.covered_bytes;
        let scratch = if is_covered { 0 } else { needs.scratch_bytes };
        scratch.saturating_add(needs.carried_bytes)
    }

    /// Takes bytes of the work budget in addition to the row's. `None`: no more are needed or left, or the daemon ends.
    pub(crate) fn acquire_to_work(
        &self,
        age: &Age,
        held: Option<&BytePermit>,
        bytes: u64,
    ) -> Option<BytePermit> {
        match held {
            None => self.work.acquire(age, bytes),
            Some(held) => match bytes.min(self.work.budget() - held.bytes()) {
                0 => None,
                bytes => self.work.acquire_more(bytes),
            },
        }
    }

    /// Grants waiting requests as far as the free bytes suffice.
    pub(crate) fn grant(&self) {
        self.fetch.grant();
        self.work.grant();
    }

    /// Called when the daemon ends.
    pub(crate) fn close(&self) {
        self.fetch.close();
        self.work.close();
    }
}

#[cfg(test)]
mod tests {
    use crate::ground::budgets::*;

    fn gates(fetch_bytes: u64, work_bytes: u64) -> Gates {
        let budgets = ByteBudgets { fetch_bytes, work_bytes, covered_bytes: 100 };
        Gates::new(budgets, &Arc::new(Waker::new().unwrap()), false)
    }

    fn age(order: u64) -> Age {
        Age { next_to_publish: Arc::default(), order, row: 0 }
    }

    #[test]
    fn threads_own_memory_is_not_granted_but_bytes_between_stages_are() {
        let gates = gates(1_000, 1_000);
        let bytes =
            |scratch_bytes, carried_bytes| gates.work_bytes(Needs { scratch_bytes, carried_bytes });
        assert_eq!([bytes(100, 0), bytes(101, 0), bytes(100, 7), bytes(200, 7)], [0, 101, 7, 207]);
    }

    /// Otherwise the row would wait for itself forever.
    #[test]
    fn file_beyond_both_budgets_is_granted_all_that_is_left() {
        let gates = gates(1_000, 500);
        let fetch = gates.acquire_to_fetch(&age(0), 1_300).unwrap();
        assert_eq!((fetch.bytes(), gates.beyond_fetch(1_300)), (1_000, 300));
        let mut held = gates.acquire_to_work(&age(0), None, 300).unwrap();
        held.merge(gates.acquire_to_work(&age(0), Some(&held), 400).unwrap());
        assert_eq!((held.bytes(), gates.work.in_use()), (500, 500));
        assert!(gates.acquire_to_work(&age(0), Some(&held), 400).is_none(), "it has all");
        drop((fetch, held));
        assert_eq!((gates.fetch.in_use(), gates.work.in_use()), (0, 0));
    }

    #[test]
    fn row_that_holds_bytes_goes_before_an_older_one_that_waits_for_them() {
        let gates = gates(1_000, 500);
        let held = gates.acquire_to_work(&age(7), None, 300).unwrap();
        std::thread::scope(|scope| {
            let older = scope.spawn(|| gates.acquire_to_work(&age(0), None, 400).unwrap().bytes());
            while !gates.work.is_awaited() {
                std::thread::yield_now();
            }
            let more = gates.acquire_to_work(&age(7), Some(&held), 900).unwrap();
            assert_eq!(more.bytes(), 200);
            drop((held, more));
            gates.grant();
            assert_eq!(older.join().unwrap(), 400);
        });
    }
}
