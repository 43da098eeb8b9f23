//! The control connection to a daemon: handshake, frames, waiting in slices, and the reason of its end.
//!
//! Waits are split into slices of 50 ms, after each of which the interrupt (a signal handler of the host language) is
//! called. The first reason for the connection's end is kept; frames that arrived before are still read, so that a fault
//! which the daemon sent just before closing is reported instead of the close. When a dead daemon is replaced
//! ([`crate::supervisor`]), the link continues over another connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attached, ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::segment::ForkMark;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

use crate::error::Error;
use crate::patience::Patience;
use crate::ring::Segments;
use crate::supervisor::Supervisor;

/// The duration of one wait, after which interrupts and deadlines are checked.
const SLICE_MS: u8 = 50;

/// Called after each slice of a wait; true ends the wait with [`Error::Interrupted`].
pub(crate) type Interrupt = Box<dyn FnMut() -> bool + Send>;

/// How a connection ended.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    /// The daemon is gone; the text says how it ended the connection.
    Gone(&'static str),
    /// With an error that a restart does not fix.
    Final(Error),
}

/// The connection to the daemon, and after its death to the next one.
pub(crate) struct Link {
    connection: Arc<Connection>,
    supervisor: Option<Supervisor>,
    /// The restart state that came before the supervisor existed.
    restart_state: Vec<OwnedFd>,
    fork_mark: Arc<ForkMark>,
    interrupt: Option<Interrupt>,
    /// Readable when the interrupt should be called at once.
    wake: Option<OwnedFd>,
    timeout: Duration,
    ending: Option<Ending>,
    doorbell_seen: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Link")
            .field("connection", &self.connection)
            .field("supervisor", &self.supervisor)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        connection: Connection,
        supervisor: Option<Supervisor>,
        interrupt: Option<Interrupt>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let fork_mark = ForkMark::new()
            .map_err(|error| Error::Memory(format!("mapping the fork mark failed: {error}")))?;
        Ok(Self {
            connection: Arc::new(connection),
            supervisor,
            restart_state: Vec::new(),
            fork_mark: Arc::new(fork_mark),
            interrupt,
            wake: None,
            timeout,
            ending: None,
            doorbell_seen: false,
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

    /// The daemon's supervisor; `None` if a dead daemon is not replaced.
    pub(crate) fn supervisor(&self) -> Option<&Supervisor> {
        self.supervisor.as_ref()
    }

    pub(crate) fn set_supervisor(&mut self, supervisor: Supervisor) {
        supervisor.save_restart_state(std::mem::take(&mut self.restart_state));
        self.supervisor = Some(supervisor);
    }

    /// Continues over another connection.
    pub(crate) fn replace(&mut self, connection: Arc<Connection>) {
        self.connection = connection;
        self.ending = None;
    }

    pub(crate) fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }

    /// Takes the interrupt: the caller calls it from now on.
    pub(crate) fn take_interrupt(&mut self) -> Option<Interrupt> {
        self.interrupt.take()
    }

    /// Sets an eventfd that ends a slice early. It is drained when it becomes readable.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "of the GPU half"))]
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

    /// Waits for the daemon's answer to an attach, and saves the restart state that comes before it.
    pub(crate) fn expect_attached(&mut self) -> Result<(Box<Attached>, Segments), Error> {
        loop {
            match self.next_frame("the daemon to open the stream")? {
                (DaemonFrame::Attached(terms), descriptors) => {
                    return Ok((terms, Segments::Descriptors(descriptors)));
                }
                (DaemonFrame::AttachedNamed { terms, names }, _) => {
                    return Ok((terms, Segments::Names(names)));
                }
                (DaemonFrame::Kept, descriptors) => self.save_restart_state(descriptors),
                (other, _) => return Err(unexpected(&other, "Attached")),
            }
        }
    }

    /// Saves the descriptors that the daemon sent for a restart.
    pub(crate) fn save_restart_state(&mut self, descriptors: Vec<OwnedFd>) {
        match &self.supervisor {
            Some(supervisor) => supervisor.save_restart_state(descriptors),
            None => self.restart_state = descriptors,
        }
    }

    /// Sends a frame; waits while the socket is full.
    pub(crate) fn send(
        &mut self,
        frame: &ClientFrame,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let mut patience = Patience::begin(Instant::now());
        loop {
            match self.connection.send(frame, descriptors) {
                Ok(()) => return Ok(()),
                Err(SocketError::Call { source, .. })
                    if source.kind() == std::io::ErrorKind::WouldBlock =>
                {
                    self.wait_slice(PollFlags::POLLOUT, "room in the control socket")?;
                    self.check_deadline(&mut patience, "room in the control socket")?;
                }
                Err(SocketError::Closed) => {
                    // The daemon may have sent the reason before it closed.
                    while self.receive().is_some() {}
                    return Err(self.ending_error());
                }
                Err(error) => return Err(Error::Protocol(error.to_string())),
            }
        }
    }

    /// Waits for the next frame. A doorbell counts as progress: the daemon rings it while it scans a dataset.
    pub(crate) fn next_frame(
        &mut self,
        waited_for: &str,
    ) -> Result<(DaemonFrame, Vec<OwnedFd>), Error> {
        let mut patience = Patience::begin(Instant::now());
        loop {
            match self.receive_any() {
                Some(Incoming::Frame(frame, descriptors)) => return Ok((frame, descriptors)),
                Some(Incoming::Doorbell) => patience = Patience::begin(Instant::now()),
                Some(Incoming::Empty) => {
                    self.wait_slice(PollFlags::POLLIN, waited_for)?;
                    self.check_deadline(&mut patience, waited_for)?;
                }
                None => return Err(self.ending_error()),
            }
        }
    }

    /// The next available frame; doorbells are consumed.
    pub(crate) fn receive(&mut self) -> Option<(DaemonFrame, Vec<OwnedFd>)> {
        loop {
            match self.receive_any()? {
                Incoming::Frame(frame, descriptors) => return Some((frame, descriptors)),
                Incoming::Doorbell => self.doorbell_seen = true,
                Incoming::Empty => return None,
            }
        }
    }

    /// Whether the doorbell rang since the last call.
    pub(crate) fn take_doorbells(&mut self) -> bool {
        std::mem::take(&mut self.doorbell_seen)
    }

    /// Receives without waiting; `None` once the connection has ended. `Fault` and `Goodbye` end it.
    fn receive_any(&mut self) -> Option<Incoming<DaemonFrame>> {
        if self.ending.is_some() {
            return None;
        }
        let ending = match self.connection.receive() {
            Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => Ending::Final(fault.into()),
            Ok(Incoming::Frame(DaemonFrame::Goodbye, _)) => Ending::Gone("it exited normally"),
            Ok(incoming) => return Some(incoming),
            Err(SocketError::Closed) => Ending::Gone("it closed the connection"),
            // Temporary: it ends when the program closes files, so a restart tries again.
            Err(error @ SocketError::DescriptorsLost) => {
                Ending::Final(Error::Memory(error.to_string()))
            }
            Err(error) => Ending::Final(Error::Protocol(error.to_string())),
        };
        self.ending = Some(ending);
        None
    }

    /// The reason of the connection's end, once it has ended.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The connection's end as an error. Waits up to a second for a private daemon's exit status.
    pub(crate) fn ending_error(&self) -> Error {
        let how = match &self.ending {
            Some(Ending::Final(error)) => return error.clone(),
            Some(Ending::Gone(how)) => *how,
            None => "it closed the connection",
        };
        let how = match &self.supervisor {
            Some(supervisor) if supervisor.process_id().is_some() => {
                supervisor.wait_for_exit_reason()
            }
            _ => how.to_owned(),
        };
        Error::DaemonLost(format!("the daemon is gone: {how}"))
    }

    /// Closes the connection, so that a private daemon at its other end exits.
    pub(crate) fn hang_up(&self) {
        let _ = shutdown(self.connection.as_raw_fd(), Shutdown::Both);
    }

    /// Waits one slice for the socket, then calls the interrupt.
    pub(crate) fn wait_slice(&mut self, events: PollFlags, waited_for: &str) -> Result<(), Error> {
        let connection = PollFd::new(self.connection.as_fd(), events);
        // EINTR ends the slice early: the interrupt is called next.
        if let Some(wake) = &self.wake {
            let mut watched = [connection, PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut watched, PollTimeout::from(SLICE_MS));
            // Resets the eventfd; it is non-blocking.
            let _ = nix::unistd::read(wake, &mut [0; 8]);
        } else {
            let _ = poll(&mut [connection], PollTimeout::from(SLICE_MS));
        }
        self.check_interrupt(waited_for)
    }

    /// Calls the interrupt; true from it ends the wait.
    pub(crate) fn check_interrupt(&mut self, waited_for: &str) -> Result<(), Error> {
        if self.interrupt.as_mut().is_some_and(|interrupt| interrupt()) {
            return Err(Error::Interrupted(waited_for.to_owned()));
        }
        Ok(())
    }

    fn check_deadline(&self, patience: &mut Patience, waited_for: &str) -> Result<(), Error> {
        let waited = patience.look(Instant::now());
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
            // Daemon and connection belong to the parent process: only this copy of the descriptor is closed.
            std::mem::forget(self.supervisor.take());
            return;
        }
        let _ = self.connection.send(&ClientFrame::Goodbye, &[]);
        // Leases may keep the descriptor open; shutdown lets the daemon see the end now.
        let _ = shutdown(self.connection.as_raw_fd(), Shutdown::Both);
    }
}

/// Returns an error for a daemon of another version.
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
    Error::Protocol(format!("the daemon sent `{text}` instead of {expected}"))
}
