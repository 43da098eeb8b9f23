//! A fetch thread's work: reading the bytes of admitted rows.
//!
//! A fetch thread reads the rows of one [`Reading`] one after another. It waits for bytes of the fetch budget after
//! opening a file, and for bytes of the work budget before it passes the row on ([`crate::ground::budgets`]). An array
//! that needs no work is read directly into its row and takes no bytes of a budget: from the page cache, or in the
//! pieces in which a connection delivers it. A read that may hang must not write into a row, so each piece is copied
//! while the reading cannot be abandoned. The engine thread decides which rows are read, and when a row is read again
//! after a failed or hung read (`core/lane.rs`, `core/retrying.rs`).

mod units;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::actors::followers::{fail_followers, finish_copy};
use crate::actors::pool::Shared;
use crate::actors::reading::{Abandoned, Reading, Row, RowToRead};
use crate::actors::retry_queue::PutOff;
use crate::ground::budgets::Gates;
use crate::ground::row_cells::RowFailure;
use crate::ground::stream::{ReadScratch, Stream};
use crate::ground::units::Wanted;
use crate::ground::work::{FetchJob, Sharing};
use forebay_dataset::DirectRead;
use forebay_observe::recorder::{Kind, Track, What};
use forebay_storage::location::SampleBytes;
use forebay_storage::{BodySink, Lent, StorageError};

/// Why a row could not be read.
enum ReadFailure {
    Storage(StorageError),
    Panic,
}

/// Reads all rows of a reading; stops if the engine thread has abandoned it. `lane`: the numbers of the stream and of
/// the lane. All files are closed when it returns.
pub(crate) fn fetch_rows(reading: &Reading, gates: &Gates, shared: &Shared, lane: (usize, usize)) {
    let mut scratch = ReadScratch::default();
    while let Ok(Some(row)) = reading.current() {
        if fetch(reading, &row, gates, shared, &mut scratch, lane).is_err() {
            break;
        }
    }
}

/// Reads one row's bytes and hands the row to the work threads.
fn fetch(
    reading: &Reading,
    row: &RowToRead,
    gates: &Gates,
    shared: &Shared,
    scratch: &mut ReadScratch,
    lane: (usize, usize),
) -> Result<(), Abandoned> {
    let stream = &row.stream;
    let begun = stream.clock.now();
    let mut waited = None;
    if reading.is_cancelled() {
        if let Some((job, _)) = reading.finish(Duration::ZERO)?
            && job.session.slots[job.slot].finish_row(job.row, false)
        {
            shared.wake_engine();
        }
        return Ok(());
    }
    if row.is_copied {
        if let Some((job, _)) = reading.finish(Duration::ZERO)?
            && let Sharing::Copies(kept) = &job.sharing
        {
            finish_copy(&job, shared, |cell| kept.write_to(cell));
        }
        return Ok(());
    }
    let mut outcome = Ok(Fetched::InPlace);
    if stream.shares_units || !read_direct(reading, row, scratch)? {
        // A panic ends the row, as in a work thread: a row that is never finished would occupy its slot forever.
        let read = AssertUnwindSafe(|| read(reading, row, gates, shared, scratch, &mut waited));
        outcome = catch_unwind(read).unwrap_or(Ok(Err(ReadFailure::Panic)))?;
    }
    if !scratch.opened.is_empty() {
        // Files left open by a failure. Closing may take as long as opening.
        reading.call("closing", || scratch.opened.clear())?;
    }
    if matches!(outcome, Ok(Fetched::ByOthers)) {
        return Ok(());
    }
    let whole = stream.clock.elapsed(begun);
    let held_up = waited.map_or(Duration::ZERO, |(_, held_up)| held_up);
    let took = whole.saturating_sub(held_up);
    let Some((mut job, permits)) = reading.finish(took)? else {
        return Ok(());
    };
    if shared.recorder.is_on() {
        record(&job, shared, lane, (begun, whole), waited, outcome.is_err());
    }
    match outcome {
        Ok(Fetched::Units) => {
            stream.fetch.record(took);
            units::hand_on(job, held_up, gates, shared);
        }
        Ok(fetched) => {
            let lead = job.take_lead();
            let slot = &job.session.slots[job.slot];
            stream.fetch.record(took);
            if lead.is_some() {
                slot.cell(job.row).lead = lead;
            }
            if let Fetched::Bytes(buffer) = fetched {
                let mut cell = slot.cell(job.row);
                (cell.task.bytes, cell.task.in_place) = (buffer, None);
                cell.task.part_ends.clone_from(&scratch.part_ends);
                cell.permits = permits;
            }
            stream.stages[0].input.put(held_up);
            slot.mark_ready(0, job.row);
            shared.wake_for(&stream.stages[0]);
            if let Some(retries) = &job.retries {
                retries.succeed();
                // Other rows wait for the same storage.
                shared.wake_engine();
            }
        }
        Err(ReadFailure::Panic) => fail(&mut job, RowFailure::Panic, shared),
        Err(ReadFailure::Storage(error)) => {
            // The row may wait for a long time.
            Wanted::let_go(&mut job.units);
            shared.put_off(PutOff { stream: lane.0, job, error });
        }
    }
    Ok(())
}

