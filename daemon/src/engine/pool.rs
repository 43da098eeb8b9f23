//! The work threads: lowered in priority, asleep when there is nothing to do, woken without a lock.
//!
//! Two groups: the lowered threads, and those of the next class that take over while the lowered ones starve. One of
//! them is active; the engine thread alone says which. Both grow when a stage wants more threads than there are. What a
//! thread does is in [`super::worker`], how it is woken in [`super::hand_over`].
//!
//! A row that a lowered thread has begun stays its own when the second group takes over: nobody can take it away in the
//! middle of a decoder, and a thread cannot leave the idle class without privilege. Its batch then waits until the
//! kernel has run that thread to the row's end. Each thread holds one row at most, so a switch leaves at most as many
//! rows behind as there are threads; the gaps that were seen beside two busy threads a core were 2.4 s.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use arc_swap::ArcSwap;
use forebay_protocol::sync::{AtomicU64, Ordering};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use super::bell::Bell;
use super::cpu_budget::CpuBudget;
use super::hand_over::{GROUPS, Sleepers};
use super::spare_buffers::SpareBuffers;
use super::stall::WorkerPlace;
use super::stream::Stage;
use super::work::SessionWork;
use super::worker::Worker;
use crate::config::CpuPolicy;
use crate::observe::recorder::Recorder;

/// What the work threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The sessions, replaced as a whole when one comes or goes.
    pub(crate) sessions: ArcSwap<Vec<Arc<SessionWork>>>,
    pub(crate) spare_buffers: SpareBuffers,
    pub(crate) budget: CpuBudget,
    /// Rows finished so far: a sign of life.
    pub(crate) rows_finished: AtomicU64,
    pub(crate) recorder: Arc<Recorder>,
    bell: Arc<Bell>,
    groups: [Group; GROUPS],
    /// Which of the two works. Set by the engine thread alone.
    active: AtomicUsize,
    ending: AtomicBool,
}

/// Threads of one scheduling class.
#[derive(Debug)]
struct Group {
    sleepers: Sleepers,
    /// By thread; those that were not started are missing.
    threads: Box<[OnceLock<Thread>]>,
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
    /// Threads at the start.
    pub(crate) threads: u32,
    /// Threads at most, when stages want more.
    pub(crate) most_threads: u32,
    /// Threads of the second group at most.
    pub(crate) rescue_threads: u32,
    pub(crate) policy: CpuPolicy,
    pub(crate) nice: u8,
    /// Cores that the threads may use, less under a quota.
    pub(crate) granted_cores: f64,
    /// Cores by `cpu.limit`, if it is set.
    pub(crate) limit_cores: Option<f64>,
    /// The cores that the threads may use; empty: those of the process.
    pub(crate) cores: Vec<u32>,
    /// Cores that the configuration asks for and the process may not use.
    pub(crate) refused_cores: Vec<u32>,
}

impl PoolOptions {
    /// Whether a quota grants less than the cores that the threads may use.
    pub(crate) fn is_under_quota(&self) -> bool {
        let allowed = || rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count());
        let cores = if self.cores.is_empty() {
            allowed()
        } else {
            u32::try_from(self.cores.len()).unwrap_or(0)
        };
        self.granted_cores + 0.01 < f64::from(cores)
    }
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    started: [u32; GROUPS],
    pub(crate) options: PoolOptions,
}

impl Pool {
    /// Starts the threads. Called from a thread that stays at normal priority.
    pub(crate) fn start(options: PoolOptions, bell: Arc<Bell>) -> io::Result<Self> {
        // Only the idle class can starve; the second group sleeps until then.
        let rescue_threads =
            if options.policy == CpuPolicy::Idle { options.rescue_threads } else { 0 };
        let group = |threads: u32| Group {
            sleepers: Sleepers::new(threads as usize),
            threads: (0..threads).map(|_| OnceLock::new()).collect(),
            kernel_ids: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            places: (0..threads).map(|_| WorkerPlace::default()).collect(),
        };
        let most_threads = options.most_threads.max(options.threads);
        let shared = Arc::new(Shared {
            sessions: ArcSwap::default(),
            spare_buffers: SpareBuffers::default(),
            budget: CpuBudget::default(),
            rows_finished: AtomicU64::new(0),
            recorder: Arc::default(),
            bell,
            groups: [group(most_threads), group(rescue_threads)],
            active: AtomicUsize::new(LOWERED),
            ending: AtomicBool::new(false),
        });
        let threads = options.threads;
        let mut pool = Self { shared, handles: Vec::new(), started: [0, 0], options };
        pool.grow(threads)?;
        Ok(pool)
    }

