//! The figures of one stage: what its tasks took.

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::histogram::{TimeHistogram, percentile_of};

/// Counted by the threads that run the stage.
#[derive(Debug, Default)]
pub struct StageFigures {
    times: TimeHistogram,
    failures: AtomicU64,
}

/// A stage's figures as reports carry them; times in seconds, of tasks that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// The stage's name.
    pub name: String,
    /// The most tasks that may run at once.
    pub concurrency: u32,
    /// Why it is so many, as a sentence; empty for `fetch`.
    #[serde(default)]
    pub concurrency_reason: String,
    /// Tasks that ended, failed ones included.
    pub num_tasks: u64,
    /// Tasks that failed.
    pub num_failures: u64,
    /// The mean.
    pub ave_time: f64,
    /// Nine in ten took at most this.
    pub p90_time: f64,
    /// 99 in a hundred took at most this.
    pub p99_time: f64,
    /// The time of all tasks together.
    pub busy_seconds: f64,
    /// How many tasks took how long: the longest time of each bucket in seconds, and the tasks in it.
    #[serde(default)]
    pub times: Vec<(f64, u64)>,
    /// Of how many tasks is known what their time went into; 0 for `fetch`.
    #[serde(default)]
    pub measured_tasks: u64,
    /// Their time on a core.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// Their time asleep, in a `delay` or on a disk. What is left of a task's time it was ready and had no core.
    #[serde(default)]
    pub asleep_seconds: f64,
    /// The queue that the stage's results go to.
    pub queue: Option<super::QueueReport>,
}

impl StageFigures {
    /// A task succeeded.
    pub fn record(&self, time: Duration) {
        self.times.record(time);
    }

    /// A task failed.
    pub fn record_failure(&self) {
        // Relaxed: a figure.
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The figures so far.
    #[must_use]
    pub fn report(&self, name: &str, concurrency: u32) -> StageReport {
        let failures = self.failures.load(Ordering::Relaxed);
        let times = self.times.counts();
        StageReport {
            name: name.to_owned(),
            concurrency,
            concurrency_reason: String::new(),
            num_tasks: self.times.count() + failures,
            num_failures: failures,
            ave_time: self.times.mean_seconds(),
            p90_time: percentile_of(&times, 0.9),
            p99_time: percentile_of(&times, 0.99),
            busy_seconds: self.times.total().as_secs_f64(),
            times,
            measured_tasks: 0,
            cpu_seconds: 0.0,
            asleep_seconds: 0.0,
            queue: None,
        }
    }
}
