//! Starting a private daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use forebay_protocol::frames::{ClientFrame, PROTOCOL_VERSION};
use forebay_protocol::socket::{Connection, SocketError};

use crate::error::Error;
use crate::program::{PrivateDaemon, own_pidfd};

/// Sends `Hello`, with a pidfd of this process if the kernel provides one.
pub(crate) fn greet(connection: &Connection) -> Result<(), SocketError> {
    let hello = ClientFrame::Hello {
        protocol: PROTOCOL_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let pidfd = own_pidfd();
    let descriptors: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    connection.send(&hello, &descriptors)
}

/// Starts the program at one end of a connection. `Hello` and `start_frame` are queued before it runs, so that it has a
/// pidfd of this process, and exits with it, whenever this process dies.
pub(crate) fn start(
    program: &Path,
    start_frame: &ClientFrame,
    descriptors: &[OwnedFd],
) -> Result<(Connection, PrivateDaemon), Error> {
    let (own, daemons) = Connection::pair()
        .map_err(|error| Error::Memory(format!("creating a socket pair failed: {error}")))?;
    let failed =
        |error: SocketError| Error::Config(format!("sending the daemon's first frames: {error}"));
    greet(&own).map_err(failed)?;
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    own.send(start_frame, &descriptors).map_err(failed)?;
    let daemon = PrivateDaemon::spawn(program, daemons.into_descriptor())?;
    Ok((own, daemon))
}
