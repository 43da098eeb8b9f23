//! The control connection to a daemon: hand-shake, frames, waiting in slices, and how it ended.
//!
//! Waiting is cut into slices of 50 ms so that an interrupt (a signal handler of the host language) is heard. The first
//! reason for the connection's end is kept; frames that arrived before it are still read, so a fault sent just before
//! the daemon closed is told and not the closing. A daemon that is merely gone may come back ([`crate::keeper`]): then
//! the link goes on over another connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attached, ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::segment::ForkMark;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

use crate::error::Error;
use crate::keeper::Keeper;

/// How long one wait lasts before interrupts and deadlines are looked at.
const SLICE_MS: u8 = 50;

/// Asked once a slice while waiting; true ends the wait with [`Error::Interrupted`].
pub(crate) type Interrupt = Box<dyn FnMut() -> bool + Send>;

/// How a connection ended.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    /// The daemon is gone; what it said or did last.
    Gone(&'static str),
    /// With a reason that a restart does not change.
    Final(Error),
}

/// A connection, and after a daemon's death the next one.
pub(crate) struct Link {
    connection: Arc<Connection>,
    keeper: Option<Keeper>,
    fork_mark: Arc<ForkMark>,
    interrupt: Option<Interrupt>,
    /// Readable when the interrupt shall be asked at once.
    wake: Option<OwnedFd>,
    timeout: Duration,
    ending: Option<Ending>,
    has_rung: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Link")
            .field("connection", &self.connection)
            .field("keeper", &self.keeper)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        connection: Connection,
        keeper: Option<Keeper>,
        interrupt: Option<Interrupt>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let fork_mark = ForkMark::new()
            .map_err(|error| Error::Memory(format!("marking this process failed: {error}")))?;
        Ok(Self {
            connection: Arc::new(connection),
            keeper,
            fork_mark: Arc::new(fork_mark),
            interrupt,
            wake: None,
            timeout,
            ending: None,
            has_rung: false,
        })
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn fork_mark(&self) -> &Arc<ForkMark> {
        &self.fork_mark
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What watches over the daemon; `None` where nobody starts it again.
    pub(crate) fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }

    pub(crate) fn set_keeper(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Goes on over another connection.
    pub(crate) fn replace(&mut self, connection: Arc<Connection>) {
        self.connection = connection;
        self.ending = None;
    }

    pub(crate) fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }

    /// The interrupt, to be asked by someone else from now on.
    pub(crate) fn take_interrupt(&mut self) -> Option<Interrupt> {
        self.interrupt.take()
    }

    /// Ends a slice early, and asks the interrupt, when this event descriptor becomes readable. It is read empty then.
    pub(crate) fn set_wake(&mut self, wake: OwnedFd) {
        self.wake = Some(wake);
    }

    /// Waits for the daemon's answer to the hello.
    pub(crate) fn expect_welcome(&mut self) -> Result<(), Error> {
        match self.next_frame("the daemon's welcome")? {
            (DaemonFrame::Welcome { protocol, release, .. }, _) => {
                check_version(protocol, &release)
            }
            (other, _) => Err(unexpected(&other, "Welcome")),
        }
    }

    /// Waits for the daemon's answer to an attach, and keeps what comes before it for a restart.
    pub(crate) fn expect_attached(&mut self) -> Result<(Box<Attached>, Vec<OwnedFd>), Error> {
        loop {
            match self.next_frame("the daemon to open the stream")? {
                (DaemonFrame::Attached(terms), descriptors) => return Ok((terms, descriptors)),
                (DaemonFrame::Kept, descriptors) => self.keep(descriptors),
                (other, _) => return Err(unexpected(&other, "Attached")),
            }
        }
    }

    /// Keeps what the daemon sent for a restart.
    pub(crate) fn keep(&self, descriptors: Vec<OwnedFd>) {
        if let Some(keeper) = &self.keeper {
            keeper.keep(descriptors);
        }
    }

    /// Sends a frame; waits while the socket is full.
    pub(crate) fn send(
        &mut self,
        frame: &ClientFrame,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let begin = Instant::now();
        loop {
            match self.connection.send(frame, descriptors) {
                Ok(()) => return Ok(()),
                Err(SocketError::Call { source, .. })
                    if source.kind() == std::io::ErrorKind::WouldBlock =>
                {
                    self.wait_slice(PollFlags::POLLOUT, "room in the control socket")?;
                    self.check_deadline(begin, "room in the control socket")?;
                }
                Err(SocketError::Closed) => {
                    // The daemon may have said why before it closed.
                    while let Some(frame) = self.receive() {
                        drop(frame);
                    }
                    return Err(self.end_words());
                }
                Err(error) => return Err(Error::Protocol(error.to_string())),
            }
        }
    }

