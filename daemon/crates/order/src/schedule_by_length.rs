//! What a schedule does with batches by length.
//!
//! A position is the number of samples that all ranks have consumed in the epoch, as with batches of one size. In the
//! order of batches the samples of a step follow each other, rank by rank, so a batch is a run of positions here too.

use std::cell::RefCell;
use std::sync::Arc;

use forebay_protocol::cuts::{Cut, Pools};
use forebay_protocol::ids::Position;

use super::by_length::{ByLength, Counts, LengthBatches, PoolPlan};
use super::dealing::{Dealing, Last};
use super::draw::Drawn;
use super::error::OrderError;
use super::schedule::{EpochOrder, PlannedBatch, Rows, Schedule};
use super::selection::Selection;

impl Schedule {
    /// The schedule of one rank with batches by length or shape. `dealing.batch_size` has no effect; with `Last::Short` the
    /// samples of a pool that are fewer than ranks, of a shape, are left out, as with `Last::Drop`.
    ///
    /// # Errors
    /// The rank is not below the world size; or, unless `dealing.last` is `Last::Pad`, an epoch or a pool has fewer
    /// samples than ranks, or possibly of each shape.
    pub fn by_length(
        selection: Selection,
        dealing: Dealing,
        rank: u32,
        world_size: u32,
        by_length: Arc<ByLength>,
    ) -> Result<Self, OrderError> {
        // A batch has one sample at least.
        let least = Dealing { batch_size: 1, last: Last::Pad, ..dealing };
        let mut schedule = Self::of(selection, least, rank, world_size)?;
        let samples = schedule.samples;
        if samples < u64::from(world_size) && dealing.last != Last::Pad {
            return Err(OrderError::FewerSamplesThanRanksByLength { samples, world_size });
        }
        let pools = by_length.pools(samples, world_size);
        // The last pool is at least as large as the first.
        let pool = pools.end_of(0);
        let needed = by_length.fewest_of_pool(world_size);
        if pool < needed && dealing.last != Last::Pad {
            return Err(if by_length.is_by_shape() {
                OrderError::PoolBelowShapes { pool, world_size, needed }
            } else {
                OrderError::PoolBelowRanks { pool, world_size }
            });
        }
        schedule.dealing = dealing;
        schedule.by_length = Some(LengthBatches::new(by_length, pools));
        Ok(schedule)
    }

    /// Its pools, if batches are by length.
    pub fn pools(&self) -> Option<Pools> {
        self.by_length.as_ref().map(|batches| batches.pools)
    }

    /// The schedule from a position on that was reached with these cuts, and the position as
    /// [`normalise`](Self::normalise) gives it. Without batches by length the cuts have no effect.
    ///
    /// # Errors
    /// As [`normalise`](Self::normalise); or no step begins at the position with these cuts.
    pub fn beginning_at(
        &self,
        position: Position,
        cuts: &[Cut],
    ) -> Result<(Self, Position), OrderError> {
        // Before anything is planned for it.
        self.check(position)?;
        let mut schedule = self.clone();
        if let Some(batches) = &self.by_length {
            let begun = batches.begin(position, cuts)?;
            let pool = begun.pools.pool_of(position.samples);
            let place = position.samples - begun.pools.start_of(pool);
            schedule.by_length = Some(begun);
            let Position { epoch, samples } = position;
            let plan = schedule.plan_or_error(epoch, pool)?;
            if !plan.is_border(place) && samples != self.samples {
                return Err(OrderError::BetweenSteps { samples, epoch });
            }
        }
        let position = schedule.step_over_end(position);
        Ok((schedule, position))
    }

    /// Whether nobody has counted or is counting the batches of an epoch: the caller may do it on another thread, with
    /// [`batches_of`](Self::batches_of).
    pub fn should_count(&self, epoch: u64) -> bool {
        match &self.by_length {
            Some(batches) if !self.is_past_epochs(epoch) => {
                batches.of.begin_to_count(epoch, batches.pools.cut)
            }
            _ => false,
        }
    }

    pub(super) fn plan_or_error(&self, epoch: u64, pool: u64) -> Result<Arc<PoolPlan>, OrderError> {
        let Some(batches) = &self.by_length else { return Err(OrderError::NoSamples) };
        batches.of.plan(
            &batches.pools,
            (epoch, pool),
            &batches.chain_of(epoch, pool),
            self.dealing.seed,
            || self.epoch_as_drawn(epoch),
        )
    }

    /// The pool of a position, its first position and its plan.
    fn pool_at(&self, position: Position) -> Option<(u64, u64, Arc<PoolPlan>)> {
        let pools = self.pools()?;
        let pool = pools.pool_of(position.samples);
        // Only a pool that was begun with earlier cuts may have none, and it was checked when it was begun.
        let plan = self.plan_or_error(position.epoch, pool).ok()?;
        Some((pool, pools.start_of(pool), plan))
    }

    fn counts(&self, epoch: u64) -> Arc<Counts> {
        match &self.by_length {
            Some(batches) => {
                batches.of.counts(&batches.pools, epoch, || self.epoch_as_drawn(epoch))
            }
            None => Arc::default(),
        }
    }

    pub(super) fn is_past_epochs(&self, epoch: u64) -> bool {
        self.dealing.epochs.is_some_and(|epochs| epoch >= epochs)
    }

    /// The batches of rests of which `padded` give a step if they are padded.
    const fn batches_of_rests(&self, padded: u64) -> u64 {
        if matches!(self.dealing.last, Last::Pad) { padded } else { 0 }
    }

