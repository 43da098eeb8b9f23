//! The keeper of a private daemon: this process's child, started again from the plan and the index that it left.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, Restart};
use forebay_protocol::socket::Connection;
use rustix::process::Signal;

use super::log::LogRelay;
use super::start::start;
use super::{Keeper, Life, MOST_FAILURES, Shared, hear, spawn, wait_for_any};
use crate::error::Error;
use crate::program::PrivateDaemon;

/// The pause after the first start in a row that delivered nothing; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long a daemon may take to end by itself, and then by SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the kernel gives no pidfd, the child is looked at so often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How a private daemon is started.
#[derive(Debug)]
pub(crate) struct PrivateStart {
    /// Absolute: the working folder may change.
    pub(crate) program: PathBuf,
    pub(crate) local_world_size: u32,
    pub(crate) local_rank: u32,
}

impl Keeper {
    /// Starts the daemon and the thread that keeps it; gives the connection.
    pub(crate) fn private(
        start: PrivateStart,
        order: &ClientFrame,
    ) -> Result<(Self, Connection), Error> {
        let (shared, heard) = Self::begin(Life::Young)?;
        let (connection, daemon) = super::start::start(&start.program, order, &[])?;
        // Relaxed: a number.
        shared.process.store(daemon.process_id(), Ordering::Relaxed);
        let threads = Arc::clone(&shared);
        spawn("forebay-keeper", move || {
            let shared = Arc::clone(&threads);
            Thread { shared: threads, heard, start }.run(daemon);
            shared.lock().is_seen_out = true;
            shared.changed.notify_all();
        })?;
        let own_process = std::process::id();
        Ok((Self { shared, own_process, is_private: true }, connection))
    }
}

struct Thread {
    shared: Arc<Shared>,
    heard: Connection,
    start: PrivateStart,
}

impl Thread {
    fn run(self, first: PrivateDaemon) {
        let mut daemon = first;
        let mut failures = 0;
        loop {
            let mut log = LogRelay::new(daemon.take_log());
            let Some(mut how) = self.watch(&mut daemon, &mut log, None) else {
                return self.see_out(daemon, log);
            };
            let Some(mut has_progressed) = self.mourn(&how) else {
                return;
            };
            daemon = loop {
                failures = if has_progressed { 0 } else { failures + 1 };
                if failures > MOST_FAILURES {
                    return self.lose(&how, &log);
                }
                if !self.pause(failures) {
                    return;
                }
                match self.start_again(&how) {
                    Ok(Some((connection, daemon))) => {
                        // Relaxed: a number, and a count.
                        self.shared.process.store(daemon.process_id(), Ordering::Relaxed);
                        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
                        self.shared.enter(|_| Life::Ready(connection));
                        break daemon;
                    }
                    Ok(None) => {
                        how.push_str(" (and it had left no plan to start it again from)");
                        return self.lose(&how, &log);
                    }
                    Err(error) => (how, has_progressed) = (error.to_string(), false),
                }
            };
        }
    }

    /// Waits for the daemon's end; `None`: the loader is gone, or the time is up.
    fn watch(
        &self,
        daemon: &mut PrivateDaemon,
        log: &mut LogRelay,
        end: Option<Instant>,
    ) -> Option<String> {
        loop {
            log.pass_on();
            if let Some(how) = daemon.ended() {
                log.pass_on();
                return Some(how);
            }
            if end.is_none() && self.is_closed() {
                return None;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let mut descriptors = vec![];
            if end.is_none() {
                descriptors.push(std::os::fd::AsFd::as_fd(&self.heard));
            }
            descriptors.extend(log.descriptor());
            let limit = match daemon.pidfd() {
                Some(pidfd) => {
                    descriptors.push(pidfd);
                    left
                }
                None => Some(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))),
            };
            wait_for_any(&descriptors, limit);
            hear(&self.heard);
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.shared.lock().life, Life::Closed)
    }

    /// The daemon is dead. Says whether it had published a batch; `None`: nobody wants another one.
    fn mourn(&self, how: &str) -> Option<bool> {
        let mut is_wanted = true;
        let mut has_progressed = false;
        let entered = self.shared.enter(|state| {
            state.ended = Some(how.to_owned());
            has_progressed = state.publish.take().is_some_and(|ring| ring.published() > 0);
            is_wanted = !matches!(state.life, Life::Young | Life::Lost);
            if is_wanted { Life::Restarting } else { Life::Lost }
        });
        (entered && is_wanted).then_some(has_progressed)
    }

    /// False: the loader is gone.
    fn pause(&self, failures: u32) -> bool {
        let Some(doublings) = failures.checked_sub(1) else {
            return !self.is_closed();
        };
        let end = Instant::now() + FIRST_PAUSE * 2u32.pow(doublings);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.is_closed() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            wait_for_any(&[std::os::fd::AsFd::as_fd(&self.heard)], Some(left));
            hear(&self.heard);
        }
    }

    /// `None`: the daemon left nothing to start from.
    fn start_again(&self, how: &str) -> Result<Option<(Arc<Connection>, PrivateDaemon)>, Error> {
        let kept: std::io::Result<Vec<_>> = {
            let state = self.shared.lock();
            state.keepsake.descriptors.iter().map(std::os::fd::OwnedFd::try_clone).collect()
        };
        let kept = kept.map_err(|error| Error::Memory(format!("no descriptor: {error}")))?;
        if kept.is_empty() {
            return Ok(None);
        }
        let order = ClientFrame::Restart(Restart {
            local_world_size: self.start.local_world_size,
            local_rank: self.start.local_rank,
            reason: how.to_owned(),
        });
        let (connection, daemon) = start(&self.start.program, &order, &kept)?;
        Ok(Some((Arc::new(connection), daemon)))
    }

    fn lose(&self, how: &str, log: &LogRelay) {
        // Relaxed: a count.
        let restarts = self.shared.restarts.load(Ordering::Relaxed);
        let again = match restarts {
            0 => String::new(),
            1 => ", after it had been started again once".to_owned(),
            many => format!(", after it had been started again {many} times"),
        };
        let reason = format!("the daemon is gone: {how}{again}{}", log.last_words());
        self.shared.enter(|state| {
            state.lost = Some(reason);
            Life::Lost
        });
    }

    /// Reaps the daemon, which ends by itself when the connection closes; signals are the last resort.
    fn see_out(&self, mut daemon: PrivateDaemon, mut log: LogRelay) {
        for signal in [Signal::TERM, Signal::KILL] {
            if self.watch(&mut daemon, &mut log, Some(Instant::now() + PATIENCE)).is_some() {
                return;
            }
            daemon.signal(signal);
        }
        let _ = self.watch(&mut daemon, &mut log, Some(Instant::now() + PATIENCE));
    }
}
