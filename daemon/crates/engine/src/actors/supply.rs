//! Rows that others make: the seam between the engine and what carries rows, and the rows that are asked for.
//!
//! A row is a function of its stream, sample and pass, so it does not matter who makes it, nor how often. The engine asks
//! its [`Supplier`] for rows of the same queue from which fetch lanes take theirs; nothing is split in advance. The states
//! of a row that is asked for, and who changes them:
//! ```text
//!            ┌─ engine: the supplier has room ─┐         ┌─ supplier's thread: the row is here ─► Done
//!  Admitted ─┘                                 ▼         │
//!      ▲  ▲                                  Asked ──────┼─ supplier's thread: it cannot be made ─► Failed
//!      │  │                                    │         │
//!      │  └─ the last RowTaker was dropped ────┤         └─ supplier's thread: one row in many ─► Checked ─┐
//!      │     (a lost connection)               │                                                          │
//!      └─ engine: it is overdue, made here ────┘ ◄── a fetch lane makes it here too; a work thread compares ─┘
//! ```
//! - Whoever takes a row out of `Asked` owns it: no one else can write into it afterwards, so an answer that comes too
//!   late, or a second answer, is dropped.
//! - A row that comes back is admitted again. No attempt is counted: only reads fail.
//! - A row fails for good only with a reason that lies in the sample. Its session then substitutes for itself, as for a row
//!   made here.
//! - A checked row is the one made here; the supplier's copy is compared with it and dropped.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_protocol::frames::RowKey;
use forebay_protocol::slots::RowCopy;
use forebay_protocol::sync::{AtomicU64, Ordering};

use crate::actors::followers::{fail_followers, finish_copy, finish_followers};
use crate::actors::pool::Shared;
use crate::ground::row_cells::{RowCell, RowCheck, RowFailure};
use crate::ground::row_columns::{ColumnPlace, RowColumn};
use crate::ground::stream::Stream;
use crate::ground::waker::Waker;
use crate::ground::work::FetchJob;
use forebay_observe::SupplyReport;
use forebay_transform::{MemoryRow, Row};

/// One row in so many is also made here and compared.
pub(crate) const CHECKED_ONE_IN: u64 = 10_000;
/// Answer times that the limit of an overdue row is derived from.
const KEPT_TIMES: usize = 256;
/// A row is never overdue before this time.
const MIN_OVERDUE: Duration = Duration::from_millis(50);
/// Before there are enough answers.
const FIRST_OVERDUE: Duration = Duration::from_secs(2);
/// Of the supplied rows, one in so many may be asked for twice.
const HEDGED_ONE_IN: u64 = 20;

/// A row to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowAsked {
    /// Sample and pass.
    pub key: RowKey,
    /// Equal for rows whose bytes lie in the same file or block: those that go to the same feeder share its caches.
    pub unit: u64,
}

/// Makes rows elsewhere. The engine has one for each stream at most.
pub trait Supplier: fmt::Debug + Send + Sync {
    /// The number of rows that it takes now.
    fn room(&self) -> usize;

    /// Whether anyone who makes rows can be reached.
    fn is_reachable(&self) -> bool;

    /// Has rows made; at most [`room`](Self::room). Does not block. `is_urgent`: a trainer waits for them, or soon will.
    /// The taker is dropped without an answer for rows that nobody makes.
    fn supply(&self, rows: &[RowAsked], is_urgent: bool, taker: RowTaker);

    /// Has a row made that another feeder makes already, by one besides `first`. False: there is none with room.
    fn supply_again(&self, row: RowAsked, first: u64, taker: RowTaker) -> bool;

    /// A feeder's row differs from the one made here. It gets no more rows.
    fn set_aside(&self, feeder: u64, reason: &str);

    /// Its metrics.
    fn report(&self) -> SupplyReport;
}

/// Wakes the engine: the supplier has room again, or can be reached again.
#[derive(Clone)]
pub struct EngineWaker(pub(crate) Arc<Waker>);

impl fmt::Debug for EngineWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineWaker")
    }
}