    pub(super) fn step_over_rest(&self, position: Position) -> Position {
        let mut position = position;
        while position.samples < self.samples && !self.is_past_epochs(position.epoch) {
            let Some((pool, start, plan)) = self.pool_at(position) else { break };
            let is_rest = position.samples - start >= plan.end_of_steps();
            let Some(pools) = self.pools().filter(|_| is_rest) else { return position };
            let end = pools.end_of(pool);
            if position.samples < end && self.dealing.last == Last::Pad {
                return position;
            }
            position.samples = end;
        }
        if self.is_past_epochs(position.epoch) {
            return position;
        }
        Position { epoch: position.epoch.saturating_add(1), samples: 0 }
    }

    pub(super) fn batch_by_length(&self, position: Position) -> Option<PlannedBatch> {
        let at = self.step_over_rest(position);
        let (_, start, plan) = self.pool_at(at)?;
        let samples = self.samples;
        let step = plan.step(plan.step_from(at.samples - start), self.rank);
        let (rows, after) = match step {
            Some(step) => {
                let (first, last) = step.rows;
                let rows = Rows {
                    first_position: start + u64::from(first),
                    valid: last - first,
                    padding: 0,
                    first_padding_position: 0,
                    samples,
                };
                (rows, start + u64::from(step.end))
            }
            None if self.dealing.last != Last::Pad => return None,
            // A rest of the pool: a row for each rank, of which the last ones are repeated.
            None => {
                let end = start + plan.rest_end(at.samples - start)?;
                let rest = end - at.samples;
                let beyond = u64::from(self.rank).saturating_sub(rest);
                let is_valid = u64::from(self.rank) < rest;
                let rows = Rows {
                    first_position: at.samples + u64::from(self.rank).min(rest - 1),
                    valid: u32::from(is_valid),
                    padding: u32::from(!is_valid),
                    // Of the rest itself: it has the shape of these samples, and another pool may have been begun with
                    // cuts that nobody knows any more.
                    first_padding_position: at.samples + beyond % rest,
                    samples,
                };
                (rows, end)
            }
        };
        let position_after = self.step_over_end(Position { epoch: at.epoch, samples: after });
        let last_of_epoch = position_after.epoch != at.epoch;
        Some(PlannedBatch {
            epoch: at.epoch,
            rows,
            position_after,
            last_of_epoch,
            last_of_rank: last_of_epoch,
        })
    }

    pub(super) fn batches_left_by_length(&self, position: Position) -> u64 {
        let at = self.step_over_rest(position);
        // A position past an epoch's end has no batches left in it.
        if at.epoch != position.epoch {
            return 0;
        }
        let Some((pool, start, plan)) = self.pool_at(at) else { return 0 };
        let place = at.samples - start;
        let left = plan.steps().saturating_sub(plan.step_from(place)) as u64;
        let (later, padded) = self.counts(at.epoch).since_pool(pool + 1);
        left + later + self.batches_of_rests(plan.padded_from(place) + padded)
    }

    pub(super) fn batches_of_by_length(&self, epoch: u64) -> u64 {
        // After the last epoch those of the last one.
        let last = self.dealing.epochs.map_or(epoch, |epochs| epochs.saturating_sub(1));
        let epoch = epoch.min(last);
        let counts = self.counts(epoch);
        let of = |(steps, padded): (u64, u64)| steps + self.batches_of_rests(padded);
        let all = of(counts.since_pool(0));
        let begun = self.by_length.as_ref().and_then(|batches| batches.begun_in(epoch));
        let Some((pool, plan)) =
            begun.and_then(|pool| Some((pool, self.plan_or_error(epoch, pool).ok()?)))
        else {
            return all;
        };
        // Of the pool that was begun with other cuts: theirs, and what is left.
        let planned = of(counts.since_pool(pool)) - of(counts.since_pool(pool + 1));
        all - planned + plan.all_steps() + self.batches_of_rests(plan.padded_from(0))
    }

    pub(super) fn left_out_by_length(&self, epoch: u64) -> u64 {
        if self.dealing.last == Last::Pad { 0 } else { self.counts(epoch).rest() }
    }

    pub(super) fn padding_by_length(&self, epoch: u64) -> u64 {
        if self.dealing.last != Last::Pad {
            return 0;
        }
        let counts = self.counts(epoch);
        (counts.padded() * u64::from(self.world_size)).saturating_sub(counts.rest())
    }
}

/// An epoch in the order of batches by length.
#[derive(Debug, Clone)]
pub(super) struct LengthEpoch {
    drawn: EpochOrder,
    batches: LengthBatches,
    seed: u64,
    /// The plan of the pool that was used last.
    last: RefCell<Option<(u64, Arc<PoolPlan>)>>,
}

impl LengthEpoch {
    pub(super) const fn new(drawn: EpochOrder, batches: LengthBatches, seed: u64) -> Self {
        Self { drawn, batches, seed, last: RefCell::new(None) }
    }

    pub(super) fn draw_at(&self, position: u64) -> Drawn {
        let pools = &self.batches.pools;
        let pool = pools.pool_of(position);
        let start = pools.start_of(pool);
        let place = position - start;
        let mut last = self.last.borrow_mut();
        if let Some((of, plan)) = &*last
            && *of == pool
        {
            return self.drawn.draw_at(start + plan.at(place));
        }
        let epoch = self.drawn.epoch();
        let chain = self.batches.chain_of(epoch, pool);
        let order = || self.drawn.clone();
        match self.batches.of.plan(pools, (epoch, pool), &chain, self.seed, order) {
            Ok(plan) => {
                let place = plan.at(place);
                *last = Some((pool, plan));
                self.drawn.draw_at(start + place)
            }
            // A chain was checked when its pool was begun.
            Err(_) => self.drawn.draw_at(position),
        }
    }
}
