//! Keeps a daemon there: watches the one that a loader is attached to and, when it dies, sees to the next one.
//!
//! A client's states through a daemon's death, and who moves it. The keeper's thread owns the daemon's process (or the way
//! back to its socket); the loader owns the rings, the position and the leases. They meet in [`Shared`] alone.
//!
//! ```text
//!            daemon dies                   the loader's next call
//!   Live ─────────────────► Draining ─────────────────────────────┐
//!    ▲   (keeper or socket)    │  takes every batch out of the dead ring: complete ones, they are handed over first
//!    │                         ▼
//!    │                     Restarting ──► keeper: private: starts the program again with the kept plan and index;
//!    │                         │    ▲             served: connects to the same socket until a supervisor is back
//!    │      keeper: said hello │    │ keeper: that one died too, after a pause that doubles
//!    │                         ▼    │
//!    │                     Reattaching ──► loader: sends its data segment, the slots that are held, and `taken`
//!    │                         │
//!    └──── loader: Attached ◄──┴──► Lost: keeper: no progress in [`MOST_FAILURES`] starts, or nothing to start from
//!                                         loader: the daemon refuses, or the time-out passes
//! ```
//!
//! Held batches stay what they are in every state: the data segment is this process's own mapping, and the slots of
//! batches that the user or the drained queue holds are named to the next daemon, which fills only the others. A batch
//! that is dropped while no daemon is there is free for the next one; one that is dropped after it was named is returned
//! as soon as there is a ring to return it to.
//!
//! A private daemon may die as often as it likes as long as it publishes a batch between deaths. The keeper also passes
//! the private daemon's log on to this process's standard error (never waiting for it; what it cannot take is lost), so
//! that it can say the last lines of a daemon that does not come back, and reaps it in the end.

mod log;
mod private;
mod served;
mod start;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_protocol::publish::PublishReader;
use forebay_protocol::segment::Mapping;
use forebay_protocol::socket::Connection;

use crate::error::Error;
pub(crate) use private::PrivateStart;
pub(crate) use served::ServedPlace;
pub(crate) use start::greet;

/// How long closing a loader waits for its private daemon's end: what that logs comes after its batches, and a program
/// that ended at once would lose it.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// Starts in a row without a batch in between, after which a daemon is given up.
pub(crate) const MOST_FAILURES: u32 = 6;

/// What the keeper knows of the daemon.
#[derive(Debug)]
enum Life {
    /// A daemon that no loader has taken a session from yet: its end is the loader's to tell.
    Young,
    /// The loader is attached to it.
    Live,
    /// It died, and the next one is not there yet.
    Restarting,
    /// The next one is there and was greeted; the connection waits for the loader.
    Ready(Arc<Connection>),
    /// The loader has the connection and asks for its session.
    Reattaching,
    /// None comes back.
    Lost,
    /// The loader is gone.
    Closed,
}

/// What a private loader's daemon gave it for the case of its death.
#[derive(Debug, Default)]
struct Keepsake {
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
struct State {
    life: Life,
    /// How the last daemon ended, once it has.
    ended: Option<String>,
    /// Why none comes back.
    lost: Option<String>,
    keepsake: Keepsake,
    /// The ring of the session with the present daemon: what is published there is progress.
    publish: Option<Arc<PublishReader<Mapping>>>,
    /// A private daemon has ended for good, and all that it logged was passed on.
    is_seen_out: bool,
}

/// What the keeper's thread and the loader share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The life is not `Live` any more: read without the lock before each batch.
    is_down: AtomicBool,
    restarts: AtomicU64,
    process: AtomicU32,
    /// Written to wake the thread.
    waker: Connection,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on, unless the loader is gone. True: moved.
    fn enter(&self, change: impl FnOnce(&mut State) -> Life) -> bool {
        let mut state = self.lock();
        if matches!(state.life, Life::Closed) {
            return false;
        }
        state.life = change(&mut state);
        // Release: pairs with the acquire load of `Keeper::is_down`; what it is about is read under the lock anyway.
        self.is_down.store(!matches!(state.life, Life::Young | Life::Live), Ordering::Release);
        drop(state);
        self.changed.notify_all();
        true
    }
}

/// The loader's handle. Dropping it ends the private daemon and lets the thread see it out.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    /// The process in which the thread is: a forked child has none.
    own_process: u32,
    is_private: bool,
}

/// What a loader without a daemon finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing yet.
    Waiting,
    /// The next daemon, greeted.
    Daemon(Arc<Connection>),
    /// None comes back, for this reason.
    Lost(Error),
}

impl Keeper {
    /// The shared state, and the thread's end of the waker.
    fn begin(life: Life) -> Result<(Arc<Shared>, Connection), Error> {
        let (waker, heard) = Connection::pair()
            .map_err(|error| Error::Memory(format!("no connection could be made: {error}")))?;
        let state = State {
            life,
            ended: None,
            lost: None,
            keepsake: Keepsake::default(),
            publish: None,
            is_seen_out: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_down: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            process: AtomicU32::new(0),
            waker,
        };
        Ok((Arc::new(shared), heard))
    }