impl EngineWaker {
    /// Wakes it, from any thread.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// Why a row cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SupplyFailure {
    /// The sample's bytes are defective.
    Defect(String),
    /// The user's function raised an exception at this stage: one line, and the traceback.
    Raised {
        /// The stage's number.
        stage: usize,
        /// One line.
        summary: String,
        /// The traceback, or empty.
        text: String,
    },
    /// It cannot be made there, for a reason that may not hold here: its file cannot be read, a worker has died.
    Elsewhere(String),
}

/// The rows that a stream has asked its supplier for.
#[derive(Debug)]
pub(crate) struct Supply {
    pub(crate) supplier: Arc<dyn Supplier>,
    /// Whether rows may be made here as well.
    pub(crate) may_make_here: bool,
    /// One row in so many is made here too.
    check_one_in: u64,
    /// Rows asked for and not answered.
    outstanding: AtomicU64,
    asked: Mutex<Vec<std::sync::Weak<Asked>>>,
    counts: Counts,
    times: Mutex<Times>,
    /// Rows for the engine thread.
    returned: Mutex<Returned>,
    shared: Arc<Shared>,
}

/// Rows that the engine thread admits again.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// By whomever.
    pub(crate) anywhere: Vec<FetchJob>,
    /// On this host: they are checked, or cannot be made elsewhere.
    pub(crate) here: Vec<FetchJob>,
}

// All orderings are relaxed: these are metrics.
#[derive(Debug, Default)]
struct Counts {
    supplied: AtomicU64,
    lost: AtomicU64,
    hedged: AtomicU64,
    late: AtomicU64,
    failed: AtomicU64,
    checked: AtomicU64,
    differing: AtomicU64,
}

#[derive(Debug, Default)]
struct Times {
    kept: Vec<Duration>,
    next: usize,
    /// 95 of 100 answers took at most this long.
    p95: Option<Duration>,
}

/// Rows asked for together.
#[derive(Debug)]
struct Asked {
    supply: Arc<Supply>,
    rows: Mutex<Vec<Place>>,
    since: Instant,
}

#[derive(Debug)]
struct Place {
    /// `None`: it was answered, or is made here.
    job: Option<FetchJob>,
    /// Who was asked first.
    feeder: u64,
    /// When another one was asked, too.
    hedged_at: Option<Instant>,
}

/// The right to answer for rows that were asked for. Rows without an answer come back to the engine when the last copy is
/// dropped.
#[derive(Debug, Clone)]
pub struct RowTaker {
    asked: Arc<Asked>,
    /// The place of its first row.
    first: usize,
    /// Its rows.
    count: usize,
}

/// A row being written.
#[derive(Debug)]
pub struct SuppliedRow<'a> {
    cell: &'a mut RowCell,
    stream: &'a Stream,
    columns: &'a [RowColumn],
}

/// A supplier's copy of a row that is made here too.
#[derive(Debug)]
struct SuppliedCopy {
    supply: Arc<Supply>,
    feeder: u64,
    copy: RowCopy,
    beside: Vec<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supply {
    pub(crate) fn new(
        supplier: Arc<dyn Supplier>,
        may_make_here: bool,
        check_one_in: u64,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            supplier,
            may_make_here,
            check_one_in,
            outstanding: AtomicU64::new(0),
            asked: Mutex::default(),
            counts: Counts::default(),
            times: Mutex::default(),
            returned: Mutex::default(),
            shared,
        }
    }

    /// Asks for rows. Engine thread.
    pub(crate) fn ask(self: &Arc<Self>, jobs: Vec<FetchJob>, is_urgent: bool) {
        let rows: Vec<RowAsked> = jobs.iter().map(row_asked).collect();
        // Relaxed: read by the engine thread, which wrote it; others only lower it.
        self.outstanding.fetch_add(rows.len() as u64, Ordering::Relaxed);
        let places = jobs.into_iter().map(Place::of).collect();
        let taker = self.taker_of(places, self.shared.clock.now());
        self.supplier.supply(&rows, is_urgent, taker);
    }

