//! The daemon's side of a session's ring: free slots, published batches, returned slots.
//!
//! Owned by the engine thread. The client's reports (batches taken, time waited) are not verified: they only decide
//! when the daemon is woken, and are shown in metrics.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::huge_pages::HugePages;
use forebay_protocol::ids::{BatchNumber, Generation, SlotIndex};
use forebay_protocol::lease::{SlotState, SlotTable};
use forebay_protocol::publish::{Descriptor, PublishWriter};
use forebay_protocol::returns::{ReturnReader, ReturnWord};
use forebay_protocol::segment::Mapping;
use forebay_protocol::socket::Connection;
use nix::sys::socket::{getsockopt, sockopt};

use crate::core::session::terms::SessionEnd;
use forebay_observe::{Clock, QueueReport, RingMetrics};

/// The total size of the three segments, and the huge pages of the data segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingMemory {
    pub(crate) bytes: u64,
    pub(crate) huge_pages: HugePages,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) clock: Clock,
    table: SlotTable,
    slots: u16,
    publish: PublishWriter<Arc<Mapping>>,
    returns: ReturnReader<Arc<Mapping>>,
    connection: Rc<Connection>,
    pub(crate) memory: RingMemory,
    /// Slots that the client held when it attached; their returns count as if they had been taken in this session.
    held_at_start: u64,
    started: Instant,
    started_ns: u64,
    metrics: RingMetrics,
    /// Since when a batch has waited for a free slot while no batch was being filled.
    starved_since: Option<Instant>,
}

