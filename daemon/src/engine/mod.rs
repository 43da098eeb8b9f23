//! Fetches and works the samples of every session's open batches and publishes them in order.
//!
//! Who runs where:
//! ```text
//!   engine thread    normal class; owns every session, slot table and ring; never touches a pixel    session, core
//!   fetch threads    normal class; block in storage, take bytes from the gate                         fetch, gate
//!   work threads     lowered class; run a stage on one row at a time                                  pool, work
//! ```
//! Work threads share no blocking lock with the others. They take rows from bitmaps ([`work`], [`hand_over`]), give bytes
//! back to an atomic count ([`gate`]) and tell the engine through an eventfd ([`bell`]) that a batch is complete, a row failed or a
//! waiter for bytes can go on.
//!
//! A row's states, and who moves it (the row's cell changes hands with the state, so its mutex is never contended):
//! ```text
//!   Closed ─engine: open_batch─► Admitted ─fetch thread─► Ready(0) ─work thread─► Running(0) ─► Ready(1) … ─► Done
//!                                   ▲  └────────── storage failed ──────────┐          └─ defect ─┐
//!                                   └───── engine: substitute, front of the queue ◄── Failed ◄────┘
//! ```
//! A batch is complete when its count of unfinished rows is zero; a failed row counts as finished until the engine
//! admits a substitute for it.

mod alone;
mod bell;
mod cgroups;
mod core;
mod cores;
mod cpu_budget;
mod digest;
mod fetch;
mod gate;
mod hand_over;
mod memory;
mod meter;
mod pool;
mod quarantine;
mod quiet;
mod quota;
mod reading;
mod recording;
mod session;
mod spare_buffers;
mod stall;
mod starvation;
mod stream;
#[cfg(test)]
mod tests;
mod tuning;
mod upkeep;
mod watch;
mod work;
mod worker;

pub(crate) use self::core::{Brought, Engine, SharedEngine, run_bell};
pub(crate) use alone::{Alone, AloneRun};
pub(crate) use cores::{LocalRank, core_share, granted_cpu};
pub(crate) use memory::in_words;
pub use memory::{MemoryError, MemoryPlan};
pub(crate) use pool::PoolOptions;
pub(crate) use quiet::plan_quiet;
pub(crate) use recording::{MOST_HERTZ, MOST_SECONDS, Recorded, begin_recording};
pub(crate) use session::SessionEnd;
pub use stream::{Stream, StreamError};
pub(crate) use watch::watch;
