//! State shared by the work threads: the sessions, the active group, and the sleeping threads.
//!
//! The engine thread and fetch threads use it to wake work threads and the engine.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use arc_swap::ArcSwap;
use forebay_protocol::sync::{AtomicU64, Ordering};

use crate::actors::retry_queue::PutOff;
use crate::ground::spare_buffers::SpareBuffers;
use crate::ground::stream::Stage;
use crate::ground::turns::Turns;
use crate::ground::waker::Waker;
use crate::ground::work::SessionWork;
use crate::ground::work_page::WorkPage;
use crate::ground::work_parking::{GROUPS, Sleepers};
use crate::ground::worker_place::WorkerPlace;
use forebay_affinity::CpuBudget;
use forebay_observe::Clock;
use forebay_observe::recorder::Recorder;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The attached sessions; the vector is replaced when a session attaches or detaches.
    pub sessions: ArcSwap<Vec<Arc<SessionWork>>>,
    pub spare_buffers: SpareBuffers,
    pub budget: CpuBudget,
    pub turns: Turns,
    pub clock: Clock,
    started: Instant,
    /// Rows finished so far; clients use it to detect progress.
    pub rows_finished: AtomicU64,
    /// Rows whose reads failed, for the engine thread.
    put_off: Mutex<Vec<PutOff>>,
    pub recorder: Arc<Recorder>,
    waker: Arc<Waker>,
    /// Records the samples under work for the next daemon; set before the first session.
    pub work_page: OnceLock<WorkPage>,
    groups: [Group; GROUPS],
    /// The active group. Only the engine thread sets it.
    active: AtomicUsize,
    ending: AtomicBool,
}

/// Threads of one scheduling class.
#[derive(Debug)]
struct Group {
    sleepers: Sleepers,
    /// By thread number; empty if not started.
    threads: Box<[OnceLock<Thread>]>,
    /// By thread number: the kernel's thread id; 0 before it runs.
    kernel_ids: Box<[AtomicU64]>,
    /// By thread number: the row that it runs.
    places: Box<[WorkerPlace]>,
}

pub(super) const LOWERED: usize = 0;
pub(super) const FALLBACK: usize = 1;

impl Shared {
    /// A time in nanoseconds since the pool's start, at least 1, for use in an atomic.
    pub(crate) fn ns_of(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }

    /// Two groups with room for `threads` threads each; none is started. Sessions share the CPU time of `cores` cores.
    pub(super) fn new(threads: [u32; GROUPS], cores: u32, waker: Arc<Waker>, clock: Clock) -> Self {
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
            turns: Turns::new(cores),
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

    /// Registers a started thread and unparks it: it may have gone to sleep before it could be unparked by number.
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

    /// Tells the threads to end; the caller unparks them.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Wakes one sleeping thread, if any. Called after a row became claimable.
    pub(crate) fn wake_one(&self) {
        // SeqCst: pairs with the swap in `set_fallback`; a thread of the inactive group passes the wake-up on.
        let group = &self.groups[self.active.load(Ordering::SeqCst)];
        group.sleepers.wake_one(|number| group.unpark(number));
    }

    /// Wakes one thread for a row that was marked ready for a stage. If the stage is full, the next thread to leave it
    /// finds the row.
    pub(crate) fn wake_for(&self, stage: &Stage) {
        if stage.gate.has_room_for_marked(|| self.active.load(Ordering::SeqCst)) {
            self.wake_one();
        }
    }

    /// Sleeps, unless a row is claimable; see [`Sleepers::sleep_unless`].
    pub(crate) fn sleep_unless(
        &self,
        group: usize,
        number: usize,
        is_something_to_do: impl FnOnce() -> bool,
    ) -> bool {
        self.groups[group].sleepers.sleep_unless(number, is_something_to_do, thread::park)
    }

    /// Whether a row of any session can be claimed by the group.
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

    /// Activates the fallback pool or the lowered threads. Engine only.
    pub(crate) fn set_fallback(&self, fallback: bool) {
        let group = if fallback && self.has_fallback() { FALLBACK } else { LOWERED };
        // SeqCst: a thread that goes to sleep after this sees the new value or is unparked below.
        if self.active.swap(group, Ordering::SeqCst) != group {
            // Both groups: threads of the inactive one release their scratch memory before they sleep again.
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

    /// Kernel ids of the running lowered threads.
    pub(crate) fn lowered_thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups[LOWERED].thread_ids()
    }

    /// Kernel ids of all running work threads.
    pub(crate) fn thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().flat_map(Group::thread_ids)
    }

    /// The row that a thread runs.
    pub(crate) fn place(&self, group: usize, number: usize) -> &WorkerPlace {
        &self.groups[group].places[number]
    }

    /// The rows of all threads.
    pub(crate) fn places(&self) -> impl Iterator<Item = &WorkerPlace> + Clone {
        self.groups.iter().flat_map(|group| &group.places)
    }

    /// Kernel ids of all running work threads, each with group and number.
    pub(crate) fn numbered_threads(&self) -> impl Iterator<Item = (u64, usize, usize)> {
        self.groups.iter().enumerate().flat_map(|(group, threads)| {
            let ids = threads.kernel_ids.iter().map(|id| id.load(Ordering::Relaxed)).enumerate();
            ids.filter(|(_, id)| *id != 0).map(move |(number, id)| (id, group, number))
        })
    }

    /// Maximal number of threads of each group.
    pub(crate) fn group_sizes(&self) -> [usize; GROUPS] {
        self.groups.each_ref().map(|group| group.threads.len())
    }

    /// Passes a row whose read failed to the engine thread.
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
