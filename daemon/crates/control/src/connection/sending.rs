//! Sending frames to a client that may not read them.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::watch;
use forebay_protocol::frames::DaemonFrame;
use forebay_protocol::socket::{Connection, SocketError};
use forebay_protocol::wire::MAX_FRAME_BYTES;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cut::Cut;

/// Splits a text into frames at character boundaries.
pub(super) fn in_parts(text: &str) -> Vec<DaemonFrame> {
    const PART_BYTES: usize = MAX_FRAME_BYTES - 64;
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let mut cut = rest.len().min(PART_BYTES);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        let (part, after) = rest.split_at(cut);
        rest = after;
        parts.push(DaemonFrame::StatsPart { last: rest.is_empty(), text: part.to_owned() });
        if rest.is_empty() {
            return parts;
        }
    }
}

/// Sends a frame, waiting for space in the socket up to a deadline.
pub(super) async fn send(
    socket: &AsyncFd<Shared>,
    frame: &DaemonFrame,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<(), Cut> {
    let Shared { connection, patience } = socket.get_ref();
    loop {
        match connection.send(frame, descriptors) {
            Err(SocketError::Call { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                match tokio::time::timeout(*patience, has_space(connection)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(source)) => {
                        return Err(SocketError::Call { call: "epoll", source }.into());
                    }
                    Err(_) => return Err(Cut::ReadsNothing(*patience)),
                }
            }
            other => return Ok(other?),
        }
    }
}

/// Waits until the socket has space. A copy of the descriptor is watched for it: watched all the time, the socket would
/// wake the engine thread whenever the client takes a doorbell out of it.
async fn has_space(connection: &Connection) -> std::io::Result<()> {
    let copy = watch(connection.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
    copy.writable().await.map(drop)
}

/// A connection that is watched by the runtime and rung by the engine.
pub(super) struct Shared {
    pub(super) connection: Rc<Connection>,
    /// How long the client may leave the socket full.
    pub(super) patience: Duration,
}

impl AsFd for Shared {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        (*self.connection).as_fd()
    }
}

impl std::os::fd::AsRawFd for Shared {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&*self.connection)
    }
}