/// How a row was fetched.
enum Fetched {
    /// Read directly into its row.
    InPlace,
    /// Its bytes were read.
    Bytes(Vec<u8>),
    /// The row holds the units that it needs.
    Units,
    /// The row waits for units that other rows read; the thread that reads them passes the row on.
    ByOthers,
}

/// Fetches one row.
fn read(
    reading: &Reading,
    row: &RowToRead,
    gates: &Gates,
    shared: &Shared,
    scratch: &mut ReadScratch,
    waited: &mut Option<(Instant, Duration)>,
) -> Result<Result<Fetched, ReadFailure>, Abandoned> {
    let stream = &row.stream;
    if stream.shares_units {
        let held = units::fetch(reading, row, gates, shared, scratch, waited)?;
        return Ok(held.map_err(ReadFailure::Storage).map(|row| match row {
            Row::Waits => Fetched::ByOthers,
            Row::HoldsUnits | Row::LacksUnits => Fetched::Units,
        }));
    }
    let open = |scratch: &mut ReadScratch| {
        reading.call("opening", || stream.open_sample((row.id, row.draw), scratch))
    };
    let mut length = match open(scratch)? {
        Ok(length) => length,
        Err(error) => return Ok(Err(ReadFailure::Storage(error))),
    };
    if let Some((tensor, direct)) = array_in_pieces(stream, scratch, length) {
        match read_in_pieces(reading, stream, tensor, direct, scratch)? {
            Ok(true) => return Ok(Ok(Fetched::InPlace)),
            Err(error) => return Ok(Err(ReadFailure::Storage(error))),
            // The file does not begin like the dataset's first one: the ordinary read reports the difference.
            Ok(false) => match open(scratch)? {
                Ok(bytes) => length = bytes,
                Err(error) => return Ok(Err(ReadFailure::Storage(error))),
            },
        }
    }
    let (begun, mut held_up) = reading.wait_for_bytes(|| gates.acquire_to_fetch(&row.age, length));
    let mut to_work = |bytes: u64| {
        if bytes > 0 {
            held_up += reading.wait_to_work(|held| gates.acquire_to_work(&row.age, held, bytes));
        }
    };
    to_work(gates.beyond_fetch(length));
    let mut buffer = shared.spare_buffers.take(length);
    let read = reading.call("reading", || stream.read_sample(scratch, &mut buffer))?;
    if read.is_ok() {
        let fetched = SampleBytes::new(&buffer, &scratch.part_ends);
        to_work(gates.work_bytes(stream.needs(row.id, row.draw, fetched)));
    }
    *waited = Some((begun, held_up));
    Ok(read.map(|()| Fetched::Bytes(buffer)).map_err(ReadFailure::Storage))
}

/// Reads an array that needs no work directly into its row. Returns false if the sample is not such an array, the file
/// is not as expected, or the read would block; the ordinary read then follows and reports errors.
fn read_direct(
    reading: &Reading,
    row: &RowToRead,
    scratch: &mut ReadScratch,
) -> Result<bool, Abandoned> {
    let stream = &row.stream;
    let dataset = stream.dataset.as_ref();
    let (Some(direct), Some(tensor)) = (dataset.direct_read(), stream.plan.direct_tensor(dataset))
    else {
        return Ok(false);
    };
    let ReadScratch { locations, before, .. } = scratch;
    locations.clear();
    dataset.locate_drawn(row.id, row.draw, locations);
    let &mut [location] = locations.as_mut_slice() else {
        return Ok(false);
    };
    let open = || stream.storage.open_direct(dataset, location);
    let Some(file) = reading.call("opening", open)? else {
        return Ok(false);
    };
    let is_read = reading.without_waiting(|job| {
        let mut cell = job.session.slots[job.slot].cell(job.row);
        let row = cell.writer.bytes_mut(tensor);
        let is_read =
            row.len() as u64 == direct.elements_bytes && file.read(&direct.before, row, before);
        cell.task.in_place = is_read.then_some(tensor);
        is_read
    })?;
    // Closing may take as long as opening.
    reading.call("closing", || drop(file))?;
    Ok(is_read)
}

/// The tensor and the expected beginning of the open file, if it is an array of the expected length that needs no work
/// and is delivered in pieces.
fn array_in_pieces<'a>(
    stream: &'a Stream,
    scratch: &ReadScratch,
    length: u64,
) -> Option<(usize, &'a DirectRead)> {
    if !stream.storage.reads_in_pieces() || scratch.opened.len() != 1 {
        return None;
    }
    let dataset = stream.dataset.as_ref();
    let direct = dataset.direct_read()?;
    let expected = direct.before.len() as u64 + direct.elements_bytes;
    Some((stream.plan.direct_tensor(dataset)?, direct)).filter(|_| length == expected)
}

