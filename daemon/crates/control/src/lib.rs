//! The daemon's side of the control socket: access, requests, and the end of a daemon.
//!
//! All of it runs on the engine thread. Only doorbells are sent per batch.

#![forbid(unsafe_code)]

mod access;
mod connection;
mod fair_share;
mod host;
mod listen;
mod namespaces;
mod peer;
mod restart_state;

pub use access::AccessRules;
pub use connection::serve_connection;
pub use host::{Host, Opened, Opening};
pub use listen::ListenError;
pub use listen::{SocketPlace, accept_clients, listen_for_observers};
pub use restart_state::{RestartState, Resumed};
