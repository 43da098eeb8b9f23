//! Divides the positions of an epoch into global batches and distributes each to the ranks.
//!
//! A global batch is world size × batch size consecutive positions; rank *r* takes rows [*r·B*, (*r+1*)·*B*). The order
//! of an epoch depends on neither batch nor world size, so a position that was reached with one of them can be
//! continued with another: batches are then formed from that position on. `batch.last` applies only to the rest at the
//! epoch's end, less than a global batch.
//!
//! Batches by length are in [`super::schedule_by_length`].
//!
//! A schedule is immutable and stores no position; the session does.

use std::sync::Arc;

use forebay_protocol::ids::{Position, SampleId};
use forebay_select::Subset;

use super::balanced::Balanced;
use super::blocks::BlockEpoch;
use super::by_length::LengthBatches;
use super::dealing::{Dealing, Last};
use super::draw::Drawn;
use super::error::{MAX_EPOCH, OrderError};
use super::grouped::GroupEpoch;
use super::mixture::MixedEpoch;
use super::permutation::Permutation;
use super::schedule_by_length::LengthEpoch;
use super::selection::Selection;
use super::weighted::Weighted;

/// The batches of one rank of one stream.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub(super) selection: Selection,
    /// The samples that are used, by whose numbers the selection draws; `None`: all.
    kept: Option<Arc<Subset>>,
    /// The positions of an epoch.
    pub(super) samples: u64,
    pub(super) dealing: Dealing,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Batch size × world size.
    global_batch: u64,
    /// For batches by length instead of batches of one size.
    pub(super) by_length: Option<LengthBatches>,
}

/// One batch of one rank as planned; nothing is fetched yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedBatch {
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Its rows. Empty if this rank's share of a short global batch is empty: nothing is delivered then, and the epoch
    /// continues at [`position_after`](Self::position_after).
    pub rows: Rows,
    /// The stream's position once every rank has consumed its part: (epoch + 1, 0) after the epoch's last global
    /// batch, the same on every rank.
    pub position_after: Position,
    /// Whether no rank has a later batch in this epoch.
    pub last_of_epoch: bool,
    /// Whether this rank has no rows in a later batch of this epoch. Differs from
    /// [`last_of_epoch`](Self::last_of_epoch) only just before a short global batch of fewer samples than ranks.
    pub last_of_rank: bool,
}

/// The rows of a batch: consecutive positions, then padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    pub(super) first_position: u64,
    pub(super) valid: u32,
    pub(super) padding: u32,
    /// Padding repeats the epoch's positions from this one on, wrapping at its end.
    pub(super) first_padding_position: u64,
    pub(super) samples: u64,
}

/// One row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRow {
    /// The position in the epoch, below its number of samples; for padding: the repeated position.
    pub position: u64,
    /// The sample at that position.
    pub sample: SampleId,
    /// Part of the key of its draws besides seed and sample, so that a repeated sample is augmented differently: the
    /// epoch if each sample occurs once; the dataset's own pass in a mixture; the number of the sample's earlier draws
    /// with classes or groups; the number of the draw over all epochs if draws have weights.
    pub pass: u64,
    /// False for padding.
    pub valid: bool,
}

/// The order of one epoch. Cheap to clone; takes at most 128 KiB, regardless of the number of samples, and 256 KiB for
/// each dataset of a mixture; with blocks also eight bytes per block; with groups twice as much, and eight bytes per group.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    epoch: u64,
    samples: u64,
    /// The samples that are used.
    kept: Option<Arc<Subset>>,
    order: Order,
}

#[derive(Debug, Clone)]
enum Order {
    /// The dataset's order.
    AsItIs,
    Permuted(Permutation),
    InBlocks(BlockEpoch),
    Mixed(MixedEpoch),
    Weighted(Arc<Weighted>, u64),
    Balanced(Arc<Balanced>, u64),
    Grouped(GroupEpoch),
    /// The rows of a request.
    Listed(Arc<[Drawn]>),
    /// Another order, with the samples of each pool in the order of batches by length.
    ByLength(Box<LengthEpoch>),
}

