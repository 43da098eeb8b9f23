//! One stream's fetch threads, and the replacements of those that hang.
//!
//! A thread's states, and who moves it:
//! ```text
//!   Idle ──lane: submits a reading──► Reading ──thread: all rows done──► Idle
//!    ▲                                   │ lane: a call is overdue, gives the reading up
//!    │                                   ▼
//!    └──thread: the call has returned── Hung ──thread: the call has returned, and there are enough──► Ended
//! ```
//! A thread in a system call that does not return cannot be ended. The rule for them, for each stream alone:
//! - There is a thread for each lane, from the start on.
//! - One that hangs is replaced at once, up to [`replacements`] that hang since the storage last answered.
//! - When these hang, too, a read is begun only when one has returned or `dataset.read_timeout` has passed. That finds out
//!   when the storage is back.
//! - Threads that have hung since before an answer may never return: they are replaced like those that never hung.
//! - There are never more than [`most_threads`]. Whoever needs one then waits for one that returns.
//!
//! So reads that hang slow their own stream down, and nothing else.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::reading::{AbandonedCount, Reading};

/// The stack of a thread: reading needs a small part of it, the message of a panic more.
const STACK_BYTES: usize = 512 << 10;

/// What a thread does with the reading of a lane.
pub(crate) type Run = Arc<dyn Fn(&Reading, usize) + Send + Sync>;

/// How many threads that hang are replaced at once.
const fn replacements(lanes: usize) -> usize {
    if lanes < 4 {
        4
    } else if lanes > 32 {
        32
    } else {
        lanes
    }
}

/// The most threads of a stream with so many lanes.
const fn most_threads(lanes: usize) -> usize {
    4 * (lanes + replacements(lanes))
}

/// See the module's head. Owned by the engine thread.
pub(crate) struct FetchThreads {
    shared: Arc<Shared>,
    run: Run,
    lanes: usize,
    /// Readings under way that were not given up.
    active: usize,
    /// Of the threads that hang, those that did when the storage last answered.
    hung_at_answer: usize,
    /// When a read was last begun although too many hang.
    tried_beside_hung_at: Option<Instant>,
    /// That no thread could be made was logged.
    has_warned: bool,
}

impl std::fmt::Debug for FetchThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchThreads").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    hung: AbandonedCount,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    /// Made and not ended.
    threads: usize,
    /// As many as these stay.
    lanes: usize,
    ends: bool,
}

struct Task {
    reading: Arc<Reading>,
    lane: usize,
    /// Gets whether the thread came through without a panic.
    done: oneshot::Sender<bool>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.ends {
                return None;
            }
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A thread has come back from a call that was given up. False: it ends, since there are enough.
    fn stays(&self) -> bool {
        let mut state = self.state();
        // Under the lock, so that the engine thread counts it either among those that hang or as what it becomes.
        self.hung.thread_is_back();
        let is_spare = state.threads - self.hung.get() > state.lanes;
        state.threads -= usize::from(is_spare);
        !is_spare
    }
}

fn work(shared: &Shared, run: &Run) {
    while let Some(Task { reading, lane, done }) = shared.next() {
        let ran = catch_unwind(AssertUnwindSafe(|| run(&reading, lane)));
        // The lane may have given it up and be gone.
        let _ = done.send(ran.is_ok());
        if reading.is_abandoned() && !shared.stays() {
            return;
        }
    }
}

impl FetchThreads {
    /// Starts a thread for each lane.
    pub(crate) fn start(lanes: usize, run: Run) -> io::Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, hung: AbandonedCount::default() });
        let (active, hung_at_answer) = (0, 0);
        let (tried_beside_hung_at, has_warned) = (None, false);
        let mut threads = Self {
            shared,
            run,
            lanes: 0,
            active,
            hung_at_answer,
            tried_beside_hung_at,
            has_warned,
        };
        threads.set_lanes(lanes)?;
        Ok(threads)
    }

    /// There are so many lanes from now on: starts threads where there are fewer.
    pub(crate) fn set_lanes(&mut self, lanes: usize) -> io::Result<()> {
        self.lanes = lanes;
        self.shared.state().lanes = lanes;
        while self.shared.state().threads < lanes {
            self.add()?;
        }
        Ok(())
    }

    /// The lanes that there are now.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    fn add(&self) -> io::Result<()> {
        let (shared, run) = (Arc::clone(&self.shared), Arc::clone(&self.run));
        let builder = thread::Builder::new().name("forebay-fetch".to_owned());
        builder.stack_size(STACK_BYTES).spawn(move || work(&shared, &run))?;
        self.shared.state().threads += 1;
        Ok(())
    }

    /// What counts the threads that hang.
    pub(crate) fn hung(&self) -> &AbandonedCount {
        &self.shared.hung
    }

    /// The storage has answered: what still hangs slows nothing down any more.
    pub(crate) fn note_answer(&mut self) {
        self.hung_at_answer = self.shared.hung.get();
    }

    /// Whether a read may begin now, by the rule of the module's head; a thread for it is there then. `limit`:
    /// `dataset.read_timeout`.
    pub(crate) fn may_read(&mut self, now: Instant, limit: Duration) -> bool {
        let (threads, hung) = {
            let state = self.shared.state();
            (state.threads, self.shared.hung.get())
        };
        self.hung_at_answer = self.hung_at_answer.min(hung);
        if self.active < threads - hung {
            return true;
        }
        if threads >= most_threads(self.lanes) {
            return false;
        }
        let hung_since = hung - self.hung_at_answer;
        let granted = self.lanes + self.hung_at_answer + hung_since.min(replacements(self.lanes));
        if threads >= granted {
            let begun = self.tried_beside_hung_at;
            if begun.is_some_and(|begun| now.saturating_duration_since(begun) < limit) {
                return false;
            }
            self.tried_beside_hung_at = Some(now);
        }
        match self.add() {
            Ok(()) => true,
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, hung, "no thread can be started in place of those that hang in reads");
                }
                false
            }
        }
    }

    /// Has a thread read the rows of a lane's reading; gets whether it came through without a panic. The caller has asked
    /// [`may_read`](Self::may_read), and calls [`end`](Self::end) when it is over or given up.
    pub(crate) fn submit(&mut self, reading: Arc<Reading>, lane: usize) -> oneshot::Receiver<bool> {
        self.active += 1;
        let (done, outcome) = oneshot::channel();
        self.shared.state().tasks.push_back(Task { reading, lane, done });
        self.shared.changed.notify_one();
        outcome
    }

    /// A reading is over, or was given up.
    pub(crate) fn end(&mut self) {
        self.active -= 1;
    }
}

