//! What is done to one sample on a work thread. One file an operation, one line in the registry.
//!
//! The engine owns the tasks, the rows and one [`WorkerScratch`] a thread; this crate owns what happens between a
//! sample's fetched bytes and its row, and what happens to a complete batch before it is published. It draws no thread,
//! no queue and no clock into it (except `delay`).

#![deny(unsafe_code)]

mod allocator;
mod arguments;
mod array;
mod augment;
pub mod batch;
mod boxes;
mod buffers;
mod call_error;
mod contract;
mod decode;
mod distribution;
mod field;
mod finish;
#[doc(hidden)]
pub mod fuzzing;
mod geometry;
mod image;
mod jpeg;
mod memory_row;
mod needs;
mod operations;
mod output;
mod plan;
mod python;
mod reduction;
mod registry;
mod row;
mod row_tensors;
mod shared_fields;
mod size;
mod sound;
mod task;
#[cfg(test)]
mod test_images;
mod weighted;

pub use allocator::give_back_large_buffers;
pub use call_error::CallError;
pub use jpeg::JpegLearner;
pub use memory_row::MemoryRow;
pub use needs::{KEPT_BYTES, Needs};
pub use plan::{BatchError, CalledRow, Foreground, PythonStart, SamplePlan, SampleReader};
pub use python::FunctionFigures;
pub use registry::{batch_operation_tables, operation_examples, operation_tables};
pub use row::Row;
pub use row_tensors::RowPlace;
pub use task::{SampleTask, WorkerScratch};

pub use forebay_workers::{FunctionTime, RowTime};

// What the tests share with the examples names this crate as those do.
#[cfg(test)]
extern crate self as forebay_pipeline;
#[cfg(test)]
mod tests;
