//! CPU time and memory of this process, from the kernel.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU time and memory of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMetrics {
    /// User and system time.
    pub cpu_seconds: f64,
    /// `VmRSS`.
    pub resident_bytes: u64,
    /// `RssShmem`.
    pub shared_bytes: u64,
    /// `VmHWM`.
    pub peak_bytes: u64,
}

impl ProcessMetrics {
    /// This process's metrics; zeros if /proc cannot be read.
    #[must_use]
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field_of = |name| field(&status, name);
        Self {
            cpu_seconds: cpu_time().as_secs_f64(),
            resident_bytes: field_of("VmRSS:"),
            shared_bytes: field_of("RssShmem:"),
            peak_bytes: field_of("VmHWM:"),
        }
    }

    /// The peak resident memory of another process of this user; 0 if it has ended.
    #[must_use]
    pub fn peak_of(pid: u32) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        field(&status, "VmHWM:")
    }
}

/// The value of a line of /proc/PID/status, in bytes.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// User and system time of this process.
#[must_use]
pub fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(Duration::ZERO, Duration::from)
}

/// User and system time of this process's ended children: for a client, its private daemons that have ended.
#[must_use]
pub fn ended_children_cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_or(Duration::ZERO, |usage| {
        let time = usage.user_time() + usage.system_time();
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    })
}