/// Reads the open file into its row piece by piece. False: the file does not begin as expected.
fn read_in_pieces(
    reading: &Reading,
    stream: &Stream,
    tensor: usize,
    direct: &DirectRead,
    scratch: &mut ReadScratch,
) -> Result<Result<bool, StorageError>, Abandoned> {
    let Some(opened) = scratch.opened.pop() else {
        return Ok(Ok(false));
    };
    let mut sink = ArraySink { reading, tensor, direct, at: 0 };
    let dataset = stream.dataset.as_ref();
    let read = || stream.storage.read_in_pieces(dataset, opened, &mut sink);
    let taken = reading.call("reading", read)?;
    let is_whole = reading.without_waiting(|job| {
        let mut cell = job.session.slots[job.slot].cell(job.row);
        let is_whole = matches!(taken, Ok(true))
            && cell.writer.bytes_mut(tensor).len() as u64 == direct.elements_bytes;
        cell.task.in_place = is_whole.then_some(tensor);
        is_whole
    })?;
    Ok(taken.map(|_| is_whole))
}

/// Writes the bytes of an array's file into its row; the reading cannot be abandoned during a write.
struct ArraySink<'a> {
    reading: &'a Reading,
    tensor: usize,
    direct: &'a DirectRead,
    /// Number of the file's bytes received.
    at: usize,
}

impl ArraySink<'_> {
    /// Passes the row's bytes from `start` on to `work`. `None`: no bytes are left, or the reading was abandoned.
    fn with_rest<T>(&self, start: usize, work: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut result = None;
        let in_row = |job: &FetchJob| {
            let mut cell = job.session.slots[job.slot].cell(job.row);
            let rest = cell.writer.bytes_mut(self.tensor).get_mut(start..);
            result = rest.filter(|rest| !rest.is_empty()).map(work);
            result.is_some()
        };
        self.reading.without_waiting(in_row).ok()?;
        result
    }
}

impl BodySink for ArraySink<'_> {
    fn take(&mut self, piece: &[u8]) -> bool {
        let before = self.direct.before.get(self.at..).unwrap_or_default();
        let (header, elements) = piece.split_at(before.len().min(piece.len()));
        if !before.starts_with(header) {
            return false;
        }
        let start = (self.at + header.len()).saturating_sub(self.direct.before.len());
        self.at += piece.len();
        let copy = |rest: &mut [u8]| {
            let place = rest.get_mut(..elements.len());
            place.map(|place| place.copy_from_slice(elements)).is_some()
        };
        elements.is_empty() || self.with_rest(start, copy).unwrap_or(false)
    }

    fn lend(&mut self, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> Lent {
        let Some(start) = self.at.checked_sub(self.direct.before.len()) else {
            return Lent::NoBuffer;
        };
        let into = |rest: &mut [u8]| {
            let length = rest.len().min(MOST_LENT_BYTES);
            read(&mut rest[..length])
        };
        match self.with_rest(start, into) {
            Some(read) => {
                self.at += *read.as_ref().unwrap_or(&0);
                Lent::Read(read)
            }
            None => Lent::Unwanted,
        }
    }
}

/// Limits the time for which the engine thread waits for a piece that is being read.
const MOST_LENT_BYTES: usize = 256 << 10;

/// Shorter waits for bytes are not recorded.
const MIN_WAIT: Duration = Duration::from_micros(20);

/// Records a read and its wait for bytes.
fn record(
    job: &FetchJob,
    shared: &Shared,
    (stream, lane): (usize, usize),
    (begun, took): (Instant, Duration),
    waited: Option<(Instant, Duration)>,
    has_failed: bool,
) {
    let track = Track::Lane(stream, lane);
    let what = What {
        kind: if has_failed { Kind::FailedFetch } else { Kind::Fetch },
        session: job.session.number,
        batch: job.order,
        place: job.slot,
        row: job.row,
        detail: job.id.0,
    };
    shared.recorder.span(track, begun, took, what);
    if let Some((since, held_up)) = waited.filter(|(_, held_up)| *held_up >= MIN_WAIT) {
        shared.recorder.span(track, since, held_up, What { kind: Kind::WaitForBytes, ..what });
    }
}

/// Marks a row as failed.
pub(crate) fn fail(job: &mut FetchJob, failure: RowFailure, shared: &Shared) {
    if let Some(lead) = job.take_lead() {
        fail_followers(lead, &failure, shared);
    }
    let slot = &job.session.slots[job.slot];
    job.session.stream.fetch.record_failure();
    slot.cell(job.row).failure = Some(failure);
    slot.finish_row(job.row, true);
    shared.wake_engine();
}
