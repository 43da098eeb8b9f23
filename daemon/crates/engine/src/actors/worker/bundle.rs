//! A Python stage on a work thread: a bundle of rows of one batch, so that waking its worker is paid for once.
//!
//! The thread holds the rows' cells until the worker has answered; [`BundleSize`] says how many they are. The stage has one
//! thread more than workers: while all workers are busy, that thread prepares the next bundle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::actors::worker::Worker;
use crate::ground::row_cells::{RowCell, RowFailure};
use crate::ground::slot_row::SlotRow;
use crate::ground::stream::Stream;
use crate::ground::work::{RowClaim, SessionWork};
use crate::ground::work_page::WorkKey;
use forebay_observe::recorder::{Kind, Track, What, worker_place};
use forebay_transform::{BundleSize, CallError, CalledRow, RowTime};

/// The result of a row in a bundle.
#[derive(Debug, Default)]
struct RowEnd {
    failure: Option<RowFailure>,
    /// When the function was called for it, if a worker answered.
    time: Option<RowTime>,
}

impl Worker {
    /// Runs a Python stage on a row, and on further rows that wait for it.
    pub(super) fn call(
        &mut self,
        session: &SessionWork,
        claim: RowClaim,
        start: Instant,
        waited: Duration,
    ) {
        let stream = &session.stream;
        let stage = &stream.stages[claim.stage];
        let slot = &session.slots[claim.slot];
        let workers = stage.workers.unwrap_or(1);
        let size = BundleSize::new(slot.share_of_unfinished(workers), stage.figures.done());
        stage.input.get(waited);
        self.meter.enter(stage, start, &self.shared.budget);
        let mut claims = vec![claim];
        let mut cells = vec![slot.cell(claim.row)];
        let mut ends = vec![RowEnd::default()];
        let is_cancelled = slot.is_cancelled();
        if !is_cancelled {
            let place = self.shared.place(self.group, self.number);
            place.enter(session, claim, cells[0].task.id, self.shared.ns_of(start));
            stream.plan.begin_bundle(&mut self.scratch);
            ends[0].failure = self.prepare(stream, claim.stage, &mut cells[0]).err();
            while size.takes_more(claims.len(), || stream.plan.bundle_bytes(&self.scratch))
                && let Some(row) = slot.take_ready(claim.stage)
            {
                stage.input.get(waited);
                let mut cell = slot.cell(row);
                let failure = self.prepare(stream, claim.stage, &mut cell).err();
                claims.push(RowClaim { row, ..claim });
                cells.push(cell);
                ends.push(RowEnd { failure, time: None });
            }
            self.call_prepared(stream, claim, &mut cells, &mut ends);
            self.shared.place(self.group, self.number).leave();
            let took = self.shared.clock.elapsed(start);
            for ((claim, cell), end) in claims.iter().zip(&mut cells).zip(&ends) {
                let RowEnd { failure, time } = end;
                // The function's time: the thread's own time is mostly spent waiting for a worker.
                match failure {
                    None => stage.figures.record(time.unwrap_or_default().length()),
                    Some(_) => stage.figures.record_failure(),
                }
                if failure.is_none() && claim.stage + 1 == stream.stages.len() {
                    Self::write_id(stream, cell);
                    Self::count_row(stream, slot, *claim, cell.task.id);
                }
            }
            if self.shared.recorder.is_on() {
                let what = |claim: &RowClaim, cell: &RowCell| What {
                    kind: Kind::Stage,
                    session: session.number,
                    batch: slot.order(),
                    place: claim.stage,
                    row: claim.row,
                    detail: cell.task.id.0,
                };
                let rows: Vec<_> =
                    claims.iter().zip(&cells).map(|(claim, cell)| what(claim, cell)).collect();
                self.record_bundle(&rows, &ends, (start, took));
            }
        }
        let handed_on: Vec<_> = claims
            .iter()
            .zip(cells)
            .zip(ends)
            .map(|((claim, cell), end)| {
                self.hand_on(session, *claim, cell, end.failure, is_cancelled)
            })
            .collect();
        self.meter.leave(stage, (start, self.shared.clock.now()), &self.shared.budget);
        stage.gate.leave(self.group);
        for (claim, handed_on) in claims.iter().zip(handed_on) {
            self.announce(session, *claim, handed_on);
        }
    }

