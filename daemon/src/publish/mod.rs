//! The daemon's side of the control socket: who may connect, what they may ask, and when a daemon ends.
//!
//! All of it runs on the engine thread. Nothing per batch passes here but doorbells.

mod access;
mod connection;
mod listen;
mod peer;

pub(crate) use access::AccessRules;
pub(crate) use connection::{Host, serve_connection};
pub use listen::{ListenError, find_sockets};
pub(crate) use listen::{SocketPlace, accept_clients};
