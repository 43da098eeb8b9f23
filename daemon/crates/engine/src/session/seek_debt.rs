//! The rows that a session's seeks have thrown away, and whether it yields to other sessions for them.
//!
//! The batch after a seek is always the one that is needed next, so that a client which seeks without end would take all
//! lanes and work threads for rows that nobody sees. A session that has thrown away more than some rings' rows therefore
//! comes after the others, until rows were published ([`PARTS`] times as many, of any session) to make up for it. It goes on
//! at full speed where no other session has a row to work on.

/// A row thrown away is made up for by so many that are published.
const PARTS: u64 = 40;
/// Rings that may be thrown away beforehand: epochs that are left early, states that are loaded.
const FREE_RINGS: u64 = 2;

/// See the module's head.
#[derive(Debug)]
pub(super) struct SeekDebt {
    free: u64,
    /// The most that is remembered: a client that seeks no more is soon like others.
    most: u64,
    rows: u64,
    /// All rows that the daemon has published, when the debt was last made less.
    published: u64,
}

impl SeekDebt {
    /// Of a session whose ring has room for so many rows.
    pub(super) fn new(ring_rows: u64) -> Self {
        let free = FREE_RINGS * ring_rows;
        Self { free, most: free + ring_rows, rows: 0, published: 0 }
    }

    /// A seek has thrown rows away.
    pub(super) fn charge(&mut self, rows: u64, published: u64) {
        self.settle(published);
        self.rows = (self.rows + rows).min(self.most);
    }

    /// Takes the rows into account that the daemon has published. True: the session yields.
    pub(super) fn settle(&mut self, published: u64) -> bool {
        let paid = published.saturating_sub(self.published) / PARTS;
        self.rows = self.rows.saturating_sub(paid);
        // What is left of a part counts next time.
        self.published = if self.rows == 0 { published } else { self.published + paid * PARTS };
        self.rows > self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeks_are_free_and_further_ones_are_made_up_for() {
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
    fn of_all_rows_a_flood_of_seeks_throws_a_small_part_away() {
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
