//! The start of the next daemon by a client of a shared one.
//!
//! Every client of a dead daemon does this at once. The daemons race for the lock of the socket; all but one report that
//! it is held and end. The winner gets the restart state from the client that started it, and the sessions from all.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, Fault, FaultKind, Restart};
use forebay_protocol::socket::Connection;

use super::Shared;
use super::restart_budget::RestartBudget;
use crate::shared_daemon::{SharedDaemon, Starting, read_start};

/// How a client starts the next daemon.
#[derive(Debug)]
pub(crate) struct Revival {
    pub(crate) daemon: SharedDaemon,
    pub(crate) local_world_size: u32,
    pub(crate) local_rank: u32,
    /// How long daemons may be restarted without a batch.
    pub(crate) budget: Duration,
}

/// The daemons that this client has started since the last batch.
#[derive(Debug)]
pub(super) struct Reviver {
    revival: Revival,
    budget: RestartBudget,
    /// When the next one may be started; `None`: the budget is spent.
    next_start: Option<Instant>,
    /// The connection to the one that was started. It is open as long as that daemon is of use: a daemon whose starter
    /// has left does not open its streams.
    started: Option<Connection>,
    /// Why none will serve.
    lost: Option<String>,
}

impl Reviver {
    pub(super) fn new(revival: Revival) -> Self {
        let budget = RestartBudget::new(revival.budget);
        Self { revival, budget, next_start: Some(Instant::now()), started: None, lost: None }
    }

    /// Connects to the next daemon, if it listens and is of this user.
    pub(super) fn connect(&self) -> Option<Connection> {
        self.revival.daemon.connect().ok().flatten()
    }

    /// The session's daemon has died, with or without having published a batch.
    pub(super) fn on_death(&mut self, shared: &Shared, has_progressed: bool) {
        if let Some(Starting::Refused(fault)) = self.started.take().as_ref().map(read_start) {
            self.on_refusal(shared, fault);
        }
        self.budget.record(Instant::now(), has_progressed);
        self.plan_start();
    }

    fn plan_start(&mut self) {
        self.next_start = self.budget.delay().map(|delay| Instant::now() + delay);
    }

    /// No daemon listens: starts one when it is time. Does not wait.
    ///
    /// # Errors
    /// Why no daemon will come back.
    pub(super) fn revive(&mut self, shared: &Shared) -> Result<(), String> {
        if let Some(reason) = &self.lost {
            return Err(reason.clone());
        }
        match self.started.as_ref().map(read_start) {
            Some(Starting::Opening | Starting::Serving) => return Ok(()),
            Some(Starting::Held) => {}
            Some(Starting::Gone) => {
                self.on_failure(shared, "the next daemon ended at its start".to_owned());
            }
            Some(Starting::Refused(fault)) => {
                self.on_refusal(shared, fault);
                self.plan_start();
            }
            None => {
                let Some(next_start) = self.next_start else { return Err(self.give_up(shared)) };
                if Instant::now() < next_start {
                    return Ok(());
                }
                return self.start(shared);
            }
        }
        self.started = None;
        Ok(())
    }

    fn start(&mut self, shared: &Shared) -> Result<(), String> {
        let state = shared.lock();
        let descriptors: std::io::Result<Vec<OwnedFd>> =
            state.restart_state.iter().map(OwnedFd::try_clone).collect();
        let reason = state.exit_reason.clone().unwrap_or_default();
        drop(state);
        let frame = ClientFrame::Restart(Restart {
            local_world_size: self.revival.local_world_size,
            local_rank: self.revival.local_rank,
            reason,
            signal: None,
        });
        let started = match descriptors {
            Ok(descriptors) if descriptors.is_empty() => {
                return Err("the daemon is gone, and it had sent no plan to restart it from".into());
            }
            Ok(descriptors) => {
                self.revival.daemon.start(&frame, &descriptors).map_err(|error| error.to_string())
            }
            Err(error) => Err(format!("duplicating a descriptor failed: {error}")),
        };
        match started {
            Ok(started) => self.started = Some(started),
            Err(reason) => self.on_failure(shared, reason),
        }
        Ok(())
    }

    /// The daemon that was started cannot serve.
    fn on_refusal(&mut self, shared: &Shared, fault: Fault) {
        if matches!(fault.kind, FaultKind::Memory | FaultKind::Storage) {
            return self.on_failure(shared, fault.message);
        }
        self.lost = Some(format!("the next daemon cannot serve: {}", fault.message));
    }

    /// A start has failed, and a later one may not.
    fn on_failure(&mut self, shared: &Shared, reason: String) {
        shared.lock().exit_reason = Some(reason);
        self.budget.record(Instant::now(), false);
        self.plan_start();
    }

    fn give_up(&self, shared: &Shared) -> String {
        let how = shared.lock().exit_reason.clone().unwrap_or_default();
        format!(
            "the daemon is gone: {how}; the log of the last one is {}",
            self.revival.daemon.log().display()
        )
    }
}
