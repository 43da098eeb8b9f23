//! The control connection to a daemon: hand-shake, frames, waiting in slices, and how it ended.
//!
//! Waiting is cut into slices of 50 ms so that an interrupt (a signal handler of the host language) is heard. The first
//! reason for the connection's end is kept; frames that arrived before it are still read, so a fault sent just before
//! the daemon closed is told and not the closing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attached, ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::segment::ForkMark;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

use crate::error::Error;
use crate::program::{PrivateDaemon, own_pidfd};

/// How long one wait lasts before interrupts and deadlines are looked at.
const SLICE_MS: u8 = 50;

/// Asked once a slice while waiting; true ends the wait with [`Error::Interrupted`].
pub(crate) type Interrupt = Box<dyn FnMut() -> bool + Send>;

/// One connection.
pub(crate) struct Link {
    connection: Arc<Connection>,
    private: Option<PrivateDaemon>,
    fork_mark: Arc<ForkMark>,
    interrupt: Option<Interrupt>,
    timeout: Duration,
    ending: Option<Error>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Link")
            .field("connection", &self.connection)
            .field("private", &self.private)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        connection: Connection,
        interrupt: Option<Interrupt>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let fork_mark = ForkMark::new()
            .map_err(|error| Error::Memory(format!("marking this process failed: {error}")))?;
        Ok(Self {
            connection: Arc::new(connection),
            private: None,
            fork_mark: Arc::new(fork_mark),
            interrupt,
            timeout,
            ending: None,
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

    /// The connection's daemon is a child of this process.
    pub(crate) fn set_private(&mut self, daemon: PrivateDaemon) {
        self.private = Some(daemon);
    }

    pub(crate) fn private_process(&self) -> Option<u32> {
        self.private.as_ref().map(PrivateDaemon::process_id)
    }

    pub(crate) fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }

    /// Says hello, with a pidfd of this process where the kernel gives one.
    pub(crate) fn send_hello(&mut self) -> Result<(), Error> {
        let hello = ClientFrame::Hello {
            protocol: PROTOCOL_VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let pidfd = own_pidfd();
        let descriptors: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
        self.send(&hello, &descriptors)
    }

    /// Waits for the daemon's answer to the hello.
    pub(crate) fn expect_welcome(&mut self) -> Result<(), Error> {
        match self.next_frame("the daemon's welcome")? {
            (DaemonFrame::Welcome { protocol, release, .. }, _) => {
                if protocol == PROTOCOL_VERSION {
                    return Ok(());
                }
                Err(Error::Version(format!(
                    "the daemon is release {release} and speaks protocol {protocol}; this client is release {} and \
                     speaks protocol {PROTOCOL_VERSION}; install the same release on both sides",
                    env!("CARGO_PKG_VERSION")
                )))
            }
            (other, _) => Err(unexpected(&other, "Welcome")),
        }
    }

    /// Waits for the daemon's answer to an attach.
    pub(crate) fn expect_attached(&mut self) -> Result<(Box<Attached>, Vec<OwnedFd>), Error> {
        match self.next_frame("the daemon to open the stream")? {
            (DaemonFrame::Attached(terms), descriptors) => Ok((terms, descriptors)),
            (other, _) => Err(unexpected(&other, "Attached")),
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
                Incoming::Doorbell => {}
                Incoming::Empty => return None,
            }
        }
    }

    /// Takes what is there; `None` once the connection has ended. Faults and goodbyes become the ending.
    fn take(&mut self) -> Option<Incoming<DaemonFrame>> {
        if self.ending.is_some() {
            return None;
        }
        let ending = match self.connection.receive() {
            Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => fault.into(),
            Ok(Incoming::Frame(DaemonFrame::Goodbye, _)) => Error::DaemonLost(
                "the daemon ended in good order while this loader was attached".into(),
            ),
            Ok(incoming) => return Some(incoming),
            Err(SocketError::Closed) => {
                let how = self.private.as_mut().map_or_else(
                    || "it closed the connection".to_owned(),
                    PrivateDaemon::exit_words,
                );
                Error::DaemonLost(format!("the daemon is gone: {how}"))
            }
            Err(error) => Error::Protocol(error.to_string()),
        };
        self.ending = Some(ending);
        None
    }

    /// Why the connection ended, if it has.
    pub(crate) fn ending(&self) -> Option<&Error> {
        self.ending.as_ref()
    }

    fn end_words(&self) -> Error {
        self.ending
            .clone()
            .unwrap_or_else(|| Error::DaemonLost("the daemon closed the connection".into()))
    }

    /// Waits one slice for the socket, then asks the interrupt.
    pub(crate) fn wait_slice(&mut self, events: PollFlags, waited_for: &str) -> Result<(), Error> {
        let mut watched = [PollFd::new(self.connection.as_fd(), events)];
        // EINTR is a slice that ended early: the interrupt is asked next.
        let _ = poll(&mut watched, PollTimeout::from(SLICE_MS));
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
            std::mem::forget(self.private.take());
            return;
        }
        let _ = self.connection.send(&ClientFrame::Goodbye, &[]);
        // Leases may keep the connection's descriptor; the daemon shall see the end now.
        let _ = shutdown(self.connection.as_raw_fd(), Shutdown::Both);
        if let Some(daemon) = self.private.take() {
            daemon.reap();
        }
    }
}

pub(crate) fn unexpected(frame: &DaemonFrame, expected: &str) -> Error {
    let mut text = format!("{frame:?}");
    if let Some((end, _)) = text.char_indices().nth(80) {
        text.truncate(end);
    }
    Error::Protocol(format!("the daemon sent `{text}` where {expected} was due"))
}
