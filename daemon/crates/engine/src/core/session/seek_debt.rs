//! Counts the rows that a session's seeks have discarded, and decides whether it yields to other sessions.
//!
//! The batch after a seek is always the one needed next, so a client that seeks without end would take all lanes and
//! work threads for rows that are never used. A session that has discarded more than some rings' rows therefore comes
//! after the others, until [`PARTS`] times as many rows were published, by any session. It runs at full speed while no
//! other session has a row to process.

/// Published rows that compensate for one discarded row.
const PARTS: u64 = 40;
/// Rings that may be discarded without consequences: epochs that are left early, states that are loaded.
const FREE_RINGS: u64 = 2;

/// See the module's head.
#[derive(Debug)]
pub(super) struct SeekDebt {
    free: u64,
    /// Maximal debt: a client that stops seeking soon has the same priority as others.
    most: u64,
    rows: u64,
    /// Number of rows published by the daemon when the debt was last reduced.
    published: u64,
}

impl SeekDebt {
    /// For a session whose ring has room for `ring_rows` rows.
    pub(super) fn new(ring_rows: u64) -> Self {
        let free = FREE_RINGS * ring_rows;
        Self { free, most: free + ring_rows, rows: 0, published: 0 }
    }

    /// Adds rows that a seek has discarded.
    pub(super) fn charge(&mut self, rows: u64, published: u64) {
        self.settle(published);
        self.rows = (self.rows + rows).min(self.most);
    }

    /// Reduces the debt by the rows that the daemon has published. True: the session yields.
    pub(super) fn settle(&mut self, published: u64) -> bool {
        let paid = published.saturating_sub(self.published) / PARTS;
        self.rows = self.rows.saturating_sub(paid);
        // The remainder counts next time.
        self.published = if self.rows == 0 { published } else { self.published + paid * PARTS };
        self.rows > self.free
    }
}

#[cfg(test)]
mod tests {
    use crate::core::session::seek_debt::*;

    #[test]
    fn some_seeks_are_free_and_further_ones_are_compensated() {
        let mut debt = SeekDebt::new(100);
        for _ in 0..FREE_RINGS {
            debt.charge(100, 0);
            assert!(!debt.settle(0));
        }
        debt.charge(1, 0);
        assert!(debt.settle(0) && debt.settle(PARTS - 1));
        assert!(!debt.settle(PARTS));
        debt.charge(1_000_000, PARTS);
        assert!(debt.settle(PARTS * 100), "the last ring is not made up for");
        assert!(!debt.settle(PARTS * 101));
    }

    #[test]
    fn flood_of_seeks_discards_a_small_part_of_all_rows() {
        let (mut debt, mut published, mut thrown) = (SeekDebt::new(100), 0, 0);
        for _ in 0..10_000 {
            // It is served first as long as it does not yield.
            if debt.settle(published) {
                published += 10;
            } else {
                thrown += 100;
                debt.charge(100, published);
            }
        }
        assert!(thrown <= published / PARTS + (FREE_RINGS + 2) * 100, "{thrown} of {published}");
    }
}
