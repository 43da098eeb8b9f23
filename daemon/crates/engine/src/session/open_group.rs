//! In an order of blocks: keeps the blocks of a session's current group in memory for the group's rows that are not
//! admitted yet, as long as no row waits for bytes.
//!
//! Admitted rows keep their blocks themselves. So only the blocks of one group are kept here, even while rows of the
//! group before still run.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::units::{Unit, Wanted};

/// See the module's head. `R` is a row that is to be fetched.
#[derive(Debug)]
pub(super) struct OpenGroup<R> {
    /// Epoch and group.
    place: (u64, u64),
    /// By number.
    blocks: BTreeMap<u64, Arc<Unit<R>>>,
}

impl<R> Default for OpenGroup<R> {
    fn default() -> Self {
        Self { place: (0, 0), blocks: BTreeMap::new() }
    }
}

impl<R> OpenGroup<R> {
    /// A row of a group is admitted that wants these units. The group before is left.
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

    /// No row of the group is to come.
    pub(super) fn leave(&mut self) {
        self.blocks.clear();
    }
}
