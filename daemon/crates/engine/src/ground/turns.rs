//! The order of rows of several sessions: equal shares of the work threads' time, and within a session's share the rows
//! that its trainer waits for first.
//!
//! Start-time fair queueing. Each session has a *virtual time*: the time that work threads have spent on its rows, on a
//! core or asleep in an operation, but not time in which a thread was runnable without a core. Finishing a batch counts
//! as a whole. The session with the smallest virtual time goes first, so clients that take as much as possible get
//! equal shares, whatever the cost of their rows, and a client that takes less than its share gets its rows before
//! faster ones. The rest of its share goes to the others in equal parts.
//!
//! Two rules complete this:
//!
//! - **Credit is bounded.** The virtual time of a session that had no rows for a while is at most `credit` less than
//!   the pool's virtual time, which is the largest start of any row so far. `credit` is a session's share of
//!   [`HORIZON_NS`]. A session that attaches has no credit: it gets its share from then on, and delays no other
//!   session.
//! - **A trainer that has batches left can wait.** A session's place moves back by the session's share of the time
//!   until its trainer would wait for the row, counted up to [`HORIZON_NS`]. So the largest such delay equals the
//!   largest credit. If two sessions both take less than their shares, the one whose trainer waits first goes first.
//!
//! A row is charged with the mean of its stage when it is claimed, and corrected when it has ended: several threads
//! that choose at the same time do not all choose the same session. The order of batches does not depend on any of
//! this.
//!
//! | thread | calls |
//! |---|---|
//! | work thread | [`Turns::begin`] and [`Turn::end`] around each claim; reads the place of each session |
//! | engine thread | [`Turns::enter`] when a session attaches, [`Turn::note_taken`], [`Turn::charge`] for rows that a seek discarded; reads the place for fetch lanes |

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};

/// How far ahead a trainer's batches are considered, and the time whose share bounds a session's credit.
const HORIZON_NS: u64 = 500_000_000;

/// State shared by the work threads.
#[derive(Debug)]
pub(crate) struct Turns {
    threads: u64,
    sessions: AtomicU64,
    /// The largest virtual start of a row so far. It only grows.
    now_ns: AtomicU64,
}

/// One session's state for its place among the others.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The virtual time, in nanoseconds of work threads.
    used_ns: AtomicU64,
    /// The time that work threads have spent, for the session's metrics.
    worked_ns: AtomicU64,
    /// When the trainer would wait if nothing more were published, by the monotonic clock; 0 before its first batch.
    waits_at_ns: AtomicU64,
    /// Mean time between two batches that the trainer takes without waiting.
    step_ns: AtomicU64,
}

/// A client's report of the batches that it took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    pub batches: u64,
    /// When it took the last one, by the monotonic clock.
    pub at_ns: u64,
    /// Total time for which it has waited for batches.
    pub waited_ns: u64,
}

impl Turns {
    /// For `threads` work threads, without a session.
    pub(crate) fn new(threads: u32) -> Self {
        let (sessions, now_ns) = (AtomicU64::new(1), AtomicU64::new(0));
        Self { threads: threads.max(1).into(), sessions, now_ns }
    }

    /// Sets the number of sessions that share the threads. Engine only.
    pub(crate) fn set_sessions(&self, sessions: usize) {
        // Relaxed, here and below: estimates; a stale one costs a row's place.
        self.sessions.store(sessions.max(1) as u64, Ordering::Relaxed);
    }

    /// A session's share of the work threads' time in `wall_ns` nanoseconds.
    fn share_of(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_mul(self.threads) / self.sessions.load(Ordering::Relaxed)
    }

    /// Called when a session attaches: other sessions' use until now does not count. Engine only.
    pub(crate) fn enter(&self, turn: &Turn) {
        turn.used_ns.fetch_max(self.now_ns.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A session's place in the order, lowest first, for rows of the batch `distance` after the next one to publish.
    pub(crate) fn place(&self, turn: &Turn, now_ns: u64, distance: u64) -> u64 {
        let slack_ns = turn.slack_ns(now_ns, distance).min(HORIZON_NS);
        self.start_of(turn).saturating_add(self.share_of(slack_ns))
    }

    /// The virtual start of a session's next row.
    fn start_of(&self, turn: &Turn) -> u64 {
        let credit = self.share_of(HORIZON_NS);
        let earliest = self.now_ns.load(Ordering::Relaxed).saturating_sub(credit);
        turn.used_ns.load(Ordering::Relaxed).max(earliest)
    }

    /// Called when a work thread takes a row of a session, or a batch to finish; `expected`: its expected duration.
    pub(crate) fn begin(&self, turn: &Turn, expected: Duration) {
        let start = self.start_of(turn);
        self.now_ns.fetch_max(start, Ordering::Relaxed);
        turn.used_ns.fetch_max(start, Ordering::Relaxed);
        turn.charge(expected);
    }
}

impl Turn {
    /// Called when the work has ended; `expected`: as passed to [`Turns::begin`].
    pub(crate) fn end(&self, expected: Duration, took: Duration) {
        self.worked_ns.fetch_add(nanoseconds(took), Ordering::Relaxed);
        if took >= expected {
            self.charge(took - expected);
        } else {
            // Not less than was charged at the beginning.
            self.used_ns.fetch_sub(nanoseconds(expected - took), Ordering::Relaxed);
        }
    }

    /// The time that work threads have spent on its rows and batches, as in its virtual time.
    pub(crate) fn worked(&self) -> Duration {
        Duration::from_nanos(self.worked_ns.load(Ordering::Relaxed))
    }

    /// Charges the session for work threads' time.
    pub(crate) fn charge(&self, time: Duration) {
        self.used_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Called after the client has taken batches since `before`; `ready` are left in its ring. Engine only.
    pub(crate) fn note_taken(&self, before: Taken, taken: Taken, ready: u64) {
        if taken.batches > before.batches && before.batches > 0 {
            let between = taken.at_ns.saturating_sub(before.at_ns);
            let waited = taken.waited_ns.saturating_sub(before.waited_ns);
            let step = between.saturating_sub(waited) / (taken.batches - before.batches);
            let mean = self.step_ns.load(Ordering::Relaxed);
            self.step_ns.store(mean - mean / 4 + step / 4, Ordering::Relaxed);
        }
        if taken.batches > 0 {
            let step = self.step_ns.load(Ordering::Relaxed);
            let waits_at = taken.at_ns.saturating_add(step.saturating_mul(ready.saturating_add(1)));
            self.waits_at_ns.store(waits_at, Ordering::Relaxed);
        }
    }

    /// Time until the trainer would wait for a batch; 0 while it waits.
    fn slack_ns(&self, now_ns: u64, distance: u64) -> u64 {
        let step = self.step_ns.load(Ordering::Relaxed);
        let waits_at = self.waits_at_ns.load(Ordering::Relaxed);
        waits_at.saturating_add(step.saturating_mul(distance)).saturating_sub(now_ns)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
