//! Every interleaving, within two or three pre-emptions, of setters, work threads and the engine around a stage. A row
//! that no thread takes shows as a deadlock: the model's threads really sleep.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{self, Thread};

use crate::work_parking::{BitSet, Sleepers, StageGate};

const GROUP: usize = 0;
/// Between two rows' bits: they lie in several words with a count each, or in one.
const SPREAD: usize = 40;
const DENSE: usize = 1;

/// What the daemon's pool has of all this: two stages of which each has a gate and a set of rows.
struct Desk {
    spread: usize,
    gates: [StageGate; 2],
    ready: [BitSet; 2],
    sleepers: Sleepers,
    /// The work threads, once they are known; a cell that is written before any row is.
    threads: loom::sync::Mutex<Vec<Thread>>,
    unfinished: AtomicUsize,
    /// What a row is about: written before it is marked, read by who claims it.
    payload: [AtomicUsize; 8],
}

impl Desk {
    fn new(limits: [u32; 2], rows: usize) -> Arc<Self> {
        Self::with_spread(limits, rows, SPREAD)
    }

    fn with_spread(limits: [u32; 2], rows: usize, spread: usize) -> Arc<Self> {
        Arc::new(Self {
            spread,
            gates: limits.map(StageGate::new),
            ready: [BitSet::new(8 * spread), BitSet::new(8 * spread)],
            sleepers: Sleepers::new(2),
            threads: loom::sync::Mutex::new(Vec::new()),
            unfinished: AtomicUsize::new(rows),
            payload: std::array::from_fn(|_| AtomicUsize::new(0)),
        })
    }

    fn wake_one(&self) {
        self.sleepers.wake_one(|number| self.threads.lock().unwrap()[number].unpark());
    }

    /// As a fetch thread, or a work thread with a row for the next stage, does it.
    fn mark(&self, stage: usize, row: usize) {
        self.payload[row].store(stage + 1, Ordering::Relaxed);
        self.ready[stage].add(row * self.spread);
        if self.gates[stage].has_room_for_marked(|| GROUP) {
            self.wake_one();
        }
    }

    fn has_claimable(&self) -> bool {
        (0..2).any(|stage| self.ready[stage].any() && self.gates[stage].has_room(GROUP))
    }

    fn claim(&self) -> Option<(usize, usize)> {
        for stage in [1, 0] {
            if !self.ready[stage].any() || !self.gates[stage].enter(GROUP) {
                continue;
            }
            if let Some(row) = self.ready[stage].take_first().map(|bit| bit / self.spread) {
                assert_eq!(self.payload[row].load(Ordering::Relaxed), stage + 1, "another's row");
                return Some((stage, row));
            }
            self.gates[stage].leave(GROUP);
        }
        None
    }

    fn is_over(&self) -> bool {
        self.unfinished.load(Ordering::SeqCst) == 0
    }

    /// A work thread: each row passes stage 0, and stage 1 where the model has rows for it.
    fn work(&self, number: usize) {
        while !self.is_over() {
            match self.claim() {
                Some((stage, _)) => {
                    self.gates[stage].leave(GROUP);
                    if self.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
                        for thread in self.threads.lock().unwrap().iter() {
                            thread.unpark();
                        }
                    }
                }
                None => {
                    let something = || self.is_over() || self.has_claimable();
                    self.sleepers.sleep_unless(number, something, thread::park);
                }
            }
        }
    }

    /// Starts the work threads. They wait for the first row asleep.
    fn start(self: &Arc<Self>, workers: usize) -> Vec<thread::JoinHandle<()>> {
        let mut names = self.threads.lock().unwrap();
        let handles: Vec<_> = (0..workers)
            .map(|number| {
                let desk = Arc::clone(self);
                thread::spawn(move || desk.work(number))
            })
            .collect();
        names.extend(handles.iter().map(|handle| handle.thread().clone()));
        handles
    }
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A setter, and a thread that is about to sleep.
#[test]
fn loom_nobody_sleeps_over_a_row() {
    model(3, || {
        let desk = Desk::new([1, 1], 2);
        let workers = desk.start(1);
        desk.mark(0, 0);
        desk.mark(0, 1);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// A stage for one thread and two threads: the setter may find it full, and the one that leaves it must then look.
#[test]
fn loom_a_row_for_a_full_stage_is_taken_when_it_is_left() {
    // A third thread: more preemptions would take an hour, and so would a word for each row.
    model(2, || {
        let desk = Desk::with_spread([1, 1], 2, DENSE);
        let workers = desk.start(2);
        desk.mark(0, 0);
        desk.mark(0, 1);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// Rows for both stages while one of them is full.
#[test]
fn loom_rows_of_both_stages_are_taken() {
    model(3, || {
        let desk = Desk::new([1, 1], 3);
        desk.mark(0, 0);
        let workers = desk.start(1);
        desk.mark(0, 1);
        desk.mark(1, 2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// The engine raises a limit while threads go to sleep over rows for which there was no room.
#[test]
fn loom_a_raised_limit_wakes_a_thread() {
    model(3, || {
        let desk = Desk::new([0, 1], 1);
        let workers = desk.start(1);
        desk.mark(0, 0);
        desk.gates[0].set_limit(1);
        desk.wake_one();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}
