//! Opening streams over a storage that may be away: who waits how long, who watches, and what shows that it goes on.
//!
//! [`OpeningWatch::watched`] runs the opening on a thread of its own and looks at its calls four times a second. A call that has
//! not returned for `dataset.outage_timeout` is given up with that thread, which ends with the process.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_protocol::frames::{Fault, FaultKind};

use forebay_config::Config;
use forebay_observe::Clock;
use forebay_source::storage::Patience;

/// The time between looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// One opening of all streams of a daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct OpeningWatch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    never_waits: bool,
    /// That of the stream that is opened now.
    patience: Mutex<Option<Arc<Patience>>>,
}

/// Progress of an opening, or a sign that it waits aloud.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpeningProgress {
    /// Whether it waits for the storage.
    pub(super) is_waiting: bool,
}

impl OpeningWatch {
    /// One that waits for a storage that is away.
    pub(super) fn patient() -> Self {
        Self::default()
    }

    /// One that waits for nothing.
    pub(super) fn impatient() -> Self {
        Self(Arc::new(Shared { never_waits: true, ..Shared::default() }))
    }

    /// How long one stream's storage is waited for.
    pub(super) fn patience(&self, config: &Config, is_restart: bool) -> Arc<Patience> {
        let (name, timeout) = (&config.name, config.dataset.outage_timeout);
        let clock = Clock::system();
        let patience = Arc::new(match (self.0.never_waits, is_restart) {
            (true, _) => Patience::none(name, clock),
            (false, true) => Patience::at_restart(name, timeout, clock),
            (false, false) => Patience::at_first_start(name, timeout, clock),
        });
        let mut watched = self.0.patience.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = Some(Arc::clone(&patience));
        patience
    }

    /// Runs the opening, and looks at it meanwhile; calls `on_progress` as long as it makes progress or waits aloud.
    ///
    /// # Errors
    /// The opening's own, or a call of it has hung for too long.
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
                Ok(opened) => return opened,
                Err(RecvTimeoutError::Disconnected) => {
                    let message = "the thread that opens the streams panicked: this is a bug in forebay; please report it";
                    return Err(internal(message.to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let patience = self.0.patience.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
