//! Rows for others: the engine's part of a feeder. A session of rows that are asked for, without a client.
//!
//! ```text
//!   Asked ─engine: a slot is free─► Open ─engine: every row is made or has failed─► Out ─FedRows dropped─► Free
//! ```
//! A slot that is `Out` belongs to whoever holds its [`FedRows`], on any thread, until they are dropped. Nothing is
//! published, substituted or finished: these are the rows of single samples, which the receiving daemon puts into its
//! batches.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::frames::{Attach, DaemonFrame, Fault, FaultKind, RestartPolicy, RowKey};
use forebay_protocol::ids::{Position, SampleId};
use forebay_protocol::socket::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{Engine, SessionKind, SessionMemory};
use crate::actors::supply::SupplyFailure;
use crate::core::session::SessionTerms;
use crate::ground::row_cells::{RowCell, RowFailure};
use crate::ground::row_columns::{ColumnPlace, RowColumn};
use crate::ground::waker::Waker;
use crate::ground::work::SessionWork;
use forebay_order::Drawn;
use forebay_transform::{MemoryRow, Row as _};

/// A feeder's session of a stream; it lasts until the engine ends.
#[derive(Debug)]
pub struct FeedSession {
    number: u64,
    /// The most rows of a request.
    pub most_rows: u32,
    // The session's segments and the ends of its connection.
    _terms: SessionTerms,
    _peer: Connection,
    _frames: mpsc::Receiver<DaemonFrame>,
}

/// Rows that are asked for.
#[derive(Debug)]
pub struct FeedRequest {
    /// At least one, at most [`FeedSession::most_rows`].
    pub rows: Vec<RowKey>,
    /// Gets the rows; if it is closed before they are begun, they are not made.
    pub reply: oneshot::Sender<FedRows>,
}

/// The rows of a request. Their slot is free for the next request once this is dropped.
#[derive(Debug)]
pub struct FedRows {
    work: Arc<SessionWork>,
    slot: usize,
    /// By row: why it was not made.
    pub failures: BTreeMap<usize, SupplyFailure>,
    /// The number of rows.
    pub rows: usize,
    /// Rows that this session has still to make.
    pub waiting: u64,
    freed: Arc<Freed>,
}

/// A row that was made.
#[derive(Debug)]
pub struct FedRow<'a> {
    cell: MutexGuard<'a, RowCell>,
    columns: &'a [RowColumn],
}

/// Slots that nobody holds any more.
#[derive(Debug)]
pub(crate) struct Freed {
    slots: Mutex<Vec<usize>>,
    waker: Arc<Waker>,
}

/// What a feeder's session has in addition to others.
#[derive(Debug)]
pub(crate) struct Feed {
    /// By request.
    pub(crate) replies: BTreeMap<u64, oneshot::Sender<FedRows>>,
    pub(crate) freed: Arc<Freed>,
    next_request: u64,
}

impl Feed {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let freed = Arc::new(Freed { slots: Mutex::default(), waker });
        Self { replies: BTreeMap::new(), freed, next_request: 0 }
    }

    /// Remembers who gets the rows; returns the request's number.
    pub(crate) fn enter(&mut self, reply: oneshot::Sender<FedRows>) -> u64 {
        self.next_request += 1;
        self.replies.insert(self.next_request, reply);
        self.next_request
    }

    pub(crate) fn take_freed(&self) -> Vec<usize> {
        std::mem::take(&mut *self.freed.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FedRows {
    fn drop(&mut self) {
        self.freed.slots.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
        self.freed.waker.wake();
    }
}

impl FedRows {
    pub(crate) fn new(
        (work, slot, rows): (Arc<SessionWork>, usize, usize),
        failures: BTreeMap<usize, RowFailure>,
        waiting: u64,
        freed: Arc<Freed>,
    ) -> Self {
        let failures = failures.into_iter().map(|(row, failure)| (row, to_supply(failure)));
        Self { work, slot, failures: failures.collect(), rows, waiting, freed }
    }

    /// The columns of the rows.
    #[must_use]
    pub fn columns(&self) -> &[RowColumn] {
        self.work.stream.columns()
    }

    /// A row.
    ///
    /// # Panics
    /// The number is not below the number of rows.
    #[must_use]
    pub fn row(&self, row: usize) -> FedRow<'_> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let mut cell = self.work.slots[self.slot].cell(row);
        if cell.beside.is_empty() && !self.work.stream.plan.beside_tensors().is_empty() {
            cell.beside = MemoryRow::of(self.work.stream.plan.beside_tensors());
        }
        FedRow { cell, columns: self.columns() }
    }
}

impl FedRow<'_> {
    /// The bytes of a column.
    ///
    /// # Panics
    /// There is no such column.
    #[must_use]
    pub fn column(&mut self, column: usize) -> &[u8] {
        match self.columns[column].place {
            ColumnPlace::Batch(tensor) => self.cell.writer.tensor_bytes(tensor),
            ColumnPlace::Beside(tensor) => self.cell.beside.ragged_bytes(tensor),
        }
    }
}

