//! The metrics of the cache on disk.

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::units::format_bytes;

// All orderings are relaxed: these are metrics.

/// Updated by the threads that read.
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
    /// The maximum size of the cache.
    pub limit_bytes: u64,
    /// Reads answered from the cache.
    pub num_hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Reads passed on to the storage.
    pub num_misses: u64,
    /// Entries written.
    pub num_kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Entries not written because the cache was full.
    pub num_full: u64,
    /// Damaged entries, which are removed and fetched again.
    pub num_damaged: u64,
    /// Failed calls to the disk.
    pub num_faults: u64,
}

impl CacheMetrics {
    /// Metrics of a cache of at most `limit_bytes`.
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

    /// Counts a read of `bytes` that the cache answered.
    pub fn hit(&self, bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a read that is passed on to the storage.
    pub fn miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a written entry of `bytes`.
    pub fn kept(&self, bytes: u64) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an entry that does not fit.
    pub fn full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a damaged entry.
    pub fn damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed call to the disk.
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
    /// The difference of this report and an earlier one of the same cache.
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

    /// The share of reads answered from the cache; 0 without reads.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.num_hits as f64 / (self.num_hits + self.num_misses).max(1) as f64
    }

    /// All metrics as one line.
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
