//! The metrics of the cache on disk.

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::units::format_bytes;

// Relaxed, all of them: metrics.

/// Counted by the threads that read.
#[derive(Debug)]
pub struct CacheMetrics {
    limit_bytes: u64,
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    kept: AtomicU64,
    kept_bytes: AtomicU64,
    full: AtomicU64,
    damaged: AtomicU64,
    faults: AtomicU64,
}

/// The metrics in reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// The most that may lie there.
    pub limit_bytes: u64,
    /// Reads that it answered.
    pub num_hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Reads that went on to the storage.
    pub num_misses: u64,
    /// Entries that were written.
    pub num_kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// What was not kept because there was no room.
    pub num_full: u64,
    /// Entries that were damaged, removed and fetched again.
    pub num_damaged: u64,
    /// Calls to the disk that failed.
    pub num_faults: u64,
}

impl CacheMetrics {
    /// Of a cache of at most so many bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            limit_bytes,
            hits: zero(),
            hit_bytes: zero(),
            misses: zero(),
            kept: zero(),
            kept_bytes: zero(),
            full: zero(),
            damaged: zero(),
            faults: zero(),
        }
    }

    /// A read was answered with so many bytes.
    pub fn hit(&self, bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A read went on to the storage.
    pub fn miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// An entry of so many bytes was written.
    pub fn kept(&self, bytes: u64) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// There was no room for an entry.
    pub fn full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// An entry was damaged.
    pub fn damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    /// A call to the disk failed.
    pub fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// The metrics so far.
    #[must_use]
    pub fn report(&self) -> CacheReport {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        CacheReport {
            limit_bytes: self.limit_bytes,
            num_hits: load(&self.hits),
            hit_bytes: load(&self.hit_bytes),
            num_misses: load(&self.misses),
            num_kept: load(&self.kept),
            kept_bytes: load(&self.kept_bytes),
            num_full: load(&self.full),
            num_damaged: load(&self.damaged),
            num_faults: load(&self.faults),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics")]
impl CacheReport {
    /// These metrics minus those of an earlier report of the same cache.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: u64, before: u64| now.saturating_sub(before);
        Self {
            limit_bytes: self.limit_bytes,
            num_hits: minus(self.num_hits, earlier.num_hits),
            hit_bytes: minus(self.hit_bytes, earlier.hit_bytes),
            num_misses: minus(self.num_misses, earlier.num_misses),
            num_kept: minus(self.num_kept, earlier.num_kept),
            kept_bytes: minus(self.kept_bytes, earlier.kept_bytes),
            num_full: minus(self.num_full, earlier.num_full),
            num_damaged: minus(self.num_damaged, earlier.num_damaged),
            num_faults: minus(self.num_faults, earlier.num_faults),
        }
    }

    /// The share of reads that it answered; 0 without reads.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.num_hits as f64 / (self.num_hits + self.num_misses).max(1) as f64
    }

    /// All of it in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!(
            "{:.0} % of the reads answered ({}), {} kept now",
            self.hit_share() * 100.0,
            format_bytes(self.hit_bytes),
            format_bytes(self.kept_bytes),
        );
        for (count, what) in [
            (self.num_full, "not kept for want of room"),
            (self.num_damaged, "damaged and fetched again"),
            (self.num_faults, "failed calls to its disk"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        line
    }
}
