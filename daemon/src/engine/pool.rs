//! The work threads: lowered in priority, parked when there is nothing to do, woken without a lock.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_queue::ArrayQueue;
use forebay_protocol::sync::{AtomicU64, Ordering, fence};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use super::bell::Bell;
use super::stall::WorkerPlace;
use super::stream::Stream;
use super::work::{Claim, RowCell, RowClaim, RowFailure, SessionWork, SlotRow};
use crate::config::CpuPolicy;
use crate::operation::WorkerScratch;

/// Buffers of fetched bytes kept for the next samples.
const SPARE_BUFFERS: usize = 64;
/// A larger buffer is not kept.
const SPARE_BUFFER_BYTES: usize = 1 << 20;

/// What the work threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The sessions, replaced as a whole when one comes or goes.
    pub(crate) sessions: ArcSwap<Vec<Arc<SessionWork>>>,
    /// Emptied buffers on their way back to the fetch threads.
    pub(crate) spare_buffers: ArrayQueue<Vec<u8>>,
    /// Rows finished so far: a sign of life.
    pub(crate) rows_finished: AtomicU64,
    bell: Arc<Bell>,
    /// The lowered threads, and those of the next class that take over while the lowered ones starve.
    groups: [Group; 2],
    /// Which of the two works. Set by the engine thread alone.
    active: AtomicUsize,
    ending: AtomicBool,
}

/// Threads of one scheduling class.
#[derive(Debug)]
struct Group {
    /// A bit for each thread that is about to park or parked.
    idle: Box<[AtomicU64]>,
    threads: OnceLock<Vec<Thread>>,
    /// By thread: its number in the kernel, 0 before it runs.
    kernel_ids: Box<[AtomicU64]>,
    /// By thread: what it does, for the watchdog.
    places: Box<[WorkerPlace]>,
}

const LOWERED: usize = 0;
const RESCUE: usize = 1;

/// How the threads are to run.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    pub(crate) threads: u32,
    pub(crate) policy: CpuPolicy,
    pub(crate) nice: u8,
    /// The cores that the threads may use; empty: those of the process.
    pub(crate) cores: Vec<u32>,
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    pub(crate) options: PoolOptions,
}

impl Pool {
    /// Starts the threads. Called from a thread that stays at normal priority.
    pub(crate) fn start(options: PoolOptions, bell: Arc<Bell>) -> io::Result<Self> {
        // Only the idle class can starve; the second group is parked until then.
        let rescue_threads = if options.policy == CpuPolicy::Idle { options.threads } else { 0 };
        let group = |threads: u32| Group {
            idle: (0..threads.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            threads: OnceLock::new(),
            kernel_ids: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            places: (0..threads).map(|_| WorkerPlace::default()).collect(),
        };
        let shared = Arc::new(Shared {
            sessions: ArcSwap::default(),
            spare_buffers: ArrayQueue::new(SPARE_BUFFERS),
            rows_finished: AtomicU64::new(0),
            bell,
            groups: [group(options.threads), group(rescue_threads)],
            active: AtomicUsize::new(LOWERED),
            ending: AtomicBool::new(false),
        });
        let rescue = PoolOptions { policy: CpuPolicy::Batch, nice: 0, ..options.clone() };
        let mut handles = Vec::new();
        for (group, options, threads) in
            [(LOWERED, &options, options.threads), (RESCUE, &rescue, rescue_threads)]
        {
            let started = handles.len();
            for number in 0..threads as usize {
                let (shared, options) = (Arc::clone(&shared), options.clone());
                let name = ["work", "rescue"][group];
                let run = move || {
                    lower(&options);
                    Worker { shared, group, number, scratch: WorkerScratch::default() }.run();
                };
                handles.push(
                    thread::Builder::new().name(format!("forebay-{name}-{number}")).spawn(run)?,
                );
            }
            let threads = handles[started..].iter().map(|handle| handle.thread().clone()).collect();
            // Set once, here.
            let _ = shared.groups[group].threads.set(threads);
        }
        Ok(Self { shared, handles, options })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A thread that panicked has said so on stderr.
            let _ = handle.join();
        }
    }
}

