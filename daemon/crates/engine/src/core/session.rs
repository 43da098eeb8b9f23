//! An attached client: its position in the order, its ring, its open batches. Owned by the engine thread.
//!
//! [`Session::advance`] does everything that is possible now and may be called at any time: it takes the client's
//! returns, handles failed rows, publishes complete batches in order and opens new batches while slots are free.

mod batches;
mod client_watch;
mod feeding;
mod metrics;
mod open_group;
mod opening;
mod order_cursor;
mod preparation;
mod progress;
mod recording;
mod replay;
mod ring;
mod seek_debt;
mod substitutes;
mod substitution;
mod takeover;
mod terms;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::cuts::Cut;
use forebay_protocol::frames::{
    Attach, Attached, DaemonFrame, Fault, FaultKind, MAX_ROWS_OF_REQUEST, Positioned,
    RestartPolicy, RowKey, RowsRequest,
};
use forebay_protocol::ids::{BatchNumber, Position, SampleId};
use forebay_protocol::lease::SlotState;
use forebay_protocol::observing::ReplayRequest;
use forebay_protocol::publish::{Descriptor, PublishWriter};
use forebay_protocol::returns::ReturnReader;
use forebay_protocol::segment::{Access, SegmentError};
use forebay_protocol::slots::split_rows;
use forebay_protocol::socket::Connection;
use forebay_protocol::sync::Ordering;
use tokio::sync::mpsc;

use self::batches::{Batches, OpenBatch};
use self::client_watch::ClientWatch;
use self::order_cursor::OrderCursor;
pub use self::preparation::Preparation;
pub(crate) use self::preparation::PreparationTurns;
use self::preparation::schedule_of;
pub(crate) use self::progress::{FrontBatch, FullRing, WaitingRow};
pub(crate) use self::recording::ClientCounters;
use self::replay::{Replay, ReplaySession};
use self::ring::{Ring, RingMemory};
use self::seek_debt::SeekDebt;
use self::substitutes::Substitutes;
pub(crate) use self::takeover::Takeover;
use self::takeover::create_segment;
pub use self::terms::SessionEnd;
pub(crate) use self::terms::SessionFault;
pub use self::terms::SessionTerms;
use self::terms::tensor_entries;
use crate::actors::fetch_chunk::Chunk;
use crate::core::feeding::Feed;
use crate::ground::batch_shape::BatchShape;
use crate::ground::row_cells::{RowFailure, appended_traceback};
use crate::ground::shared_rows::SharedRows;
use crate::ground::stream::Stream;
use crate::ground::turns::{Taken, Turns};
use crate::ground::units::Units;
use crate::ground::waker::Waker;
use crate::ground::work::{FetchJob, SessionWork};
use forebay_order::{Drawn, Last, Schedule};

/// Log target for errors that are also sent to a client and raised there; a log that the client's user reads, too,
/// omits them.
pub const SENT_TO_CLIENT: &str = "forebay::sent";

/// See the module's head.
#[derive(Debug)]
pub struct Session {
    pub number: u64,
    pub stream: Arc<Stream>,
    pub stream_number: usize,
    /// The trainer's name; the ranks of a trainer have one.
    pub trainer: String,
    pub rank: u32,
    pub world_size: u32,
    pub(crate) shape: BatchShape,
    pub work: Arc<SessionWork>,
    order: OrderCursor,
    /// The position before which it opens batches, while it waits for other trainers.
    limit: Option<Position>,
    pub(crate) ring: Ring,
    batches: Batches,
    pub(crate) substitutes: Substitutes,
    client_watch: ClientWatch,
    outbox: mpsc::Sender<DaemonFrame>,
    /// Set once nothing more can be published.
    fault: Option<Fault>,
    /// Whether a complete batch waits for a work thread to finish it.
    pub wake_workers: bool,
    replay: Replay,
    seek_debt: SeekDebt,
    /// The client's counters at the last [`advance`](Self::advance).
    taken: Taken,
    /// Rows published by all sessions of the daemon.
    rows_published: Rc<Cell<u64>>,
    /// Of a feeder's session.
    feed: Option<Feed>,
}

/// A client's `Seek` request.
#[derive(Debug, Clone)]
pub struct Seek {
    /// The client's counter of seeks.
    pub serial: u64,
    /// The new position.
    pub position: Position,
    /// Substitutes already counted in the position's epoch.
    pub substitutes: u64,
    /// With batches by length, the cuts that led to the position.
    pub cuts: Vec<Cut>,
}