    fn taker_of(self: &Arc<Self>, places: Vec<Place>, since: Instant) -> RowTaker {
        let count = places.len();
        let asked = Asked { supply: Arc::clone(self), rows: Mutex::new(places), since };
        let asked = Arc::new(asked);
        let mut all = lock(&self.asked);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&asked));
        drop(all);
        RowTaker { asked, first: 0, count }
    }

    /// Rows asked for and not answered.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Rows supplied so far.
    pub(crate) fn supplied(&self) -> u64 {
        self.counts.supplied.load(Ordering::Relaxed)
    }

    /// Takes the rows to admit again. Engine thread.
    pub(crate) fn take_returned(&self) -> Returned {
        std::mem::take(&mut *lock(&self.returned))
    }

    /// The time after which a row of an oldest batch is overdue.
    pub(crate) fn overdue_after(&self) -> Duration {
        match lock(&self.times).p95 {
            Some(p95) => (2 * p95).max(MIN_OVERDUE),
            None => FIRST_OVERDUE,
        }
    }

    /// Has overdue rows of oldest batches made again: by another feeder, or here. Engine thread.
    pub(crate) fn hedge(self: &Arc<Self>, now: Instant) {
        let after = self.overdue_after();
        let asked: Vec<Arc<Asked>> = {
            let mut all = lock(&self.asked);
            all.retain(|one| one.strong_count() > 0);
            all.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        for asked in asked {
            self.end_cancelled(&asked);
            if now.saturating_duration_since(asked.since) >= after {
                self.hedge_one(&asked, now, after);
            }
        }
    }

    /// Ends the rows of cancelled batches, whose answers are dropped from here on: a seek does not wait for feeders.
    fn end_cancelled(&self, asked: &Asked) {
        let mut rows = lock(&asked.rows);
        let is_cancelled = |job: &mut FetchJob| job.session.slots[job.slot].is_cancelled();
        let ended: Vec<FetchJob> =
            rows.iter_mut().filter_map(|place| place.job.take_if(is_cancelled)).collect();
        drop(rows);
        if ended.is_empty() {
            return;
        }
        self.outstanding.fetch_sub(ended.len() as u64, Ordering::Relaxed);
        for mut job in ended {
            // The rows that follow it are admitted again.
            drop(job.take_lead());
            finish_copy(&job, &self.shared, |_| {});
        }
    }

    fn hedge_one(self: &Arc<Self>, asked: &Arc<Asked>, now: Instant, after: Duration) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let length = lock(&asked.rows).len();
        // A feeder that answers nothing for so much longer is not waited for, whatever the share of rows that are made twice.
        let waited = now.saturating_duration_since(asked.since);
        let is_long = self.may_make_here && waited >= after + FIRST_OVERDUE;
        for place in 0..length {
            let hedged = count(&self.counts.hedged) * HEDGED_ONE_IN;
            if !is_long && hedged > count(&self.counts.supplied) + 64 {
                return;
            }
            let overdue = {
                let mut rows = lock(&asked.rows);
                let place = &mut rows[place];
                let row = place.job.as_ref().filter(|job| is_of_oldest(job)).map(row_asked);
                let before = place.hedged_at;
                let has_time = |at| now.saturating_duration_since(at) < after;
                row.filter(|_| !before.is_some_and(has_time)).map(|row| {
                    place.hedged_at.get_or_insert(now);
                    (row, place.feeder, before.is_some())
                })
            };
            let Some((row, feeder, was_hedged)) = overdue else { continue };
            let taker = RowTaker { asked: Arc::clone(asked), first: place, count: 1 };
            // A row is asked for twice at most.
            if !is_long && !was_hedged && self.supplier.supply_again(row, feeder, taker) {
                self.counts.hedged.fetch_add(1, Ordering::Relaxed);
            } else if self.may_make_here
                && let Some(job) = asked.take(place)
            {
                self.counts.hedged.fetch_add(1, Ordering::Relaxed);
                self.counts.late.fetch_add(1, Ordering::Relaxed);
                lock(&self.returned).here.push(job);
            } else if !was_hedged {
                // Nobody else has room: another attempt comes later.
                lock(&asked.rows)[place].hedged_at = None;
            }
        }
    }

    fn note_time(&self, took: Duration) {
        let mut times = lock(&self.times);
        let next = times.next % KEPT_TIMES;
        match times.kept.get_mut(next) {
            Some(place) => *place = took,
            None => times.kept.push(took),
        }
        times.next = times.next.wrapping_add(1);
        if times.next.is_multiple_of(16) {
            let mut sorted = times.kept.clone();
            sorted.sort_unstable();
            times.p95 = sorted.get(sorted.len() * 95 / 100).copied();
        }
    }

    fn give_back(&self, anywhere: Vec<FetchJob>, here: Vec<FetchJob>) {
        {
            let mut returned = lock(&self.returned);
            returned.anywhere.extend(anywhere);
            returned.here.extend(here);
        }
        self.shared.wake_engine();
    }

    /// Its metrics.
    pub(crate) fn report(&self) -> SupplyReport {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { supplied, lost, hedged, late, failed, checked, differing } = &self.counts;
        SupplyReport {
            num_supplied: count(supplied),
            num_outstanding: self.outstanding(),
            num_lost: count(lost),
            num_hedged: count(hedged),
            num_made_here_instead: count(late),
            num_failed: count(failed),
            num_checked: count(checked),
            num_differing: count(differing),
            p95_seconds: lock(&self.times).p95.map(|p95| p95.as_secs_f64()),
            ..self.supplier.report()
        }
    }
}