fn to_supply(failure: RowFailure) -> SupplyFailure {
    match failure {
        RowFailure::Defect(reason) => SupplyFailure::Defect(reason),
        RowFailure::Raised { stage, summary, text } => {
            SupplyFailure::Raised { stage, summary, text }
        }
        RowFailure::Unreadable(reason)
        | RowFailure::Storage(reason)
        | RowFailure::NoWorkers(reason)
        | RowFailure::BatchRaised { summary: reason, .. } => SupplyFailure::Elsewhere(reason),
        RowFailure::Panic => SupplyFailure::Elsewhere(
            "an operation panicked there; this is a bug in forebay, see the feeder's log"
                .to_owned(),
        ),
    }
}

impl Engine {
    /// Opens a feeder's session of a stream, for requests of at most `most_rows` rows.
    ///
    /// # Errors
    /// Its memory does not fit the plan.
    pub fn open_feed(&mut self, stream: usize, most_rows: u32) -> Result<FeedSession, Fault> {
        let internal = |message: String| Fault { kind: FaultKind::Internal, message };
        let (connection, peer) = Connection::pair().map_err(|error| internal(error.to_string()))?;
        let (outbox, frames) = mpsc::channel(1);
        let request = Attach {
            stream: Some(self.streams[stream].name().to_owned()),
            rank: 0,
            world_size: 1,
            position: Position::default(),
            substitutes: 0,
            trainer: String::new(),
            batch_size: Some(most_rows),
            cuts: Vec::new(),
        };
        let (number, terms) = self.attach(
            &request,
            SessionKind::Feed,
            SessionMemory::Sealed,
            RestartPolicy::Never,
            Rc::new(connection),
            outbox,
        )?;
        Ok(FeedSession { number, most_rows, _terms: terms, _peer: peer, _frames: frames })
    }

    /// The requests that may wait in a feeder's session.
    #[must_use]
    pub fn feed_room(&self, session: &FeedSession) -> usize {
        self.sessions.get(&session.number).map_or(0, |session| session.feed_room())
    }

    /// Has rows made; their number and samples are checked.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn feed(&mut self, session: &FeedSession, request: FeedRequest) -> Result<(), String> {
        let Some(one) = self.sessions.get_mut(&session.number) else {
            return Err("the feeder ends".to_owned());
        };
        let FeedRequest { rows, reply } = request;
        let (count, most) = (rows.len(), session.most_rows as usize);
        if rows.is_empty() || count > most {
            return Err(format!("a request has 1 to {most} rows, and this one has {count}"));
        }
        let samples = one.stream.sample_count();
        if let Some(beyond) = rows.iter().find(|row| row.sample >= samples) {
            return Err(format!("there are {samples} samples, and no sample {}", beyond.sample));
        }
        let drawn = rows.iter().map(|row| Drawn { sample: SampleId(row.sample), pass: row.pass });
        one.ask_to_feed(drawn.collect(), reply);
        self.advance(session.number);
        Ok(())
    }
}
