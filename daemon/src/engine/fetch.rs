//! Fetches admitted rows: a few lanes a stream, each with one blocking read under way.
//!
//! A lane takes a few rows at a time from the most urgent session, in (batch, row) order, and reads them one after another
//! on a blocking thread of the runtime: more of them where reading takes no longer than handing over. It starts when the
//! byte budget has room, and bytes are granted between opening a file and reading it. A call that outlasts
//! `dataset.read_timeout` is given up with its thread ([`super::reading`]) and made again on another.
//! An array that needs no work is read straight into its row and takes no bytes of the budget, where the kernel has it in
//! its memory: a read that may hang must never write into a row.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use super::core::SharedEngine;
use super::gate::{ByteGate, Promise};
use super::pool::Shared;
use super::reading::{Abandoned, MOST_ABANDONED, Reading, RowToRead};
use super::work::{RowFailure, SessionWork};
use crate::dataset::ByteRange;
use crate::observe::recorder::{Kind, Track, What};
use crate::storage::StorageError;

/// Rows that one trip to a blocking thread reads: amortises the hand-over, about 10 µs.
const CHUNK_ROWS: usize = 4;
/// The same while reads are quick, as from the page cache: the trips disturb the work threads.
const QUICK_CHUNK_ROWS: usize = 16;
/// The mean time of a quick read.
const QUICK: Duration = Duration::from_micros(250);

/// Waits before the first, second and third retry of a read that failed for a reason that may pass.
const RETRY_AFTER: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// One row to fetch.
#[derive(Debug, Clone)]
pub(crate) struct FetchJob {
    pub(crate) session: Arc<SessionWork>,
    pub(crate) slot: usize,
    pub(crate) row: usize,
    /// The number of the batch in its session.
    pub(crate) order: u64,
    pub(crate) id: SampleId,
    /// Attempts that have failed.
    pub(crate) attempts: u32,
}

/// How often a lane looks whether its read hangs, for each time-out.
const LOOKS_PER_TIMEOUT: u32 = 4;
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Runs one lane of a stream until the engine ends.
pub(crate) async fn run_lane(engine: SharedEngine, stream: usize, lane: usize) {
    let work_to_do = engine.borrow().fetch_notify(stream);
    let limit = engine.borrow().streams()[stream].config.dataset.read_timeout;
    let mut rows = CHUNK_ROWS;
    loop {
        if !engine.borrow().has_fetch_jobs(stream) {
            work_to_do.notified().await;
            continue;
        }
        let started = engine.borrow().gate.start();
        let promise = match started {
            Ok(promise) => promise,
            Err(_rest) => {
                work_to_do.notified().await;
                continue;
            }
        };
        let jobs: VecDeque<FetchJob> = engine.borrow_mut().take_fetch_jobs(stream, rows).into();
        let mut left = Some((jobs, Some(promise)));
        while let Some((jobs, promise)) = left.filter(|(jobs, _)| !jobs.is_empty()) {
            let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
            left = match read_watched(&engine, (stream, lane), jobs, promise, limit).await {
                Read::All { took } => {
                    rows = if took < QUICK * count { QUICK_CHUNK_ROWS } else { CHUNK_ROWS };
                    None
                }
                Read::Ended => None,
                Read::Hung(rest) => {
                    rows = CHUNK_ROWS;
                    Some((after_hanging(&engine, rest, limit).await, None))
                }
            };
        }
        engine.borrow_mut().show_reading(stream, lane, None);
    }
}

/// How reading some rows ended.
enum Read {
    /// All are handed on or have failed; what they took, without waiting for bytes.
    All { took: Duration },
    /// The thread panicked, and all sessions were ended.
    Ended,
    /// A call hangs; the rows that are left, the first of them the one it hangs for.
    Hung(VecDeque<FetchJob>),
}

