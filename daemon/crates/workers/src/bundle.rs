//! How many rows of a batch one call has.

use std::time::Duration;

/// A smaller bundle is not divided among workers.
const MIN_ROWS: usize = 4;
/// Maximal number of rows in a bundle, which are repeated after the loss of a worker.
const MAX_ROWS: usize = 8;
/// The same if they take less than `QUICK_BUNDLE` together and have less than `SHORT_BUNDLE_BYTES`.
const MAX_QUICK_ROWS: usize = 64;
const QUICK_BUNDLE: Duration = Duration::from_millis(4);
/// About the size of a core's caches.
const SHORT_BUNDLE_BYTES: usize = 256 << 10;

/// The size of a bundle: at most one worker's share of the batch's unfinished rows, so that all workers of the stage are
/// busy except at a batch's last rows. If rows are small and the function is fast, a bundle has more rows.
#[derive(Debug, Clone, Copy)]
pub struct BundleSize {
    max_rows: usize,
}

impl BundleSize {
    /// From a worker's share of the rows, and from the number and time of the rows processed so far.
    #[must_use]
    pub fn new(share: usize, done: (u64, Duration)) -> Self {
        Self { max_rows: share.max(MIN_ROWS).min(max_rows(done)) }
    }

    /// Whether a bundle of this many rows gets another one. `bytes` are those of its rows in the call.
    pub fn takes_more(self, rows: usize, bytes: impl FnOnce() -> usize) -> bool {
        rows < self.max_rows && (rows < MAX_ROWS || bytes() < SHORT_BUNDLE_BYTES)
    }
}

fn max_rows((rows, time): (u64, Duration)) -> usize {
    let Ok(rows @ 1..) = u32::try_from(rows) else { return MAX_ROWS };
    let row_ns = (time / rows).as_nanos().max(1);
    let quick_rows = usize::try_from(QUICK_BUNDLE.as_nanos() / row_ns).unwrap_or(usize::MAX);
    quick_rows.clamp(MAX_ROWS, MAX_QUICK_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_rows_of_quick_functions_come_in_large_bundles() {
        let rows = |share, row_us, bytes_of_row: usize| {
            let size = BundleSize::new(share, (10, 10 * Duration::from_micros(row_us)));
            (1..).find(|rows| !size.takes_more(*rows, || rows * bytes_of_row)).unwrap()
        };
        assert_eq!(rows(200, 10_000, 10), 8);
        assert_eq!(rows(200, 10, 10), 64);
        assert_eq!(rows(200, 200, 10), 20, "4 ms together");
        assert_eq!(rows(200, 10, 16 << 10), 16, "256 KiB together");
        assert_eq!(rows(200, 10, 1 << 20), 8);
        assert_eq!(rows(6, 10, 10), 6);
        assert_eq!(rows(1, 10, 10), 4);
        let unknown = BundleSize::new(200, (0, Duration::ZERO));
        assert!(unknown.takes_more(7, || 0) && !unknown.takes_more(8, || 0));
    }
}
