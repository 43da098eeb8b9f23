//! How many rows a fetch thread reads as one task, and how long rows may wait until there are so many.
//!
//! A task costs some 20 µs: a fetch thread and the engine are woken, and each takes a core from a work thread where there
//! are as many of these as cores. Reads from the page cache take a microsecond or two, so tasks have many rows while
//! reads are fast, and rows wait for each other as long as work threads have enough. Tasks of slow reads have few rows,
//! so that all lanes read.

use std::time::Duration;

/// While reads are slow.
const SLOW_ROWS: usize = 4;
/// Minimum while reads are fast.
const QUICK_ROWS: usize = 16;
const MAX_ROWS: usize = 128;
/// Maximal read time of a task while reads are fast.
const TASK_TIME: Duration = Duration::from_millis(1);
/// Rows that take this long together are one task, even if other lanes get none.
const ALONE_TIME: Duration = Duration::from_micros(250);
/// Maximal mean time of a fast read.
const QUICK: Duration = Duration::from_micros(250);

/// See the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The most rows of a task.
    pub(crate) most: usize,
    /// So many rows are not divided among lanes.
    pub(crate) undivided: usize,
}

impl Default for Chunk {
    /// For reads that may be slow.
    fn default() -> Self {
        Self { most: SLOW_ROWS, undivided: 1 }
    }
}

impl Chunk {
    /// After `count` rows took `took`.
    pub(crate) fn after(took: Duration, count: usize) -> Self {
        let each = took / u32::try_from(count).unwrap_or(u32::MAX).max(1);
        if each >= QUICK {
            return Self::default();
        }
        let within = |time: Duration| {
            let rows = time.as_nanos() / each.as_nanos().max(1);
            usize::try_from(rows).unwrap_or(usize::MAX).clamp(QUICK_ROWS, MAX_ROWS)
        };
        Self { most: within(TASK_TIME), undivided: within(ALONE_TIME) }
    }

    /// The rows of the next task, if `left` rows wait for `lanes` lanes.
    pub(crate) fn rows(self, left: usize, lanes: usize) -> usize {
        self.most.min(left.div_ceil(lanes.max(1)).max(self.undivided))
    }

    /// Whether work threads have enough until the next batch is complete and wakes the engine, if `under_way` rows of a
    /// session were taken and are not finished: those of two batches of `batch_size` rows at least, and two rows for each
    /// of `threads` work threads. Never while reads are slow: rows are then read as early as possible.
    pub(crate) fn is_enough(self, under_way: u64, (batch_size, threads): (u32, u32)) -> bool {
        self.undivided > QUICK_ROWS && under_way >= 2 * u64::from(batch_size.max(threads))
    }

    /// Whether `left` rows of a session wait until there are more, beside rows [under way](Self::is_enough).
    pub(crate) fn waits_for_more(
        self,
        left: usize,
        under_way: u64,
        (batch_size, threads): (u32, u32),
    ) -> bool {
        left < self.undivided && self.is_enough(under_way, (batch_size, threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn tasks_have_more_rows_the_faster_reads_are() {
        let chunk = |each: Duration| {
            let Chunk { most, undivided } = Chunk::after(each * 20, 20);
            (most, undivided)
        };
        let each = [1, 4, 10, 30, 200, 250, 5_000].map(|each| chunk(micros(each)));
        let slow = (SLOW_ROWS, 1);
        let expected = [(128, 128), (128, 62), (100, 25), (33, 16), (16, 16), slow, slow];
        assert_eq!(each, expected);
        assert_eq!(Chunk::after(Duration::ZERO, 0), Chunk::after(Duration::ZERO, 9));
    }

    #[test]
    fn slow_reads_are_spread_over_lanes_and_fast_ones_are_not() {
        assert_eq!(Chunk::default().rows(32, 16), 2);
        assert_eq!(Chunk::default().rows(1_000, 16), SLOW_ROWS);
        assert_eq!(Chunk::after(micros(30), 1).rows(64, 2), 32);
        assert_eq!(Chunk::after(micros(30), 1).rows(64, 16), QUICK_ROWS);
        assert_eq!(Chunk::after(micros(1), 1).rows(64, 16), MAX_ROWS);
    }

    #[test]
    fn few_rows_wait_while_two_batches_are_under_way() {
        let quick = Chunk::after(micros(1), 1);
        assert!(quick.waits_for_more(32, 64, (32, 2)));
        assert!(!quick.waits_for_more(32, 63, (32, 2)), "the work threads may run out of rows");
        assert!(!quick.waits_for_more(32, 127, (8, 64)), "of 64 threads some would have none");
        assert!(quick.waits_for_more(32, 128, (8, 64)));
        assert!(!quick.waits_for_more(128, 64, (32, 2)), "there are enough");
        assert!(
            !Chunk::after(micros(100), 1).waits_for_more(8, 64, (32, 2)),
            "the read takes time"
        );
        assert!(!Chunk::default().waits_for_more(1, 64, (32, 2)));
    }
}
