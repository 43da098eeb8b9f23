//! The substitutes that a session has published: their count in the epoch, for `errors.budget`, and the latest ones.

use std::collections::VecDeque;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::ids::{Position, SampleId};

/// Maximal number of substituted samples that `stats` lists.
const MAX_LISTED: usize = 100;

/// A sample that replaces a bad one.
#[derive(Debug, Clone)]
pub(crate) struct Substituted {
    /// Its row in the batch; the lowest row if the sample is repeated.
    pub row: usize,
    pub epoch: u64,
    /// Which occurrence of the sample it is; see [`forebay_order::PlannedRow::pass`].
    pub pass: u64,
    pub bad: SampleId,
    pub substitute: SampleId,
    /// The bad sample's file.
    pub path: String,
    /// The defect of that file; defects of earlier substitutes are logged.
    pub reason: String,
    /// Whether the file could not be read; otherwise its bytes are defective.
    pub is_unreadable: bool,
}

/// A reason with its file, unless the reason contains it already.
pub(super) fn described(path: &str, reason: &str) -> String {
    if reason.contains(path) { reason.to_owned() } else { format!("{path}: {reason}") }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Substitutes {
    /// Number published in the epoch of the last published batch.
    count: u64,
    epoch: u64,
    /// The latest ones, at most [`MAX_LISTED`].
    pub(crate) listed: VecDeque<Substituted>,
    /// Number published in all epochs.
    pub(crate) total: u64,
    /// Number published because a file could not be read.
    pub(crate) unreadable: u64,
}

impl Substitutes {
    /// For a session that starts at a position. `asked`: as requested; `target`: as normalised; `count`: the number of
    /// earlier substitutes in the epoch of `asked`.
    pub(super) fn new(asked: Position, target: Position, count: u64) -> Self {
        let mut substitutes = Self {
            count: 0,
            epoch: target.epoch,
            listed: VecDeque::new(),
            total: 0,
            unreadable: 0,
        };
        substitutes.seek(asked, target, count);
        substitutes
    }

    /// The same for a seek. The count is 0 if the requested position was the end of an epoch.
    pub(super) fn seek(&mut self, asked: Position, target: Position, count: u64) {
        self.epoch = target.epoch;
        self.count = if asked.epoch == target.epoch { count } else { 0 };
    }

    /// Substitutes of the epoch, for the state that the client saves at `position_after`.
    pub(super) fn carried(&self, position_after: Position) -> u64 {
        if position_after.epoch == self.epoch { self.count } else { 0 }
    }

    /// Counts the substitutes of a published batch.
    pub(super) fn publish(&mut self, epoch: u64, substituted: Vec<Substituted>) {
        if epoch != self.epoch {
            (self.epoch, self.count) = (epoch, 0);
        }
        self.count = self.count.saturating_add(substituted.len() as u64);
        self.total += substituted.len() as u64;
        for one in substituted {
            self.unreadable += u64::from(one.is_unreadable);
            if self.listed.len() == MAX_LISTED {
                self.listed.pop_front();
            }
            self.listed.push_back(one);
        }
    }

    /// The fault of a batch whose substitutes exceed this rank's budget for the epoch. It names the substitute of the
    /// highest row, whatever the order of discovery.
    pub(super) fn over_budget(
        &self,
        epoch: u64,
        substituted: &[Substituted],
        allowed: u64,
    ) -> Option<Fault> {
        let last = substituted.iter().max_by_key(|one| one.row)?;
        let before = if epoch == self.epoch { self.count } else { 0 };
        let count = before.saturating_add(substituted.len() as u64);
        (count > allowed).then(|| Fault {
            kind: FaultKind::BadSample,
            message: format!(
                "{count} bad samples in epoch {epoch} exceed errors.budget, which allows this rank {allowed}; the \
                 last: {}",
                described(&last.path, &last.reason)
            ),
        })
    }
}
