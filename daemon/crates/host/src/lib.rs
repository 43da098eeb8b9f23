//! What processes of one host share: lock files, and the sockets at which this user's daemons listen.

#![forbid(unsafe_code)]

pub mod lock_file;
pub mod sockets;
