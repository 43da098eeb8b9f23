//! The work threads: start, scheduling class and cores.
//!
//! There are two groups: the lowered threads, and the fallback pool of a higher scheduling class, which takes over
//! while the lowered threads starve. One group is active at a time; only the engine thread switches. Both grow when a
//! stage needs more threads. A thread's work is in [`crate::actors::worker`], the threads' shared state in [`shared`],
//! the wake-up in [`crate::ground::work_parking`].
//!
//! A row that a lowered thread has started stays with that thread after a switch: a decoder cannot be interrupted, and
//! a thread cannot leave the idle class without privilege. The row's batch waits until the kernel has run the thread to
//! the row's end. Each thread runs one row, so a switch delays at most as many rows as there are threads; next to two
//! busy threads per core the longest gap measured was 2.4 s.

mod shared;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(crate) use self::shared::Shared;
use self::shared::{FALLBACK, LOWERED};
use crate::actors::worker::Worker;
use crate::ground::waker::Waker;
use crate::ground::work_parking::GROUPS;
use forebay_affinity::{PoolOptions, WorkThreads, keep_threads_on, lower};
use forebay_config::CpuPolicy;
use forebay_observe::Clock;

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Pool {
    pub shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    started: [u32; GROUPS],
    pub options: PoolOptions,
}

impl Pool {
    /// Starts the threads. The caller has normal priority, which the threads inherit.
    pub(crate) fn start(options: PoolOptions, waker: Arc<Waker>, clock: Clock) -> io::Result<Self> {
        forebay_transform::give_back_large_buffers();
        // Only the idle class can starve.
        let fallback_threads =
            if options.policy == CpuPolicy::Idle { options.fallback_threads } else { 0 };
        let max_threads = options.max_threads.max(options.threads);
        let shared =
            Arc::new(Shared::new([max_threads, fallback_threads], options.threads, waker, clock));
        let threads = options.threads;
        let mut pool = Self { shared, handles: Vec::new(), started: [0, 0], options };
        pool.grow(threads)?;
        Ok(pool)
    }

    /// Starts threads until `threads` run, up to the maximum in the options. The caller has normal priority.
    pub(crate) fn grow(&mut self, threads: u32) -> io::Result<()> {
        let next_class = PoolOptions { policy: CpuPolicy::Batch, nice: 0, ..self.options.clone() };
        for (group, options) in [(LOWERED, self.options.clone()), (FALLBACK, next_class)] {
            let most = u32::try_from(self.shared.group_sizes()[group]).unwrap_or(u32::MAX);
            while self.started[group] < threads.min(most) {
                let number = self.started[group] as usize;
                let (shared, options) = (Arc::clone(&self.shared), options.clone());
                // The kernel shows 15 bytes.
                let name = ["forebay-work", "fallback"][group];
                let run = move || {
                    lower(&options);
                    shared.set_thread_id(group, number);
                    Worker::new(shared, group, number).run();
                };
                let handle = thread::Builder::new().name(format!("{name}-{number}")).spawn(run)?;
                self.shared.set_thread(group, number, handle.thread().clone());
                self.handles.push(handle);
                self.started[group] += 1;
            }
        }
        Ok(())
    }

    /// Number of lowered threads that were started.
    pub(crate) fn threads(&self) -> u32 {
        self.started[LOWERED]
    }
}

impl WorkThreads for Pool {
    fn options(&self) -> &PoolOptions {
        &self.options
    }

    fn lowered_ids(&self) -> Vec<u64> {
        self.shared.lowered_thread_ids().collect()
    }

    fn keep_on_cores(&mut self, cores: &[u32]) -> io::Result<()> {
        keep_threads_on(self.shared.thread_ids(), cores)?;
        self.options.cores = cores.to_vec();
        Ok(())
    }

    fn held_back(&self) -> Duration {
        self.shared.budget.held_back_in_all()
    }

    fn has_fallback(&self) -> bool {
        self.shared.has_fallback()
    }

    fn is_fallback_active(&self) -> bool {
        self.shared.is_fallback_active()
    }

    fn set_fallback(&self, is_active: bool) {
        self.shared.set_fallback(is_active);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end();
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A thread that panicked has written the message to stderr.
            let _ = handle.join();
        }
    }
}
