//! Why the daemon ends a connection.

use std::time::Duration;

use forebay_protocol::frames::Fault;
use forebay_protocol::socket::SocketError;

/// Why a connection ended, unless the client just disconnected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the client sent nothing for {0:?} after connecting")]
    SaysNothing(Duration),
    #[error("the client did not read its socket for {0:?}")]
    ReadsNothing(Duration),
    /// The fault is sent to the client.
    #[error("{}", .0.message)]
    Refused(Fault),
}

impl From<Fault> for Cut {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}
