//! Fetches and works the samples of every session's open batches and publishes them in order.
//!
//! Who runs where:
//! ```text
//!   engine thread    normal class; owns every session, slot table and ring; never touches a pixel    session, core
//!   fetch threads    normal class; block in storage, take bytes of the two budgets                    fetch, budgets, gate
//!   work threads     lowered class; run a stage on one row at a time                                  pool, work
//! ```
//! Work threads share no blocking lock with the others. They take rows from bitmaps ([`work`], [`work_parking`]), give bytes
//! back to an atomic count ([`gate`]) and tell the engine through an eventfd ([`waker`]) that a batch is complete, a row failed or a
//! waiter for bytes can go on.
//!
//! A row's states, and who moves it (the row's cell changes hands with the state, so its mutex is never contended):
//! ```text
//!   Closed ─engine: open_batch─► Admitted ─fetch thread─► Ready(0) ─work thread─► Running(0) ─► Ready(1) … ─► Done
//!                                   ▲  └─── storage failed (retry_queue) ───┐          └─ defect ─┐
//!                                   └───── engine: substitute, front of the queue ◄── Failed ◄────┘
//! ```
//! Rows whose samples share blocks wait for them in [`units`], between `Admitted` and `Ready(0)`.
//!
//! A batch is complete when its count of unfinished rows is zero; a failed row counts as finished until the engine
//! admits a substitute for it.

#![forbid(unsafe_code)]

mod batch_run;
mod budgets;
mod core;
mod cpu;
mod datasets;
mod fetch;
mod fetch_threads;
mod fetch_tuning;
mod function_times;
mod gate;
mod identity;
mod jpeg_index;
mod jpeg_learning;
mod memory;
mod meter;
mod pool;
mod quarantine;
mod reading;
mod recording;
mod retry_queue;
mod row_cells;
mod sample_run;
mod session;
mod slot_row;
mod spare_buffers;
mod stage_benchmark;
mod stage_cost;
mod stall;
mod stream;
mod stream_error;
#[cfg(test)]
mod tests;
mod tick;
mod tuning;
mod units;
mod waker;
mod watch;
mod work;
mod work_page;
mod work_parking;
mod worker;
mod worker_place;

pub use self::core::{Engine, ReattachState, SessionMemory, SharedEngine, run_on_wake};
pub use budgets::ByteBudgets;
pub use cpu::cores::{LocalRank, core_share, granted_cpu};
pub use cpu::isolation::{open_own_autogroup, plan_cpu_isolation};
pub use datasets::DatasetShare;
pub use function_times::{FunctionTimes, time_functions};
pub use jpeg_index::StreamIndex;
pub use jpeg_learning::Learning;
pub use memory::{MemoryError, MemoryPlan};
pub use pool::PoolOptions;
pub use recording::{Recorded, begin_recording};
pub use sample_run::{SampleRow, SampleRun};
pub use session::{SENT_TO_CLIENT, Seek, SessionEnd, SessionTerms};
pub use stage_benchmark::{StageBenchmark, StageRun};
pub use stream::Stream;
pub use stream_error::StreamError;
pub use watch::watch;
pub use work_page::{LastEnd, WorkPage};
