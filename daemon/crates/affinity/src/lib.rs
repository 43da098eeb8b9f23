//! CPU time: how much the daemon may use, on which cores, and how the trainer is protected from it.
//!
//! [`core_share`] finds a rank's cores, `threads` sets the class and the cores of work threads, [`CpuIsolation`]
//! compares scheduling groups with the trainer's, [`QuotaWatch`] leaves a shared quota to the trainer,
//! [`StarvationWatch`] detects lowered threads that do not run, [`CpuBudget`] enforces `cpu.limit`. This crate does not
//! depend on samples and batches.

#![forbid(unsafe_code)]

mod budget;
mod cgroups;
mod cores;
mod gpus;
mod isolation;
mod number_list;
mod quota;
mod starvation;
mod threads;

pub use budget::CpuBudget;
pub use cores::{LocalRank, core_share, granted_cpu};
pub use isolation::{CpuIsolation, cores_item, open_own_autogroup, plan_cpu_isolation};
pub use quota::QuotaWatch;
pub use starvation::StarvationWatch;
pub use threads::{PoolOptions, WorkThreads, keep_threads_on, lower, on_cores};
