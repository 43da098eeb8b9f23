//! What the work threads share: the sessions to work for, which group is active, and how threads are woken.
//!
//! The engine thread and fetch threads use it too, to wake work threads and the engine.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use arc_swap::ArcSwap;
use forebay_protocol::sync::{AtomicU64, Ordering};

use crate::cpu::budget::CpuBudget;
use crate::retry_queue::PutOff;
use crate::spare_buffers::SpareBuffers;
use crate::stream::Stage;
use crate::waker::Waker;
use crate::work::SessionWork;
use crate::work_page::WorkPage;
use crate::work_parking::{GROUPS, Sleepers};
use crate::worker_place::WorkerPlace;
use forebay_observe::Clock;
use forebay_observe::recorder::Recorder;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The attached sessions; replaced as a whole when one attaches or detaches.
    pub sessions: ArcSwap<Vec<Arc<SessionWork>>>,
    pub spare_buffers: SpareBuffers,
    pub budget: CpuBudget,
    pub clock: Clock,
    started: Instant,
    /// Rows finished so far; shown to clients as a sign of progress.
    pub rows_finished: AtomicU64,
    /// Rows whose reads failed, on their way to the engine thread.
    put_off: Mutex<Vec<PutOff>>,
    pub recorder: Arc<Recorder>,
    waker: Arc<Waker>,
    /// Where samples under work are noted for the next daemon; set before the first session.
    pub work_page: OnceLock<WorkPage>,
    groups: [Group; GROUPS],
    /// The active group. Set by the engine thread alone.
    active: AtomicUsize,
    ending: AtomicBool,
}

/// Threads of one scheduling class.
#[derive(Debug)]
struct Group {
    sleepers: Sleepers,
    /// By thread; empty where none was started.
    threads: Box<[OnceLock<Thread>]>,
    /// By thread: its kernel id; 0 before it runs.
    kernel_ids: Box<[AtomicU64]>,
    /// By thread: the row it runs.
    places: Box<[WorkerPlace]>,
}

pub(super) const LOWERED: usize = 0;
pub(super) const FALLBACK: usize = 1;

impl Shared {
    /// A time as nanoseconds since the pool was started, never 0: what fits into an atomic.
    pub(crate) fn ns_of(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }

    /// Two groups with room for so many threads each; none is started.
    pub(super) fn new(threads: [u32; GROUPS], waker: Arc<Waker>, clock: Clock) -> Self {
        let group = |threads: u32| Group {
            sleepers: Sleepers::new(threads as usize),
            threads: (0..threads).map(|_| OnceLock::new()).collect(),
            kernel_ids: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            places: (0..threads).map(|_| WorkerPlace::default()).collect(),
        };
        Self {
            sessions: ArcSwap::default(),
            spare_buffers: SpareBuffers::default(),
            budget: CpuBudget::new(clock.clone()),
            started: clock.now(),
            clock,
            rows_finished: AtomicU64::new(0),
            put_off: Mutex::default(),
            recorder: Arc::default(),
            waker,
            work_page: OnceLock::new(),
            groups: threads.map(group),
            active: AtomicUsize::new(LOWERED),
            ending: AtomicBool::new(false),
        }
    }

    /// A thread was started. It may have gone to sleep before it could be unparked by its number.
    pub(super) fn set_thread(&self, group: usize, number: usize, thread: Thread) {
        // Set once, here.
        let _ = self.groups[group].threads[number].set(thread.clone());
        thread.unpark();
    }

    /// Called by the thread itself.
    pub(super) fn set_thread_id(&self, group: usize, number: usize) {
        let id = u64::try_from(rustix::thread::gettid().as_raw_pid()).unwrap_or(0);
        self.groups[group].kernel_ids[number].store(id, Ordering::Relaxed);
    }

    /// Ends the threads; the caller unparks them.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Wakes one sleeping thread, if any. Called after something became claimable.
    pub(crate) fn wake_one(&self) {
        // SeqCst: pairs with the swap in `set_fallback`; a thread of the wrong group passes the wake-up on.
        let group = &self.groups[self.active.load(Ordering::SeqCst)];
        group.sleepers.wake_one(|number| group.unpark(number));
    }

