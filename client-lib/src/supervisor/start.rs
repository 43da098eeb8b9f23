//! Starting a private daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use forebay_protocol::frames::{ClientFrame, PROTOCOL_VERSION};
use forebay_protocol::socket::{Connection, SocketError};

use crate::error::Error;
use crate::program::{PrivateDaemon, own_pidfd};

/// Sends `Hello`, with a pidfd of this process where the kernel gives one.
pub(crate) fn greet(connection: &Connection) -> Result<(), SocketError> {
    let hello = ClientFrame::Hello {
        protocol: PROTOCOL_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let pidfd = own_pidfd();
    let descriptors: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    connection.send(&hello, &descriptors)
}

/// Starts the program at one end of a connection. The first frames are queued before: even if this process dies at any
/// moment, the daemon has a pidfd of it and exits.
pub(crate) fn start(
    program: &Path,
    order: &ClientFrame,
    descriptors: &[OwnedFd],
) -> Result<(Connection, PrivateDaemon), Error> {
    let (own, daemons) = Connection::pair()
        .map_err(|error| Error::Memory(format!("creating a socket pair failed: {error}")))?;
    let failed =
        |error: SocketError| Error::Config(format!("sending the daemon's first frames: {error}"));
    greet(&own).map_err(failed)?;
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    own.send(order, &descriptors).map_err(failed)?;
    let daemon = PrivateDaemon::spawn(program, daemons.into_descriptor())?;
    Ok((own, daemon))
}