impl Session {
    /// Creates the rings, over the client's memory if it supplies some, and takes the position. Nothing is fetched
    /// before the first [`advance`](Self::advance).
    #[expect(clippy::too_many_arguments, reason = "what a session is made of, named one by one")]
    pub(crate) fn new(
        number: u64,
        stream: &Arc<Stream>,
        stream_number: usize,
        (units, shared_rows): (Option<Arc<Units<FetchJob>>>, Arc<SharedRows<FetchJob>>),
        request: &Attach,
        shape: BatchShape,
        on_request: bool,
        takeover: Takeover,
        restart_policy: RestartPolicy,
        connection: Rc<Connection>,
        outbox: mpsc::Sender<DaemonFrame>,
        rows_published: Rc<Cell<u64>>,
        waker: Arc<Waker>,
        feed: Option<Feed>,
    ) -> Result<(Self, SessionTerms), SessionFault> {
        let config = &stream.config;
        let schedule = if on_request {
            // Its batches are not dealt.
            let mut dealing = stream.dealing();
            (dealing.batch_size, dealing.last) = (shape.size, Last::Short);
            let selection = stream.selection().clone();
            Schedule::of(selection, dealing, request.rank, request.world_size)?
        } else {
            schedule_of(stream, request, shape.size)?
        };
        let (schedule, next) = schedule.beginning_at(request.position, &request.cuts)?;
        let slots = config.ring.slots;
        let [data_bytes, publish_bytes, return_bytes] = stream.ring_bytes(&shape.layout);
        let Takeover { data, table, serial, held, named } = takeover;
        let kept = data.descriptor().try_clone_to_owned().map_err(|source| SegmentError::Call {
            what: "data",
            call: "dup",
            source,
        })?;
        let replay = Replay::new(ReplaySession {
            number,
            world_size: request.world_size,
            hold: config.ring.hold,
            slot_bytes: shape.layout.slot_bytes(),
            data: Arc::new(kept.into()),
        });
        let publish = create_segment(named, "publish", publish_bytes)?;
        let returns = create_segment(named, "return", return_bytes)?;
        let rows = split_rows(data.map()?, &shape.layout, slots);
        let writer = PublishWriter::new(Arc::new(publish.map()?), slots, stream.tensors().len());
        let reader = ReturnReader::new(Arc::new(returns.map()?), slots);
        publish.seal(Access::ReadOnly)?;
        returns.seal(Access::ReadWrite)?;
        let terms = Attached {
            session: number,
            stream: config.name.clone(),
            tensors: stream.tensors().to_vec(),
            batch_size: shape.size,
            slots,
            hold: config.ring.hold,
            slot_bytes: shape.layout.slot_bytes(),
            publish_bytes,
            return_bytes,
            start: positioned(serial, next, &schedule),
            batches_per_epoch: schedule.batches_of(next.epoch),
            samples_per_epoch: schedule.samples(),
            epochs: config.order.epochs,
            dataset_fingerprint: stream.dataset_fingerprint,
            config_fingerprint: stream.config_fingerprint,
            stream_version: stream.version(),
            // Named memory cannot be passed to another daemon.
            restart_policy: if named { RestartPolicy::Never } else { restart_policy },
            identity: stream.identity(shape.size),
            python_sources: stream.python_sources(),
            pools: schedule.pools(),
        };
        let memory = RingMemory {
            bytes: data_bytes + publish_bytes + return_bytes,
            huge_pages: data.huge_pages(),
        };
        let work = Arc::new(SessionWork::new(number, Arc::clone(stream), units, shared_rows, rows));
        work.make_cells_ahead(shape.size);
        let session = Self {
            number,
            stream: Arc::clone(stream),
            stream_number,
            trainer: request.trainer.clone(),
            rank: request.rank,
            world_size: request.world_size,
            work,
            order: match on_request {
                true => OrderCursor::new(schedule, next, serial, waker).on_request(),
                false => OrderCursor::new(schedule, next, serial, waker),
            },
            ring: Ring::new(
                (table, slots, held),
                writer,
                reader,
                connection,
                memory,
                stream.clock.clone(),
            ),
            batches: Batches::default(),
            substitutes: Substitutes::new(request.position, next, request.substitutes),
            client_watch: ClientWatch::default(),
            outbox,
            fault: None,
            wake_workers: false,
            replay,
            seek_debt: SeekDebt::new(u64::from(slots) * u64::from(shape.size)),
            taken: Taken::default(),
            rows_published,
            shape,
            limit: None,
            feed,
        };
        Ok((session, SessionTerms::new(terms, [data, publish, returns])))
    }

