//! Measurement: the clock, the metrics (named as in docs/design/measurements.md), the verdict, the recorder.

#![forbid(unsafe_code)]

mod cache;
mod clock;
mod cpu_isolation;
mod histogram;
mod history;
mod jpeg_index;
mod process;
mod python;
mod queue;
mod rate_history;
pub mod recorder;
mod report;
mod requests;
pub mod sampler;
mod sharing;
mod stage;
mod supply;
pub mod symbols;
mod units;
mod verdict;
mod wait_log;
mod window;

pub use cache::{CacheMetrics, CacheReport};
pub use clock::Clock;
pub use cpu_isolation::IsolationItem;
pub use histogram::{TimeHistogram, percentile_of};
pub use history::{History, Moment};
pub use jpeg_index::JpegIndexReport;
pub use process::{ProcessMetrics, cpu_time, ended_children_cpu_time};
pub use python::{HotSpotReport, PythonReport};
pub use queue::{QueueMetrics, QueueReport, RingMetrics};
pub use rate_history::{
    HistoryReport, RateHistory, RateReport, SessionCounters, StreamCounters, StreamHistory,
};
pub use report::{
    Certainty, CpuBudgetReport, DaemonReport, DatasetReport, OutageReport, ProgressReport,
    QuarantineReport, SessionReport, StageWindow, StallReport, StreamReport, Substitution, Verdict,
    WindowReport,
};
pub use requests::{RequestMetrics, RequestReport, RequestUnderWay};
pub use sharing::{SharingMetrics, SharingReport};
pub use stage::{StageMetrics, StageReport};
pub use supply::{FeederReport, FeedingReport, SupplyReport};
pub use units::format_bytes;
pub use verdict::WAIT_SHARE_THAT_MATTERS;
pub use wait_log::WaitLog;