    /// Whether the daemon of the present session died. Costs no system call and no lock.
    pub(crate) fn is_down(&self) -> bool {
        // Acquire: pairs with `Shared::enter`.
        self.shared.is_down.load(Ordering::Acquire)
    }

    /// How often a daemon was replaced.
    pub(crate) fn restarts(&self) -> u64 {
        // Relaxed: a count.
        self.shared.restarts.load(Ordering::Relaxed)
    }

    /// The private daemon's process; `None` for another's daemon.
    pub(crate) fn process_id(&self) -> Option<u32> {
        // Relaxed: a number; it may change at any moment anyway.
        Some(self.shared.process.load(Ordering::Relaxed)).filter(|process| *process != 0)
    }

    /// Keeps what the daemon sent for a restart.
    pub(crate) fn keep(&self, descriptors: Vec<OwnedFd>) {
        self.shared.lock().keepsake = Keepsake { descriptors };
    }

    /// The loader is attached: from now on a death is answered by a restart.
    pub(crate) fn attached(&self, publish: Arc<PublishReader<Mapping>>) {
        self.shared.enter(|state| match state.life {
            Life::Young | Life::Reattaching => {
                state.publish = Some(publish);
                Life::Live
            }
            // It died meanwhile, and the keeper is at work.
            _ => std::mem::replace(&mut state.life, Life::Restarting),
        });
    }

    /// The loader's session is over for good: no daemon is wanted any more.
    pub(crate) fn give_up(&self) {
        self.shared.enter(|state| {
            state.lost.get_or_insert_with(|| "the daemon is gone".to_owned());
            Life::Lost
        });
        let _ = self.shared.waker.ring();
    }

    /// The loader has found that the daemon is gone, and how; the keeper may not have looked yet.
    pub(crate) fn notice(&self, how: Option<&str>) {
        if let (Some(how), None) = (how, self.process_id()) {
            self.shared.lock().ended = Some(how.to_owned());
        }
        let _ = self.shared.waker.ring();
    }

    /// Takes the next daemon if it is there.
    pub(crate) fn find(&self) -> Found {
        let mut state = self.shared.lock();
        if let Life::Ready(connection) = &state.life {
            let connection = Arc::clone(connection);
            state.life = Life::Reattaching;
            return Found::Daemon(connection);
        }
        match (&state.life, &state.lost) {
            (Life::Lost, Some(reason)) => Found::Lost(Error::DaemonLost(reason.clone())),
            _ => Found::Waiting,
        }
    }

    /// The daemon that was found does not take the session yet: looks for it again after a while.
    pub(crate) fn try_again(&self, reason: String) {
        self.shared.enter(|state| {
            state.ended = Some(reason);
            match state.life {
                Life::Reattaching => Life::Restarting,
                _ => std::mem::replace(&mut state.life, Life::Restarting),
            }
        });
        let _ = self.shared.waker.ring();
    }

    /// Waits until something changes, at most so long.
    pub(crate) fn wait(&self, limit: Duration) {
        let state = self.shared.lock();
        if matches!(state.life, Life::Restarting | Life::Live | Life::Reattaching) {
            let _ = self.shared.changed.wait_timeout(state, limit);
        }
    }

    /// How the last daemon ended, as far as it is known.
    pub(crate) fn ended_words(&self) -> String {
        let state = self.shared.lock();
        state.ended.clone().unwrap_or_else(|| "the one before had ended too".to_owned())
    }

    /// How the daemon ended, for a loader whose connection closed before it was attached; waits for it a moment.
    pub(crate) fn ending_words(&self) -> String {
        let end = Instant::now() + Duration::from_secs(1);
        let mut state = self.shared.lock();
        loop {
            if let Some(ended) = &state.ended {
                return ended.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return "it closed the connection and still runs".to_owned();
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.enter(|_| Life::Closed);
        let _ = self.shared.waker.ring();
        if self.is_private && self.own_process == std::process::id() {
            let state = self.shared.lock();
            let is_over = self
                .shared
                .changed
                .wait_timeout_while(state, LAST_WORDS, |state| !state.is_seen_out);
            drop(is_over);
        }
    }
}

/// Swallows the wake-ups that came.
fn hear(heard: &Connection) {
    use forebay_protocol::frames::ClientFrame;
    use forebay_protocol::socket::Incoming;
    while let Ok(Incoming::Doorbell) = heard.receive::<ClientFrame>() {}
}

/// Waits until one of the descriptors is readable or hung up, or the limit passes.
fn wait_for_any(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut watched: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
        .collect();
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        // Rounded up: a wait that ends early would spin.
        let limit = limit + Duration::from_millis(1);
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    let _ = poll(&mut watched, timeout);
}

/// Starts a thread of this library's own. Signals are the program's own threads' business.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let quiet = move || {
        let _ = nix::sys::signal::SigSet::all().thread_block();
        work();
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(quiet)
        .map_err(|error| Error::Memory(format!("a thread ({name}) was refused: {error}")))
}