    /// Does everything that is possible now. True: there are rows to fetch.
    ///
    /// `beside`: how long its rows wait for further ones, and the number of work threads.
    pub(crate) fn advance(&mut self, beside: (Chunk, u32)) -> Result<bool, SessionEnd> {
        self.settle_seeks();
        loop {
            self.take_freed();
            self.take_returns()?;
            self.replay.advance(self.batches.is_idle(), &mut self.ring);
            self.batches.reap_cancelled(&self.work, &mut self.ring);
            self.substitute_failed_rows();
            self.publish_complete();
            self.batches.reap_cancelled(&self.work, &mut self.ring);
            self.finish_ahead();
            self.open_batches();
            if !self.request_wake(beside)? {
                break;
            }
        }
        self.note_taken();
        Ok(self.batches.has_admissions())
    }

    /// Records how soon the client would wait, which decides the order of rows among sessions.
    fn note_taken(&mut self) {
        let (ring, turn) = (&self.ring, &self.work.turn);
        let taken =
            Taken { batches: ring.taken(), at_ns: ring.taken_at_ns(), waited_ns: ring.waited_ns() };
        turn.note_taken(self.taken, taken, ring.published().saturating_sub(taken.batches));
        self.taken = taken;
    }

    fn take_returns(&mut self) -> Result<bool, SessionEnd> {
        let mut any = false;
        while let Some(word) = self.ring.take_return()? {
            self.replay.on_return(word, &mut self.ring);
            any = true;
        }
        Ok(any)
    }

    /// Sets the count of returns at which the client wakes the daemon. True: returns arrived meanwhile.
    fn request_wake(&mut self, (chunk, threads): (Chunk, u32)) -> Result<bool, SessionEnd> {
        if self.replay.is_working() {
            self.ring.wake_at_next_return();
        } else if self.fault.is_none()
            && !self.order.is_finished()
            && self.ring.count(SlotState::Free) == 0
        {
            let under_way = self.batches.rows_under_way(&self.work);
            self.ring.wake_at_half_returned(chunk.is_enough(under_way, (self.shape.size, threads)));
        } else {
            self.ring.wake_never();
        }
        self.take_returns()
    }

    /// Lets idle work threads finish complete batches after the first one as well.
    fn finish_ahead(&mut self) {
        if !self.stream.has_batch_operations() || self.fault.is_some() || self.is_feeding() {
            return;
        }
        for batch in self.batches.open.iter().skip(1) {
            let slot = &self.work.slots[usize::from(batch.slot.0)];
            let is_made = slot.is_complete() && !slot.has_failed() && batch.failed.is_none();
            self.wake_workers |= is_made && slot.request_finishing();
        }
    }

    /// Publishes complete batches in order; a batch with a failed row ends the stream at its position.
    fn publish_complete(&mut self) {
        if self.is_feeding() {
            return self.hand_out();
        }
        while self.fault.is_none() {
            let Some(batch) = self.batches.open.front() else {
                break;
            };
            let slot = &self.work.slots[usize::from(batch.slot.0)];
            // A row may have failed since failed rows were substituted; it wakes the engine again.
            if !slot.is_complete() || slot.has_failed() {
                break;
            }
            if let Some((row, fault)) = &batch.failed {
                let (row, fault) = (*row, fault.clone());
                let Some(request) = batch.request else { return self.end_with(fault) };
                self.leave_unanswered(request, row, fault);
                continue;
            }
            let (epoch, substituted) = (batch.planned.epoch, &batch.substituted);
            let allowed = self.substitutes_allowed();
            if let Some(fault) = self.substitutes.over_budget(epoch, substituted, allowed) {
                return self.end_with(fault);
            }
            let compacted = if self.stream.finishes_batches {
                match slot.finished() {
                    Some(Ok(elements)) => elements,
                    Some(Err(failure)) => {
                        let (order, epoch) = (batch.order, batch.planned.epoch);
                        let fault = batch_fault((order, epoch), failure, &self.stream);
                        return self.end_with(fault);
                    }
                    None => {
                        self.wake_workers = true;
                        break;
                    }
                }
            } else {
                Vec::new()
            };
            if !self.replay.before_publish(batch.slot, batch.generation, &mut self.ring) {
                break;
            }
            if let Some(batch) = self.batches.open.pop_front() {
                self.work.slots[usize::from(batch.slot.0)].close();
                self.publish_batch(batch, &compacted);
            }
        }
        let next = self.batches.open.front().map_or(self.batches.next_order, |batch| batch.order);
        self.work.next_to_publish.store(next, Ordering::Relaxed);
    }