    /// Waits for the next frame. A doorbell counts as progress: the daemon may ring while it scans.
    pub(crate) fn next_frame(
        &mut self,
        waited_for: &str,
    ) -> Result<(DaemonFrame, Vec<OwnedFd>), Error> {
        let mut begin = Instant::now();
        loop {
            match self.take() {
                Some(Incoming::Frame(frame, descriptors)) => return Ok((frame, descriptors)),
                Some(Incoming::Doorbell) => begin = Instant::now(),
                Some(Incoming::Empty) => {
                    self.wait_slice(PollFlags::POLLIN, waited_for)?;
                    self.check_deadline(begin, waited_for)?;
                }
                None => return Err(self.end_words()),
            }
        }
    }

    /// The next frame that is there already; doorbells are swallowed.
    pub(crate) fn receive(&mut self) -> Option<(DaemonFrame, Vec<OwnedFd>)> {
        loop {
            match self.take()? {
                Incoming::Frame(frame, descriptors) => return Some((frame, descriptors)),
                Incoming::Doorbell => self.has_rung = true,
                Incoming::Empty => return None,
            }
        }
    }

    /// Whether the daemon has rung since the last question.
    pub(crate) fn take_rings(&mut self) -> bool {
        std::mem::take(&mut self.has_rung)
    }

    /// Takes what is there; `None` once the connection has ended. Faults and goodbyes become the ending.
    fn take(&mut self) -> Option<Incoming<DaemonFrame>> {
        if self.ending.is_some() {
            return None;
        }
        let ending = match self.connection.receive() {
            Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => Ending::Final(fault.into()),
            Ok(Incoming::Frame(DaemonFrame::Goodbye, _)) => Ending::Gone("it ended in good order"),
            Ok(incoming) => return Some(incoming),
            Err(SocketError::Closed) => Ending::Gone("it closed the connection"),
            Err(error) => Ending::Final(Error::Protocol(error.to_string())),
        };
        self.ending = Some(ending);
        None
    }

    /// Why the connection ended, if it has.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The connection's end as an error. Waits a moment for a private daemon's exit status.
    pub(crate) fn end_words(&self) -> Error {
        let how = match &self.ending {
            Some(Ending::Final(error)) => return error.clone(),
            Some(Ending::Gone(how)) => *how,
            None => "it closed the connection",
        };
        let how = match &self.keeper {
            Some(keeper) if keeper.process_id().is_some() => keeper.ending_words(),
            _ => how.to_owned(),
        };
        Error::DaemonLost(format!("the daemon is gone: {how}"))
    }

    /// Waits one slice for the socket, then asks the interrupt.
    pub(crate) fn wait_slice(&mut self, events: PollFlags, waited_for: &str) -> Result<(), Error> {
        let connection = PollFd::new(self.connection.as_fd(), events);
        // EINTR is a slice that ended early: the interrupt is asked next.
        if let Some(wake) = &self.wake {
            let mut watched = [connection, PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut watched, PollTimeout::from(SLICE_MS));
            // An event descriptor gives its eight bytes once, and then nothing until the next wake-up.
            let _ = nix::unistd::read(wake, &mut [0; 8]);
        } else {
            let _ = poll(&mut [connection], PollTimeout::from(SLICE_MS));
        }
        self.ask_interrupt(waited_for)
    }

    /// Asks whether the wait shall end.
    pub(crate) fn ask_interrupt(&mut self, waited_for: &str) -> Result<(), Error> {
        if self.interrupt.as_mut().is_some_and(|interrupt| interrupt()) {
            return Err(Error::Interrupted(waited_for.to_owned()));
        }
        Ok(())
    }

    fn check_deadline(&self, begin: Instant, waited_for: &str) -> Result<(), Error> {
        let waited = begin.elapsed();
        if waited < self.timeout {
            return Ok(());
        }
        let daemon_says = "the daemon sent nothing".to_owned();
        Err(Error::Timeout { waited, waited_for: waited_for.to_owned(), daemon_says })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.fork_mark.is_own_process() {
            // The daemon is the parent's child, and the connection the parent's: only this copy of it is closed.
            std::mem::forget(self.keeper.take());
            return;
        }
        let _ = self.connection.send(&ClientFrame::Goodbye, &[]);
        // Leases may keep the connection's descriptor; the daemon shall see the end now.
        let _ = shutdown(self.connection.as_raw_fd(), Shutdown::Both);
    }
}

/// Refuses a daemon of another version.
pub(crate) fn check_version(protocol: u32, release: &str) -> Result<(), Error> {
    if protocol == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(Error::Version(format!(
        "the daemon is release {release} and speaks protocol {protocol}; this client is release {} and speaks protocol \
         {PROTOCOL_VERSION}; install the same release on both sides",
        env!("CARGO_PKG_VERSION")
    )))
}

pub(crate) fn unexpected(frame: &DaemonFrame, expected: &str) -> Error {
    let mut text = format!("{frame:?}");
    if let Some((end, _)) = text.char_indices().nth(80) {
        text.truncate(end);
    }
    Error::Protocol(format!("the daemon sent `{text}` where {expected} was due"))
}
