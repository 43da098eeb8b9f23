//! The ring between daemon and trainer: batches that are kept, clients that come, go and die, a trainer that takes
//! nothing; and what the figures say of it all (promise P8).

#![forbid(unsafe_code)]

mod clients;
mod holding;
mod hostile;
mod named;
mod takeover;