    /// Sees to it that so many threads run, as far as the options allow. Called from a thread of normal priority.
    pub(crate) fn grow(&mut self, threads: u32) -> io::Result<()> {
        let next_class = PoolOptions { policy: CpuPolicy::Batch, nice: 0, ..self.options.clone() };
        for (group, options) in [(LOWERED, self.options.clone()), (RESCUE, next_class)] {
            let places = &self.shared.groups[group].threads;
            let most = u32::try_from(places.len()).unwrap_or(u32::MAX);
            while self.started[group] < threads.min(most) {
                let number = self.started[group] as usize;
                let (shared, options) = (Arc::clone(&self.shared), options.clone());
                let name = ["work", "rescue"][group];
                let run = move || {
                    lower(&options);
                    let id = u64::try_from(rustix::thread::gettid().as_raw_pid()).unwrap_or(0);
                    shared.groups[group].kernel_ids[number].store(id, Ordering::Relaxed);
                    Worker::new(shared, group, number).run();
                };
                let handle =
                    thread::Builder::new().name(format!("forebay-{name}-{number}")).spawn(run)?;
                // Set once, here. A thread that went to sleep before this is woken below.
                let _ = self.shared.groups[group].threads[number].set(handle.thread().clone());
                handle.thread().unpark();
                self.handles.push(handle);
                self.started[group] += 1;
            }
        }
        Ok(())
    }

    /// The work threads of the lowered group that were started.
    pub(crate) fn threads(&self) -> u32 {
        self.started[LOWERED]
    }

    /// Keeps all work threads on these cores from now on.
    pub(crate) fn keep_on_cores(&mut self, cores: &[u32]) -> io::Result<()> {
        let set = core_set(cores);
        for id in self.shared.thread_ids() {
            let id = i32::try_from(id).ok().and_then(rustix::thread::Pid::from_raw);
            rustix::thread::sched_setaffinity(id, &set)?;
        }
        self.options.cores = cores.to_vec();
        Ok(())
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
    if !options.cores.is_empty()
        && let Err(error) = rustix::thread::sched_setaffinity(None, &core_set(&options.cores))
    {
        tracing::warn!(cores = ?options.cores, %error, "work threads keep their cores");
    }
}

/// The class that a thread has, read back from the kernel: `idle`, or `batch` or `normal` with its nice level.
pub(super) fn class_of_thread(id: u64) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    // nice is field 19 and the policy field 41; the state, field 3, is the first behind the name in parentheses.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let class = match *fields.get(38)? {
        "5" => return Some("idle".to_owned()),
        "3" => "batch",
        _ => "normal",
    };
    Some(format!("{class}, nice {}", fields.get(16)?))
}

/// The class that a work thread would get here.
pub(super) fn class_of_a_new_thread(options: &PoolOptions) -> Option<String> {
    let options = PoolOptions { cores: Vec::new(), ..options.clone() };
    let probe = thread::spawn(move || {
        lower(&options);
        class_of_thread(u64::try_from(rustix::thread::gettid().as_raw_pid()).ok()?)
    });
    probe.join().ok()?
}

fn core_set(cores: &[u32]) -> rustix::thread::CpuSet {
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        set.set(*core as usize);
    }
    set
}

/// The crate's priority (0 to 99) that it maps to this nice value (0 to 19): it spreads −20 to 19 over the priorities and
/// cuts off what is behind the point, so the least priority that is enough may come out a hair too low.
fn priority_of_nice(nice: u8) -> ThreadPriority {
    let priority = (99 * (19 - nice.min(19)) as u16).saturating_sub(1) / 39;
    ThreadPriority::Crossplatform(
        u8::try_from(priority).unwrap_or(0).try_into().unwrap_or(ThreadPriorityValue::MIN),
    )
}

impl Shared {
    /// Wakes one sleeping thread, if any. Called after something became claimable.
    pub(crate) fn wake_one(&self) {
        // SeqCst: pairs with the swap in `set_rescue`; a thread of the wrong group passes the wake-up on.
        let group = &self.groups[self.active.load(Ordering::SeqCst)];
        group.sleepers.wake_one(|number| group.unpark(number));
    }