/// Reads rows on a blocking thread.
async fn read_watched(
    engine: &SharedEngine,
    (stream, lane): (usize, usize),
    jobs: VecDeque<FetchJob>,
    promise: Option<Promise>,
    limit: Duration,
) -> Read {
    let (gate, shared, reading) = {
        let mut engine = engine.borrow_mut();
        let reading = Arc::new(Reading::new(jobs, promise, engine.abandoned_reads.clone()));
        engine.show_reading(stream, lane, Some(Arc::clone(&reading)));
        (Arc::clone(&engine.gate), engine.pool_shared(), reading)
    };
    let watched = Arc::clone(&reading);
    let mut read = tokio::task::spawn_blocking(move || {
        let (mut path, mut scratch) = (Vec::new(), Vec::new());
        // What was given up is somebody else's.
        while let Ok(Some(row)) = reading.current() {
            let buffers = (&mut path, &mut scratch);
            if fetch(&reading, &row, &gate, &shared, buffers, (stream, lane)).is_err() {
                break;
            }
        }
    });
    let between_looks = (limit / LOOKS_PER_TIMEOUT).min(LONGEST_BETWEEN_LOOKS);
    loop {
        match tokio::time::timeout(between_looks, &mut read).await {
            Ok(Ok(())) => return Read::All { took: watched.took() },
            // Reading itself cannot panic past its row; this is about what hands rows on.
            Ok(Err(_)) => {
                tracing::error!("a fetch thread panicked; every session is ended");
                engine
                    .borrow_mut()
                    .end_all("a fetch thread panicked: an error in forebay; please report it");
                return Read::Ended;
            }
            Err(_) => {
                if let Some(hung) = watched.abandon_overdue(limit) {
                    return Read::Hung(hung);
                }
            }
        }
    }
}

/// What becomes of rows whose first one hung: after a pause it is tried again behind the others, or it has failed.
async fn after_hanging(
    engine: &SharedEngine,
    mut jobs: VecDeque<FetchJob>,
    limit: Duration,
) -> VecDeque<FetchJob> {
    let Some(job) = jobs.pop_front() else {
        return jobs;
    };
    let abandoned = engine.borrow().abandoned_reads.get();
    let path = job.session.stream.sample_path(job.id);
    let error = StorageError::TimedOut { path, limit, attempts: job.attempts, abandoned };
    let pause = RETRY_AFTER.get(job.attempts as usize - 1).filter(|_| abandoned < MOST_ABANDONED);
    match pause {
        Some(pause) => {
            tracing::warn!(%error, retry_in_ms = pause.as_millis(), "reading a sample hangs");
            tokio::time::sleep(*pause).await;
            jobs.push_back(job);
        }
        None => {
            let shared = engine.borrow().pool_shared();
            fail(&job, RowFailure::Storage(error.to_string()), &shared);
        }
    }
    jobs
}

/// Reads one row's bytes and hands the row to the work threads.
fn fetch(
    reading: &Reading,
    row: &RowToRead,
    gate: &Arc<ByteGate>,
    shared: &Shared,
    (path, scratch): (&mut Vec<u8>, &mut Vec<u8>),
    lane: (usize, usize),
) -> Result<(), Abandoned> {
    let stream = &row.stream;
    let begun = Instant::now();
    let mut waited = None;
    if reading.is_cancelled() {
        if let Some((job, _)) = reading.finish(Duration::ZERO)?
            && job.session.slots[job.slot].finish_row(job.row, false)
        {
            shared.ring();
        }
        return Ok(());
    }
    path.clear();
    let range = stream.dataset.locate(row.id, path);
    let mut outcome = Ok(None);
    if !read_straight(reading, row, path, range, scratch)? {
        // A panic ends the row, as it does in a work thread: a row that nobody finishes would keep its slot for ever.
        let read =
            AssertUnwindSafe(|| read(reading, row, gate, shared, (path, range), &mut waited));
        outcome = catch_unwind(read).unwrap_or(Ok(Err(RowFailure::Panic)))?.map(Some);
    }
    let whole = begun.elapsed();
    let held_up = waited.map_or(Duration::ZERO, |(_, held_up)| held_up);
    let took = whole.saturating_sub(held_up);
    let Some((job, permit)) = reading.finish(took)? else {
        return Ok(());
    };
    if shared.recorder.is_on() {
        record(&job, shared, lane, (begun, whole), waited, outcome.is_err());
    }
    match outcome {
        Ok(buffer) => {
            let slot = &job.session.slots[job.slot];
            stream.fetch.record(took);
            if let Some(buffer) = buffer {
                let mut cell = slot.cell(job.row);
                (cell.task.bytes, cell.task.straight) = (buffer, None);
                cell.permit = permit;
            }
            stream.stages[0].input.put(held_up);
            slot.mark_ready(0, job.row);
            shared.wake_for(&stream.stages[0]);
        }
        Err(failure) => fail(&job, failure, shared),
    }
    Ok(())
}

