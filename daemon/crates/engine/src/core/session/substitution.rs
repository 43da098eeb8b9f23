//! Gives a row without data a substitute, or ends the stream at its position.

use std::sync::Arc;

use forebay_protocol::frames::{Fault, FaultKind};

use crate::core::session::Session;
use crate::core::session::batches::OpenBatch;
use crate::core::session::substitutes::{Substituted, described};
use crate::ground::quarantine::{BadSample, hex_unless_text};
use crate::ground::row_cells::{RowFailure, appended_traceback};
use crate::ground::work::{FetchJob, Sharing};
use forebay_config::{BadSampleBudget, OnBadSample, OnUnreadable};
use forebay_dataset::Defect;
use forebay_order::DrawKey;

impl Session {
    /// Gives failed rows a substitute, or stores the failure in the batch.
    pub(super) fn substitute_failed_rows(&mut self) {
        for index in 0..self.batches.open.len() {
            let slot_number = usize::from(self.batches.open[index].slot.0);
            while let Some(row) = self.work.slots[slot_number].take_failed() {
                if !self.note_feed_failure(index, row) {
                    self.substitute_row(index, slot_number, row);
                }
            }
        }
    }

    fn substitute_row(&mut self, index: usize, slot_number: usize, row: usize) {
        let stream = Arc::clone(&self.stream);
        let work = Arc::clone(&self.work);
        let batch = &mut self.batches.open[index];
        let slot = &work.slots[slot_number];
        let mut cell = slot.cell(row);
        let (failed_id, pass) = (cell.task.id, cell.task.key.epoch);
        let path = stream.sample_path(failed_id).display().to_string();
        let Some(failure) = cell.failure.take() else {
            return;
        };
        let errors = &stream.config.errors;
        // A row that is asked for is that sample's or none.
        let is_asked = batch.request.is_some();
        let remedy = |text: &str| if is_asked { String::new() } else { text.to_owned() };
        let no_substitute = is_asked || errors.on_bad_sample == OnBadSample::Fail;
        let (reason, is_unreadable) = match failure {
            RowFailure::Storage(message) => {
                return batch.fail(row, Fault { kind: FaultKind::Storage, message });
            }
            RowFailure::NoWorkers(message) => {
                return batch.fail(row, Fault { kind: FaultKind::Stage, message });
            }
            RowFailure::Raised { stage, summary, text } if no_substitute => {
                let (id, epoch) = (failed_id.0, batch.planned.epoch);
                let stage = &stream.stages[stage].name;
                let message = format!(
                    "stage `{stage}` failed on sample {id} ({path}) in epoch {epoch}, seed {}: {summary};{} this runs it again, under a \
                     debugger too:\n  {}{}",
                    stream.config.order.seed,
                    remedy(
                        " errors.on_bad_sample = \"substitute\" trains on another sample in its place;"
                    ),
                    stream.config.sample_command(id, pass),
                    appended_traceback(&text)
                );
                return batch.fail(row, Fault { kind: FaultKind::Stage, message });
            }
            RowFailure::Raised { stage, summary, .. } => {
                (format!("stage `{}`: {summary}", stream.stages[stage].name), false)
            }
            RowFailure::Panic => {
                let message = format!(
                    "an operation panicked on sample {} ({path}); this is a bug in forebay, please report it with the \
                     file; see stderr for details",
                    failed_id.0
                );
                return batch.fail(row, Fault { kind: FaultKind::Internal, message });
            }
            // Concerns a whole batch and does not occur for a row.
            RowFailure::BatchRaised { summary, .. } => (summary, false),
            RowFailure::Unreadable(reason)
                if is_asked || errors.on_unreadable == OnUnreadable::Fail =>
            {
                let hint = remedy(
                    "; or set errors.on_unreadable = \"substitute\" to train on another sample in its place",
                );
                let message = format!("{reason}{hint}");
                return batch.fail(row, Fault { kind: FaultKind::Storage, message });
            }
            RowFailure::Unreadable(reason) => (reason, true),
            RowFailure::Defect(reason) => (reason, false),
        };
        let described = described(&path, &reason);
        if !is_unreadable && no_substitute {
            let repair = match Defect::is_of_a_key(&reason) {
                true => "",
                false => " repair or remove the file,",
            };
            let message = format!(
                "bad sample {} in epoch {}: {described};{repair}{} this runs it again:\n  {}",
                failed_id.0,
                batch.planned.epoch,
                remedy(" or set errors.on_bad_sample = \"substitute\";"),
                stream.config.sample_command(failed_id.0, pass)
            );
            return batch.fail(row, Fault { kind: FaultKind::BadSample, message });
        }
        let (bad, attempt) = batch.replaced.get(&row).copied().unwrap_or((failed_id, 0));
        let seed = stream.config.order.seed;
        let Some(id) = stream.substitute(pass, bad, attempt, batch.planned.rows.len()) else {
            let or_longer = match &stream.by_length {
                Some(by_length) if by_length.is_by_shape() => " or of another shape",
                Some(_) => " or too long for its batch",
                None => "",
            };
            let message = format!(
                "no substitute found for bad sample {} in epoch {}: all {attempt} drawn samples are bad{or_longer}; the last: \
                 {described}",
                bad.0, batch.planned.epoch
            );
            return batch.fail(row, Fault { kind: FaultKind::BadSample, message });
        };
        batch.replaced.insert(row, (bad, attempt + 1));
        // Two kinds of messages: an unreadable file depends on time, a defect does not.
        let (sample, by) = (failed_id.0, id.0);
        if is_unreadable {
            tracing::warn!(
                sample,
                substitute = by,
                reason = described,
                "unreadable sample substituted"
            );
        } else {
            tracing::warn!(sample, substitute = by, reason = described, "bad sample substituted");
        }
        if let Some(quarantine) = stream.quarantine.get() {
            let (file, range) = stream.sample_place(failed_id);
            quarantine.list(BadSample {
                path_hex: hex_unless_text(&file),
                epoch: batch.planned.epoch,
                sample: failed_id.0,
                path: path.clone(),
                offset: range.length.map(|_| range.offset),
                reason: reason.clone(),
                unreadable: is_unreadable,
                substitute: id.0,
            });
        }
        let known = |one: &&mut Substituted| (one.bad, one.pass) == (bad, pass);
        match batch.substituted.iter_mut().find(known) {
            // The substitute is bad as well, or the row is repeated: the reason remains that of the sample to be
            // replaced.
            Some(earlier) => {
                earlier.row = earlier.row.min(row);
                earlier.substitute = id;
            }
            None => batch.substituted.push(Substituted {
                row,
                epoch: batch.planned.epoch,
                pass,
                bad,
                substitute: id,
                path,
                reason,
                is_unreadable,
            }),
        }
        cell.check = None;
        let key = DrawKey { seed, epoch: pass, sample: id.0 };
        cell.task.reset(id, key);
        let order = batch.order;
        drop(cell);
        slot.reopen_row();
        let units = work.want_units(id, key.of_sample());
        self.batches.admissions.push_front(FetchJob {
            session: work,
            slot: slot_number,
            row,
            order,
            id,
            units,
            retries: None,
            sharing: Sharing::Alone,
        });
    }

    /// This rank's budget of substitutes for an epoch.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    pub(super) fn substitutes_allowed(&self) -> u64 {
        match self.stream.config.errors.budget {
            BadSampleBudget::Count(count) => count,
            BadSampleBudget::Share(share) => {
                let samples = self.order.schedule().samples() / u64::from(self.world_size);
                ((samples as f64 * share) as u64).max(1)
            }
        }
    }
}

impl OpenBatch {
    /// Keeps the failure of the lowest row, whatever the order of discovery.
    fn fail(&mut self, row: usize, fault: Fault) {
        if self.failed.as_ref().is_none_or(|(lowest, _)| row < *lowest) {
            self.failed = Some((row, fault));
        }
    }
}
