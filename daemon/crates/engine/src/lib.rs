//! Fetches and processes the samples of every session's open batches and publishes them in order.
//!
//! Who runs where:
//! ```text
//!   engine thread   normal class; owns all sessions, slot tables and rings; processes no pixels   session, core
//!   fetch threads   normal class; block in storage, take bytes of the two budgets                 fetch, budgets, gate
//!   work threads    lowered class; run a stage on one row at a time                               pool, work
//! ```
//! Work threads share no blocking lock with the other threads. They take rows from bitmaps ([`ground::work`],
//! [`ground::work_parking`]), return bytes to an atomic count ([`ground::gate`]) and notify the engine through an
//! eventfd ([`ground::waker`]) when a batch is complete, a row has failed or a waiter for bytes can continue.
//!
//! States of a row, and the thread that changes them. The row's cell is passed on with the state, so its mutex is never
//! contended:
//! ```text
//!   Closed ─engine: open_batch─► Admitted ─fetch thread─► Ready(0) ─work thread─► Running(0) ─► Ready(1) … ─► Done
//!                                   ▲  └─── storage failed (retry_queue) ───┐          └─ defect ─┐
//!                                   └───── engine: substitute, front of the queue ◄── Failed ◄────┘
//! ```
//! Rows whose samples share blocks wait for them in [`ground::units`], between `Admitted` and `Ready(0)`.
//!
//! A batch is complete when its count of unfinished rows is zero; a failed row counts as finished until the engine
//! admits a substitute for it.

#![forbid(unsafe_code)]

mod actors;
mod core;
mod ground;
#[cfg(test)]
mod tests;

pub use self::actors::function_times::{FunctionTimes, time_functions};
pub use self::actors::jpeg_learning::Learning;
pub use self::actors::sample_run::{SampleRow, SampleRun};
pub use self::actors::stage_benchmark::{StageBenchmark, StageRun};
pub use self::actors::supply::{
    EngineWaker, RowAsked, RowTaker, SuppliedRow, Supplier, SupplyFailure,
};
pub use self::core::capture::{Recorded, begin_recording};
pub use self::core::feeding::{FedRow, FedRows, FeedRequest, FeedSession};
pub use self::core::memory::{
    FEEDER_BUFFER_BYTES, MemoryError, MemoryPlan, feeder_window, machine_memory_left, most_feeders,
};
pub use self::core::session::{Preparation, SENT_TO_CLIENT, Seek, SessionEnd, SessionTerms};
pub use self::core::{
    Engine, ReattachState, SessionKind, SessionMemory, SharedEngine, run_on_wake,
};
pub use self::ground::budgets::ByteBudgets;
pub use self::ground::classes::DrawnClasses;
pub use self::ground::datasets::{DatasetShare, OpenDataset};
pub use self::ground::jpeg_index::StreamIndex;
pub use self::ground::row_columns::RowColumn;
pub use self::ground::stream::Stream;
pub use self::ground::stream_error::StreamError;
pub use self::ground::watch::watch;
pub use self::ground::work_page::{LastEnd, WorkPage};