impl Ring {
    pub(super) fn new(
        (table, slots, held): (SlotTable, u16, u64),
        publish: PublishWriter<Arc<Mapping>>,
        returns: ReturnReader<Arc<Mapping>>,
        connection: Rc<Connection>,
        memory: RingMemory,
        clock: Clock,
    ) -> Self {
        Self {
            started: clock.now(),
            clock,
            table,
            slots,
            publish,
            returns,
            connection,
            memory,
            held_at_start: held,
            started_ns: monotonic_ns(),
            metrics: RingMetrics::default(),
            starved_since: None,
        }
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    /// Number of slots in a state.
    pub(super) fn count(&self, state: SlotState) -> usize {
        self.table.count(state)
    }

    /// Takes a free slot to fill, and returns how long the ring had none while no batch was being filled.
    pub(super) fn begin_fill(
        &mut self,
        is_idle: bool,
    ) -> Option<(SlotIndex, Generation, Duration)> {
        let Some((slot, generation)) = self.table.begin_fill() else {
            if is_idle {
                self.starved_since.get_or_insert_with(|| self.clock.now());
            }
            return None;
        };
        let held_up =
            self.starved_since.take().map_or(Duration::ZERO, |since| self.clock.elapsed(since));
        Some((slot, generation, held_up))
    }

    /// Frees a slot whose batch was cancelled.
    pub(super) fn abandon(&mut self, slot: SlotIndex) {
        self.table.abandon(slot);
    }

    /// The number of the next batch to publish.
    pub(super) fn published(&self) -> u64 {
        self.publish.published()
    }

    /// Publishes a filled slot and wakes the client if it sleeps. `held_up`: see [`begin_fill`](Self::begin_fill).
    pub(super) fn publish(&mut self, descriptor: &Descriptor, held_up: Duration) {
        let empty_for = self.empty_for();
        self.table.publish(descriptor.slot);
        self.publish.publish(descriptor);
        self.metrics.published(held_up, empty_for);
        self.wake_client();
    }

    pub(super) fn take_return(&mut self) -> Result<Option<ReturnWord>, SessionEnd> {
        let word =
            self.returns.take_return().map_err(|error| SessionEnd::Violation(error.to_string()))?;
        if let Some(word) = word {
            self.table
                .accept_return(word)
                .map_err(|violation| SessionEnd::Violation(violation.to_string()))?;
        }
        Ok(word)
    }

    /// Keeps a returned slot from being filled. False: it is in use already.
    pub(super) fn keep(&mut self, slot: SlotIndex) -> bool {
        self.table.keep(slot)
    }

    /// Frees a kept slot; slots in other states are unchanged.
    pub(super) fn release(&mut self, slot: SlotIndex) {
        self.table.release(slot);
    }

    /// Frees all kept slots.
    pub(super) fn release_all(&mut self) {
        (0..self.slots).for_each(|slot| self.table.release(SlotIndex(slot)));
    }

    /// Publishes a kept slot again. Returns the new descriptor.
    pub(super) fn publish_again(&mut self, earlier: &Descriptor) -> Descriptor {
        let generation = self.table.show_again(earlier.slot);
        let sequence = BatchNumber(self.publish.published());
        let descriptor = Descriptor { sequence, generation, replayed: true, ..earlier.clone() };
        self.publish.publish(&descriptor);
        self.wake_client();
        descriptor
    }

    fn wake_client(&self) {
        if self.returns.client_sleeps() {
            // A failure is noticed when the socket is read.
            let _ = self.connection.ring();
        }
    }

    /// Asks the client to wake the daemon at its next return.
    pub(super) fn wake_at_next_return(&mut self) {
        self.publish.ask_wake_at(self.returns.consumed() + 1, false);
    }

    /// Asks the client to wake the daemon after it has returned half of the slots in circulation: a client that holds
    /// many batches returns few at a time. `looks_soon`: see [`PublishWriter::ask_wake_at`].
    pub(super) fn wake_at_half_returned(&mut self, looks_soon: bool) {
        let slots = u64::from(self.slots);
        let consumed = self.returns.consumed();
        let taken = self.held_at_start.saturating_add(self.returns.claimed_taken());
        let held = taken.saturating_sub(consumed).min(slots - 1);
        self.publish.ask_wake_at(consumed + ((slots - held) / 2).max(1), looks_soon);
    }

    /// Turns wake-ups by returns off.
    pub(super) fn wake_never(&mut self) {
        self.publish.ask_wake_at(u64::MAX, false);
    }

    /// Batches taken, as reported by the client.
    pub(super) fn taken(&self) -> u64 {
        self.returns.claimed_taken()
    }

    /// When the last batch was taken, as reported by the client; monotonic clock.
    pub(super) fn taken_at_ns(&self) -> u64 {
        self.returns.claimed_taken_at_ns()
    }

    /// How long the client has waited for batches, as reported by it.
    pub(super) fn waited_ns(&self) -> u64 {
        self.returns.claimed_waited_ns()
    }

    /// Number of returned slots.
    pub(crate) fn returned(&self) -> u64 {
        self.returns.consumed()
    }

    /// Whether the client sleeps on an empty ring.
    pub(crate) fn client_waits(&self) -> bool {
        self.returns.client_sleeps() && self.returns.claimed_taken() >= self.publish.published()
    }

    /// How long the ring has been empty, by the client's report.
    fn empty_for(&self) -> Duration {
        if self.returns.claimed_taken() < self.publish.published() {
            return Duration::ZERO;
        }
        let since = self.returns.claimed_taken_at_ns().max(self.started_ns);
        Duration::from_nanos(monotonic_ns().saturating_sub(since))
    }

    /// Total time for which batches have waited for a free slot while no batch was being filled.
    pub(crate) fn put_wait(&self) -> Duration {
        let open = self.starved_since.map_or(Duration::ZERO, |since| self.clock.elapsed(since));
        self.metrics.put_wait() + open
    }

    /// The time since the client attached.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.elapsed(self.started)
    }

    /// The ring's metrics as a queue.
    pub(crate) fn report(&self) -> QueueReport {
        self.metrics.report(self.elapsed(), self.empty_for())
    }

    /// Shows the client that the daemon makes progress.
    pub(crate) fn show_progress(&self, rows_finished: u64) {
        self.publish.show_progress(rows_finished);
    }

    /// Numbers of slots that are free, filling, ready (published, not taken) and leased.
    pub(crate) fn slots_by_state(&self) -> [u64; 4] {
        let published = self.table.count(SlotState::Published) as u64;
        let ready =
            self.publish.published().saturating_sub(self.returns.claimed_taken()).min(published);
        [
            self.table.count(SlotState::Free) as u64,
            self.table.count(SlotState::Filling) as u64,
            ready,
            published - ready,
        ]
    }

    /// Whether fewer batches are ready than half the slots.
    pub(crate) fn has_room(&self) -> bool {
        let [.., ready, _] = self.slots_by_state();
        ready < u64::from(self.slots) / 2
    }

    /// The client's process id as reported by the kernel; 0 if it is not visible in this namespace.
    pub(crate) fn client_pid(&self) -> u32 {
        let credentials = getsockopt(&*self.connection, sockopt::PeerCredentials);
        credentials.ok().and_then(|known| u32::try_from(known.pid()).ok()).unwrap_or(0)
    }
}
