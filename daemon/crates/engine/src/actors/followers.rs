//! Finishes rows that are copies of other trainers' rows: [`crate::ground::shared_rows`] has the states.

use forebay_protocol::sync::Ordering;

use crate::actors::pool::Shared;
use crate::ground::row_cells::{RowCell, RowFailure};
use crate::ground::shared_rows::Lead;
use crate::ground::work::FetchJob;

/// Copies a made row into the rows that follow it.
pub(crate) fn finish_followers(lead: Lead<FetchJob>, made: &mut RowCell, shared: &Shared) {
    for job in lead.complete(made) {
        finish_copy(&job, shared, |cell| {
            cell.writer.copy_from(&mut made.writer);
            cell.beside.clone_from(&made.beside);
        });
    }
}

/// Fails the rows that follow a failed one.
pub(crate) fn fail_followers(lead: Lead<FetchJob>, failure: &RowFailure, shared: &Shared) {
    for job in lead.fail() {
        let slot = &job.session.slots[job.slot];
        slot.cell(job.row).failure = Some(failure.clone());
        slot.finish_row(job.row, true);
        shared.wake_engine();
    }
}

/// Finishes a row into which `copy` writes a made row.
pub(crate) fn finish_copy(job: &FetchJob, shared: &Shared, copy: impl FnOnce(&mut RowCell)) {
    let slot = &job.session.slots[job.slot];
    if !slot.is_cancelled() {
        copy(&mut slot.cell(job.row));
        if let Some(dataset) = job.session.stream.dataset_of(job.id) {
            slot.count_row(dataset);
        }
    }
    // Relaxed: a progress indicator.
    shared.rows_finished.fetch_add(1, Ordering::Relaxed);
    if slot.finish_row(job.row, false) {
        shared.wake_engine();
    }
}
