//! The scheduling class and the cores of work threads.

use std::io;
use std::thread;
use std::time::Duration;

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use forebay_config::CpuPolicy;

/// Number and scheduling of work threads.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Initial number of threads.
    pub threads: u32,
    /// Maximal number when stages need more.
    pub max_threads: u32,
    /// Maximal number of threads in the fallback pool.
    pub fallback_threads: u32,
    /// `cpu.policy`.
    pub policy: CpuPolicy,
    /// `cpu.nice`.
    pub nice: u8,
    /// Number of cores granted by affinity and quota.
    pub granted_cores: f64,
    /// Cores of the machine that could be granted in addition; `None`: unknown.
    pub spare_cores: Option<u32>,
    /// `cpu.limit` in cores.
    pub limit_cores: Option<f64>,
    /// The threads' affinity; empty: the process's affinity.
    pub cores: Vec<u32>,
    /// Configured cores that the process may not use.
    pub refused_cores: Vec<u32>,
    /// The cores of the memory node for rings; empty: the kernel's choice.
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

/// The scheduling of a daemon's work threads. The fallback pool has the next scheduling class and runs while the
/// lowered threads starve.
pub trait WorkThreads {
    /// Their number and scheduling.
    fn options(&self) -> &PoolOptions;

    /// Kernel ids of the lowered threads.
    fn lowered_ids(&self) -> Vec<u64>;

    /// Sets the affinity of all threads.
    ///
    /// # Errors
    /// The system's error.
    fn keep_on_cores(&mut self, cores: &[u32]) -> io::Result<()>;

    /// Total time for which `cpu.limit` has delayed them.
    fn held_back(&self) -> Duration;

    /// Whether there is a fallback pool.
    fn has_fallback(&self) -> bool;

    /// Whether it is active instead of the lowered threads.
    fn is_fallback_active(&self) -> bool;

    /// Activates it, or the lowered threads.
    fn set_fallback(&self, is_active: bool);
}

/// Sets the affinity of some threads of this process.
///
/// # Errors
/// The system's error.
pub fn keep_threads_on(ids: impl Iterator<Item = u64>, cores: &[u32]) -> io::Result<()> {
    let set = core_set(cores);
    for id in ids {
        let id = i32::try_from(id).ok().and_then(rustix::thread::Pid::from_raw);
        rustix::thread::sched_setaffinity(id, &set)?;
    }
    Ok(())
}

/// Sets the configured scheduling class. If the system refuses, the trainer is disturbed more; results are the same.
pub fn lower(options: &PoolOptions) {
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
pub(crate) fn class_of_thread(id: u64) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    // nice is field 19 and the policy field 41; the state, field 3, is the first after the name in parentheses.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let class = match *fields.get(38)? {
        "5" => return Some("idle".to_owned()),
        "3" => "batch",
        _ => "normal",
    };
    Some(format!("{class}, nice {}", fields.get(16)?))
}

/// The class that a work thread gets on this machine.
pub(crate) fn class_of_a_new_thread(options: &PoolOptions) -> Option<String> {
    let options = PoolOptions { cores: Vec::new(), ..options.clone() };
    let probe = thread::spawn(move || {
        lower(&options);
        class_of_thread(u64::try_from(rustix::thread::gettid().as_raw_pid()).ok()?)
    });
    probe.join().ok()?
}

/// Runs `run` with this thread on some cores, so that the memory that it allocates is on their node. If the kernel
/// refuses, it runs on any core.
pub fn on_cores<T>(cores: &[u32], run: impl FnOnce() -> T) -> T {
    let before = if cores.is_empty() { None } else { rustix::thread::sched_getaffinity(None).ok() };
    if before.is_some() {
        let _ = rustix::thread::sched_setaffinity(None, &core_set(cores));
    }
    let made = run();
    if let Some(before) = before {
        // These cores were permitted before.
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

/// The crate's priority (0 to 99) that it maps to this nice value (0 to 19): it spreads −20 to 19 over the priorities
/// and truncates, so the smallest sufficient priority may come out slightly too low.
fn priority_of_nice(nice: u8) -> ThreadPriority {
    let priority = (99 * (19 - nice.min(19)) as u16).saturating_sub(1) / 39;
    ThreadPriority::Crossplatform(
        u8::try_from(priority).unwrap_or(0).try_into().unwrap_or(ThreadPriorityValue::MIN),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::cores_of;

    #[test]
    fn thread_is_on_a_nodes_cores_only_during_the_call() {
        let mask = || cores_of(None).unwrap();
        let before = mask();
        let last = *before.last().unwrap();
        assert_eq!(on_cores(&[last], mask), [last]);
        assert_eq!(mask(), before);
        assert_eq!(on_cores(&[], mask), before);
        // No machine has this core: the thread stays where it is.
        assert_eq!(on_cores(&[1023], mask), before);
    }

    #[test]
    fn kernel_reports_every_configured_policy_and_nice_level() {
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
                spare_cores: None,
                limit_cores,
                cores: Vec::new(),
                refused_cores: Vec::new(),
                ring_cores: Vec::new(),
            })
        };
        // Only root may go below the level that the tests were started with.
        let own = rustix::process::getpriority_process(None).unwrap();
        for nice in u8::try_from(own).unwrap_or(0)..20 {
            assert_eq!(class(CpuPolicy::Batch, nice), Some(format!("batch, nice {nice}")));
            assert_eq!(class(CpuPolicy::Normal, nice), Some(format!("normal, nice {nice}")));
            assert_eq!(class(CpuPolicy::Idle, nice), Some("idle".to_owned()));
        }
    }
}
