//! Opens batches while slots are free, and admits their rows for fetching.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_protocol::ids::{Generation, SlotIndex};

use crate::core::session::Session;
use crate::core::session::batches::{OpenBatch, Unadmitted};
use forebay_order::PlannedBatch;

impl Session {
    pub(super) fn open_batches(&mut self) {
        while self.fault.is_none() {
            let Some(planned) = self.order.peek() else { break };
            if self.limit.is_some_and(|limit| self.order.next() >= limit) {
                break;
            }
            let nothing_open = self.batches.open.is_empty();
            let Some((slot, generation, held_up)) = self.ring.begin_fill(nothing_open) else {
                break;
            };
            self.open_batch(planned, slot, generation, held_up);
        }
    }

    fn open_batch(
        &mut self,
        planned: PlannedBatch,
        slot: SlotIndex,
        generation: Generation,
        held_up: Duration,
    ) {
        let order = self.batches.next_order;
        self.batches.next_order += 1;
        let slot_number = usize::from(slot.0);
        self.work.slots[slot_number].open(order, planned.rows.len());
        let position = self.order.next();
        let (epoch_order, request) = self.order.open(&planned);
        let rows = Unadmitted {
            order,
            slot: slot_number,
            planned,
            epoch_order,
            seed: self.stream.config.order.seed,
            next_row: 0,
        };
        self.batches.admit_later(rows, &self.work);
        self.batches.open.push_back(OpenBatch {
            order,
            slot,
            generation,
            planned,
            position,
            request,
            held_up,
            opened_at: self.opened_at(),
            replaced: BTreeMap::new(),
            substituted: Vec::new(),
            failed: None,
            feed_failures: BTreeMap::new(),
        });
    }
}
