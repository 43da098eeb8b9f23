//! Fetching a row whose sample shares units with others: by what is in memory, by waiting for the thread that reads it, or
//! by reading. States and reasons: [`crate::units`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::gate::ByteGate;
use crate::pool::Shared;
use crate::reading::{Abandoned, Reading, Row, RowToRead};
use crate::stream::ReadScratch;
use crate::units::{Standing, Wanted};
use crate::work::FetchJob;
use forebay_source::location::SharedBytes;
use forebay_source::storage::StorageError;

/// Comes to hold all units of the row, or leaves it waiting for one that another row reads: says which.
pub(super) fn fetch(
    reading: &Reading,
    row: &RowToRead,
    gate: &Arc<ByteGate>,
    shared: &Shared,
    scratch: &mut ReadScratch,
    waited: &mut Option<(Instant, Duration)>,
) -> Result<Result<Row, StorageError>, Abandoned> {
    let stream = &row.stream;
    loop {
        let row_now = reading.look_at_units()?;
        if row_now != Row::LacksUnits {
            return Ok(Ok(row_now));
        }
        let length = match reading.call("opening", || stream.open_sample(row.id, scratch))? {
            Ok(length) => length,
            Err(error) => return Ok(Err(error)),
        };
        *waited = Some(reading.wait_for_bytes(|| gate.acquire(&row.age, length)));
        let lengths = scratch.opened.iter().map(|opened| opened.length_bytes());
        let is_claimed = reading.claim_units(lengths)?;
        // What is left of it after a failure is closed by the caller.
        scratch.opened.reverse();
        for place in 0..scratch.opened.len() {
            let Some(opened) = scratch.opened.pop() else { break };
            if !is_claimed.get(place).is_some_and(|is_claimed| *is_claimed) {
                // Closing may take as long as opening.
                reading.call("closing", || drop(opened))?;
                continue;
            }
            let mut bytes = Vec::new();
            let dataset = stream.dataset.as_ref();
            let read = || stream.storage.read_opened(dataset, opened, &mut bytes);
            if let Err(error) = reading.call("reading", read)? {
                return Ok(Err(error));
            }
            for job in reading.complete_unit(place, bytes)? {
                settle(job, shared);
            }
        }
    }
}

/// Hands a row on that has waited for a unit, or lets it wait for the next.
fn settle(mut job: FetchJob, shared: &Shared) {
    loop {
        match Wanted::look(&mut job.units) {
            Standing::Held => {
                // It took none of a fetch thread's time.
                job.session.stream.fetch.record(Duration::ZERO);
                return hand_on(job, Duration::ZERO, shared);
            }
            Standing::Reading(place) => {
                let unit = Arc::clone(job.units[place].unit());
                match unit.wait(job) {
                    Ok(()) => return,
                    // Its state has just changed.
                    Err(back) => job = back,
                }
            }
            Standing::Absent => {
                let session = Arc::clone(&job.session);
                if let Some(units) = &session.units {
                    units.give_back([job]);
                }
                return;
            }
        }
    }
}

/// Hands a row that holds all its units to the work threads.
pub(super) fn hand_on(job: FetchJob, held_up: Duration, shared: &Shared) {
    let FetchJob { session, slot, row, units, retries, .. } = job;
    let stream = &session.stream;
    let slot = &session.slots[slot];
    let mut cell = slot.cell(row);
    let task = &mut cell.task;
    task.in_place = None;
    task.shared.extend(units.into_iter().filter_map(Wanted::into_hold).map(SharedBytes::new));
    drop(cell);
    stream.stages[0].input.put(held_up);
    slot.mark_ready(0, row);
    shared.wake_for(&stream.stages[0]);
    if let Some(retries) = retries {
        retries.succeed();
        // Others wait for the same storage.
        shared.wake_engine();
    }
}
