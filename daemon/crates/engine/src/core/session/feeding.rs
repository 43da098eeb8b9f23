//! A feeder's session: hands out the rows of complete requests, in the order in which they are complete.

use std::sync::Arc;

use forebay_protocol::sync::Ordering;
use tokio::sync::oneshot;

use crate::core::feeding::FedRows;
use crate::core::session::Session;
use crate::ground::row_cells::RowFailure;
use forebay_order::Drawn;

impl Session {
    /// Whether it makes rows for other daemons.
    pub(crate) fn is_feeding(&self) -> bool {
        self.feed.is_some()
    }

    /// Requests that may wait now.
    pub(crate) fn feed_room(&self) -> usize {
        usize::from(self.ring.slots()).saturating_sub(self.order.waiting_requests())
    }

    /// Queues rows of a feeder's client.
    pub(crate) fn ask_to_feed(&mut self, rows: Arc<[Drawn]>, reply: oneshot::Sender<FedRows>) {
        if let Some(feed) = &mut self.feed {
            self.order.ask(feed.enter(reply), rows);
        }
    }

    /// Frees the slots of rows that were sent.
    pub(super) fn take_freed(&mut self) {
        let Some(feed) = &self.feed else { return };
        for slot in feed.take_freed() {
            self.work.slots[slot].close();
            self.ring.abandon(forebay_protocol::ids::SlotIndex(u16::try_from(slot).unwrap_or(0)));
        }
    }

    /// Cancels requests whose clients have left.
    fn cancel_abandoned(&mut self) {
        let Some(feed) = &mut self.feed else { return };
        let left: Vec<u64> = feed
            .replies
            .iter()
            .filter(|(_, reply)| reply.is_closed())
            .map(|(request, _)| *request)
            .collect();
        for request in left {
            feed.replies.remove(&request);
            self.order.withdraw(request);
            self.batches.cancel_request(request, &self.work);
        }
    }

    /// Hands out the rows of complete requests.
    pub(super) fn hand_out(&mut self) {
        self.cancel_abandoned();
        let mut place = 0;
        while let Some(batch) = self.batches.open.get(place) {
            let slot = usize::from(batch.slot.0);
            if !self.work.slots[slot].is_complete() || self.work.slots[slot].has_failed() {
                place += 1;
                continue;
            }
            let Some(batch) = self.batches.open.remove(place) else { return };
            let rows = batch.planned.rows.len();
            self.rows_published.set(self.rows_published.get() + u64::from(rows));
            let waiting = self.batches.open_rows() + self.order.waiting_rows();
            let Some(feed) = &mut self.feed else { return };
            let reply = batch.request.and_then(|request| feed.replies.remove(&request));
            let of = (Arc::clone(&self.work), slot, rows as usize);
            let fed = FedRows::new(of, batch.feed_failures, waiting, Arc::clone(&feed.freed));
            // Rows that nobody takes are dropped, which frees their slot.
            let _ = reply.map(|reply| reply.send(fed));
        }
        let next = self.batches.open.front().map_or(self.batches.next_order, |batch| batch.order);
        self.work.next_to_publish.store(next, Ordering::Relaxed);
    }

    /// Notes why a row was not made. False: this session substitutes for itself.
    pub(super) fn note_feed_failure(&mut self, index: usize, row: usize) -> bool {
        if self.feed.is_none() {
            return false;
        }
        let batch = &mut self.batches.open[index];
        let failure = self.work.slots[usize::from(batch.slot.0)].cell(row).failure.take();
        let reason = failure.unwrap_or(RowFailure::Panic);
        batch.feed_failures.insert(row, reason);
        true
    }
}
