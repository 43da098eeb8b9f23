//! Opening batches while slots are free, and the rows that they want fetched; giving open ones up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::{Generation, SlotIndex};
use forebay_protocol::sync::Ordering;

use super::{OpenBatch, Session};
use crate::engine::fetch::FetchJob;
use crate::order::{DrawKey, PlannedBatch};

impl Session {
    pub(super) fn open_batches(&mut self) {
        while self.fault.is_none() {
            let Some(planned) = self.schedule.batch_at(self.next) else {
                break;
            };
            if planned.rows.is_empty() {
                self.next = planned.position_after;
                continue;
            }
            let Some((slot, generation)) = self.slots.begin_fill() else {
                if self.open.is_empty() && self.starved_since.is_none() {
                    self.starved_since = Some(Instant::now());
                }
                break;
            };
            let held_up = self.starved_since.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.next = planned.position_after;
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
        if self.epoch_order.epoch() != planned.epoch {
            self.epoch_order = self.schedule.epoch(planned.epoch);
        }
        let order = self.next_order;
        self.next_order += 1;
        let seed = self.stream.config.order.seed;
        let slot_number = usize::from(slot.0);
        let slot_work = &self.work.slots[slot_number];
        for (row, planned_row) in planned.rows.iter(&self.epoch_order).enumerate() {
            let id = planned_row.sample;
            let mut cell = slot_work.cell(row);
            cell.task.reset(id, DrawKey { seed, epoch: planned.epoch, sample: id.0 });
            cell.valid = planned_row.valid;
            cell.failure = None;
            drop(cell);
            let session = Arc::clone(&self.work);
            self.admissions.push_back(FetchJob {
                session,
                slot: slot_number,
                row,
                order,
                id,
                attempts: 0,
            });
        }
        slot_work.open(order, planned.rows.len());
        self.open.push_back(OpenBatch {
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

    /// Gives up every open batch; their slots are free once their running rows have ended.
    pub(super) fn cancel_open(&mut self) {
        for job in self.admissions.drain(..) {
            self.work.slots[job.slot].cancel();
            self.work.slots[job.slot].finish_row(job.row, false);
        }
        for batch in self.open.drain(..) {
            self.work.slots[usize::from(batch.slot.0)].cancel();
            self.cancelled.push(batch);
        }
    }

    /// The next rows to fetch, at most `count`.
    pub(crate) fn take_admissions(&mut self, count: usize) -> Vec<FetchJob> {
        let count = count.min(self.admissions.len());
        self.admissions.drain(..count).collect()
    }

    /// How far the next row to fetch is from being published.
    pub(crate) fn admission_urgency(&self) -> Option<u64> {
        let job = self.admissions.front()?;
        Some(job.order.saturating_sub(self.work.next_to_publish.load(Ordering::Relaxed)))
    }
}
