//! What is measured: times and queues by the names of docs/design.md's section 10, and the sentence that they add up to.

mod histogram;
mod history;
pub(crate) mod http;
mod queue;
mod quiet;
pub(crate) mod recorder;
mod report;
mod ring;
pub(crate) mod sampler;
mod stage;
pub(crate) mod symbols;
mod verdict;
mod wait_log;
mod window;

pub use histogram::{TimeHistogram, percentile_of};
pub(crate) use history::{History, Moment};
pub use queue::{QueueFigures, QueueReport};
pub use quiet::QuietItem;
pub(crate) use report::EngineFigures;
pub use report::{
    CpuBudgetReport, DaemonReport, ProcessFigures, QuarantineReport, SessionReport, StallReport,
    StreamReport, Substitution, cpu_time, ended_children_cpu_time,
};
pub use ring::RingFigures;
pub use stage::{StageFigures, StageReport};
pub use verdict::Verdict;
pub(crate) use wait_log::WaitLog;