impl Schedule {
    /// The schedule of one rank over a dataset of `samples` samples, each of which occurs once per epoch.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn new(
        samples: u64,
        dealing: Dealing,
        rank: u32,
        world_size: u32,
    ) -> Result<Self, OrderError> {
        Self::of(Selection::Once(samples), dealing, rank, world_size)
    }

    /// The schedule of one rank over a selection's draws.
    ///
    /// # Errors
    /// The rank is not below the world size, or some rank would have no batch in an epoch: names the sample count, the
    /// batch size, the world size and the key to change.
    pub fn of(
        selection: Selection,
        dealing: Dealing,
        rank: u32,
        world_size: u32,
    ) -> Result<Self, OrderError> {
        let samples = selection.draws_per_epoch();
        if rank >= world_size {
            return Err(OrderError::NoSuchRank { rank, world_size });
        }
        if samples == 0 {
            return Err(OrderError::NoSamples);
        }
        if i64::try_from(samples).is_err() {
            return Err(OrderError::TooManySamples { samples });
        }
        let batch_size = dealing.batch_size;
        let global_batch = u64::from(batch_size) * u64::from(world_size);
        match dealing.last {
            Last::Drop if samples < global_batch => Err(OrderError::NoWholeBatch {
                samples,
                needed: global_batch,
                batch_size,
                world_size,
            }),
            Last::Short if samples < u64::from(world_size) => {
                Err(OrderError::FewerSamplesThanRanks { samples, batch_size, world_size })
            }
            Last::Drop | Last::Short | Last::Pad => {
                let (kept, by_length) = (None, None);
                Ok(Self {
                    selection,
                    kept,
                    samples,
                    dealing,
                    rank,
                    world_size,
                    global_batch,
                    by_length,
                })
            }
        }
    }

    /// The same, drawing from the samples of a subset: the selection is of their numbers.
    #[must_use]
    pub fn among(self, kept: Option<Arc<Subset>>) -> Self {
        Self { kept, ..self }
    }

    /// What the positions draw from.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The samples of an epoch, including the ones that are left out.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The order of an epoch. Takes up to a millisecond, to draw the table of up to 65,536 samples; with blocks or
    /// groups, about a millisecond for every ten thousand of them. So keep it for the duration of the epoch.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let order = self.epoch_as_drawn(epoch);
        match &self.by_length {
            None => order,
            Some(batches) => {
                let by_length = LengthEpoch::new(order, batches.clone(), self.dealing.seed);
                let order = Order::ByLength(Box::new(by_length));
                // The order below has the ids.
                EpochOrder { epoch, samples: self.samples, kept: None, order }
            }
        }
    }

    /// The order of an epoch, without batches by length.
    pub(super) fn epoch_as_drawn(&self, epoch: u64) -> EpochOrder {
        let Dealing { seed, is_shuffled, .. } = self.dealing;
        let order = match &self.selection {
            Selection::Once(_) if !is_shuffled => Order::AsItIs,
            Selection::Once(samples) => Order::Permuted(Permutation::new(*samples, seed, epoch)),
            Selection::InBlocks(blocks) => {
                Order::InBlocks(BlockEpoch::new(Arc::clone(blocks), seed, epoch))
            }
            Selection::Mixture(mixture) => {
                Order::Mixed(MixedEpoch::new(Arc::clone(mixture), seed, epoch, is_shuffled))
            }
            Selection::Weighted(weighted) => Order::Weighted(Arc::clone(weighted), seed),
            Selection::Balanced(balanced) => Order::Balanced(Arc::clone(balanced), seed),
            Selection::Grouped(grouped) => {
                Order::Grouped(GroupEpoch::new(Arc::clone(grouped), seed, epoch))
            }
        };
        EpochOrder { epoch, samples: self.samples, kept: self.kept.clone(), order }
    }

    /// The position in the form that states use, so that each place has only one: if the rest of the epoch yields no
    /// batch for any rank, it is the next epoch's start.
    ///
    /// # Errors
    /// The position is past its epoch's end, which means another dataset.
    pub fn normalise(&self, position: Position) -> Result<Position, OrderError> {
        self.check(position)?;
        Ok(self.step_over_end(position))
    }

    /// Whether an epoch has such a position.
    pub(super) fn check(&self, position: Position) -> Result<(), OrderError> {
        if position.epoch >= MAX_EPOCH {
            return Err(OrderError::EpochTooLarge { epoch: position.epoch });
        }
        if position.samples > self.samples {
            return Err(OrderError::BehindTheEpoch {
                consumed: position.samples,
                epoch: position.epoch,
                samples: self.samples,
            });
        }
        if let Selection::Grouped(grouped) = &self.selection {
            let (Position { samples, epoch }, batch_size) = (position, grouped.batch_size());
            if samples % batch_size != 0 && samples != self.samples {
                return Err(OrderError::WithinGroups { samples, epoch, batch_size });
            }
        }
        Ok(())
    }

    /// Whether the configured epochs end at or before this position.
    pub fn finished(&self, position: Position) -> bool {
        match self.dealing.epochs {
            Some(epochs) => {
                position.epoch >= epochs || self.step_over_end(position).epoch >= epochs
            }
            None => position.epoch >= MAX_EPOCH,
        }
    }

    /// The batches of a full epoch for this rank. With batches by length epochs differ.
    pub fn batches_of(&self, epoch: u64) -> u64 {
        match &self.by_length {
            None => self.batches_per_epoch(),
            Some(_) => self.batches_of_by_length(epoch),
        }
    }

    /// The batches of a full epoch for this rank; of the first epoch, with batches by length.
    pub fn batches_per_epoch(&self) -> u64 {
        match &self.by_length {
            None => self.batches_from(0),
            Some(_) => self.batches_of_by_length(0),
        }
    }

    /// The batches of a full epoch for the rank with the fewest and for the rank with the most. They differ if `last =
    /// "short"` leaves fewer samples than ranks; a collective step then waits for ranks that have ended.
    pub fn batches_per_epoch_over_ranks(&self) -> (u64, u64) {
        if self.by_length.is_some() {
            let batches = self.batches_of_by_length(0);
            return (batches, batches);
        }
        let (whole, rest) = (self.samples / self.global_batch, self.samples % self.global_batch);
        match self.dealing.last {
            Last::Drop => (whole, whole),
            Last::Short => {
                (whole + (rest >= self.world_size as u64) as u64, whole + (rest > 0) as u64)
            }
            Last::Pad => (whole + (rest > 0) as u64, whole + (rest > 0) as u64),
        }
    }

    /// The batches for this rank from a position to the end of its epoch; 0 if the stream is finished.
    pub fn batches_left(&self, position: Position) -> u64 {
        if self.finished(position) {
            return 0;
        }
        if self.by_length.is_some() {
            return self.batches_left_by_length(position);
        }
        self.batches_from(position.samples)
    }

    /// The samples that `last = "drop"` leaves out of a full epoch; of the first one, with batches by length.
    pub fn samples_left_out_per_epoch(&self) -> u64 {
        if self.by_length.is_some() {
            return self.left_out_by_length(0);
        }
        self.samples_left_out_from(0)
    }

    /// The samples that `last = "drop"` leaves out of an epoch that is continued after `consumed` of its samples.
    pub const fn samples_left_out_from(&self, consumed: u64) -> u64 {
        match self.dealing.last {
            Last::Drop => self.samples.saturating_sub(consumed) % self.global_batch,
            Last::Short | Last::Pad => 0,
        }
    }

    /// The rows that `last = "pad"` repeats in a full epoch, over all ranks.
    pub fn padding_per_epoch(&self) -> u64 {
        if self.by_length.is_some() {
            return self.padding_by_length(0);
        }
        match self.dealing.last {
            Last::Pad => (self.global_batch - self.samples % self.global_batch) % self.global_batch,
            Last::Drop | Last::Short => 0,
        }
    }

    /// The batch that starts at a position; `None` if the stream is finished. A position past its epoch's end is
    /// treated as the next epoch's start; [`normalise`](Self::normalise) refuses it.
    pub fn batch_at(&self, position: Position) -> Option<PlannedBatch> {
        if self.finished(position) {
            return None;
        }
        if self.by_length.is_some() {
            return self.batch_by_length(position);
        }
        let start = self.step_over_end(position);
        let left = self.samples - start.samples;
        let consumed = if left < self.global_batch { left } else { self.global_batch };
        let position_after =
            self.step_over_end(Position { epoch: start.epoch, samples: start.samples + consumed });
        let last_of_epoch = position_after.epoch != start.epoch;
        Some(PlannedBatch {
            epoch: start.epoch,
            rows: self.rows_at(start.samples, consumed),
            position_after,
            last_of_epoch,
            last_of_rank: last_of_epoch || self.batches_from(position_after.samples) == 0,
        })
    }

    /// This rank's part of the global batch of `consumed` samples that starts at `start`.
    const fn rows_at(&self, start: u64, consumed: u64) -> Rows {
        let (offset, valid, padding) = if consumed == self.global_batch {
            (self.rank as u64 * self.dealing.batch_size as u64, self.dealing.batch_size, 0)
        } else if matches!(self.dealing.last, Last::Pad) {
            let offset = self.rank as u64 * self.dealing.batch_size as u64;
            let valid = clamp_to_batch(consumed.saturating_sub(offset), self.dealing.batch_size);
            (offset, valid, self.dealing.batch_size - valid)
        } else {
            let (offset, valid) = self.share_of(consumed);
            (offset, valid, 0)
        };
        Rows {
            first_position: start + if offset < consumed { offset } else { consumed },
            valid,
            padding,
            // The padding of all ranks is one sequence of rows: this rank's begins after the previous ranks'.
            first_padding_position: offset.saturating_sub(consumed) % self.samples,
            samples: self.samples,
        }
    }

    /// The start and length of this rank's contiguous part of some samples. The first ranks get the longer parts.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a share of less than a global batch is at most the batch size"
    )]
    const fn share_of(&self, samples: u64) -> (u64, u32) {
        let (rank, world_size) = (self.rank as u64, self.world_size as u64);
        let (base, longer) = (samples / world_size, samples % world_size);
        let ranks_with_longer_part = if rank < longer { rank } else { longer };
        (rank * base + ranks_with_longer_part, (base + (rank < longer) as u64) as u32)
    }

    const fn batches_from(&self, start: u64) -> u64 {
        let left = self.samples.saturating_sub(start);
        let (whole, rest) = (left / self.global_batch, left % self.global_batch);
        let rest_gives_a_batch = match self.dealing.last {
            Last::Drop => false,
            Last::Short => self.share_of(rest).1 > 0,
            Last::Pad => rest > 0,
        };
        whole + rest_gives_a_batch as u64
    }

    /// Moves to the next epoch's start if the rest yields no batch for any rank.
    pub(super) fn step_over_end(&self, position: Position) -> Position {
        if self.by_length.is_some() {
            return self.step_over_rest(position);
        }
        let left = self.samples.saturating_sub(position.samples);
        let least = match self.dealing.last {
            Last::Drop => self.global_batch,
            Last::Short | Last::Pad => 1,
        };
        if left >= least {
            return position;
        }
        Position { epoch: position.epoch.saturating_add(1), samples: 0 }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "bounded by the batch size just before")]
