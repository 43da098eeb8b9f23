//! Operations on samples and batches, run by work threads. One file per operation, one line in the registry.
//!
//! The engine owns the tasks, the rows and one [`WorkerScratch`] per thread; this crate owns the work between a
//! sample's fetched bytes and its row, and the work on a complete batch before it is published. It uses no threads,
//! queues or clocks (except `delay`).

#![deny(unsafe_code)]

mod allocator;
mod arguments;
mod augment;
pub mod batch;
mod boxes;
mod bucket;
mod call_error;
mod contract;
mod distribution;
mod field;
mod finish;
mod geometry;
mod image;
mod keypoints;
mod memory_row;
mod needs;
mod operations;
mod output;
mod padding;
mod plan;
mod python;
mod registry;
mod row;
mod row_tensors;
mod shared_fields;
mod sounds;
mod task;
#[cfg(feature = "text")]
mod texts;
mod video;
mod weighted;

pub use allocator::give_back_large_buffers;
pub use bucket::{Bucket, Buckets, bucket_sizes, nearest_bucket};
pub use call_error::CallError;
pub use forebay_workers::WorkerStart;
pub use memory_row::MemoryRow;
pub use needs::{KEPT_BYTES, Needs};
pub use plan::{BatchError, CalledRow, Foreground, PythonStart, SamplePlan, SampleReader};
pub use python::FunctionFigures;
pub use registry::{batch_operation_tables, operation_examples, operation_tables};
pub use row::Row;
pub use row_tensors::RowPlace;
pub use task::{SampleTask, WorkerScratch};
pub use video::{HelperPlan, host_decoders, serve_decoders};

pub use forebay_workers::{BundleSize, FunctionTime, RowTime};

// The tests' and examples' shared code refers to this crate by its name.
#[cfg(test)]
extern crate self as forebay_transform;
#[cfg(test)]
mod tests;
