//! The supervisor of a private daemon: this process's child, restarted from the plan and the index that it sent.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, Restart};
use forebay_protocol::socket::Connection;
use rustix::process::Signal;

use super::log::LogRelay;
use super::reserve::Reserve;
use super::restart_budget::RestartBudget;
use super::start::start;
use super::{Lifecycle, Shared, Supervisor, drain_wakeups, spawn, wait_for_any};
use crate::error::Error;
use crate::program::{Exit, PrivateDaemon};

/// How long a daemon may take to exit by itself, and then after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The polling interval for the child's exit on a kernel without pidfds.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How a private daemon is started.
#[derive(Debug)]
pub(crate) struct LaunchSpec {
    /// Absolute: the working directory may change.
    pub(crate) program: PathBuf,
    pub(crate) local_world_size: u32,
    pub(crate) local_rank: u32,
    /// How long daemons may be restarted without a batch.
    pub(crate) budget: Duration,
}

impl Supervisor {
    /// Starts the daemon and the thread that supervises it; returns the connection. `start_frame` is
    /// sent with `descriptors`.
    pub(crate) fn private(
        launch: LaunchSpec,
        start_frame: &ClientFrame,
        descriptors: &[OwnedFd],
    ) -> Result<(Self, Connection), Error> {
        let (shared, wakeups) = Self::new_shared()?;
        let (connection, daemon) = start(&launch.program, start_frame, descriptors)?;
        // Relaxed: a process id.
        shared.process.store(daemon.process_id(), Ordering::Relaxed);
        let reserve = Reserve::default();
        let thread = Thread { shared: Arc::clone(&shared), wakeups, launch, reserve };
        spawn("forebay-monitor", move || {
            let shared = Arc::clone(&thread.shared);
            thread.run(daemon);
            shared.lock().is_reaped = true;
            shared.changed.notify_all();
        })?;
        let own_process = std::process::id();
        Ok((Self { shared, own_process, is_private: true }, connection))
    }
}

struct Thread {
    shared: Arc<Shared>,
    wakeups: Connection,
    launch: LaunchSpec,
    reserve: Reserve,
}

impl Thread {
    fn run(mut self, first: PrivateDaemon) {
        let mut daemon = first;
        let mut budget = RestartBudget::new(self.launch.budget);
        loop {
            let mut log = LogRelay::new(daemon.take_log());
            let Some(Exit { mut how, signal }) = self.watch(&mut daemon, &mut log, None) else {
                return self.reap(daemon, log);
            };
            let Some(mut has_progressed) = self.on_exit(&how) else {
                return;
            };
            daemon = loop {
                budget.record(Instant::now(), has_progressed);
                let Some(delay) = budget.delay() else {
                    return self.give_up(&how, &log);
                };
                if !self.back_off(delay) {
                    return;
                }
                self.reserve.release();
                match self.restart(&how, signal) {
                    Ok(Some((connection, daemon))) => {
                        // Relaxed: a process id, and a count.
                        self.shared.process.store(daemon.process_id(), Ordering::Relaxed);
                        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
                        self.shared.enter(|_| Lifecycle::Ready(connection));
                        break daemon;
                    }
                    Ok(None) => {
                        how.push_str(" (and it had sent no plan to restart it from)");
                        return self.give_up(&how, &log);
                    }
                    // `signal` is unchanged: the samples under work are still the dead daemon's.
                    Err(error) => (how, has_progressed) = (error.to_string(), false),
                }
            };
        }
    }

    /// Waits for the daemon's exit; `None`: the loader is dropped, or the deadline has passed.
    fn watch(
        &mut self,
        daemon: &mut PrivateDaemon,
        log: &mut LogRelay,
        end: Option<Instant>,
    ) -> Option<Exit> {
        loop {
            log.forward();
            if let Some(exit) = daemon.ended() {
                log.forward();
                return Some(exit);
            }
            if end.is_none() && self.shared.is_closed() {
                return None;
            }
            if self.shared.is_live() {
                self.reserve.fill();
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let mut descriptors = vec![];
            if end.is_none() {
                descriptors.push(self.wakeups.as_fd());
            }
            descriptors.extend(log.descriptor());
            let limit = match daemon.pidfd() {
                Some(pidfd) => {
                    descriptors.push(pidfd);
                    left
                }
                None => Some(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL))),
            };
            wait_for_any(&descriptors, limit);
            drain_wakeups(&self.wakeups);
        }
    }

    /// Records the daemon's exit. Returns whether it had published a batch; `None`: no restart is needed.
    fn on_exit(&self, how: &str) -> Option<bool> {
        let mut is_needed = true;
        let mut has_progressed = false;
        let entered = self.shared.enter(|state| {
            state.exit_reason = Some(how.to_owned());
            has_progressed = state.publish.take().is_some_and(|ring| ring.published() > 0);
            is_needed = !matches!(state.lifecycle, Lifecycle::Starting | Lifecycle::Lost);
            if is_needed { Lifecycle::Restarting } else { Lifecycle::Lost }
        });
        (entered && is_needed).then_some(has_progressed)
    }

    /// Waits before the next start. False: the loader is dropped.
    fn back_off(&self, delay: Duration) -> bool {
        let end = Instant::now() + delay;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.shared.is_closed() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            wait_for_any(&[self.wakeups.as_fd()], Some(left));
            drain_wakeups(&self.wakeups);
        }
    }

    /// Starts the next daemon; `None`: the last one sent nothing to start from.
    fn restart(
        &self,
        how: &str,
        signal: Option<u32>,
    ) -> Result<Option<(Arc<Connection>, PrivateDaemon)>, Error> {
        let descriptors: std::io::Result<Vec<OwnedFd>> =
            self.shared.lock().restart_state.iter().map(OwnedFd::try_clone).collect();
        let descriptors = descriptors
            .map_err(|error| Error::Memory(format!("duplicating a descriptor failed: {error}")))?;
        if descriptors.is_empty() {
            return Ok(None);
        }
        let start_frame = ClientFrame::Restart(Restart {
            local_world_size: self.launch.local_world_size,
            local_rank: self.launch.local_rank,
            reason: how.to_owned(),
            signal,
        });
        let (connection, daemon) = start(&self.launch.program, &start_frame, &descriptors)?;
        Ok(Some((Arc::new(connection), daemon)))
    }

    fn give_up(&self, how: &str, log: &LogRelay) {
        // Relaxed: a count.
        let restarts = match self.shared.restarts.load(Ordering::Relaxed) {
            0 => String::new(),
            1 => ", after it had been restarted once".to_owned(),
            many => format!(", after it had been restarted {many} times"),
        };
        let tail = log.tail();
        self.shared.enter(|state| {
            let refusal =
                state.refusal.take().map(|refusal| format!(" after {refusal}")).unwrap_or_default();
            state.lost_reason = Some(format!("the daemon is gone: {how}{refusal}{restarts}{tail}"));
            Lifecycle::Lost
        });
    }

    /// Reaps the daemon, which exits by itself when the connection closes; signals are the last resort.
    fn reap(&mut self, mut daemon: PrivateDaemon, mut log: LogRelay) {
        for signal in [Signal::TERM, Signal::KILL] {
            if self.watch(&mut daemon, &mut log, Some(Instant::now() + EXIT_TIMEOUT)).is_some() {
                return;
            }
            daemon.signal(signal);
        }
        let _ = self.watch(&mut daemon, &mut log, Some(Instant::now() + EXIT_TIMEOUT));
    }
}