impl Drop for FetchThreads {
    fn drop(&mut self) {
        // Nobody waits for them: one may hang.
        self.shared.state().ends = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_observe::Clock;

    const LIMIT: Duration = Duration::from_secs(30);
    const LANES: usize = 4;

    /// Threads whose calls do not return before they are let go.
    struct World {
        threads: FetchThreads,
        clock: Clock,
        is_away: Arc<(Mutex<bool>, Condvar)>,
        begun: Arc<Mutex<usize>>,
    }

    fn world() -> World {
        let is_away = Arc::new((Mutex::new(true), Condvar::new()));
        let begun = Arc::new(Mutex::new(0));
        let (away, counted) = (Arc::clone(&is_away), Arc::clone(&begun));
        let run: Run = Arc::new(move |reading, _| {
            let hang = || {
                *counted.lock().unwrap() += 1;
                let is_away = away.0.lock().unwrap();
                drop(away.1.wait_while(is_away, |is_away| *is_away).unwrap());
            };
            let _ = reading.call("reading", hang);
        });
        let threads = FetchThreads::start(LANES, run).unwrap();
        World { threads, clock: Clock::manual(), is_away, begun }
    }

    impl World {
        fn may_read(&mut self) -> bool {
            self.threads.may_read(self.clock.now(), LIMIT)
        }

        fn threads(&self) -> usize {
            self.threads.shared.state().threads
        }

        /// Reads until no read may begin; each hangs and is given up. How many there were.
        fn hang(&mut self) -> usize {
            let mut hung = 0;
            while self.may_read() {
                let count = self.threads.hung().clone();
                let reading = Reading::new(VecDeque::new(), None, count, self.clock.clone());
                let reading = Arc::new(reading);
                let before = *self.begun.lock().unwrap();
                drop(self.threads.submit(Arc::clone(&reading), 0));
                while *self.begun.lock().unwrap() == before {
                    thread::yield_now();
                }
                reading.abandon_now();
                self.threads.end();
                hung += 1;
            }
            hung
        }

        fn let_go(&self) {
            *self.is_away.0.lock().unwrap() = false;
            self.is_away.1.notify_all();
            while self.threads.hung().get() > 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn threads_that_hang_are_replaced_up_to_a_number_and_then_one_for_each_time_out() {
        let mut world = world();
        assert_eq!(world.threads(), LANES);
        let at_once = LANES + replacements(LANES);
        // The first of those that are begun beside them is at once, too: none was before.
        assert_eq!(world.hang(), at_once + 1);
        for more in 2..10 {
            assert!(!world.may_read());
            world.clock.advance(LIMIT);
            assert_eq!(world.hang(), 1);
            assert_eq!(world.threads(), at_once + more);
        }
        world.let_go();
        assert_eq!(world.threads(), LANES, "those that are too many end");
        assert!(world.may_read());
    }

    #[test]
    fn threads_that_hang_since_before_an_answer_are_written_off_and_there_is_an_end_to_them() {
        let mut world = world();
        let mut hung = world.hang();
        while hung < most_threads(LANES) {
            world.threads.note_answer();
            hung += world.hang();
        }
        assert_eq!((hung, world.threads()), (most_threads(LANES), most_threads(LANES)));
        world.threads.note_answer();
        world.clock.advance(LIMIT);
        assert!(!world.may_read(), "it waits for one to return");
        world.let_go();
        assert!(world.may_read() && world.threads() == LANES);
    }

    #[test]
    fn a_panic_is_told_and_costs_no_thread() {
        let run: Run = Arc::new(|_, lane| assert_ne!(lane, 1));
        let mut threads = FetchThreads::start(1, run).unwrap();
        for lane in [1, 0] {
            assert!(threads.may_read(Instant::now(), LIMIT));
            let count = threads.hung().clone();
            let reading = Reading::new(VecDeque::new(), None, count, Clock::manual());
            let outcome = threads.submit(Arc::new(reading), lane);
            assert_eq!(outcome.blocking_recv(), Ok(lane == 0));
            threads.end();
        }
        assert_eq!(threads.shared.state().threads, 1);
    }
}
