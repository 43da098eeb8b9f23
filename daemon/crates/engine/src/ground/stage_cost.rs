//! The cost of a stage's rows: time on a core and time asleep.

use std::time::Duration;

use forebay_protocol::sync::{AtomicU64, Ordering};

/// The total cost of a stage's rows. Written by the work threads, read by the engine.
#[derive(Debug, Default)]
pub(crate) struct StageCost {
    rows: AtomicU64,
    cpu_ns: AtomicU64,
    asleep_ns: AtomicU64,
}

/// A sum of rows' costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub rows: u64,
    pub cpu: Duration,
    pub asleep: Duration,
}

impl StageCost {
    /// Adds rows with their CPU time and time asleep.
    pub(crate) fn add(&self, rows: u32, cpu: Duration, asleep: Duration) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed, here and below: metrics.
        self.rows.fetch_add(rows.into(), Ordering::Relaxed);
        self.cpu_ns.fetch_add(nanoseconds(cpu), Ordering::Relaxed);
        self.asleep_ns.fetch_add(nanoseconds(asleep), Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> Cost {
        Cost {
            rows: self.rows.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
            asleep: Duration::from_nanos(self.asleep_ns.load(Ordering::Relaxed)),
        }
    }
}

impl Cost {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            rows: self.rows.saturating_sub(earlier.rows),
            cpu: self.cpu.saturating_sub(earlier.cpu),
            asleep: self.asleep.saturating_sub(earlier.asleep),
        }
    }
}
