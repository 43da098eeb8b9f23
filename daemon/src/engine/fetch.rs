//! Fetches admitted rows: a few lanes a stream, each with one blocking read under way.
//!
//! A lane takes up to [`CHUNK_ROWS`] rows at a time from the most urgent session, in (batch, row) order, and reads them
//! one after another on a blocking thread of the runtime. Bytes are granted between opening a file and reading it. An
//! array that needs no work is read straight into its row and takes none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_protocol::ids::SampleId;

use super::core::SharedEngine;
use super::gate::{Age, ByteGate, BytePermit};
use super::pool::Shared;
use super::work::{RowFailure, SessionWork};
use crate::storage::StorageError;

/// Rows that one trip to a blocking thread reads: amortises the hand-over, about 10 µs.
pub(crate) const CHUNK_ROWS: usize = 4;

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
}

/// Runs one lane of a stream until the engine ends.
pub(crate) async fn run_lane(engine: SharedEngine, stream: usize) {
    let work_to_do = engine.borrow().fetch_notify(stream);
    loop {
        let jobs = engine.borrow_mut().take_fetch_jobs(stream);
        if jobs.is_empty() {
            work_to_do.notified().await;
            continue;
        }
        let (gate, shared) = {
            let engine = engine.borrow();
            (Arc::clone(&engine.gate), engine.pool_shared())
        };
        let read = tokio::task::spawn_blocking(move || {
            let (mut path, mut scratch) = (Vec::new(), Vec::new());
            for job in jobs {
                fetch(&job, &gate, &shared, &mut path, &mut scratch);
            }
        });
        // Reading itself cannot panic past its row; this is about what hands rows on.
        if read.await.is_err() {
            tracing::error!("a fetch thread panicked; every session is ended");
            engine
                .borrow_mut()
                .end_all("a fetch thread panicked: an error in forebay; please report it");
        }
    }
}

/// Reads one row's bytes and hands the row to the work threads.
fn fetch(
    job: &FetchJob,
    gate: &Arc<ByteGate>,
    shared: &Shared,
    path: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) {
    let stream = &job.session.stream;
    let slot = &job.session.slots[job.slot];
    let start = Instant::now();
    let mut held_up = Duration::ZERO;
    let outcome = if slot.is_cancelled() {
        None
    } else if read_straight(job, path, scratch) {
        stream.fetch.record(start.elapsed());
        stream.stages[0].input.put(Duration::ZERO);
        slot.mark_ready(0, job.row);
        shared.wake_for(&stream.stages[0]);
        return;
    } else {
        // A panic ends the row, as it does in a work thread: a row that nobody finishes would keep its slot for ever.
        let read = AssertUnwindSafe(|| read(job, gate, shared, path, &mut held_up));
        Some(catch_unwind(read).unwrap_or(Err(RowFailure::Panic)))
    };
    let mut cell = slot.cell(job.row);
    match outcome {
        Some(Ok((permit, buffer))) => {
            stream.fetch.record(start.elapsed().saturating_sub(held_up));
            cell.task.bytes = buffer;
            cell.permit = permit;
            drop(cell);
            stream.stages[0].input.put(held_up);
            slot.mark_ready(0, job.row);
            shared.wake_for(&stream.stages[0]);
        }
        Some(Err(failure)) => {
            stream.fetch.record_failure();
            cell.failure = Some(failure);
            drop(cell);
            slot.finish_row(job.row, true);
            shared.ring();
        }
        None => {
            drop(cell);
            if slot.finish_row(job.row, false) {
                shared.ring();
            }
        }
    }
}

/// Reads one row's bytes, with retries. No permit: the daemon ends.
fn read(
    job: &FetchJob,
    gate: &Arc<ByteGate>,
    shared: &Shared,
    path: &mut Vec<u8>,
    held_up: &mut Duration,
) -> Result<(Option<BytePermit>, Vec<u8>), RowFailure> {
    let stream = &job.session.stream;
    let slot = &job.session.slots[job.slot];
    let next_to_publish = Arc::clone(&job.session.next_to_publish);
    let age = Age { next_to_publish, order: job.order, row: job.row };
    let mut buffer = shared.spare_buffers.take();
    path.clear();
    let range = stream.dataset.locate(job.id, path);
    let mut attempt = || -> Result<_, StorageError> {
        let file = stream.storage.open_file(path, range)?;
        let waiting = Instant::now();
        let permit = gate.acquire(&age, file.length());
        *held_up = waiting.elapsed();
        file.read_into(&mut buffer)?;
        Ok(permit)
    };
    let mut result = attempt();
    for pause in RETRY_AFTER {
        match &result {
            Err(error) if error.is_transient() && !slot.is_cancelled() => {
                tracing::warn!(%error, retry_in_ms = pause.as_millis(), "reading a sample failed");
                std::thread::sleep(pause);
                result = attempt();
            }
            _ => break,
        }
    }
    match result {
        Ok(permit) => Ok((permit, buffer)),
        Err(error) if error.is_bad_sample() => Err(RowFailure::Defect(error.to_string())),
        Err(error) => Err(RowFailure::Storage(error.to_string())),
    }
}

/// Reads an array that needs no work straight into its row. False: there is none, or the file is not as expected; it is
/// then read in the ordinary way, which tells what it is.
fn read_straight(job: &FetchJob, path: &mut Vec<u8>, scratch: &mut Vec<u8>) -> bool {
    let stream = &job.session.stream;
    let dataset = stream.dataset.as_ref();
    let (Some(straight), Some(tensor)) = (dataset.straight(), stream.plan.straight_tensor(dataset))
    else {
        return false;
    };
    path.clear();
    let range = dataset.locate(job.id, path);
    let mut cell = job.session.slots[job.slot].cell(job.row);
    let row = cell.writer.bytes_mut(tensor);
    let is_read = row.len() as u64 == straight.elements_bytes
        && stream.storage.read_straight(path, range, &straight.before, row, scratch);
    cell.task.straight = is_read.then_some(tensor);
    is_read
}