    fn publish_batch(&mut self, batch: OpenBatch, compacted: &[u64]) {
        self.record_batch(&batch);
        let planned = &batch.planned;
        self.substitutes.publish(planned.epoch, batch.substituted);
        let rows = planned.rows.len();
        self.rows_published.set(self.rows_published.get() + u64::from(rows));
        let by_dataset = self.work.slots[usize::from(batch.slot.0)].rows_by_dataset();
        for (dataset, rows) in self.stream.datasets().iter().zip(by_dataset) {
            dataset.rows_published.fetch_add(rows.into(), Ordering::Relaxed);
        }
        let after = planned.position_after;
        self.order.published(after);
        let descriptor = Descriptor {
            sequence: BatchNumber(self.ring.published()),
            slot: batch.slot,
            generation: batch.generation,
            payload_bytes: self.shape.layout.slot_bytes(),
            epoch: planned.epoch,
            position_after: after,
            seek_serial: batch.request.unwrap_or_else(|| self.order.seek_serial()),
            rows: rows.into(),
            substitutes: self.substitutes.carried(after),
            batches_after: self.order.batches_after(after),
            last_of_epoch: planned.last_of_rank,
            replayed: false,
            tensors: tensor_entries(&self.shape.layout, rows, compacted),
        };
        self.ring.publish(&descriptor, batch.held_up);
        self.replay.on_published(&descriptor, &mut self.ring);
    }

    /// Answers a request with a row's fault; the batch's slot is free once its rows have ended.
    fn leave_unanswered(&mut self, request: u64, row: usize, fault: Fault) {
        let row = u32::try_from(row).unwrap_or(u32::MAX);
        self.send(DaemonFrame::Unanswered { request, row, fault });
        self.batches.cancel_front(&self.work);
    }

    /// Whether its rows are asked for.
    pub(crate) fn is_on_request(&self) -> bool {
        self.order.is_on_request()
    }

    /// Queues the rows that the client asks for.
    ///
    /// # Errors
    /// The reason for a refusal, which ends the session.
    pub(crate) fn ask(&mut self, asked: &RowsRequest) -> Result<(), String> {
        if !self.order.is_on_request() {
            return Err("Ask is for a session of AttachRows".to_owned());
        }
        let slots = usize::from(self.stream.config.ring.slots);
        if self.order.waiting_requests() >= slots {
            return Err(format!("more than {slots} requests wait, as many as the ring has slots"));
        }
        let most = (self.shape.size as usize).min(MAX_ROWS_OF_REQUEST);
        if asked.rows.is_empty() || asked.rows.len() > most {
            let count = asked.rows.len();
            return Err(format!("a request has 1 to {most} rows, and this one has {count}"));
        }
        let samples = match asked.by_id {
            true => self.stream.sample_count(),
            false => self.stream.kept_count(),
        };
        if let Some(beyond) = asked.rows.iter().find(|row| row.sample >= samples) {
            return Err(format!("there are {samples} samples, and no sample {}", beyond.sample));
        }
        let rows = asked.rows.iter();
        let sample = |row: &RowKey| match asked.by_id {
            true => SampleId(row.sample),
            false => self.stream.kept_at(row.sample),
        };
        let rows = rows.map(|row| Drawn { sample: sample(row), pass: row.pass });
        self.order.ask(asked.request, rows.collect());
        Ok(())
    }

    fn end_with(&mut self, fault: Fault) {
        tracing::error!(target: SENT_TO_CLIENT, session = self.number, "{}", fault.message);
        self.send(DaemonFrame::Fault(fault.clone()));
        self.fault = Some(fault);
        self.batches.cancel_open(&self.work);
    }

    /// Sends a frame; it is dropped if the client's socket buffer is full.
    pub fn send(&self, frame: DaemonFrame) {
        if self.outbox.try_send(frame).is_err() {
            tracing::warn!(
                session = self.number,
                "the client does not read its socket; a frame was dropped"
            );
        }
    }

