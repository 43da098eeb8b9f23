//! One attached client: its order, its ring, its open batches. Owned by the engine thread alone.
//!
//! [`Session::advance`] does all that can be done now and is safe to call at any time: it takes the client's returns,
//! deals with failed rows, publishes what is complete in order and opens new batches while slots are free.

mod figures;
mod mending;
mod opening;
mod recorded;
mod replay;
mod standing;
mod takeover;
mod terms;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::frames::{
    Attach, Attached, DaemonFrame, Fault, FaultKind, Positioned, Revival,
};
use forebay_protocol::huge_pages::HugePages;
use forebay_protocol::ids::{BatchNumber, Generation, Position, SampleId, SlotIndex};
use forebay_protocol::lease::{SlotState, SlotTable};
use forebay_protocol::publish::{Descriptor, PublishWriter};
use forebay_protocol::returns::ReturnReader;
use forebay_protocol::segment::{Access, Mapping, Segment, SegmentError};
use forebay_protocol::slots::split_rows;
use forebay_protocol::socket::Connection;
use forebay_protocol::sync::Ordering;
use tokio::sync::mpsc;

use self::figures::ClientWatch;
use self::mending::Substituted;
pub(super) use self::recorded::Pulse;
use self::replay::Replay;
pub(super) use self::standing::{FrontBatch, FullRing, WaitingRow};
pub(crate) use self::takeover::Takeover;
use self::terms::tensor_entries;
pub(super) use self::terms::{SessionFault, SessionTerms, ring_bytes};
use super::fetch::FetchJob;
use super::stream::Stream;
use super::work::SessionWork;
use crate::observe::RingFigures;
use crate::order::{EpochOrder, PlannedBatch, STREAM_VERSION, Schedule};

/// The most substituted samples that `stats` lists.
const LISTED_SUBSTITUTES: usize = 100;

/// Why a session is over.
#[derive(Debug, Clone)]
pub(crate) enum SessionEnd {
    /// The client said goodbye or is gone.
    ClientLeft,
    /// The client broke the protocol.
    Violation(String),
}

#[derive(Debug)]
struct OpenBatch {
    order: u64,
    slot: SlotIndex,
    generation: Generation,
    planned: PlannedBatch,
    held_up: Duration,
    /// Known while a recording is made.
    opened_at: Option<Instant>,
    /// By row: the bad sample whose place it is, and the substitutes tried.
    replaced: BTreeMap<usize, (SampleId, u64)>,
    substituted: Vec<Substituted>,
    /// The lowest row that has no data, and why.
    failed: Option<(usize, Fault)>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) stream: Arc<Stream>,
    pub(crate) stream_number: usize,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) work: Arc<SessionWork>,
    schedule: Schedule,
    epoch_order: EpochOrder,
    /// Where the next batch begins.
    next: Position,
    /// After the batch published last.
    published_until: Position,
    seek_serial: u64,
    next_order: u64,
    slots: SlotTable,
    publish: PublishWriter<Arc<Mapping>>,
    returns: ReturnReader<Arc<Mapping>>,
    open: VecDeque<OpenBatch>,
    cancelled: Vec<OpenBatch>,
    /// Rows to fetch, in (batch, row) order; substitutes at the front.
    admissions: VecDeque<FetchJob>,
    /// Published in the epoch of the batch published last.
    substitutes: u64,
    substitutes_epoch: u64,
    connection: Rc<Connection>,
    outbox: mpsc::Sender<DaemonFrame>,
    /// Set once nothing more can be published.
    fault: Option<Fault>,
    pub(crate) figures: RingFigures,
    pub(crate) started: Instant,
    started_ns: u64,
    starved_since: Option<Instant>,
    client_watch: ClientWatch,
    /// Slots that the client held when it came; they come back as if they had been taken here.
    held_at_start: u64,
    pub(crate) substituted: VecDeque<Substituted>,
    pub(crate) samples_substituted: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) huge_pages: HugePages,
    /// A complete batch waits for its ragged rows to be moved together.
    pub(crate) wake_workers: bool,
    replay: Replay,
}

