//! What the trainer's thread, the upload thread and the reaper share: one lock, never held over a call that waits.

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

/// Something for the upload thread to do with the loader, between two batches.
pub(crate) type Command = Box<dyn FnOnce(&mut Loader) + Send>;

/// Where one batch goes on the device: an address for each of the upload's regions.
#[derive(Debug)]
pub(crate) struct Destination {
    /// The owner's name for it.
    pub(crate) token: u64,
    pub(crate) addresses: Vec<u64>,
    /// What has to be done before it is written to: the work that used the batch which lay there before.
    pub(crate) after: Vec<Arc<Event>>,
}

/// A batch whose copies are queued.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) destination: Destination,
    pub(crate) descriptor: Descriptor,
    /// The batches of its epoch that come after it.
    pub(crate) batches_left: u64,
    pub(crate) copied: Arc<Event>,
}

/// What the upload thread has found.
#[derive(Debug)]
pub(crate) enum Found {
    Batch(Box<Ready>),
    End,
    Failed(Error),
}

/// What an upload did up to now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) commands: VecDeque<Command>,
    /// An epoch is open and its end was not seen yet.
    pub(crate) wants: bool,
    pub(crate) stop: bool,
    /// The user does not wait for the present command any more.
    pub(crate) cancel: bool,
    pub(crate) destinations: VecDeque<Destination>,
    pub(crate) found: VecDeque<Found>,
    /// Slots whose copy has not completed.
    pub(crate) in_flight: u64,
    /// The driver failed: nothing goes on.
    pub(crate) broken: Option<Error>,
    pub(crate) staging: Staging,
    pub(crate) counts: Counts,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// For the upload thread.
    work: Condvar,
    /// For the trainer's.
    news: Condvar,
    /// Wakes the upload thread where it waits for the daemon.
    wake: EventFd,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        formatter
            .debug_struct("Shared")
            .field("found", &state.found.len())
            .field("destinations", &state.destinations.len())
            .field("in_flight", &state.in_flight)
            .field("broken", &state.broken)
            .finish_non_exhaustive()
    }
}

/// What the upload thread does next.
pub(crate) enum Step {
    Run(Command),
    Take(Destination),
    Stop,
}

impl Shared {
    pub(crate) fn new() -> Result<Self, Error> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Error::Memory(format!("an event descriptor: {error}")))?;
        Ok(Self { state: Mutex::default(), work: Condvar::new(), news: Condvar::new(), wake })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor that becomes readable when the upload thread is wanted.
    pub(crate) fn wake_descriptor(&self) -> Result<std::os::fd::OwnedFd, Error> {
        self.wake
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::Memory(format!("an event descriptor: {error}")))
    }

    /// Changes something that the upload thread looks at.
    pub(crate) fn tell_thread<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.work.notify_one();
        result
    }

    /// As [`tell_thread`](Self::tell_thread), also where it waits for the daemon.
    pub(crate) fn interrupt_thread<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = self.tell_thread(change);
        // Full means that it is readable already.
        let _ = self.wake.write(1);
        result
    }

    /// Changes something that the trainer's thread waits for.
    pub(crate) fn tell_trainer<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.news.notify_one();
        result
    }

    /// A slot's copy is done, or lost.
    pub(crate) fn landed(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        drop(state);
        self.work.notify_one();
        self.news.notify_one();
    }

    /// Whether the upload thread shall leave its wait for the daemon.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.lock();
        state.stop || state.cancel || !state.commands.is_empty()
    }

    /// Sleeps until there is something to do for the upload thread. `hold`: so many slots may wait for their copies;
    /// `is_staged`: a batch needs a staging buffer, too.
    pub(crate) fn next_step(&self, hold: u64, is_staged: bool) -> Step {
        let mut state = self.lock();
        loop {
            if state.stop {
                return Step::Stop;
            }
            if let Some(command) = state.commands.pop_front() {
                return Step::Run(command);
            }
            if state.wants
                && state.broken.is_none()
                && state.in_flight < hold
                && !(is_staged && state.staging.is_used_up())
                && let Some(destination) = state.destinations.pop_front()
            {
                return Step::Take(destination);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps until the upload thread or the reaper has news, or the time is over.
    pub(crate) fn wait_for_news<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
    ) -> MutexGuard<'a, State> {
        self.news.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The upload thread has ended, in whatever way: nobody waits for it any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.broken.get_or_insert(Error::Closed);
        // With them go the senders of their answers.
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        drop(commands);
        self.news.notify_all();
    }

    /// Sleeps until a staging buffer may be free.
    pub(crate) fn wait_for_work<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the trainer has something to hear.
    pub(crate) fn has_news(&self) -> bool {
        !self.found.is_empty() || self.broken.is_some()
    }

    /// Takes back what was uploaded and not handed over: the destinations are written to again in the stream's order.
    /// Gives the number of batches.
    pub(crate) fn discard_found(&mut self) -> u64 {
        let mut batches = 0;
        for found in std::mem::take(&mut self.found) {
            if let Found::Batch(ready) = found {
                self.destinations.push_back(ready.destination);
                batches += 1;
            }
        }
        batches
    }
}
