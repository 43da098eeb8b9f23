//! The source of a session's rows: its position in an order, or the requests of its client.
//!
//! Batches by length need plans of pools and counts of epochs. Threads make them before they are needed, so that the
//! engine thread does not pause (the states are those of `PoolToPlan`); until then no batch is due, and the
//! thread wakes the engine.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use forebay_protocol::ids::Position;

use crate::ground::waker::Waker;
use forebay_order::{Drawn, EpochOrder, PlannedBatch, PlannedRow, Schedule};

/// So many samples are planned or counted within about a millisecond, which is no reason for a thread.
const QUICKLY_PLANNED: u64 = 4096;

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
    waker: Arc<Waker>,
}

/// Rows that a client has asked for.
#[derive(Debug)]
struct Request {
    number: u64,
    planned: PlannedBatch,
    rows: Rc<EpochOrder>,
}

impl OrderCursor {
    /// At a position normalised by the schedule. `waker`: the engine's.
    pub(super) fn new(
        schedule: Schedule,
        next: Position,
        seek_serial: u64,
        waker: Arc<Waker>,
    ) -> Self {
        let epoch_order = Rc::new(schedule.epoch(next.epoch));
        let (published_until, requests) = (next, None);
        Self { schedule, epoch_order, next, published_until, seek_serial, requests, waker }
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

    /// Queues a request of a few rows.
    pub(super) fn ask(&mut self, number: u64, rows: Arc<[Drawn]>) {
        let (Some(requests), Some(first)) = (&mut self.requests, rows.first()) else { return };
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let planned = PlannedBatch::of_request(count, first.pass);
        let rows = Rc::new(EpochOrder::of_rows(rows));
        requests.push_back(Request { number, planned, rows });
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

    /// Whether there is nothing to open now. False while what is next is being planned.
    pub(super) fn is_finished(&self) -> bool {
        match &self.requests {
            Some(requests) => requests.is_empty(),
            None => self.schedule.is_planned(self.next) && self.schedule.finished(self.next),
        }
    }

    /// The next batch to open that has rows for this rank; `None` while it is being planned, too.
    pub(super) fn peek(&mut self) -> Option<PlannedBatch> {
        if let Some(requests) = &self.requests {
            return requests.front().map(|request| request.planned);
        }
        loop {
            self.plan_ahead();
            if !self.schedule.is_planned(self.next) {
                return None;
            }
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

    /// Has the pool of the next batch and the one after it planned on other threads, and the batches of this epoch and the
    /// next one counted, as both take long if there are many samples.
    fn plan_ahead(&self) {
        while let Some(pool) = self.schedule.pool_to_plan(self.next) {
            if pool.samples() <= QUICKLY_PLANNED {
                pool.plan();
            } else if !self.on_a_thread("forebay-plan", move || pool.plan()) {
                // The next pool is planned when it is due.
                self.plan_here();
                break;
            }
        }
        for epoch in [self.next.epoch, self.next.epoch + 1] {
            if self.schedule.should_count(epoch) {
                let schedule = self.schedule.clone();
                let count = move || {
                    schedule.batches_of(epoch);
                };
                let is_counted = self.schedule.samples() > QUICKLY_PLANNED
                    && self.on_a_thread("forebay-count", count);
                if !is_counted {
                    self.schedule.batches_of(epoch);
                }
            }
        }
    }

    /// Does something on another thread, which then wakes the engine. False: there is no thread for it.
    fn on_a_thread(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        let wakes = WakesAtEnd(Arc::clone(&self.waker));
        let run = move || {
            let _wakes = wakes;
            work();
        };
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        if let Err(error) = &started {
            tracing::debug!(%error, "no thread plans batches ahead");
        }
        started.is_ok()
    }

    /// Plans and counts what the next batch needs on this thread.
    fn plan_here(&self) {
        self.schedule.batches_left(self.next);
        if let Some(planned) = self.schedule.batch_at(self.next) {
            self.schedule.batches_left(planned.position_after);
        }
    }
}

/// Wakes the engine when it is dropped, after a panic too.
pub(super) struct WakesAtEnd(pub(super) Arc<Waker>);

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}
