//! The two byte budgets of a daemon, and why rows that wait for one or the other cannot lock up.
//!
//! ```text
//!   fetch thread:  opens the sample ─► bytes of the fetch budget ─► reads ─► bytes of the work budget ─► Ready(0)
//!   work thread:   runs the stages; both are given back when the row is done
//! ```
//! The fetch budget counts the bytes that were read. The work budget counts what unpacking them takes where that is more
//! than a work thread has planned for itself, and what waits with the row between stages; both are known from the headers
//! in the bytes ([`Needs`]). Most samples fit the threads' scratch memory and take nothing of it.
//!
//! - The order is always the same, and a row that holds bytes of the work budget needs nothing but a work thread: those
//!   never wait for bytes. So whoever waits for the work budget waits for rows that end, and whoever waits for the fetch
//!   budget waits for those or for reads.
//! - Of each budget the oldest row is granted first, and a row that needs more than all of it is granted all of it, alone.
//! - A file larger than the fetch budget takes the rest from the work budget before it is read. It holds the whole fetch
//!   budget, so that it is the only such row. What it needs for unpacking is cut to what it does not hold already, and
//!   goes before all who wait: one of them may need what this row holds.
//!
//! Whether a sample is accepted never depends on budgets: they decide when it is unpacked; limits decide whether.

use std::sync::Arc;

use super::gate::{Age, ByteGate, BytePermit};
use super::waker::Waker;
use forebay_pipeline::Needs;

/// What is counted for a row beside its bytes: the allocator's share, lists.
const ROW_BYTES: u64 = 256;

/// The sizes of a daemon's budgets.
#[derive(Debug, Clone, Copy)]
pub struct ByteBudgets {
    /// Samples between fetch and work.
    pub fetch_bytes: u64,
    /// Samples that take more than [`covered_bytes`](Self::covered_bytes), and what waits between stages.
    pub work_bytes: u64,
    /// What each work thread has for the sample that it works.
    pub covered_bytes: u64,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub(crate) struct Gates {
    pub(crate) fetch: Arc<ByteGate>,
    pub(crate) work: Arc<ByteGate>,
    covered_bytes: u64,
}

/// What a row holds of both.
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

    /// Bytes for a sample to be fetched. `None`: the daemon ends.
    pub(crate) fn acquire_to_fetch(&self, age: &Age, bytes: u64) -> Option<BytePermit> {
        self.fetch.acquire(age, bytes.saturating_add(ROW_BYTES))
    }

    /// What of a sample's bytes the fetch budget cannot hold.
    pub(crate) fn beyond_fetch(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.fetch.budget())
    }

    /// What a sample takes of the work budget.
    pub(crate) fn work_bytes(&self, needs: Needs) -> u64 {
        let is_covered = needs.scratch_bytes <= self.covered_bytes;
        let scratch = if is_covered { 0 } else { needs.scratch_bytes };
        scratch.saturating_add(needs.carried_bytes)
    }

    /// Takes bytes of the work budget beside those that the row has of it. `None`: there are no more, or the daemon ends.
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

    /// Grants waiting requests as far as the bytes go.
    pub(crate) fn grant(&self) {
        self.fetch.grant();
        self.work.grant();
    }

    /// The daemon ends.
    pub(crate) fn close(&self) {
        self.fetch.close();
        self.work.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(fetch_bytes: u64, work_bytes: u64) -> Gates {
        let budgets = ByteBudgets { fetch_bytes, work_bytes, covered_bytes: 100 };
        Gates::new(budgets, &Arc::new(Waker::new().unwrap()), false)
    }

    fn age(order: u64) -> Age {
        Age { next_to_publish: Arc::default(), order, row: 0 }
    }

    #[test]
    fn what_a_thread_has_for_itself_is_not_granted_and_what_waits_between_stages_is() {
        let gates = gates(1_000, 1_000);
        let bytes =
            |scratch_bytes, carried_bytes| gates.work_bytes(Needs { scratch_bytes, carried_bytes });
        assert_eq!([bytes(100, 0), bytes(101, 0), bytes(100, 7), bytes(200, 7)], [0, 101, 7, 207]);
    }

    /// It waits for nobody but itself otherwise, for ever.
    #[test]
    fn a_file_beyond_both_budgets_that_needs_more_than_is_left_is_granted_all_of_it() {
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
    fn a_row_that_holds_bytes_goes_before_an_older_one_that_waits_for_these() {
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
