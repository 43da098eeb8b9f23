//! The metrics of one stage: the times of its tasks.

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::histogram::{TimeHistogram, percentile_of};
use super::python::PythonReport;

/// Updated by the threads that run the stage.
#[derive(Debug, Default)]
pub struct StageMetrics {
    times: TimeHistogram,
    failures: AtomicU64,
}

/// A stage's metrics in reports; times in seconds, for successful tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// The stage's name.
    pub name: String,
    /// The maximum number of concurrent tasks.
    pub concurrency: u32,
    /// The reason for the value of `concurrency`, as a sentence; empty for `fetch` if it is configured.
    #[serde(default)]
    pub concurrency_reason: String,
    /// Completed tasks, including failed ones.
    pub num_tasks: u64,
    /// Failed tasks.
    pub num_failures: u64,
    /// The mean.
    pub ave_time: f64,
    /// The 90th percentile.
    pub p90_time: f64,
    /// The 99th percentile.
    pub p99_time: f64,
    /// The sum over all tasks.
    pub busy_seconds: f64,
    /// The histogram: the upper bound of each bucket in seconds, and the number of tasks in it.
    #[serde(default)]
    pub times: Vec<(f64, u64)>,
    /// Tasks with measured CPU time and sleep; 0 for `fetch`.
    #[serde(default)]
    pub measured_tasks: u64,
    /// The CPU time of the measured tasks.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// The time for which these tasks slept, in a `delay` or on a disk. In the rest of their time they were ready
    /// without a core.
    #[serde(default)]
    pub asleep_seconds: f64,
    /// The queue after the stage.
    pub queue: Option<super::QueueReport>,
    /// Whether a task is a complete batch rather than a sample.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_batches: bool,
    /// The cost of a Python stage. For such a stage, the times above are the function's, and the concurrency is the
    /// number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonReport>,
}

impl StageReport {
    /// The name of a task's unit.
    #[must_use]
    pub fn task(&self) -> &'static str {
        if self.is_of_batches { "batch" } else { "sample" }
    }

    /// The working time of its threads; for a Python stage, of its workers, with calls that exceeded the timeout.
    #[must_use]
    pub fn worked_seconds(&self) -> f64 {
        self.python
            .as_ref()
            .map_or(self.busy_seconds, |python| python.worker_seconds() + python.timeout_seconds)
    }
}

impl StageMetrics {
    /// Counts a successful task.
    pub fn record(&self, time: Duration) {
        self.times.record(time);
    }

    /// Counts a failed task.
    pub fn record_failure(&self) {
        // Relaxed: a metric.
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of successful tasks.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.times.count()
    }

    /// The number of successful tasks, and their total time.
    #[must_use]
    pub fn done(&self) -> (u64, std::time::Duration) {
        (self.times.count(), self.times.total())
    }

    /// The metrics so far.
    #[must_use]
    pub fn report(&self, name: &str, concurrency: u32) -> StageReport {
        let failures = self.failures.load(Ordering::Relaxed);
        let times = self.times.counts();
        StageReport {
            name: name.to_owned(),
            concurrency,
            num_tasks: self.times.count() + failures,
            num_failures: failures,
            ave_time: self.times.mean_seconds(),
            p90_time: percentile_of(&times, 0.9),
            p99_time: percentile_of(&times, 0.99),
            busy_seconds: self.times.total().as_secs_f64(),
            times,
            ..StageReport::default()
        }
    }
}