/// Reads one row's bytes, with retries.
fn read(
    reading: &Reading,
    row: &RowToRead,
    gate: &Arc<ByteGate>,
    shared: &Shared,
    (path, range): (&[u8], ByteRange),
    waited: &mut Option<(Instant, Duration)>,
) -> Result<Result<Vec<u8>, RowFailure>, Abandoned> {
    let stream = &row.stream;
    let limit_bytes = stream.config.dataset.limits.sample_bytes;
    let mut buffer = shared.spare_buffers.take();
    let mut attempt = || -> Result<Result<(), StorageError>, Abandoned> {
        let opened = reading.call("opening", || stream.storage.open_file(path, range))?;
        let file = match opened.and_then(|file| file.within(limit_bytes)) {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        *waited = Some(reading.wait_for_bytes(|| gate.acquire(&row.age, file.length())));
        reading.call("reading", || file.read_into(&mut buffer))
    };
    let mut result = attempt()?;
    for pause in RETRY_AFTER.iter().skip(row.attempts as usize) {
        match &result {
            Err(error) if error.is_transient() && !reading.is_cancelled() => {
                tracing::warn!(%error, retry_in_ms = pause.as_millis(), "reading a sample failed");
                reading.try_again();
                std::thread::sleep(*pause);
                result = attempt()?;
            }
            _ => break,
        }
    }
    Ok(match result {
        Ok(()) => Ok(buffer),
        Err(error) if error.is_bad_sample() => Err(RowFailure::Defect(error.to_string())),
        Err(error) => Err(RowFailure::Storage(error.to_string())),
    })
}

/// Reads an array that needs no work straight into its row. False: there is none, the file is not as expected, or its
/// bytes would have to be waited for; it is then read in the ordinary way, which tells what it is.
fn read_straight(
    reading: &Reading,
    row: &RowToRead,
    path: &[u8],
    range: ByteRange,
    scratch: &mut Vec<u8>,
) -> Result<bool, Abandoned> {
    let stream = &row.stream;
    let dataset = stream.dataset.as_ref();
    let (Some(straight), Some(tensor)) = (dataset.straight(), stream.plan.straight_tensor(dataset))
    else {
        return Ok(false);
    };
    let Some(file) = reading.call("opening", || stream.storage.open_straight(path))? else {
        return Ok(false);
    };
    let is_read = reading.without_waiting(|job| {
        let mut cell = job.session.slots[job.slot].cell(job.row);
        let row = cell.writer.bytes_mut(tensor);
        let is_read = row.len() as u64 == straight.elements_bytes
            && file.read(range, &straight.before, row, scratch);
        cell.task.straight = is_read.then_some(tensor);
        is_read
    })?;
    // Closing may take as long as opening.
    reading.call("closing", || drop(file))?;
    Ok(is_read)
}

/// Bytes that were granted at once were not waited for.
const LEAST_WAIT: Duration = Duration::from_micros(20);

/// Tells a recording of a read, and of what it waited for.
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
    if let Some((since, held_up)) = waited.filter(|(_, held_up)| *held_up >= LEAST_WAIT) {
        shared.recorder.span(track, since, held_up, What { kind: Kind::WaitForBytes, ..what });
    }
}

/// A row has no data.
fn fail(job: &FetchJob, failure: RowFailure, shared: &Shared) {
    let slot = &job.session.slots[job.slot];
    job.session.stream.fetch.record_failure();
    slot.cell(job.row).failure = Some(failure);
    slot.finish_row(job.row, true);
    shared.ring();
}
