//! Fetches a row whose sample shares units with other samples: from memory, by waiting for the thread that reads the
//! unit, or by reading. States and reasons: [`crate::ground::units`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::actors::pool::Shared;
use crate::actors::reading::{Abandoned, Reading, Row, RowToRead};
use crate::ground::budgets::Gates;
use crate::ground::gate::Age;
use crate::ground::stream::ReadScratch;
use crate::ground::units::{Standing, Wanted};
use crate::ground::work::FetchJob;
use forebay_storage::StorageError;
use forebay_storage::location::{SampleBytes, SharedBytes};

/// Acquires all units of the row, or leaves the row waiting for a unit that another row reads; returns which.
pub(super) fn fetch(
    reading: &Reading,
    row: &RowToRead,
    gates: &Gates,
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
        let length =
            match reading.call("opening", || stream.open_sample((row.id, row.draw), scratch))? {
                Ok(length) => length,
                Err(error) => return Ok(Err(error)),
            };
        *waited = Some(reading.wait_for_bytes(|| gates.acquire_to_fetch(&row.age, length)));
        let lengths = scratch.opened.iter().map(|opened| opened.length_bytes);
        let is_claimed = reading.claim_units(lengths)?;
        // The caller closes the remaining files after a failure.
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
            let read = || stream.storage.read_held(dataset, opened, &mut bytes);
            if let Err(error) = reading.call("reading", read)? {
                return Ok(Err(error));
            }
            for job in reading.complete_unit(place, bytes)? {
                settle(job, gates, shared);
            }
        }
    }
}

/// Passes a row on after its wait for a unit, or lets it wait for the next unit.
fn settle(mut job: FetchJob, gates: &Gates, shared: &Shared) {
    loop {
        match Wanted::look(&mut job.units) {
            Standing::Held => {
                // The row took no time of a fetch thread.
                job.session.stream.fetch.record(Duration::ZERO);
                return hand_on(job, Duration::ZERO, gates, shared);
            }
            Standing::Reading(place) => {
                let unit = Arc::clone(job.units[place].unit());
                match unit.wait(job) {
                    Ok(()) => return,
                    // The unit's state has just changed.
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

/// Passes a row that holds all its units to the work threads, once it has the bytes of the work budget for unpacking.
/// The row holds its units while it waits for these bytes. This cannot deadlock: rows that already have bytes of the
/// work budget hold all their units and wait for none.
pub(super) fn hand_on(mut job: FetchJob, held_up: Duration, gates: &Gates, shared: &Shared) {
    let (lead, draw) = (job.take_lead(), job.draw());
    let FetchJob { session, slot, row, order, id, units, retries, .. } = job;
    let stream = &session.stream;
    let held = units.into_iter().filter_map(Wanted::into_hold).map(SharedBytes::new);
    let held: Vec<SharedBytes> = held.collect();
    let bytes = gates.work_bytes(stream.needs(id, draw, SampleBytes::shared(&held)));
    let age = Age { next_to_publish: Arc::clone(&session.next_to_publish), order, row };
    let work = if bytes > 0 { gates.acquire_to_work(&age, None, bytes) } else { None };
    let slot = &session.slots[slot];
    let mut cell = slot.cell(row);
    let task = &mut cell.task;
    task.in_place = None;
    task.shared.extend(held);
    cell.permits.work = work;
    cell.lead = lead;
    drop(cell);
    stream.stages[0].input.put(held_up);
    slot.mark_ready(0, row);
    shared.wake_for(&stream.stages[0]);
    if let Some(retries) = retries {
        retries.succeed();
        // Other rows wait for the same storage.
        shared.wake_engine();
    }
}