    /// Wakes one thread for a row that was marked ready for a stage. With the stage full, the next to leave it looks.
    pub(crate) fn wake_for(&self, stage: &Stage) {
        if stage.gate.has_room_for_marked(|| self.active.load(Ordering::SeqCst)) {
            self.wake_one();
        }
    }

    /// Sleeps, unless there is something to do; see [`Sleepers::sleep_unless`].
    pub(super) fn sleep_unless(
        &self,
        group: usize,
        number: usize,
        is_something_to_do: impl FnOnce() -> bool,
    ) -> bool {
        self.groups[group].sleepers.sleep_unless(number, is_something_to_do, thread::park)
    }

    /// Whether some row of some session can be claimed by the group.
    pub(super) fn has_claimable(&self, group: usize) -> bool {
        self.sessions.load().iter().any(|session| session.has_claimable(group))
    }

    pub(super) fn is_active(&self, group: usize) -> bool {
        // SeqCst: pairs with the swap in `set_rescue`.
        self.active.load(Ordering::SeqCst) == group
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Lets the second group work in the lowered threads' place, or the other way round. Engine only.
    pub(crate) fn set_rescue(&self, rescue: bool) {
        let group = if rescue && self.has_rescue() { RESCUE } else { LOWERED };
        // SeqCst: a thread that goes to sleep after this sees it or is unparked below.
        if self.active.swap(group, Ordering::SeqCst) != group {
            // The others too: they give their scratch memory back before they sleep on.
            for group in &self.groups {
                (0..group.threads.len()).for_each(|number| group.unpark(number));
            }
        }
    }

    /// Whether there is a second group: only the idle class needs one.
    pub(crate) fn has_rescue(&self) -> bool {
        !self.groups[RESCUE].threads.is_empty()
    }

    /// Whether the second group works.
    pub(crate) fn rescue_is_on(&self) -> bool {
        self.active.load(Ordering::Relaxed) == RESCUE
    }

    /// The kernel's numbers of the lowered threads that run.
    pub(crate) fn lowered_thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups[LOWERED].thread_ids()
    }

    /// The kernel's numbers of all work threads that run.
    pub(crate) fn thread_ids(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().flat_map(Group::thread_ids)
    }

    /// Where a thread shows what it does.
    pub(super) fn place(&self, group: usize, number: usize) -> &WorkerPlace {
        &self.groups[group].places[number]
    }

    /// What each thread does now.
    pub(crate) fn places(&self) -> impl Iterator<Item = &WorkerPlace> + Clone {
        self.groups.iter().flat_map(|group| &group.places)
    }

    /// The kernel's numbers of all work threads that run, with their groups and numbers.
    pub(crate) fn numbered_threads(&self) -> impl Iterator<Item = (u64, usize, usize)> {
        self.groups.iter().enumerate().flat_map(|(group, threads)| {
            let ids = threads.kernel_ids.iter().map(|id| id.load(Ordering::Relaxed)).enumerate();
            ids.filter(|(_, id)| *id != 0).map(move |(number, id)| (id, group, number))
        })
    }

    /// How many threads each group has at most.
    pub(crate) fn group_sizes(&self) -> [usize; GROUPS] {
        self.groups.each_ref().map(|group| group.threads.len())
    }

    /// Makes the engine look.
    pub(crate) fn ring(&self) {
        self.bell.ring();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_and_nice_level_is_what_the_kernel_then_says() {
        let class = |policy, nice| {
            let (granted_cores, limit_cores) = (1.0, None);
            let (threads, most_threads, rescue_threads) = (1, 1, 0);
            class_of_a_new_thread(&PoolOptions {
                threads,
                most_threads,
                rescue_threads,
                policy,
                nice,
                granted_cores,
                limit_cores,
                cores: Vec::new(),
                refused_cores: Vec::new(),
            })
        };
        // Nobody but root may go below the level that the tests were started with.
        let own = rustix::process::getpriority_process(None).unwrap();
        for nice in u8::try_from(own).unwrap_or(0)..20 {
            assert_eq!(class(CpuPolicy::Batch, nice), Some(format!("batch, nice {nice}")));
            assert_eq!(class(CpuPolicy::Normal, nice), Some(format!("normal, nice {nice}")));
            assert_eq!(class(CpuPolicy::Idle, nice), Some("idle".to_owned()));
        }
    }
}
