//! A session's position in its order: the next batch, and the end of what was published.

use std::rc::Rc;

use forebay_protocol::ids::Position;

use forebay_order::{EpochOrder, PlannedBatch, PlannedRow, Schedule};

/// See the module's head.
#[derive(Debug)]
pub(super) struct OrderCursor {
    schedule: Schedule,
    epoch_order: Rc<EpochOrder>,
    next: Position,
    published_until: Position,
    /// The client's last seek.
    seek_serial: u64,
}

impl OrderCursor {
    /// At a position normalised by the schedule.
    pub(super) fn new(schedule: Schedule, next: Position, seek_serial: u64) -> Self {
        let epoch_order = Rc::new(schedule.epoch(next.epoch));
        Self { schedule, epoch_order, next, published_until: next, seek_serial }
    }

    /// Moves to a position normalised by the schedule.
    pub(super) fn seek(&mut self, serial: u64, target: Position) {
        (self.seek_serial, self.next, self.published_until) = (serial, target, target);
    }

    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(super) fn seek_serial(&self) -> u64 {
        self.seek_serial
    }

    /// The position of the next batch to open.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    /// The position after the last published batch.
    pub(super) fn published_until(&self) -> Position {
        self.published_until
    }

    /// Called after a batch was published.
    pub(super) fn published(&mut self, position_after: Position) {
        self.published_until = position_after;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.schedule.finished(self.next)
    }

    /// The next batch to open that has rows for this rank.
    pub(super) fn peek(&mut self) -> Option<PlannedBatch> {
        loop {
            let planned = self.schedule.batch_at(self.next)?;
            if !planned.rows.is_empty() {
                return Some(planned);
            }
            self.next = planned.position_after;
        }
    }

    /// Advances past an opened batch and returns the order of its rows.
    pub(super) fn open(&mut self, planned: &PlannedBatch) -> Rc<EpochOrder> {
        self.next = planned.position_after;
        if self.epoch_order.epoch() != planned.epoch {
            self.epoch_order = Rc::new(self.schedule.epoch(planned.epoch));
        }
        Rc::clone(&self.epoch_order)
    }

    /// A row of a planned batch.
    pub(super) fn row(&self, planned: &PlannedBatch, row: usize) -> Option<PlannedRow> {
        let row = u32::try_from(row).ok().filter(|row| *row < planned.rows.len())?;
        if self.epoch_order.epoch() == planned.epoch {
            return Some(planned.rows.row(row, &self.epoch_order));
        }
        Some(planned.rows.row(row, &self.schedule.epoch(planned.epoch)))
    }

    /// Batches left in the epoch after the last published one, and batches of a whole epoch.
    pub(super) fn batches_left(&self) -> (u64, u64) {
        (self.schedule.batches_left(self.published_until), self.schedule.batches_per_epoch())
    }
}
