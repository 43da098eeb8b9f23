//! What `forebay bench` has measured.

use forebay_observe::{StageReport, Verdict, WindowReport};
use serde::{Deserialize, Serialize};

/// What `--json` prints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BenchReport {
    /// The number of samples.
    pub samples: u64,
    /// The number of batches.
    pub batches: u64,
    /// From the first request to the last batch.
    pub seconds: f64,
    /// Samples a second.
    pub samples_per_second: f64,
    /// Daemon and client.
    pub cpu_seconds_per_1000_samples: f64,
    /// The processes with the user's own Python, which the figure before does not hold; none where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_cpu_seconds_per_1000_samples: Option<f64>,
    /// From before the daemon's start.
    pub time_to_first_batch_seconds: f64,
    /// Daemon and client; the ring once.
    pub peak_memory_bytes: u64,
    /// The client's waits for a batch.
    pub wait_seconds: WaitSeconds,
    /// BLAKE3 over all batches, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Every stage, `fetch` first.
    pub stages: Vec<StageReport>,
    /// What limits the run.
    pub verdict: Verdict,
    /// The metrics that the verdict judges: those of the run without its start.
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
