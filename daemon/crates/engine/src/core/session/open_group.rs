//! For an order in blocks: keeps the blocks of a session's current group in memory for rows of the group that are not
//! admitted yet, as long as no row waits for bytes.
//!
//! Admitted rows keep their blocks themselves, so only the blocks of one group are kept here, even while rows of the
//! previous group still run.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ground::units::{Unit, Wanted};

/// See the module's head. `R` is a row to fetch.
#[derive(Debug)]
pub(super) struct OpenGroup<R> {
    /// Epoch and group.
    place: (u64, u64),
    /// By block number.
    blocks: BTreeMap<u64, Arc<Unit<R>>>,
}

impl<R> Default for OpenGroup<R> {
    fn default() -> Self {
        Self { place: (0, 0), blocks: BTreeMap::new() }
    }
}

impl<R> OpenGroup<R> {
    /// Keeps the units of an admitted row of a group; leaves the previous group.
    pub(super) fn enter(&mut self, place: (u64, u64), wanted: &[Wanted<R>]) {
        if self.place != place {
            self.leave();
            self.place = place;
        }
        for unit in wanted.iter().map(Wanted::unit) {
            if let Some(number) = unit.number_of_block() {
                self.blocks.entry(number).or_insert_with(|| Arc::clone(unit));
            }
        }
    }

    /// Called when no further row of the group will be admitted.
    pub(super) fn leave(&mut self) {
        self.blocks.clear();
    }
}