/// Takes the scheduling class that the configuration asks for. A refusal costs quiet, not correctness.
fn lower(options: &PoolOptions) {
    let (policy, priority) = match options.policy {
        CpuPolicy::Idle => (NormalThreadSchedulePolicy::Idle, ThreadPriority::Min),
        CpuPolicy::Batch => (NormalThreadSchedulePolicy::Batch, priority_of_nice(options.nice)),
        CpuPolicy::Normal => (NormalThreadSchedulePolicy::Other, priority_of_nice(options.nice)),
    };
    let set = set_thread_priority_and_policy(
        thread_native_id(),
        priority,
        ThreadSchedulePolicy::Normal(policy),
    );
    if let Err(error) = set {
        tracing::warn!(?policy, nice = options.nice, %error, "work threads keep their scheduling class");
    }
    if !options.cores.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        for core in &options.cores {
            set.set(*core as usize);
        }
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!(cores = ?options.cores, %error, "work threads keep their cores");
        }
    }
}

/// The crate's priority (0 to 99) that it maps to this nice value (0 to 19): it spreads −20 to 19 over the priorities.
fn priority_of_nice(nice: u8) -> ThreadPriority {
    let priority = 99 * (19 - nice.min(19)) as u16 / 39;
    ThreadPriority::Crossplatform(
        u8::try_from(priority).unwrap_or(0).try_into().unwrap_or(ThreadPriorityValue::MIN),
    )
}

impl Shared {
    /// Wakes one parked thread, if any. Called after a row was marked ready.
    pub(crate) fn wake_one(&self) {
        // SeqCst fence: pairs with the one in `Worker::park`. Either the thread sees the row, or this side sees its bit.
        fence(Ordering::SeqCst);
        // Relaxed: a thread of the wrong group passes the wake-up on.
        let group = &self.groups[self.active.load(Ordering::Relaxed)];
        for (index, word) in group.idle.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits = word.fetch_and(!bit, Ordering::AcqRel);
                if bits & bit != 0 {
                    let number = index * 64 + bit.trailing_zeros() as usize;
                    group.unpark(number);
                    return;
                }
            }
        }
    }

    /// Lets the second group work in the lowered threads' place, or the other way round. Engine only.
    pub(crate) fn set_rescue(&self, rescue: bool) {
        let group = if rescue && self.has_rescue() { RESCUE } else { LOWERED };
        // SeqCst: a thread that parks after this sees it or is unparked below.
        if self.active.swap(group, Ordering::SeqCst) != group {
            for number in 0..self.groups[group].kernel_ids.len() {
                self.groups[group].unpark(number);
            }
        }
    }

    /// Whether there is a second group: only the idle class needs one.
    pub(crate) fn has_rescue(&self) -> bool {
        !self.groups[RESCUE].kernel_ids.is_empty()
    }

    /// Whether the second group works.
    pub(crate) fn rescue_is_on(&self) -> bool {
        self.active.load(Ordering::Relaxed) == RESCUE
    }

    /// The kernel's numbers of the lowered threads that run.
    pub(crate) fn lowered_thread_ids(&self) -> impl Iterator<Item = u64> {
        let ids = self.groups[LOWERED].kernel_ids.iter();
        ids.map(|id| id.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// What each thread does now.
    pub(crate) fn places(&self) -> impl Iterator<Item = &WorkerPlace> + Clone {
        self.groups.iter().flat_map(|group| &group.places)
    }

    /// Makes the engine look.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Takes a buffer back from a sample that needs it no more.
    pub(crate) fn keep_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if (1..=SPARE_BUFFER_BYTES).contains(&buffer.capacity()) {
            // A full store lets the buffer go.
            let _ = self.spare_buffers.push(buffer);
        }
    }
}

