//! Opens streams on a storage that may be unavailable: how long to wait, the watchdog, the memory, and the progress.
//!
//! [`OpeningWatch::watched`] runs the opening on a separate thread and checks its calls and its memory twenty times per
//! second. An opening whose call does not return within `dataset.outage_timeout`, or that takes more than
//! `dataset.opening_memory`, is abandoned together with the thread, which ends with the process.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_protocol::frames::{Fault, FaultKind};

use super::opening_memory::{OpeningMemory, own_memory};
use forebay_config::Config;
use forebay_observe::Clock;
use forebay_storage::Patience;

/// The time between checks: what an opening allocates meanwhile may exceed its limit.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// One opening of all streams of a daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct OpeningWatch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    never_waits: bool,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Of the stream that is being opened.
    patience: Option<Arc<Patience>>,
    /// By stream, in the order of their openings; the last one is observed.
    memory: Vec<OpeningMemory>,
}

impl Watched {
    fn look(&mut self) -> Result<(), Fault> {
        self.memory.last_mut().map_or(Ok(()), |memory| memory.look(own_memory()))
    }
}

/// Progress of an opening, or a sign that an announced outage continues.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpeningProgress {
    /// Whether the opening waits for the storage.
    pub(super) is_waiting: bool,
}

impl OpeningWatch {
    /// Waits for an unavailable storage.
    pub(super) fn patient() -> Self {
        Self::default()
    }

    /// Never waits for a storage.
    pub(super) fn impatient() -> Self {
        Self(Arc::new(Shared { never_waits: true, ..Shared::default() }))
    }

    /// Begins to observe the opening of a stream; gives the limits on waiting for its storage. `ranks`: the ranks of this
    /// machine; `None`: a restart.
    pub(super) fn begin(&self, config: &Config, ranks: Option<u32>) -> Arc<Patience> {
        let (name, timeout) = (&config.name, config.dataset.outage_timeout);
        let clock = Clock::system();
        let patience = Arc::new(match (self.0.never_waits, ranks.is_none()) {
            (true, _) => Patience::none(name, clock),
            (false, true) => Patience::at_restart(name, timeout, clock),
            (false, false) => Patience::at_first_start(name, timeout, clock),
        });
        let mut watched = self.lock();
        watched.patience = Some(Arc::clone(&patience));
        watched.memory.push(OpeningMemory::begin(config, ranks, own_memory()));
        patience
    }

    /// Checks the memory at the end of a stream's opening, which may be shorter than the time between two checks.
    ///
    /// # Errors
    /// It took more memory than its limit.
    pub(super) fn end(&self) -> Result<(), Fault> {
        self.lock().look()
    }

    /// What `forebay check` says of the memory of each opening.
    pub(super) fn memory_lines(&self) -> Vec<String> {
        self.lock().memory.iter().map(OpeningMemory::line).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the opening and checks it; calls `on_progress` while it makes progress or an outage is announced.
    ///
    /// # Errors
    /// The opening's error, one of its calls has hung for too long, or it takes too much memory.
    pub(super) fn watched<T: Send + 'static>(
        &self,
        open: impl FnOnce() -> Result<T, Fault> + Send + 'static,
        mut on_progress: impl FnMut(OpeningProgress),
    ) -> Result<T, Fault> {
        let internal = |message: String| Fault { kind: FaultKind::Internal, message };
        let (sender, opened) = sync_channel(1);
        std::thread::Builder::new()
            .name("forebay-open".to_owned())
            .spawn(move || drop(sender.send(open())))
            .map_err(|error| internal(format!("cannot start a thread: {error}")))?;
        let mut seen = 0;
        loop {
            match opened.recv_timeout(LOOK_PERIOD) {
                Ok(opened) => return opened.and_then(|opened| self.end().map(|()| opened)),
                Err(RecvTimeoutError::Disconnected) => {
                    let message = "the thread that opens the streams panicked: this is a bug in forebay; please report it";
                    return Err(internal(message.to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let patience = {
                let mut watched = self.lock();
                watched.look()?;
                watched.patience.clone()
            };
            let Some(patience) = patience else { continue };
            patience.look().map_err(|error| Fault {
                kind: FaultKind::Storage,
                message: format!("{error}; look after the storage (dataset.outage_timeout)"),
            })?;
            let progress = patience.progress();
            if std::mem::replace(&mut seen, progress) != progress {
                on_progress(OpeningProgress { is_waiting: patience.is_waiting() });
            }
        }
    }
}
