//! The work threads: starting them, their scheduling class and their cores.
//!
//! There are two groups: the lowered threads, and the fallback pool of a higher scheduling class, which takes over while
//! the lowered threads starve. One group is active at a time; only the engine thread switches. Both grow when a stage
//! needs more threads than there are. What a thread does is in [`super::worker`], what the threads share in [`shared`],
//! how they are woken in [`super::work_parking`].
//!
//! A row that a lowered thread has started stays with that thread after a switch: a decoder cannot be interrupted, and a
//! thread cannot leave the idle class without privilege. The row's batch waits until the kernel has run the thread to the
//! row's end. Each thread runs one row, so a switch leaves at most as many rows behind as there are threads; beside two
//! busy threads per core the longest gap measured was 2.4 s.

mod shared;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

pub(crate) use self::shared::Shared;
use self::shared::{FALLBACK, LOWERED};
use super::waker::Waker;
use super::work_parking::GROUPS;
use super::worker::Worker;
use forebay_config::CpuPolicy;
use forebay_observe::Clock;

/// How many work threads there are, and how they are scheduled.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Threads at the start.
    pub threads: u32,
    /// The limit when stages need more.
    pub max_threads: u32,
    /// The limit of the fallback pool.
    pub fallback_threads: u32,
    /// `cpu.policy`.
    pub policy: CpuPolicy,
    /// `cpu.nice`.
    pub nice: u8,
    /// Cores that affinity and quota grant.
    pub granted_cores: f64,
    /// `cpu.limit` in cores.
    pub limit_cores: Option<f64>,
    /// The threads' affinity; empty: that of the process.
    pub cores: Vec<u32>,
    /// Configured cores that the process may not use.
    pub refused_cores: Vec<u32>,
    /// The cores of the memory node for rings; empty: wherever the kernel puts them.
    pub ring_cores: Vec<u32>,
}

impl PoolOptions {
    /// Whether a quota grants less than the threads' affinity.
    pub fn is_under_quota(&self) -> bool {
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
    pub shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    started: [u32; GROUPS],
    pub options: PoolOptions,
}

impl Pool {
    /// Starts the threads. Called from a thread that stays at normal priority.
    pub(crate) fn start(options: PoolOptions, waker: Arc<Waker>, clock: Clock) -> io::Result<Self> {
        forebay_pipeline::give_back_large_buffers();
        // Only the idle class can starve.
        let fallback_threads =
            if options.policy == CpuPolicy::Idle { options.fallback_threads } else { 0 };
        let max_threads = options.max_threads.max(options.threads);
        let shared = Arc::new(Shared::new([max_threads, fallback_threads], waker, clock));
        let threads = options.threads;
        let mut pool = Self { shared, handles: Vec::new(), started: [0, 0], options };
        pool.grow(threads)?;
        Ok(pool)
    }

    /// Starts threads until `threads` run, as far as the options allow. Called from a thread of normal priority.
    pub(crate) fn grow(&mut self, threads: u32) -> io::Result<()> {
        let next_class = PoolOptions { policy: CpuPolicy::Batch, nice: 0, ..self.options.clone() };
        for (group, options) in [(LOWERED, self.options.clone()), (FALLBACK, next_class)] {
            let most = u32::try_from(self.shared.group_sizes()[group]).unwrap_or(u32::MAX);
            while self.started[group] < threads.min(most) {
                let number = self.started[group] as usize;
                let (shared, options) = (Arc::clone(&self.shared), options.clone());
                let name = ["work", "rescue"][group];
                let run = move || {
                    lower(&options);
                    shared.set_thread_id(group, number);
                    Worker::new(shared, group, number).run();
                };
                let handle =
                    thread::Builder::new().name(format!("forebay-{name}-{number}")).spawn(run)?;
                self.shared.set_thread(group, number, handle.thread().clone());
                self.handles.push(handle);
                self.started[group] += 1;
            }
        }
        Ok(())
    }

    /// The lowered threads that were started.
    pub(crate) fn threads(&self) -> u32 {
        self.started[LOWERED]
    }

    /// Sets the affinity of all work threads.
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
        self.shared.end();
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A thread that panicked has said so on stderr.
            let _ = handle.join();
        }
    }
}

/// Sets the configured scheduling class. After a refusal the trainer is disturbed more; results are the same.
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
        tracing::warn!(?policy, nice = options.nice, %error, "cannot change the scheduling class of the work threads");
    }
    if !options.cores.is_empty()
        && let Err(error) = rustix::thread::sched_setaffinity(None, &core_set(&options.cores))
    {
        tracing::warn!(cores = ?options.cores, %error, "cannot change the CPU affinity of the work threads");
    }
}

/// A thread's class as the kernel reports it: `idle`, or `batch` or `normal` with the nice level.
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

/// The class that a work thread gets on this machine.
pub(super) fn class_of_a_new_thread(options: &PoolOptions) -> Option<String> {
    let options = PoolOptions { cores: Vec::new(), ..options.clone() };
    let probe = thread::spawn(move || {
        lower(&options);
        class_of_thread(u64::try_from(rustix::thread::gettid().as_raw_pid()).ok()?)
    });
    probe.join().ok()?
}

/// Does something with this thread on some cores: memory that it allocates is on their node. On any where that is refused.
pub(crate) fn on_cores<T>(cores: &[u32], run: impl FnOnce() -> T) -> T {
    let before = if cores.is_empty() { None } else { rustix::thread::sched_getaffinity(None).ok() };
    if before.is_some() {
        let _ = rustix::thread::sched_setaffinity(None, &core_set(cores));
    }
    let made = run();
    if let Some(before) = before {
        // Granted before.
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    made
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::cores::cores_of;

    #[test]
    fn a_thread_is_on_the_cores_of_a_node_only_meanwhile() {
        let mask = || cores_of(None).unwrap();
        let before = mask();
        let last = *before.last().unwrap();
        assert_eq!(on_cores(&[last], mask), [last]);
        assert_eq!(mask(), before);
        assert_eq!(on_cores(&[], mask), before);
        // No machine has so many: it goes on where it is.
        assert_eq!(on_cores(&[1023], mask), before);
    }

    #[test]
    fn every_policy_and_nice_level_is_what_the_kernel_then_says() {
        let class = |policy, nice| {
            let (granted_cores, limit_cores) = (1.0, None);
            let (threads, max_threads, fallback_threads) = (1, 1, 0);
            class_of_a_new_thread(&PoolOptions {
                threads,
                max_threads,
                fallback_threads,
                policy,
                nice,
                granted_cores,
                limit_cores,
                cores: Vec::new(),
                refused_cores: Vec::new(),
                ring_cores: Vec::new(),
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