impl Group {
    fn unpark(&self, number: usize) {
        if let Some(thread) = self.threads.get().and_then(|threads| threads.get(number)) {
            thread.unpark();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    group: usize,
    number: usize,
    scratch: WorkerScratch,
}

impl Worker {
    fn run(mut self) {
        let own_id = u64::try_from(rustix::thread::gettid().as_raw_pid()).unwrap_or(0);
        self.shared.groups[self.group].kernel_ids[self.number].store(own_id, Ordering::Relaxed);
        let mut idle_since = Instant::now();
        while !self.shared.ending.load(Ordering::SeqCst) {
            match self.find() {
                Some((session, claim)) => {
                    let start = Instant::now();
                    match claim {
                        Claim::Row(claim) => self.work(&session, claim, start, start - idle_since),
                        Claim::Compaction { slot } => {
                            session.slots[slot].compact(&session.stream);
                            self.shared.bell.ring();
                        }
                    }
                    idle_since = Instant::now();
                }
                None => self.park(),
            }
        }
    }

    /// The most urgent ready row over all sessions.
    fn find(&self) -> Option<(Arc<SessionWork>, Claim)> {
        if !self.is_active() {
            return None;
        }
        let sessions = self.shared.sessions.load();
        if let [session] = sessions.as_slice() {
            return session.claim(self.group).map(|claim| (Arc::clone(session), claim));
        }
        let mut by_urgency: Vec<_> = sessions
            .iter()
            .filter_map(|session| session.urgency().map(|urgency| (urgency, session)))
            .collect();
        by_urgency.sort_by_key(|(urgency, _)| *urgency);
        by_urgency.into_iter().find_map(|(_, session)| {
            session.claim(self.group).map(|claim| (Arc::clone(session), claim))
        })
    }

    fn is_active(&self) -> bool {
        // SeqCst: pairs with the swap in `Shared::set_rescue`.
        self.shared.active.load(Ordering::SeqCst) == self.group
    }

    /// Sleeps until somebody marks a row ready, or this group's turn comes.
    fn park(&self) {
        let group = &self.shared.groups[self.group];
        let (word, bit) = (&group.idle[self.number / 64], 1u64 << (self.number % 64));
        word.fetch_or(bit, Ordering::AcqRel);
        // SeqCst fence: pairs with the one in `Shared::wake_one`.
        fence(Ordering::SeqCst);
        let nothing = !self.is_active()
            || self.shared.sessions.load().iter().all(|session| session.urgency().is_none());
        if nothing && !self.shared.ending.load(Ordering::SeqCst) {
            thread::park();
        } else {
            // Rows wait, but their stages are full or another thread was faster: whoever leaves the stage looks again.
            thread::park_timeout(Duration::from_millis(1));
        }
        if word.fetch_and(!bit, Ordering::AcqRel) & bit == 0 && !self.is_active() {
            // A wake-up for a row that this group may not take any more.
            self.shared.wake_one();
        }
    }

    fn place(&self) -> &WorkerPlace {
        &self.shared.groups[self.group].places[self.number]
    }

    /// Runs one stage on one row and hands the row on.
    fn work(&mut self, session: &SessionWork, claim: RowClaim, start: Instant, waited: Duration) {
        let stream = &session.stream;
        let stage = &stream.stages[claim.stage];
        let slot = &session.slots[claim.slot];
        stage.input.get(waited);
        let mut cell = slot.cell(claim.row);
        let failure = if slot.is_cancelled() {
            None
        } else {
            self.place().enter(session, claim, cell.task.id);
            let failure = self.run_stage(stream, claim.stage, &mut cell).err();
            self.place().leave();
            match &failure {
                None => stage.figures.record(start.elapsed()),
                Some(_) => stage.figures.record_failure(),
            }
            failure
        };
        let failed = failure.is_some();
        let is_last = claim.stage + 1 == stream.stages.len();
        let finished = is_last || failed || slot.is_cancelled();
        if finished {
            cell.failure = failure;
            self.shared.keep_buffer(cell.task.take_bytes());
            cell.permit = None;
        }
        drop(cell);
        stage.leave(self.group);
        if finished {
            // Relaxed: a sign of life.
            self.shared.rows_finished.fetch_add(1, Ordering::Relaxed);
            if slot.finish_row(claim.row, failed) {
                self.shared.bell.ring();
            }
        } else {
            stream.stages[claim.stage + 1].input.put(Duration::ZERO);
            slot.mark_ready(claim.stage + 1, claim.row);
            self.shared.wake_one();
        }
    }

    /// Runs the operations; after the last stage the row also gets its id. A panic in a decoder ends the row, not the
    /// thread: it becomes the stream's fault with the sample's name.
    fn run_stage(
        &mut self,
        stream: &Stream,
        stage: usize,
        cell: &mut RowCell,
    ) -> Result<(), RowFailure> {
        let scratch = &mut self.scratch;
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut row = SlotRow(&mut cell.writer);
            stream.plan.run(stage, &mut cell.task, stream.dataset.as_ref(), &mut row, scratch)
        }));
        match run {
            Ok(Ok(())) => {}
            Ok(Err(defect)) => return Err(RowFailure::Defect(defect.0)),
            Err(_) => {
                self.scratch = WorkerScratch::default();
                return Err(RowFailure::Panic);
            }
        }
        if stage + 1 == stream.stages.len() {
            let id = i64::try_from(cell.task.id.0).unwrap_or(i64::MAX);
            cell.writer.bytes_mut(stream.index_tensor).copy_from_slice(&id.to_ne_bytes());
            if let Some(tensor) = stream.valid_tensor {
                cell.writer.bytes_mut(tensor)[0] = cell.valid.into();
            }
        }
        Ok(())
    }
}