impl Session {
    /// Makes the rings, over the memory that the client brings if it brings some, and takes the position. Nothing is
    /// fetched before the first [`advance`](Self::advance).
    #[expect(clippy::too_many_arguments, reason = "what a session is made of, named one by one")]
    pub(crate) fn new(
        number: u64,
        stream: &Arc<Stream>,
        stream_number: usize,
        request: &Attach,
        takeover: Option<Takeover>,
        revival: Revival,
        connection: Rc<Connection>,
        outbox: mpsc::Sender<DaemonFrame>,
    ) -> Result<(Self, SessionTerms), SessionFault> {
        let config = &stream.config;
        let schedule = Schedule::new(
            stream.sample_count(),
            &config.order,
            &config.batch,
            request.rank,
            request.world_size,
        )?;
        let next = schedule.normalise(request.position)?;
        let slots = config.ring.slots;
        let [data_bytes, publish_bytes, return_bytes] = ring_bytes(stream);
        let Takeover { data, table, serial, held } = Takeover::or_new(takeover, stream)?;
        let kept = data.descriptor().try_clone_to_owned().map_err(|source| SegmentError::Call {
            what: "data",
            call: "dup",
            source,
        })?;
        let replay = Replay::new(Arc::new(kept.into()));
        let publish = Segment::create("publish", publish_bytes)?;
        let returns = Segment::create("return", return_bytes)?;
        let rows = split_rows(data.map()?, &stream.layout, slots);
        let writer = PublishWriter::new(Arc::new(publish.map()?), slots, stream.tensors().len());
        let reader = ReturnReader::new(Arc::new(returns.map()?), slots);
        publish.seal(Access::ReadOnly)?;
        returns.seal(Access::ReadWrite)?;
        let frame = DaemonFrame::Attached(Box::new(Attached {
            session: number,
            stream: config.name.clone(),
            tensors: stream.tensors().to_vec(),
            batch_size: config.batch.size.get(),
            slots,
            hold: config.ring.hold,
            slot_bytes: stream.layout.slot_bytes(),
            publish_bytes,
            return_bytes,
            start: Positioned { serial, position: next, batches_left: schedule.batches_left(next) },
            batches_per_epoch: schedule.batches_per_epoch(),
            samples_per_epoch: stream.sample_count(),
            epochs: config.order.epochs,
            dataset_fingerprint: stream.dataset_fingerprint,
            config_fingerprint: stream.config_fingerprint,
            stream_version: STREAM_VERSION,
            revival,
        }));
        let session = Self {
            number,
            stream: Arc::clone(stream),
            stream_number,
            rank: request.rank,
            world_size: request.world_size,
            work: Arc::new(SessionWork::new(number, Arc::clone(stream), rows)),
            epoch_order: schedule.epoch(next.epoch),
            schedule,
            next,
            published_until: next,
            seek_serial: serial,
            next_order: 0,
            slots: table,
            publish: writer,
            returns: reader,
            open: VecDeque::new(),
            cancelled: Vec::new(),
            admissions: VecDeque::new(),
            substitutes: carried(request.position, next, request.substitutes),
            substitutes_epoch: next.epoch,
            connection,
            outbox,
            fault: None,
            figures: RingFigures::default(),
            started: Instant::now(),
            started_ns: monotonic_ns(),
            starved_since: None,
            client_watch: ClientWatch::default(),
            held_at_start: held,
            substituted: VecDeque::new(),
            samples_substituted: 0,
            ring_bytes: data_bytes + publish_bytes + return_bytes,
            huge_pages: data.huge_pages(),
            wake_workers: false,
            replay,
        };
        Ok((session, SessionTerms { frame, segments: [data, publish, returns] }))
    }

    /// Does all that can be done now. True: there are new rows to fetch.
    pub(crate) fn advance(&mut self) -> Result<bool, SessionEnd> {
        let admitted_before = self.admissions.len();
        loop {
            self.take_returns()?;
            self.go_on_with_replay();
            self.reap_cancelled();
            self.mend_failed_rows();
            self.publish_complete();
            self.open_batches();
            if !self.ask_to_be_woken()? {
                break;
            }
        }
        Ok(self.admissions.len() > admitted_before || !self.admissions.is_empty())
    }

    fn take_returns(&mut self) -> Result<bool, SessionEnd> {
        let mut any = false;
        while let Some(word) =
            self.returns.take_return().map_err(|error| SessionEnd::Violation(error.to_string()))?
        {
            self.slots
                .accept_return(word)
                .map_err(|violation| SessionEnd::Violation(violation.to_string()))?;
            self.replay_saw_return(word);
            any = true;
        }
        Ok(any)
    }

    /// Sets the mark at which the client wakes the daemon. True: returns came in meanwhile.
    fn ask_to_be_woken(&mut self) -> Result<bool, SessionEnd> {
        if self.replay_wants_returns() {
            self.publish.ask_wake_at(self.returns.consumed() + 1);
            return self.take_returns();
        }
        let wants_slots = self.fault.is_none()
            && !self.schedule.finished(self.next)
            && self.slots.count(SlotState::Free) == 0;
        if !wants_slots {
            self.publish.ask_wake_at(u64::MAX);
            return Ok(false);
        }
        // Half of what circulates: a client that holds many batches returns few at a time.
        let slots = u64::from(self.stream.config.ring.slots);
        let consumed = self.returns.consumed();
        let taken = self.held_at_start.saturating_add(self.returns.claimed_taken());
        let held = taken.saturating_sub(consumed).min(slots - 1);
        self.publish.ask_wake_at(consumed + ((slots - held) / 2).max(1));
        self.take_returns()
    }

    fn reap_cancelled(&mut self) {
        let (work, slots) = (&self.work, &mut self.slots);
        self.cancelled.retain(|batch| {
            let slot = &work.slots[usize::from(batch.slot.0)];
            let running = !slot.is_complete() || !slot.withdraw_compaction();
            if !running {
                slot.close();
                slots.abandon(batch.slot);
            }
            running
        });
    }

