//! Rows over a network: a feeder makes them, a daemon receives them.
//!
//! A row is a function of the stream, its sample and its pass, so any feeder serves any row, and a row that is asked for
//! twice is the same row twice. A feeder owns nothing and knows neither ranks nor positions: the receiving daemon keeps
//! the order, the batches, the substitutes and what was published.

#![forbid(unsafe_code)]

mod buffers;
pub mod client;
mod codec;
pub mod discovery;
mod flatbuffer;
pub mod fuzzing;
mod ipc;
pub mod keys;
mod messages;
pub mod server;
mod sockets;
pub mod spread;
mod ticket;
pub mod tls;