    /// Wakes one thread for a row that was marked ready for a stage. With the stage full, the next thread to leave it finds the row.
    pub(crate) fn wake_for(&self, stage: &Stage) {
        if stage.gate.has_room_for_marked(|| self.active.load(Ordering::SeqCst)) {
            self.wake_one();
        }
    }

    /// Sleeps, unless there is something to do; see [`Sleepers::sleep_unless`].
    pub(crate) fn sleep_unless(
        &self,
        group: usize,
        number: usize,
        is_something_to_do: impl FnOnce() -> bool,
    ) -> bool {
        self.groups[group].sleepers.sleep_unless(number, is_something_to_do, thread::park)
    }

    /// Whether some row of some session can be claimed by the group.
    pub(crate) fn has_claimable(&self, group: usize) -> bool {
        self.sessions.load().iter().any(|session| session.has_claimable(group))
    }

    pub(crate) fn is_active(&self, group: usize) -> bool {
        // SeqCst: pairs with the swap in `set_fallback`.
        self.active.load(Ordering::SeqCst) == group
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Makes the fallback pool the active group, or the lowered threads. Engine only.
    pub(crate) fn set_fallback(&self, fallback: bool) {
        let group = if fallback && self.has_fallback() { FALLBACK } else { LOWERED };
        // SeqCst: a thread that goes to sleep after this sees it or is unparked below.
        if self.active.swap(group, Ordering::SeqCst) != group {
            // Both groups: the inactive threads release their scratch memory before they sleep again.
            for group in &self.groups {
                (0..group.threads.len()).for_each(|number| group.unpark(number));
            }
        }
    }

    /// Whether there is a fallback pool: only the idle class needs one.
    pub(crate) fn has_fallback(&self) -> bool {
        !self.groups[FALLBACK].threads.is_empty()
    }

    /// Whether the fallback pool is active.
    pub(crate) fn is_fallback_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) == FALLBACK
    }

    /// Kernel ids of the lowered threads that run.
    pub(crate) fn lowered_thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups[LOWERED].thread_ids()
    }

    /// Kernel ids of all work threads that run.
    pub(crate) fn thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().flat_map(Group::thread_ids)
    }

    /// The row that a thread runs.
    pub(crate) fn place(&self, group: usize, number: usize) -> &WorkerPlace {
        &self.groups[group].places[number]
    }

    /// The row of each thread.
    pub(crate) fn places(&self) -> impl Iterator<Item = &WorkerPlace> + Clone {
        self.groups.iter().flat_map(|group| &group.places)
    }

    /// Kernel ids of all work threads that run, with group and number.
    pub(crate) fn numbered_threads(&self) -> impl Iterator<Item = (u64, usize, usize)> {
        self.groups.iter().enumerate().flat_map(|(group, threads)| {
            let ids = threads.kernel_ids.iter().map(|id| id.load(Ordering::Relaxed)).enumerate();
            ids.filter(|(_, id)| *id != 0).map(move |(number, id)| (id, group, number))
        })
    }

    /// The most threads of each group.
    pub(crate) fn group_sizes(&self) -> [usize; GROUPS] {
        self.groups.each_ref().map(|group| group.threads.len())
    }

    /// Hands a row whose read failed to the engine thread.
    pub(crate) fn put_off(&self, row: PutOff) {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        self.wake_engine();
    }

    /// Takes the rows whose reads failed. Engine only.
    pub(crate) fn take_put_off(&self) -> Vec<PutOff> {
        std::mem::take(&mut *self.put_off.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the engine thread.
    pub(crate) fn wake_engine(&self) {
        self.waker.wake();
    }
}

impl Group {
    fn unpark(&self, number: usize) {
        if let Some(thread) = self.threads.get(number).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    fn thread_ids(&self) -> impl Iterator<Item = u64> {
        self.kernel_ids.iter().map(|id| id.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }
}