/// Whether the row is of the batch that its session publishes next.
fn is_of_oldest(job: &FetchJob) -> bool {
    job.order <= job.session.next_to_publish.load(Ordering::Relaxed)
}

fn row_asked(job: &FetchJob) -> RowAsked {
    // The pass is part of the cell, which the engine thread owns until the row is asked for, and the row's owner then.
    let pass = job.session.slots[job.slot].cell(job.row).task.key.epoch;
    let stream = &job.session.stream;
    RowAsked { key: RowKey { sample: job.id.0, pass }, unit: stream.unit_of(job.id) }
}

impl Place {
    fn of(job: FetchJob) -> Self {
        Self { job: Some(job), feeder: u64::MAX, hedged_at: None }
    }
}

impl Asked {
    fn take(&self, place: usize) -> Option<FetchJob> {
        let job = lock(&self.rows).get_mut(place)?.job.take();
        if job.is_some() {
            self.supply.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
        job
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let rows = self.rows.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<FetchJob> = rows.drain(..).filter_map(|place| place.job).collect();
        if left.is_empty() {
            return;
        }
        let count = left.len() as u64;
        self.supply.outstanding.fetch_sub(count, Ordering::Relaxed);
        self.supply.counts.lost.fetch_add(count, Ordering::Relaxed);
        self.supply.give_back(left, Vec::new());
    }
}

impl RowTaker {
    /// Moves the rows at these places out, so that they are answered, and lost, apart from the others. They keep the order
    /// of `places`.
    #[must_use]
    pub fn split(&self, places: &[usize]) -> Self {
        let taken: Vec<Place> = {
            let mut rows = lock(&self.asked.rows);
            let taken = places.iter().map(|place| match rows.get_mut(self.first + place) {
                Some(Place { job, feeder, hedged_at }) => {
                    Place { job: job.take(), feeder: *feeder, hedged_at: *hedged_at }
                }
                None => Place { job: None, feeder: u64::MAX, hedged_at: None },
            });
            taken.collect()
        };
        self.asked.supply.taker_of(taken, self.asked.since)
    }

    /// Notes who is asked for all of its rows.
    pub fn note_feeder(&self, feeder: u64) {
        for place in lock(&self.asked.rows).iter_mut().skip(self.first).take(self.count) {
            place.feeder = feeder;
        }
    }

    /// Whether anyone still wants a row: it was not answered, and its batch was not cancelled.
    #[must_use]
    pub fn is_wanted(&self, row: usize) -> bool {
        let rows = lock(&self.asked.rows);
        let job = rows.get(self.first + row).and_then(|place| place.job.as_ref());
        job.is_some_and(|job| !job.session.slots[job.slot].is_cancelled())
    }

