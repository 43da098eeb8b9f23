//! The ring between daemon and trainer: clients that come, go, lie and die, and a trainer that takes nothing. Batches that
//! are kept are tested in `exactly_once/states.rs`.

#![forbid(unsafe_code)]

mod clients;
mod fairness;
mod floods;
mod hostile;
mod named;
mod takeover;
