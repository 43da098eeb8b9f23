//! The fetch threads of a stream, and the replacement of hung threads.
//!
//! States of a thread, and what changes them:
//! ```text
//!   Idle ──lane: submits a reading──► Reading ──thread: all rows done──► Idle
//!    │ ▲                                 │ lane: a call is overdue, abandons the reading
//!    │ │                                 ▼
//!    │ └──thread: the call has returned── Hung
//!    └──thread: no reading waits, and there are more threads that do not hang than lanes──► Ended
//! ```
//! A thread in a system call that does not return cannot be ended. The rules, per stream:
//! - Each lane has a thread from the start.
//! - A hung thread is replaced at once, up to [`replacements`] threads that have hung since the storage last answered.
//! - If the replacements hang, too, a read begins only after a thread has returned or `dataset.read_timeout` has
//!   passed. Such a read detects that the storage is back.
//! - Threads that have hung since before the last answer may never return: they are replaced and do not count as hung.
//! - There are at most [`most_threads`]. Beyond that, a read waits until a thread returns.
//!
//! Hung reads thus slow down their own stream only.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::actors::fetch_chunk::Chunk;
use crate::actors::reading::{AbandonedCount, Reading};

/// Stack size of a thread: reading needs a small part of it, a panic's message more.
const STACK_BYTES: usize = 512 << 10;

/// Called by a thread with a reading and its lane.
pub(crate) type Run = Arc<dyn Fn(&Reading, usize) + Send + Sync>;

/// Maximal number of hung threads that are replaced at once.
const fn replacements(lanes: usize) -> usize {
    if lanes < 4 {
        4
    } else if lanes > 32 {
        32
    } else {
        lanes
    }
}

/// Maximal number of threads of a stream with `lanes` lanes.
const fn most_threads(lanes: usize) -> usize {
    4 * (lanes + replacements(lanes))
}

/// See the module's head. Owned by the engine thread.
pub(crate) struct FetchThreads {
    shared: Arc<Shared>,
    run: Run,
    lanes: usize,
    /// Readings that have neither ended nor been abandoned.
    active: usize,
    /// Number of threads that hung when the storage last answered.
    hung_at_answer: usize,
    /// Time at which a read was last allowed although too many threads hang.
    allowed_beside_hung_at: Option<Instant>,
    /// Whether a failure to start a thread was logged.
    has_warned: bool,
    /// The rows of a task; set by the lanes.
    pub(crate) chunk: Chunk,
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
    /// Started and not ended.
    threads: usize,
    /// The number of threads that stay.
    lanes: usize,
    ends: bool,
}

struct Task {
    reading: Arc<Reading>,
    lane: usize,
    /// Receives whether the reading ended without a panic.
    done: oneshot::Sender<bool>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task; `None`: the thread ends. `is_back`: the thread has returned from an abandoned call.
    fn next(&self, is_back: bool) -> Option<Task> {
        let mut state = self.state();
        // Under the lock, so that the engine thread counts the thread either as hung or in its new state.
        if is_back {
            self.hung.thread_is_back();
        }
        loop {
            if state.ends {
                return None;
            }
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            if state.threads - self.hung.get() > state.lanes {
                state.threads -= 1;
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work(shared: &Shared, run: &Run) {
    let mut is_back = false;
    while let Some(Task { reading, lane, done }) = shared.next(is_back) {
        let ran = catch_unwind(AssertUnwindSafe(|| run(&reading, lane)));
        // The lane may have abandoned the reading and be dropped.
        let _ = done.send(ran.is_ok());
        is_back = reading.is_abandoned();
    }
}

impl FetchThreads {
    /// Starts a thread for each lane.
    pub(crate) fn start(lanes: usize, run: Run) -> io::Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, hung: AbandonedCount::default() });
        let (active, hung_at_answer) = (0, 0);
        let (allowed_beside_hung_at, has_warned) = (None, false);
        let mut threads = Self {
            shared,
            run,
            lanes: 0,
            active,
            hung_at_answer,
            allowed_beside_hung_at,
            has_warned,
            chunk: Chunk::default(),
        };
        threads.set_lanes(lanes)?;
        Ok(threads)
    }

    /// Sets the number of lanes; starts missing threads.
    pub(crate) fn set_lanes(&mut self, lanes: usize) -> io::Result<()> {
        self.lanes = lanes;
        self.shared.state().lanes = lanes;
        while self.shared.state().threads < lanes {
            self.add()?;
        }
        Ok(())
    }

    /// The current number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    fn add(&self) -> io::Result<()> {
        let (shared, run) = (Arc::clone(&self.shared), Arc::clone(&self.run));
        // Before it starts: it ends by itself if there are too many.
        self.shared.state().threads += 1;
        let builder = thread::Builder::new().name("forebay-fetch".to_owned());
        let started = builder.stack_size(STACK_BYTES).spawn(move || work(&shared, &run));
        if started.is_err() {
            self.shared.state().threads -= 1;
        }
        started.map(drop)
    }

    /// The counter of hung threads.
    pub(crate) fn hung(&self) -> &AbandonedCount {
        &self.shared.hung
    }

    /// Called when the storage has answered: threads that hang now no longer count as hung.
    pub(crate) fn note_answer(&mut self) {
        self.hung_at_answer = self.shared.hung.get();
    }

    /// Whether a read may begin now, by the rules in the module's head; if so, a thread is available. `limit`:
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
            let begun = self.allowed_beside_hung_at;
            if begun.is_some_and(|begun| now.saturating_duration_since(begun) < limit) {
                return false;
            }
            self.allowed_beside_hung_at = Some(now);
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

    /// Passes a lane's reading to a thread; the receiver gets whether it ended without a panic. The caller has called
    /// [`may_read`](Self::may_read), and calls [`end`](Self::end) once the reading has ended or was abandoned.
    pub(crate) fn submit(&mut self, reading: Arc<Reading>, lane: usize) -> oneshot::Receiver<bool> {
        self.active += 1;
        let (done, outcome) = oneshot::channel();
        self.shared.state().tasks.push_back(Task { reading, lane, done });
        self.shared.changed.notify_one();
        outcome
    }

    /// Called when a reading has ended or was abandoned.
    pub(crate) fn end(&mut self) {
        self.active -= 1;
    }
}

impl Drop for FetchThreads {
    fn drop(&mut self) {
        // Not joined: a thread may hang.
        self.shared.state().ends = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use crate::actors::fetch_threads::*;
    use forebay_observe::Clock;

    const LIMIT: Duration = Duration::from_secs(30);
    const LANES: usize = 4;

    /// Threads whose calls return only after `let_go`.
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

        /// Begins reads until none may begin; each hangs and is abandoned. Returns their number.
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
    fn hung_threads_are_replaced_up_to_a_number_and_then_one_per_timeout() {
        let mut world = world();
        assert_eq!(world.threads(), LANES);
        let at_once = LANES + replacements(LANES);
        // The first read beyond the replacements begins at once: there was no such read before it.
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
    fn threads_hung_since_before_an_answer_are_written_off_up_to_a_maximum() {
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
    fn surplus_threads_end_however_they_came() {
        let world = world();
        // As when a hung thread returns between the decision to replace it and its replacement.
        world.threads.add().unwrap();
        let waits = || {
            (0..5000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                world.threads() == LANES
            })
        };
        assert!(waits(), "{} threads", world.threads());
    }

    #[test]
    fn panic_is_reported_and_the_thread_stays() {
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
