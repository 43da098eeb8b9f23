//! The threads' work: fetching, running stages, tuning; and runs of one stage or one sample without a session.

pub(crate) mod fetch;
pub(crate) mod fetch_chunk;
pub(crate) mod fetch_threads;
pub(crate) mod fetch_tuning;
pub(crate) mod followers;
pub(crate) mod function_times;
pub(crate) mod jpeg_learning;
pub(crate) mod pool;
pub(crate) mod reading;
pub(crate) mod retry_queue;
pub(crate) mod sample_run;
pub(crate) mod stage_benchmark;
pub(crate) mod supply;
pub(crate) mod tuning;
pub(crate) mod worker;
