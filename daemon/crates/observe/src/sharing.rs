//! The metrics of rows that several trainers of a stream share.

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use super::units::format_bytes;

// All orderings are relaxed: these are metrics.

/// Updated by the engine thread and by threads that have made a row.
#[derive(Debug, Default)]
pub struct SharingMetrics {
    made: AtomicU64,
    copied: AtomicU64,
    copied_later: AtomicU64,
}

/// The metrics in reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharingReport {
    /// Rows made while the stream had several trainers, substitutes and rows made again included.
    pub num_made: u64,
    /// Rows copied from a row as it was made.
    pub num_copied: u64,
    /// Rows copied from the window.
    pub num_copied_later: u64,
    /// Bytes of rows in the window.
    pub window_in_use_bytes: u64,
    /// `share.window`, configured or chosen.
    pub window_bytes: u64,
}

impl SharingMetrics {
    /// Counts a row that is made.
    pub fn record_made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts copies of a row as it was made.
    pub fn record_copies(&self, count: u64) {
        self.copied.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a copy of a row in the window.
    pub fn record_later_copy(&self) {
        self.copied_later.fetch_add(1, Ordering::Relaxed);
    }

    /// The metrics so far, if any row was shared.
    #[must_use]
    pub fn report(&self, window_in_use_bytes: u64, window_bytes: u64) -> Option<SharingReport> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let num_made = count(&self.made);
        (num_made > 0).then(|| SharingReport {
            num_made,
            num_copied: count(&self.copied),
            num_copied_later: count(&self.copied_later),
            window_in_use_bytes,
            window_bytes,
        })
    }
}

impl SharingReport {
    /// One line for a user.
    #[must_use]
    pub fn line(&self) -> String {
        let hint = match self.num_made > self.num_copied + self.num_copied_later {
            true => {
                "; most were made for one trainer: they are further apart than share.window, share.start_together or \
                 share.pace = \"together\" brings them together"
            }
            false => "",
        };
        format!(
            "while there were several trainers {} rows were made, {} copied at once and {} from the window ({} of {}){hint}",
            self.num_made,
            self.num_copied,
            self.num_copied_later,
            format_bytes(self.window_in_use_bytes),
            format_bytes(self.window_bytes)
        )
    }
}
