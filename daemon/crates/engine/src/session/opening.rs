//! Opening batches while slots are free, and admitting their rows to be fetched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::ids::{Generation, SlotIndex};

use super::Session;
use super::batches::OpenBatch;
use crate::work::FetchJob;
use forebay_order::{DrawKey, PlannedBatch};

impl Session {
    pub(super) fn open_batches(&mut self) {
        while self.fault.is_none() {
            let Some(planned) = self.order.peek() else { break };
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
        let seed = self.stream.config.order.seed;
        let slot_number = usize::from(slot.0);
        let slot_work = &self.work.slots[slot_number];
        for (row, planned_row) in self.order.open(&planned).enumerate() {
            let id = planned_row.sample;
            let mut cell = slot_work.cell(row);
            cell.task.reset(id, DrawKey { seed, epoch: planned.epoch, sample: id.0 });
            cell.valid = planned_row.valid;
            cell.failure = None;
            drop(cell);
            let session = Arc::clone(&self.work);
            self.batches.admissions.push_back(FetchJob {
                session,
                slot: slot_number,
                row,
                order,
                id,
                retries: None,
            });
        }
        slot_work.open(order, planned.rows.len());
        self.batches.open.push_back(OpenBatch {
            order,
            slot,
            generation,
            planned,
            held_up,
            opened_at: self.opened_at(),
            replaced: BTreeMap::new(),
            substituted: Vec::new(),
            failed: None,
        });
    }
}
