//! The state that the trainer's thread, the upload thread and the reaper share: one lock, never held across a blocking call.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_protocol::publish::Descriptor;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::driver::Event;
use super::pin::Staging;
use crate::error::Error;
use crate::loader::Loader;

/// A call on the loader, which the upload thread makes between two batches.
pub(crate) type Command = Box<dyn FnOnce(&mut Loader) + Send>;

/// The destination of one batch on the device: an address for each of the upload's regions.
#[derive(Debug)]
pub(crate) struct Destination {
    /// The owner's identifier.
    pub(crate) token: u64,
    pub(crate) addresses: Vec<u64>,
    /// The events that must complete before it is written: the use of the previous batch there.
    pub(crate) after: Vec<Arc<Event>>,
}

/// A batch whose copies are queued.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) destination: Destination,
    pub(crate) descriptor: Descriptor,
    /// The batches of its epoch that follow it.
    pub(crate) batches_left: u64,
    pub(crate) copied: Arc<Event>,
}

/// A result of the upload thread, for the trainer.
#[derive(Debug)]
pub(crate) enum Outcome {
    Batch(Box<Ready>),
    End,
    Failed(Error),
}

/// The counters of an upload.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) commands: VecDeque<Command>,
    /// An epoch has begun, and the upload thread is not yet at its end.
    pub(crate) is_epoch_open: bool,
    pub(crate) stop: bool,
    /// The user has interrupted the present command.
    pub(crate) cancel: bool,
    pub(crate) destinations: VecDeque<Destination>,
    pub(crate) outcomes: VecDeque<Outcome>,
    /// Slots with a pending copy.
    pub(crate) in_flight: u64,
    /// The driver's error that ended the upload.
    pub(crate) failure: Option<Error>,
    pub(crate) staging: Staging,
    pub(crate) counts: Counts,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes the upload thread.
    work: Condvar,
    /// Wakes the trainer's thread.
    outcome_ready: Condvar,
    /// Wakes the upload thread while it waits for the daemon.
    wake: EventFd,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        formatter
            .debug_struct("Shared")
            .field("outcomes", &state.outcomes.len())
            .field("destinations", &state.destinations.len())
            .field("in_flight", &state.in_flight)
            .field("failure", &state.failure)
            .finish_non_exhaustive()
    }
}

/// The upload thread's next step.
pub(crate) enum Step {
    Run(Command),
    Take(Destination),
    Stop,
}

impl Shared {
    pub(crate) fn new() -> Result<Self, Error> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Error::Memory(format!("creating an eventfd failed: {error}")))?;
        Ok(Self {
            state: Mutex::default(),
            work: Condvar::new(),
            outcome_ready: Condvar::new(),
            wake,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor that becomes readable when the upload thread must end its wait.
    pub(crate) fn wake_descriptor(&self) -> Result<std::os::fd::OwnedFd, Error> {
        self.wake
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::Memory(format!("duplicating an eventfd failed: {error}")))
    }

    /// Changes the state and wakes the upload thread.
    pub(crate) fn notify_uploader<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.work.notify_one();
        result
    }

    /// As [`notify_uploader`](Self::notify_uploader), also while it waits for the daemon.
    pub(crate) fn interrupt_uploader<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = self.notify_uploader(change);
        // A failed write means that it is readable already.
        let _ = self.wake.write(1);
        result
    }

    /// Changes the state and wakes the trainer's thread.
    pub(crate) fn notify_trainer<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.outcome_ready.notify_one();
        result
    }

    /// Records that a slot's copy completed or failed, and wakes both threads.
    pub(crate) fn copy_done(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        drop(state);
        self.work.notify_one();
        self.outcome_ready.notify_one();
    }

    /// Whether the upload thread must end its wait for the daemon.
    pub(crate) fn should_interrupt(&self) -> bool {
        let state = self.lock();
        state.stop || state.cancel || !state.commands.is_empty()
    }

    /// Waits for the upload thread's next step. `hold`: the maximum number of slots with pending copies; `is_staged`: a
    /// batch also needs a staging buffer.
    pub(crate) fn next_step(&self, hold: u64, is_staged: bool) -> Step {
        let mut state = self.lock();
        loop {
            if state.stop {
                return Step::Stop;
            }
            if let Some(command) = state.commands.pop_front() {
                return Step::Run(command);
            }
            if state.is_epoch_open
                && state.failure.is_none()
                && state.in_flight < hold
                && !(is_staged && state.staging.is_used_up())
                && let Some(destination) = state.destinations.pop_front()
            {
                return Step::Take(destination);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for an outcome of the upload thread or the reaper, up to a limit.
    pub(crate) fn wait_for_outcome<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
    ) -> MutexGuard<'a, State> {
        self.outcome_ready.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records that the upload thread has ended, normally or by a panic, and wakes the trainer's thread.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.failure.get_or_insert(Error::Closed);
        // Dropping the commands disconnects the channels of their results.
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        drop(commands);
        self.outcome_ready.notify_all();
    }

    /// Waits until a staging buffer may be free.
    pub(crate) fn wait_for_work<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is an outcome or a failure for the trainer.
    pub(crate) fn has_outcome(&self) -> bool {
        !self.outcomes.is_empty() || self.failure.is_some()
    }

    /// Discards outcomes that were not handed over; their destinations are written again, in stream order. Returns the
    /// number of batches.
    pub(crate) fn discard_outcomes(&mut self) -> u64 {
        let mut batches = 0;
        for found in std::mem::take(&mut self.outcomes) {
            if let Outcome::Batch(ready) = found {
                self.destinations.push_back(ready.destination);
                batches += 1;
            }
        }
        batches
    }
}
