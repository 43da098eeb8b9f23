//! A client that sends any frame, and reads the answers as they come.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use forebay_protocol::frames::{ClientFrame, DaemonFrame, Fault, PROTOCOL_VERSION};
use forebay_protocol::socket::{Connection, Incoming, SocketError};

use crate::{DEADLINE, Daemon, wait_until};

/// A connection to a daemon.
#[derive(Debug)]
pub struct Raw(pub Connection);

/// The first frame of a client.
pub fn hello(protocol: u32) -> ClientFrame {
    ClientFrame::Hello { protocol, release: "raw".to_owned() }
}

/// A connection as soon as the daemon takes one: its queue of connections may be full.
pub fn connect(socket: &Path) -> Connection {
    let begin = Instant::now();
    loop {
        match Connection::connect(socket) {
            Ok(connection) => return connection,
            Err(SocketError::Call { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                std::thread::yield_now();
            }
            Err(error) => panic!("the daemon takes no connection: {error}"),
        }
        assert!(begin.elapsed() < DEADLINE, "the daemon took no connection for {DEADLINE:?}");
    }
}

impl Raw {
    /// Connects and sends frames, without waiting for an answer.
    pub fn sending(daemon: &Daemon, frames: &[ClientFrame]) -> Self {
        let raw = Self(connect(&daemon.socket));
        frames.iter().for_each(|frame| raw.send(frame, &[]));
        raw
    }

    /// Connects and is welcome.
    pub fn connect(daemon: &Daemon) -> Self {
        let raw = Self::sending(daemon, &[hello(PROTOCOL_VERSION)]);
        assert!(matches!(raw.answer(), Some((DaemonFrame::Welcome { .. }, _))));
        raw
    }

    /// Sends a frame.
    pub fn send(&self, frame: &ClientFrame, descriptors: &[BorrowedFd<'_>]) {
        self.0.send(frame, descriptors).unwrap();
    }

    /// The next frame; `None`: the daemon closed the connection.
    pub fn answer(&self) -> Option<(DaemonFrame, Vec<OwnedFd>)> {
        let mut found = None;
        wait_until("the daemon answers", || match self.0.receive() {
            Ok(Incoming::Frame(frame, descriptors)) => {
                found = Some((frame, descriptors));
                true
            }
            Ok(_) => false,
            Err(_) => true,
        });
        found
    }

    /// The fault that ends the connection, after any other frames.
    pub fn refused(&self) -> Fault {
        loop {
            match self.answer() {
                Some((DaemonFrame::Fault(fault), _)) => {
                    assert!(self.answer().is_none(), "the connection is over");
                    return fault;
                }
                Some(_) => {}
                None => panic!("the daemon gave no reason"),
            }
        }
    }
}