    /// Publishes complete batches in order; a batch with a failed row ends the stream at its place.
    fn publish_complete(&mut self) {
        while self.fault.is_none() {
            let Some(batch) = self.open.front() else {
                break;
            };
            let slot = &self.work.slots[usize::from(batch.slot.0)];
            // A row may have failed since failed rows were mended; its ring brings this side back.
            if !slot.is_complete() || slot.has_failed() {
                break;
            }
            if let Some((_, fault)) = &batch.failed {
                let fault = fault.clone();
                return self.end_with(fault);
            }
            if let Some(fault) = self.over_budget() {
                return self.end_with(fault);
            }
            let compacted = if self.stream.compacts {
                let Some(elements) = slot.compacted() else {
                    self.wake_workers = true;
                    break;
                };
                elements
            } else {
                Vec::new()
            };
            let (slot, generation) = (batch.slot, batch.generation);
            if !self.replay_lets_publish(slot, generation) {
                break;
            }
            if let Some(batch) = self.open.pop_front() {
                self.work.slots[usize::from(batch.slot.0)].close();
                self.publish_batch(batch, &compacted);
            }
        }
        let next = self.open.front().map_or(self.next_order, |batch| batch.order);
        self.work.next_to_publish.store(next, Ordering::Relaxed);
    }

    fn publish_batch(&mut self, batch: OpenBatch, compacted: &[u64]) {
        self.record_batch(&batch);
        if batch.planned.epoch != self.substitutes_epoch {
            (self.substitutes_epoch, self.substitutes) = (batch.planned.epoch, 0);
        }
        self.substitutes = self.substitutes.saturating_add(batch.substituted.len() as u64);
        self.samples_substituted += batch.substituted.len() as u64;
        for substituted in batch.substituted {
            if self.substituted.len() == LISTED_SUBSTITUTES {
                self.substituted.pop_front();
            }
            self.substituted.push_back(substituted);
        }
        let empty_for = self.ring_empty_for();
        let rows = batch.planned.rows.len();
        let after = batch.planned.position_after;
        self.published_until = after;
        self.slots.publish(batch.slot);
        let descriptor = Descriptor {
            sequence: BatchNumber(self.publish.published()),
            slot: batch.slot,
            generation: batch.generation,
            payload_bytes: self.stream.layout.slot_bytes(),
            epoch: batch.planned.epoch,
            position_after: after,
            seek_serial: self.seek_serial,
            rows: rows.into(),
            substitutes: if after.epoch == batch.planned.epoch { self.substitutes } else { 0 },
            last_of_epoch: batch.planned.last_of_rank,
            replayed: false,
            tensors: tensor_entries(&self.stream, rows, compacted),
        };
        self.publish.publish(&descriptor);
        self.figures.published(batch.held_up, empty_for);
        self.replay_saw_published(&descriptor);
        self.ring_if_asleep();
    }

    fn ring_if_asleep(&self) {
        if self.returns.client_sleeps() {
            // A client that is gone shows at the socket's reader.
            let _ = self.connection.ring();
        }
    }

    /// How long the ring has had nothing to take, by the client's word.
    pub(crate) fn ring_empty_for(&self) -> Duration {
        if self.returns.claimed_taken() < self.publish.published() {
            return Duration::ZERO;
        }
        let since = self.returns.claimed_taken_at_ns().max(self.started_ns);
        Duration::from_nanos(monotonic_ns().saturating_sub(since))
    }

    fn end_with(&mut self, fault: Fault) {
        tracing::error!(session = self.number, "{}", fault.message);
        self.tell(DaemonFrame::Fault(fault.clone()));
        self.fault = Some(fault);
        self.cancel_open();
    }

    /// Sends a frame; a client that lets its socket fill up has itself to blame.
    pub(crate) fn tell(&self, frame: DaemonFrame) {
        if self.outbox.try_send(frame).is_err() {
            tracing::warn!(session = self.number, "the client reads no frames; one was dropped");
        }
    }

    /// Goes to another position. The client gives back what was published for the former one.
    pub(crate) fn seek(&mut self, serial: u64, position: Position, substitutes: u64) {
        let target = match self.schedule.normalise(position) {
            Ok(target) => target,
            Err(error) => {
                let fault = Fault { kind: FaultKind::Position, message: error.to_string() };
                return self.tell(DaemonFrame::Fault(fault));
            }
        };
        self.cancel_open();
        self.abandon_replay();
        self.fault = None;
        self.seek_serial = serial;
        self.next = target;
        self.published_until = target;
        self.substitutes_epoch = target.epoch;
        self.substitutes = carried(position, target, substitutes);
        let batches_left = self.schedule.batches_left(target);
        self.tell(DaemonFrame::Positioned(Positioned { serial, position: target, batches_left }));
    }

    /// The session is over: nothing is written any more.
    pub(crate) fn end(&mut self) {
        self.cancel_open();
    }
}

/// The substitutes that count on at a position: none where it stood for the next epoch's start.
fn carried(asked: Position, normalised: Position, substitutes: u64) -> u64 {
    if asked.epoch == normalised.epoch { substitutes } else { 0 }
}
