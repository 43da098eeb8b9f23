//! Plans of pools that are made before a batch of them is due, on a thread of the caller.
//!
//! A pool of 65,536 samples takes some milliseconds to plan, and the steps of an epoch of ten million take seconds to
//! count. A thread that must not pause asks [`Schedule::is_planned`] before it deals a batch, and has
//! [`Schedule::pool_to_plan`] planned elsewhere. What is not planned is planned by whoever uses it, with the same result.
//!
//! States of a pool's plan:
//! ```text
//!   Absent ──pool_to_plan: the first caller──► Underway ──PoolToPlan::plan──► Kept
//!     ▲                                           │                            │ others were used more recently
//!     └──────── PoolToPlan is dropped unplanned ──┴────────────────────────────┘
//! ```

use std::sync::Arc;

use forebay_protocol::cuts::Cut;
use forebay_protocol::ids::Position;

use super::schedule::Schedule;

/// A pool by epoch and number, and the chain of cuts with which it is planned.
pub(super) type PoolKey = (u64, u64, Arc<[Cut]>);

/// A pool that its holder is to plan. While it exists nobody else is given this pool to plan.
#[derive(Debug)]
#[must_use]
pub struct PoolToPlan {
    schedule: Schedule,
    key: PoolKey,
}

impl PoolToPlan {
    /// The samples of the pool.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let (_, pool, _) = &self.key;
        self.schedule.pools().map_or(0, |pools| pools.end_of(*pool) - pools.start_of(*pool))
    }

    /// Plans the pool. Takes some milliseconds, and for pools of a million samples a quarter of a second.
    pub fn plan(self) {
        let (epoch, pool, _) = self.key;
        // A chain was checked when its pool was begun.
        let _ = self.schedule.plan_or_error(epoch, pool);
    }
}

impl Drop for PoolToPlan {
    fn drop(&mut self) {
        if let Some(batches) = &self.schedule.by_length {
            batches.of.end_planning(&self.key);
        }
    }
}

impl Schedule {
    /// Whether the batch at a position is dealt without planning a pool or counting an epoch. Batches that are not by
    /// length always are.
    pub fn is_planned(&self, position: Position) -> bool {
        let Some(batches) = &self.by_length else { return true };
        let Some((epoch, pool)) = self.pool_of(position) else { return true };
        if !batches.of.is_counted(epoch, batches.pools.cut) {
            return false;
        }
        let Some(plan) = batches.of.kept_plan(&self.pool_key(epoch, pool)) else { return false };
        let samples = if position.epoch == epoch { position.samples } else { 0 };
        let place = samples.saturating_sub(batches.pools.start_of(pool));
        if plan.step_from(place) + 1 < plan.steps() {
            return true;
        }
        // The position after the pool's last step is in the pool after it.
        let Some((epoch, pool)) = self.pool_after(epoch, pool) else { return true };
        batches.of.is_counted(epoch, batches.pools.cut)
            && batches.of.kept_plan(&self.pool_key(epoch, pool)).is_some()
    }

    /// The pool of a position or else the one after it, if it is not planned and nobody is planning it.
    pub fn pool_to_plan(&self, position: Position) -> Option<PoolToPlan> {
        let batches = self.by_length.as_ref()?;
        let (epoch, pool) = self.pool_of(position)?;
        let pools = [Some((epoch, pool)), self.pool_after(epoch, pool)];
        let mut keys = pools.into_iter().flatten().map(|(epoch, pool)| self.pool_key(epoch, pool));
        let key = keys.find(|key| batches.of.begin_to_plan(key))?;
        Some(PoolToPlan { schedule: self.clone(), key })
    }

    /// Plans and counts what the first batches from a position on need, as for [`beginning_at`](Self::beginning_at) with
    /// the same arguments.
    pub fn prepare(&self, position: Position, cuts: &[Cut]) {
        // An error is reported by whoever begins there.
        let Ok((schedule, position)) = self.beginning_at(position, cuts) else { return };
        schedule.batches_left(position);
        while let Some(pool) = schedule.pool_to_plan(position) {
            pool.plan();
        }
    }

    /// The pool in which a position is, by epoch and number; `None` after the last epoch.
    fn pool_of(&self, position: Position) -> Option<(u64, u64)> {
        let pools = self.pools()?;
        let Position { epoch, samples } = position;
        let (epoch, pool) = match samples < pools.samples {
            true => (epoch, pools.pool_of(samples)),
            false => (epoch.saturating_add(1), 0),
        };
        (!self.is_past_epochs(epoch)).then_some((epoch, pool))
    }

    fn pool_after(&self, epoch: u64, pool: u64) -> Option<(u64, u64)> {
        let pools = self.pools()?;
        let end = Position { epoch, samples: pools.end_of(pool) };
        self.pool_of(end)
    }

    fn pool_key(&self, epoch: u64, pool: u64) -> PoolKey {
        let chain = self.by_length.as_ref().map(|batches| batches.chain_of(epoch, pool));
        (epoch, pool, chain.unwrap_or_default())
    }
}

#[cfg(test)]
#[path = "planning_ahead_tests.rs"]
mod tests;