    /// Writes a row that a feeder has made. Nothing happens if it was answered before.
    ///
    /// # Errors
    /// What `write` found wrong with the row. It comes back to the engine.
    pub fn finish(
        &self,
        row: usize,
        feeder: u64,
        write: impl FnOnce(&mut SuppliedRow<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let supply = &self.asked.supply;
        let Some(mut job) = self.asked.take(self.first + row) else { return Ok(()) };
        supply.note_time(supply.shared.clock.elapsed(self.asked.since));
        let (session, slot_number) = (Arc::clone(&job.session), job.slot);
        let slot = &session.slots[slot_number];
        let mut cell = slot.cell(job.row);
        if slot.is_cancelled() {
            drop(cell);
            // The rows that follow it are admitted again.
            drop(job.take_lead());
            finish_copy(&job, &supply.shared, |_| {});
            return Ok(());
        }
        let stream = &session.stream;
        let written = {
            let (cell, columns) = (&mut *cell, &stream.columns[..]);
            let mut row = SuppliedRow { cell, stream, columns };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write(&mut row)))
                .unwrap_or_else(|_| Err("to write its row has panicked".to_owned()))
        };
        if let Err(reason) = written {
            drop(cell);
            supply.counts.lost.fetch_add(1, Ordering::Relaxed);
            supply.give_back(vec![job], Vec::new());
            return Err(reason);
        }
        stream.write_id(&mut cell);
        let number = supply.counts.supplied.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(supply.check_one_in) && supply.may_make_here {
            supply.counts.checked.fetch_add(1, Ordering::Relaxed);
            let (copy, beside) = (cell.writer.to_copy(), cell.beside.clone().into_bytes());
            let check = SuppliedCopy { supply: Arc::clone(supply), feeder, copy, beside };
            cell.check = Some(Box::new(check));
            drop(cell);
            supply.give_back(Vec::new(), vec![job]);
            return Ok(());
        }
        if let Some(lead) = job.take_lead() {
            finish_followers(lead, &mut cell, &supply.shared);
        }
        drop(cell);
        finish_copy(&job, &supply.shared, |_| {});
        Ok(())
    }

    /// Fails a row. Nothing happens if it was answered before.
    pub fn fail(&self, row: usize, failure: SupplyFailure) {
        let supply = &self.asked.supply;
        let Some(mut job) = self.asked.take(self.first + row) else { return };
        supply.counts.failed.fetch_add(1, Ordering::Relaxed);
        let failure = match failure {
            SupplyFailure::Defect(reason) => RowFailure::Defect(reason),
            SupplyFailure::Raised { stage, summary, text }
                if stage < job.session.stream.stages.len() =>
            {
                RowFailure::Raised { stage, summary, text }
            }
            // A feeder says something impossible, or what may not hold here.
            _ if supply.may_make_here => return supply.give_back(Vec::new(), vec![job]),
            SupplyFailure::Raised { summary: reason, .. } | SupplyFailure::Elsewhere(reason) => {
                RowFailure::Unreadable(reason)
            }
        };
        if let Some(lead) = job.take_lead() {
            fail_followers(lead, &failure, &supply.shared);
        }
        let slot = &job.session.slots[job.slot];
        slot.cell(job.row).failure = Some(failure);
        slot.finish_row(job.row, true);
        supply.shared.wake_engine();
    }
}

impl SuppliedRow<'_> {
    /// The columns that the row has; each is to be written.
    #[must_use]
    pub fn columns(&self) -> &[RowColumn] {
        self.columns
    }

    /// Writes a column.
    ///
    /// # Errors
    /// The bytes are not those of a row of this column.
    pub fn write(&mut self, column: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(spec) = self.columns.get(column) else {
            return Err(format!("the row has no column {column}"));
        };
        spec.check(bytes.len())?;
        match spec.place {
            ColumnPlace::Batch(tensor) => self.cell.writer.write_tensor(tensor, bytes),
            ColumnPlace::Beside(tensor) => {
                if self.cell.beside.is_empty() {
                    self.cell.beside = MemoryRow::of(self.stream.plan.beside_tensors());
                }
                let place = match spec.max_row_bytes {
                    Some(_) => self.cell.beside.ragged(tensor, bytes.len() as u64),
                    None => Some(self.cell.beside.dense(tensor)),
                };
                place.ok_or("too long")?.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

impl RowCheck for SuppliedCopy {
    fn compare(&self, made: &mut RowCell, sample: u64) {
        if made.writer.equals_copy(&self.copy) && made.beside.clone().into_bytes() == self.beside {
            return;
        }
        self.supply.counts.differing.fetch_add(1, Ordering::Relaxed);
        let reason = format!("its row of sample {sample} differs from the one made here");
        self.supply.supplier.set_aside(self.feeder, &reason);
    }
}
