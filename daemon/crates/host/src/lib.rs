//! State that processes of one host share: lock files, the sockets of this user's daemons, and processes that /proc
//! hides.

#![forbid(unsafe_code)]

pub mod hidden;
pub mod lock_file;
pub mod sockets;
