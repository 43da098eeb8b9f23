//! The substitutes that a session has published: their count in the epoch against `errors.budget`, and the latest.

use std::collections::VecDeque;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::ids::{Position, SampleId};

/// The most substituted samples that `stats` lists.
const MAX_LISTED: usize = 100;

/// A sample that replaces a bad one.
#[derive(Debug, Clone)]
pub(crate) struct Substituted {
    pub epoch: u64,
    /// Which of the times that the sample comes; see [`forebay_order::PlannedRow::pass`].
    pub pass: u64,
    pub bad: SampleId,
    pub substitute: SampleId,
    pub path: String,
    pub reason: String,
    /// Whether its file could not be read; else its bytes are defective.
    pub is_unreadable: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Substitutes {
    /// Published in the epoch of the batch published last.
    count: u64,
    epoch: u64,
    /// The latest, at most [`MAX_LISTED`].
    pub(crate) listed: VecDeque<Substituted>,
    /// Published in all epochs.
    pub(crate) total: u64,
    /// Of these the ones for files that could not be read.
    pub(crate) unreadable: u64,
}

impl Substitutes {
    /// At the position asked for, which `target` normalises, with the substitutes so far in its epoch.
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

    /// The same for a seek. The count ends where the position asked for was an epoch's end.
    pub(super) fn seek(&mut self, asked: Position, target: Position, count: u64) {
        self.epoch = target.epoch;
        self.count = if asked.epoch == target.epoch { count } else { 0 };
    }

    /// Those of the epoch, for the state that the client saves at `position_after`.
    pub(super) fn carried(&self, position_after: Position) -> u64 {
        if position_after.epoch == self.epoch { self.count } else { 0 }
    }

    /// A batch of an epoch is published.
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

    /// The fault of a batch whose substitutes exceed what the budget allows this rank in an epoch.
    pub(super) fn over_budget(
        &self,
        epoch: u64,
        substituted: &[Substituted],
        allowed: u64,
    ) -> Option<Fault> {
        let last = substituted.last()?;
        let before = if epoch == self.epoch { self.count } else { 0 };
        let count = before.saturating_add(substituted.len() as u64);
        (count > allowed).then(|| Fault {
            kind: FaultKind::BadSample,
            message: format!(
                "{count} bad samples in epoch {epoch} exceed errors.budget, which allows this rank {allowed}; the \
                 last: {}: {}",
                last.path, last.reason
            ),
        })
    }
}
