//! The source of a session's rows: its position in an order, or the requests of its client.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use forebay_protocol::ids::Position;

use forebay_order::{Drawn, EpochOrder, PlannedBatch, PlannedRow, Schedule};

/// See the module's head.
#[derive(Debug)]
pub(super) struct OrderCursor {
    schedule: Schedule,
    epoch_order: Rc<EpochOrder>,
    next: Position,
    published_until: Position,
    /// The client's last seek.
    seek_serial: u64,
    /// Of a session whose rows are asked for: the requests that are not open yet. The schedule is not used then.
    requests: Option<VecDeque<Request>>,
}

/// Rows that a client has asked for.
#[derive(Debug)]
struct Request {
    number: u64,
    planned: PlannedBatch,
    rows: Rc<EpochOrder>,
    is_urgent: bool,
}

impl OrderCursor {
    /// At a position normalised by the schedule.
    pub(super) fn new(schedule: Schedule, next: Position, seek_serial: u64) -> Self {
        let epoch_order = Rc::new(schedule.epoch(next.epoch));
        Self { schedule, epoch_order, next, published_until: next, seek_serial, requests: None }
    }

    /// Makes it the queue of a client that asks for rows.
    pub(super) fn on_request(mut self) -> Self {
        self.requests = Some(VecDeque::new());
        self
    }

    /// Whether rows are asked for.
    pub(super) fn is_on_request(&self) -> bool {
        self.requests.is_some()
    }

    /// Number of requests that are not open.
    pub(super) fn waiting_requests(&self) -> usize {
        self.requests.as_ref().map_or(0, VecDeque::len)
    }

    /// Number of rows of requests that are not open.
    pub(super) fn waiting_rows(&self) -> u64 {
        let requests = self.requests.iter().flatten();
        requests.map(|request| u64::from(request.planned.rows.len())).sum()
    }

    /// Removes a request that is not open.
    pub(super) fn withdraw(&mut self, number: u64) {
        if let Some(requests) = &mut self.requests {
            requests.retain(|request| request.number != number);
        }
    }

    /// Queues a request of a few rows; an urgent one before those that are not.
    pub(super) fn ask(&mut self, number: u64, rows: Arc<[Drawn]>, is_urgent: bool) {
        let (Some(requests), Some(first)) = (&mut self.requests, rows.first()) else { return };
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let planned = PlannedBatch::of_request(count, first.pass);
        let place = match is_urgent {
            true => requests.iter().position(|request| !request.is_urgent),
            false => None,
        };
        let rows = Rc::new(EpochOrder::of_rows(rows));
        let request = Request { number, planned, rows, is_urgent };
        requests.insert(place.unwrap_or(requests.len()), request);
    }

    /// Moves to a position normalised by the schedule.
    pub(super) fn seek(&mut self, serial: u64, target: Position, schedule: Schedule) {
        (self.seek_serial, self.next, self.published_until) = (serial, target, target);
        if schedule.pools().is_some() {
            // The order inside a pool depends on the cuts that led to the position.
            self.epoch_order = Rc::new(schedule.epoch(target.epoch));
        }
        self.schedule = schedule;
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

    /// Whether there is nothing to open now.
    pub(super) fn is_finished(&self) -> bool {
        match &self.requests {
            Some(requests) => requests.is_empty(),
            None => self.schedule.finished(self.next),
        }
    }

    /// The next batch to open that has rows for this rank.
    pub(super) fn peek(&mut self) -> Option<PlannedBatch> {
        if let Some(requests) = &self.requests {
            return requests.front().map(|request| request.planned);
        }
        loop {
            let planned = self.schedule.batch_at(self.next)?;
            if !planned.rows.is_empty() {
                return Some(planned);
            }
            self.next = planned.position_after;
        }
    }

    /// Advances past an opened batch; returns the order of its rows, and the request's number if there is one.
    pub(super) fn open(&mut self, planned: &PlannedBatch) -> (Rc<EpochOrder>, Option<u64>) {
        if let Some(request) = self.requests.as_mut().and_then(VecDeque::pop_front) {
            return (request.rows, Some(request.number));
        }
        self.next = planned.position_after;
        if self.epoch_order.epoch() != planned.epoch {
            self.epoch_order = Rc::new(self.schedule.epoch(planned.epoch));
        }
        self.count_ahead(planned.epoch + 1);
        (Rc::clone(&self.epoch_order), None)
    }

    /// A row of a planned batch; not of a request's.
    pub(super) fn row(&self, planned: &PlannedBatch, row: usize) -> Option<PlannedRow> {
        if self.is_on_request() {
            return None;
        }
        let row = u32::try_from(row).ok().filter(|row| *row < planned.rows.len())?;
        if self.epoch_order.epoch() == planned.epoch {
            return Some(planned.rows.row(row, &self.epoch_order));
        }
        Some(planned.rows.row(row, &self.schedule.epoch(planned.epoch)))
    }

    /// Batches left in the epoch after the last published one, and batches of a whole epoch.
    pub(super) fn batches_left(&self) -> (u64, u64) {
        let at = self.published_until;
        (self.schedule.batches_left(at), self.schedule.batches_of(at.epoch))
    }

    /// Batches left in the epoch of a position.
    pub(super) fn batches_after(&self, position: Position) -> u64 {
        if self.is_on_request() { 0 } else { self.schedule.batches_left(position) }
    }

    /// Counts the batches by length of the next epoch on another thread, as this takes long if there are many samples.
    fn count_ahead(&self, epoch: u64) {
        if self.schedule.should_count(epoch) {
            let schedule = self.schedule.clone();
            let count = move || {
                schedule.batches_of(epoch);
            };
            let thread = std::thread::Builder::new().name("forebay-count".to_owned()).spawn(count);
            if let Err(error) = thread {
                // They are counted when they are needed.
                tracing::debug!(%error, "no thread counts the next epoch's batches");
            }
        }
    }
}