const fn clamp_to_batch(samples: u64, batch_size: u32) -> u32 {
    if samples < batch_size as u64 { samples as u32 } else { batch_size }
}

impl Rows {
    /// The rows of the batch, padding included.
    pub const fn len(&self) -> u32 {
        self.valid + self.padding
    }

    /// Whether the batch has no rows for this rank.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One row, of the epoch that the batch belongs to.
    ///
    /// # Panics
    /// The row is not below [`len`](Self::len).
    pub fn row(&self, row: u32, order: &EpochOrder) -> PlannedRow {
        assert!(row < self.len(), "row {row} of {}", self.len());
        let valid = row < self.valid;
        let position = if valid {
            self.first_position + u64::from(row)
        } else {
            (self.first_padding_position + u64::from(row - self.valid)) % self.samples
        };
        let Drawn { sample, pass } = order.draw_at(position);
        PlannedRow { position, sample, pass, valid }
    }

    /// All rows in order.
    pub fn iter<'a>(&'a self, order: &'a EpochOrder) -> impl Iterator<Item = PlannedRow> + 'a {
        (0..self.len()).map(|row| self.row(row, order))
    }
}

impl PlannedBatch {
    /// The batch of a request: as many rows as [`EpochOrder::of_rows`] lists. It belongs to no epoch; `pass` is that of
    /// its first row, for messages.
    pub const fn of_request(rows: u32, pass: u64) -> Self {
        let samples = rows as u64;
        let rows =
            Rows { first_position: 0, valid: rows, padding: 0, first_padding_position: 0, samples };
        let position_after = Position { epoch: 0, samples: 0 };
        Self { epoch: pass, rows, position_after, last_of_epoch: false, last_of_rank: false }
    }
}

