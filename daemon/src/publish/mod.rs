//! The daemon's side of the control socket: who may connect, what they may ask, and when a daemon ends.
//!
//! All of it runs on the engine thread. Nothing per batch passes here but doorbells.

mod access;
mod connection;
mod host;
mod keepsake;
mod listen;
mod peer;

pub(crate) use access::AccessRules;
pub(crate) use connection::serve_connection;
pub(crate) use host::{Host, Opened, Opening};
pub(crate) use keepsake::Keepsake;
pub use listen::{ListenError, find_sockets};
pub(crate) use listen::{SocketPlace, accept_clients, listen_for_observers};
pub(crate) use peer::credentials;