    /// Records the thread's time with a bundle under one row: the first that failed, otherwise the first of the bundle.
    /// Also records the time of each row in the function.
    fn record_bundle(&self, rows: &[What], ends: &[RowEnd], (start, took): (Instant, Duration)) {
        let failed = ends.iter().position(|end| end.failure.is_some());
        let kind = if failed.is_some() { Kind::FailedStage } else { Kind::Stage };
        if let Some(row) = rows.get(failed.unwrap_or(0)) {
            self.record(start, took, What { kind, ..*row });
        }
        let track = Track::Work(self.group, self.number);
        for (row, end) in rows.iter().zip(ends) {
            if let Some(time) = end.time {
                let place = worker_place(row.place, time.worker);
                let what = What { kind: Kind::Python, place, ..*row };
                self.shared.recorder.span_ns(track, time.begin_ns, time.end_ns, what);
            }
        }
    }

    /// Copies a row's fields for the call, with its sample recorded as under work; decodes images that are not decoded
    /// yet.
    fn prepare(
        &mut self,
        stream: &Stream,
        stage: usize,
        cell: &mut RowCell,
    ) -> Result<(), RowFailure> {
        let page = self.shared.work_page.get();
        let (epoch, sample) = (cell.task.key.epoch, cell.task.id.0);
        let key = WorkKey { stream: stream.work_key(), epoch, sample };
        let work = page.map(|page| page.begin((self.group, self.number), key)).transpose();
        let work = work.map_err(RowFailure::Defect)?;
        let scratch = &mut self.scratch;
        let run = catch_unwind(AssertUnwindSafe(|| {
            stream.plan.prepare_row(stage, &mut cell.task, stream.dataset.as_ref(), scratch)
        }));
        let outcome = match run {
            Ok(outcome) => outcome.map_err(|defect| RowFailure::Defect(defect.0)),
            Err(_) => Err(RowFailure::Panic),
        };
        if let Some(work) = work {
            work.finish();
        }
        outcome
    }

    /// Calls the function with the prepared rows.
    fn call_prepared(
        &mut self,
        stream: &Stream,
        claim: RowClaim,
        cells: &mut [std::sync::MutexGuard<'_, RowCell>],
        ends: &mut [RowEnd],
    ) {
        let mut parts: Vec<_> = cells
            .iter_mut()
            .zip(ends)
            .filter(|(_, end)| end.failure.is_none())
            .map(|(cell, end)| {
                let RowCell { writer, beside, task, .. } = &mut **cell;
                (SlotRow::new(writer, beside, &stream.plan), task, end)
            })
            .collect();
        if parts.is_empty() {
            return;
        }
        let (shared, scratch, thread) = (&self.shared, &mut self.scratch, self.number);
        let is_ending = || shared.is_ending();
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut rows: Vec<CalledRow<'_>> = parts
                .iter_mut()
                .map(|(row, task, _)| CalledRow { task, row, outcome: Ok(()), time: None })
                .collect();
            stream.plan.call_bundle(claim.stage, &mut rows, thread, scratch, &is_ending);
            rows.into_iter().map(|row| (row.outcome, row.time)).collect::<Vec<_>>()
        }));
        let Ok(outcomes) = run else {
            self.scratch.renew();
            return parts.iter_mut().for_each(|(.., end)| end.failure = Some(RowFailure::Panic));
        };
        for ((.., end), (outcome, time)) in parts.iter_mut().zip(outcomes) {
            end.time = time;
            end.failure = outcome.err().map(|error| match error {
                CallError::Defect(reason) => RowFailure::Defect(reason),
                CallError::Raised { summary, text } => {
                    RowFailure::Raised { stage: claim.stage, summary, text }
                }
                CallError::NoWorkers(reason) => RowFailure::NoWorkers(reason),
                CallError::Ending => RowFailure::Defect("the daemon ends".to_owned()),
            });
        }
    }
}