impl EpochOrder {
    /// The order of the rows that a request lists.
    pub fn of_rows(rows: Arc<[Drawn]>) -> Self {
        let samples = rows.len() as u64;
        Self { epoch: 0, samples, kept: None, order: Order::Listed(rows) }
    }

    /// The epoch of this order.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sample at a position in the epoch, counted from 0.
    ///
    /// # Panics
    /// As [`draw_at`](Self::draw_at).
    pub fn sample_at(&self, position: u64) -> SampleId {
        self.draw_at(position).sample
    }

    /// The group of blocks of a position in the epoch, counted from 0; `None` without blocks.
    ///
    /// # Panics
    /// As [`draw_at`](Self::draw_at).
    pub fn group_at(&self, position: u64) -> Option<u64> {
        assert!(position < self.samples, "position {position} of {}", self.samples);
        match &self.order {
            Order::InBlocks(blocks) => Some(blocks.group_of(position) as u64),
            _ => None,
        }
    }

    /// The draw at a position in the epoch, counted from 0. Constant time, and with blocks, groups, a mixture or weights
    /// logarithmic in their number; allocates only the tables of a mixture's passes and of a group of blocks.
    ///
    /// # Panics
    /// The position is not below the epoch's samples.
    pub fn draw_at(&self, position: u64) -> Drawn {
        assert!(position < self.samples, "position {position} of {}", self.samples);
        let once = |number| Drawn { sample: SampleId(number), pass: self.epoch };
        let drawn = match &self.order {
            Order::AsItIs => once(position),
            Order::Permuted(permutation) => once(permutation.at(position)),
            Order::InBlocks(blocks) => once(blocks.at(position)),
            Order::Mixed(mixed) => mixed.draw_at(position),
            Order::Weighted(weighted, seed) => weighted.draw_at(*seed, self.epoch, position),
            Order::Balanced(balanced, seed) => balanced.draw_at(*seed, self.epoch, position),
            Order::Grouped(grouped) => grouped.draw_at(position),
            Order::ByLength(by_length) => by_length.draw_at(position),
            Order::Listed(rows) => usize::try_from(position)
                .ok()
                .and_then(|position| rows.get(position).copied())
                .unwrap_or_else(|| once(position)),
        };
        match &self.kept {
            Some(kept) => Drawn { sample: SampleId(kept.id_of(drawn.sample.0)), ..drawn },
            None => drawn,
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