    /// What the last of some seeks needs, if that takes long.
    pub(crate) fn preparation_of(
        &self,
        seeks: &[Seek],
        turns: &PreparationTurns,
    ) -> Option<Preparation> {
        turns.of_seeks(self.order.schedule(), seeks)
    }

    /// Answers seeks and moves to the last position; the client returns the batches that were published for an earlier
    /// one. Returns the number of rows discarded. Rows that no lane has taken do not count: they cost almost nothing.
    pub fn seek(&mut self, seeks: &[Seek]) -> u64 {
        let mut last = None;
        for seek in seeks {
            match self.order.schedule().beginning_at(seek.position, &seek.cuts) {
                Ok((schedule, target)) => {
                    let answer = positioned(seek.serial, target, &schedule);
                    self.send(DaemonFrame::Positioned(answer));
                    last = Some((seek, target, schedule));
                }
                Err(error) => {
                    let fault = Fault { kind: FaultKind::Position, message: error.to_string() };
                    self.send(DaemonFrame::Fault(fault));
                }
            }
        }
        let Some((seek, target, schedule)) = last else { return 0 };
        let [_, _, ready, _] = self.ring.slots_by_state();
        let thrown_away = self.batches.open_rows() + ready * u64::from(self.shape.size);
        let begun = thrown_away.saturating_sub(self.batches.admissions_left() as u64);
        self.seek_debt.charge(begun, self.rows_published.get());
        // Finished rows are charged already.
        self.work.turn.charge(Duration::from_nanos(self.under_way_ns()));
        self.batches.cancel_open(&self.work);
        self.replay.on_seek(&mut self.ring);
        self.fault = None;
        self.order.seek(seek.serial, target, schedule);
        self.substitutes.seek(seek.position, target, seek.substitutes);
        begun
    }

    /// A session whose seeks discard many rows yields to other sessions.
    fn settle_seeks(&mut self) {
        let yields = self.seek_debt.settle(self.rows_published.get());
        self.work.set_yields(yields);
    }

    /// Whether a process may have batches replayed; the error is the reason for a refusal.
    pub(crate) fn allows_replay(&self, is_own: bool) -> Result<(), String> {
        let stream = self.stream.name();
        if self.is_on_request() {
            return Err(format!(
                "this session asks for rows of stream `{stream}`: it has no steps"
            ));
        }
        match self.stream.config.session.allow_headspace {
            Some(false) => Err(format!(
                "stream `{stream}` does not allow a replay: session.allow_headspace is false"
            )),
            None if !is_own => Err(format!(
                "stream `{stream}` allows a replay to processes of the daemon's user in its user and PID namespaces \
                 only, which it must see in /proc; run the command there, or set session.allow_headspace = true to allow it \
                 to all who may connect"
            )),
            _ => Ok(()),
        }
    }

    /// Carries out a request for a replay; the error is the reason for a refusal.
    pub(crate) fn request_replay(
        &mut self,
        request: &ReplayRequest,
        owner: u64,
        waker: &Arc<Waker>,
    ) -> Result<(), String> {
        let epoch = self.order.batches_left();
        self.replay.request(request, owner, epoch, &mut self.ring, waker)
    }

    /// A connection that requested a replay has closed.
    pub fn on_disconnect(&mut self, owner: u64) {
        self.replay.on_disconnect(owner, &mut self.ring);
    }

    /// The next rows to fetch, at most `count`.
    pub(crate) fn take_admissions(&mut self, count: usize) -> Vec<FetchJob> {
        self.batches.take_admissions(count, &self.work)
    }

    /// Number of rows that were taken to be made and are not finished.
    pub(crate) fn rows_under_way(&self) -> u64 {
        self.batches.rows_under_way(&self.work)
    }

    /// Number of rows to fetch.
    pub(crate) fn admissions_left(&self) -> usize {
        self.batches.admissions_left()
    }

    /// Whether there are rows to fetch that do not wait for further ones, beside so many work threads.
    pub(crate) fn has_reads(&self, (chunk, threads): (Chunk, u32)) -> bool {
        let left = self.batches.admissions_left();
        let under_way = || self.batches.rows_under_way(&self.work);
        // A substitute in the oldest batch is waited for: no batch is published before it.
        let oldest = self.batches.open.front().map(|batch| batch.order);
        let is_of_oldest = || self.batches.next_order() == oldest;
        let enough = (self.shape.size, threads);
        left > 0 && (is_of_oldest() || !chunk.waits_for_more(left, under_way(), enough))
    }

