//! What becomes of a row that has no data: a substitute, within the budget, or the stream's end at its place.

use std::sync::Arc;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::ids::SampleId;

use super::{OpenBatch, Session};
use crate::config::{BadSampleBudget, OnBadSample};
use crate::engine::fetch::FetchJob;
use crate::engine::quarantine::BadSample;
use crate::engine::work::RowFailure;
use crate::order::{DrawKey, substitute};

/// A sample that took another one's place.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Substituted {
    pub(crate) epoch: u64,
    pub(crate) bad: SampleId,
    pub(crate) substitute: SampleId,
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl Session {
    /// Gives failed rows a substitute, or records the failure with its batch.
    pub(super) fn mend_failed_rows(&mut self) {
        for index in 0..self.open.len() {
            let slot_number = usize::from(self.open[index].slot.0);
            while let Some(row) = self.work.slots[slot_number].take_failed() {
                self.mend(index, slot_number, row);
            }
        }
    }

    fn mend(&mut self, index: usize, slot_number: usize, row: usize) {
        let stream = Arc::clone(&self.stream);
        let work = Arc::clone(&self.work);
        let batch = &mut self.open[index];
        let slot = &work.slots[slot_number];
        let mut cell = slot.cell(row);
        let failed_id = cell.task.id;
        let path = stream.sample_path(failed_id).display().to_string();
        let Some(failure) = cell.failure.take() else {
            return;
        };
        let reason = match failure {
            RowFailure::Storage(message) => {
                return batch.fail(row, Fault { kind: FaultKind::Storage, message });
            }
            RowFailure::Panic => {
                let message = format!(
                    "sample {} ({path}) made an operation panic; this is an error in forebay: please report it with \
                     the file; stderr has the details",
                    failed_id.0
                );
                return batch.fail(row, Fault { kind: FaultKind::Internal, message });
            }
            RowFailure::Defect(reason) => reason,
        };
        let described =
            if reason.contains(&path) { reason.clone() } else { format!("{path}: {reason}") };
        if stream.config.errors.on_bad_sample == OnBadSample::Fail {
            let message = format!(
                "bad sample {} in epoch {}: {described}; mend or remove the file, or set \
                 errors.on_bad_sample = \"substitute\"",
                failed_id.0, batch.planned.epoch
            );
            return batch.fail(row, Fault { kind: FaultKind::BadSample, message });
        }
        let (bad, attempt) = batch.replaced.get(&row).copied().unwrap_or((failed_id, 0));
        let seed = stream.config.order.seed;
        let Some(id) = substitute(stream.sample_count(), seed, batch.planned.epoch, bad, attempt)
        else {
            let message = format!(
                "no substitute for bad sample {} in epoch {}: {attempt} draws were bad too; the last: {described}",
                bad.0, batch.planned.epoch
            );
            return batch.fail(row, Fault { kind: FaultKind::BadSample, message });
        };
        batch.replaced.insert(row, (bad, attempt + 1));
        tracing::warn!(
            sample = failed_id.0,
            substitute = id.0,
            reason = described,
            "bad sample substituted"
        );
        if let Some(quarantine) = stream.quarantine.get() {
            let mut unused = Vec::new();
            let range = stream.dataset.locate(failed_id, &mut unused);
            quarantine.list(BadSample {
                epoch: batch.planned.epoch,
                sample: failed_id.0,
                path: path.clone(),
                offset: range.length.map(|_| range.offset),
                reason: reason.clone(),
                substitute: id.0,
            });
        }
        batch.substituted.retain(|earlier| earlier.bad != bad);
        batch.substituted.push(Substituted {
            epoch: batch.planned.epoch,
            bad,
            substitute: id,
            path: stream.sample_path(bad).display().to_string(),
            reason,
        });
        cell.task.reset(id, DrawKey { seed, epoch: batch.planned.epoch, sample: id.0 });
        let order = batch.order;
        drop(cell);
        slot.reopen_row();
        self.admissions.push_front(FetchJob {
            session: work,
            slot: slot_number,
            row,
            order,
            id,
            attempts: 0,
        });
    }

    /// The fault of the batch that is published next, if its substitutes go beyond the budget.
    pub(super) fn over_budget(&self) -> Option<Fault> {
        let batch = self.open.front()?;
        if batch.substituted.is_empty() {
            return None;
        }
        let before =
            if batch.planned.epoch == self.substitutes_epoch { self.substitutes } else { 0 };
        let allowed = self.substitutes_allowed();
        let count = before.saturating_add(batch.substituted.len() as u64);
        (count > allowed).then(|| Fault {
            kind: FaultKind::BadSample,
            message: format!(
                "{count} bad samples in epoch {} exceed errors.budget, which allows this rank {allowed}; the last: {}: {}",
                batch.planned.epoch,
                batch.substituted.last().map_or("", |last| last.path.as_str()),
                batch.substituted.last().map_or("", |last| last.reason.as_str()),
            ),
        })
    }

    /// What the budget allows this rank in an epoch.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    fn substitutes_allowed(&self) -> u64 {
        match self.stream.config.errors.budget {
            BadSampleBudget::Count(count) => count,
            BadSampleBudget::Share(share) => {
                let samples = self.schedule.samples() / u64::from(self.world_size);
                ((samples as f64 * share) as u64).max(1)
            }
        }
    }
}

impl OpenBatch {
    /// Keeps the failure of the lowest row, whichever was found first.
    fn fail(&mut self, row: usize, fault: Fault) {
        if self.failed.as_ref().is_none_or(|(lowest, _)| row < *lowest) {
            self.failed = Some((row, fault));
        }
    }
}
