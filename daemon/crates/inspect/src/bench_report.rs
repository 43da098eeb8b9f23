//! The results of `forebay bench`.

use forebay_observe::{StageReport, SupplyReport, Verdict, WindowReport};
use serde::{Deserialize, Serialize};

/// The value that `--json` prints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BenchReport {
    /// The number of samples.
    pub samples: u64,
    /// The number of batches.
    pub batches: u64,
    /// The time from the first request to the last batch.
    pub seconds: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// CPU time of the daemon and the client.
    pub cpu_seconds_per_1000_samples: f64,
    /// CPU time of the processes with the user's Python functions, which the previous field excludes; `None` without
    /// such processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_cpu_seconds_per_1000_samples: Option<f64>,
    /// The time from before the daemon's start to the first batch.
    pub time_to_first_batch_seconds: f64,
    /// Peak memory of the daemon and the client, with the ring counted once.
    pub peak_memory_bytes: u64,
    /// The client's waits for a batch.
    pub wait_seconds: WaitSeconds,
    /// BLAKE3 of all batches, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// All stages, `fetch` first.
    pub stages: Vec<StageReport>,
    /// Rows of feeders, if it may have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supply: Option<SupplyReport>,
    /// The limit of the run.
    pub verdict: Verdict,
    /// The metrics that the verdict judges: the run without its start.
    #[serde(default)]
    pub window: Option<WindowReport>,
}

/// The client's wait for a batch.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct WaitSeconds {
    /// The median, in seconds.
    pub p50: f64,
    /// The 99th percentile, in seconds.
    pub p99: f64,
}