    /// Queues a row again to be fetched from the start.
    pub(crate) fn admit_again(&mut self, job: FetchJob) {
        self.batches.admit_again(job);
    }

    /// The place of this session's next row to fetch among the rows of all sessions; the lowest is fetched first. The
    /// expected time of rows that lanes have taken and that are not finished counts as spent.
    pub(crate) fn admission_place(&self, turns: &Turns, now_ns: u64) -> Option<u64> {
        let place = self.work.place_of(self.batches.next_order()?, turns, now_ns);
        Some(place.saturating_add(self.under_way_ns()))
    }

    /// Estimated remaining time, by the stream's mean, of the rows that lanes have taken and that are not finished.
    fn under_way_ns(&self) -> u64 {
        self.stream.row_ns().saturating_mul(self.batches.rows_under_way(&self.work))
    }

    /// Sets the position before which it opens batches, if other trainers limit it.
    pub(crate) fn set_limit(&mut self, limit: Option<Position>) {
        self.limit = limit;
    }

    /// Whether it could open a batch, if it did not wait for other trainers.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.limit.is_some_and(|limit| self.order.next() >= limit)
            && self.fault.is_none()
            && !self.order.is_finished()
            && self.ring.count(SlotState::Free) > 0
    }

    /// Whether nothing more can be published.
    pub(crate) fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether its trainer gets the same batches again, for a measurement.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_working()
    }

    /// Whether it has no further batch to open.
    pub(crate) fn has_opened_all(&self) -> bool {
        self.fault.is_some() || self.order.is_finished()
    }

    /// The positions before and after an open batch, by its number in the session.
    pub(crate) fn range_of_batch(&self, order: u64) -> Option<(Position, Position)> {
        let batch = self.batches.open.iter().find(|batch| batch.order == order)?;
        Some((batch.position, batch.planned.position_after))
    }

    /// The position of its first row that no lane has taken, to a batch.
    pub(crate) fn place(&self) -> Position {
        let first = self.batches.next_order().and_then(|order| self.range_of_batch(order));
        first.map_or(self.order.next(), |(start, _)| start)
    }

    /// The position before which it opens a batch so that the batch ends at most `rows` rows after `from`; at `from` it
    /// opens one in any case.
    pub(crate) fn limit_after(&self, from: Position, rows: u64) -> Position {
        let samples = self.order.schedule().samples().max(1);
        let global_batch = u64::from(self.shape.size) * u64::from(self.world_size);
        let rows = rows.saturating_sub(global_batch).max(1);
        let after = from.samples.saturating_add(rows);
        let epoch = from.epoch.saturating_add(after / samples);
        Position { epoch, samples: after % samples }
    }

    /// Ends the session: nothing is written afterwards.
    pub fn end(&mut self) {
        self.batches.cancel_open(&self.work);
    }
}

/// The answer to an attach or a seek.
fn positioned(serial: u64, position: Position, schedule: &Schedule) -> Positioned {
    let batches_left = schedule.batches_left(position);
    Positioned {
        serial,
        position,
        batches_left,
        batches_of_epoch: schedule.batches_of(position.epoch),
    }
}

/// The fault that ends the session if a batch cannot be finished.
fn batch_fault((order, epoch): (u64, u64), failure: RowFailure, stream: &Stream) -> Fault {
    match failure {
        RowFailure::BatchRaised { operation, summary, text } => Fault {
            kind: FaultKind::Stage,
            message: format!(
                "`{operation}` failed on batch {order} of this session in epoch {epoch}, seed {}: {summary}{}",
                stream.config.order.seed,
                appended_traceback(&text)
            ),
        },
        RowFailure::NoWorkers(message) => Fault { kind: FaultKind::Stage, message },
        RowFailure::Defect(reason)
        | RowFailure::Unreadable(reason)
        | RowFailure::Raised { summary: reason, .. }
        | RowFailure::Storage(reason) => Fault {
            kind: FaultKind::BadSample,
            message: format!("batch {order} of this session: batch operation {reason}"),
        },
        RowFailure::Panic => Fault {
            kind: FaultKind::Internal,
            message: format!(
                "a batch operation panicked on batch {order} of this session; this is a bug in forebay, please report \
                 it; see stderr for details"
            ),
        },
    }
}
