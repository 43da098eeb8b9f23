//! How the samples of an epoch are cut into batches by their lengths, as far as a saved position depends on it.
//!
//! An epoch's positions are divided into pools of [`Pools::pool`] samples; the last one has the rest as well. Inside a
//! pool the number of consumed samples says which samples were consumed only together with the cuts in use so far: the
//! world size and the bounds of a batch. So a position inside a pool is saved with its chain of [`Cut`]s. At the border
//! of two pools the chain is empty.

use serde::{Deserialize, Serialize};

use crate::ids::Position;

/// The longest chain: how often a run may continue with other cuts inside one pool.
pub const MAX_CUTS: usize = 64;

/// The most samples for which a pool with a chain of several cuts is cut anew: the cuts times the samples of the pool.
pub const MAX_CUT_SAMPLES: u64 = 4 << 20;

/// What the steps of a pool are cut by, from a position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cut {
    /// The consumed samples of the epoch from which on it applies.
    pub from: u64,
    /// The number of ranks: a step has one batch for each.
    pub world_size: u32,
    /// The most that the rows of a batch times its longest row come to; 0: the rows of a step have one shape instead.
    pub budget: u64,
    /// A row counts as its length rounded up to a multiple of this; at least 1.
    pub multiple_of: u32,
    /// The most rows of a batch; at least 1.
    pub max_rows: u32,
}

impl Cut {
    /// The same bounds from another position on.
    #[must_use]
    pub const fn starting_at(self, from: u64) -> Self {
        Self { from, ..self }
    }

    /// Whether both cut alike.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.starting_at(other.from) == *other
    }
}

/// The pools of a stream, and the cut of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// The samples of a pool; at least 1.
    pub pool: u64,
    /// The samples of an epoch.
    pub samples: u64,
    /// The session's cut, from an epoch's start on.
    pub cut: Cut,
}

impl Pools {
    /// The number of pools of an epoch.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.samples / self.pool.max(1)).max(1)
    }

    /// The pool of a position in the epoch.
    #[must_use]
    pub fn pool_of(&self, samples: u64) -> u64 {
        (samples / self.pool.max(1)).min(self.count() - 1)
    }

    /// The first position of a pool.
    #[must_use]
    pub fn start_of(&self, pool: u64) -> u64 {
        pool * self.pool
    }

    /// The position after a pool's last one.
    #[must_use]
    pub fn end_of(&self, pool: u64) -> u64 {
        if pool + 1 >= self.count() { self.samples } else { self.start_of(pool + 1) }
    }

    /// The chain of a position that a session has reached: `begun` is where it began, with that position's chain. Empty at
    /// the border of two pools.
    #[must_use]
    pub fn chain_at(&self, position: Position, begun: (Position, &[Cut])) -> Vec<Cut> {
        let pool = self.pool_of(position.samples);
        let start = self.start_of(pool);
        if position.samples == start || position.samples >= self.samples {
            return Vec::new();
        }
        let (from, chain) = begun;
        let is_in_same_pool = from.epoch == position.epoch
            && self.pool_of(from.samples) == pool
            && from.samples > start;
        let mut chain = if is_in_same_pool { chain.to_vec() } else { Vec::new() };
        match chain.last() {
            None => chain.push(self.cut.starting_at(start)),
            Some(last) if self.cut.is_like(last) => {}
            // Before the session's first batch its own cut has consumed nothing.
            Some(_) if position.samples <= from.samples => {}
            Some(_) => chain.push(self.cut.starting_at(from.samples)),
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { from: 0, world_size: 2, budget: 100, multiple_of: 1, max_rows: 8 };
    const POOLS: Pools = Pools { pool: 10, samples: 35, cut: CUT };

    fn at(epoch: u64, samples: u64) -> Position {
        Position { epoch, samples }
    }

    #[test]
    fn last_pool_has_the_rest() {
        let bounds = |pool| (POOLS.start_of(pool), POOLS.end_of(pool));
        assert_eq!(POOLS.count(), 3);
        assert_eq!([bounds(0), bounds(1), bounds(2)], [(0, 10), (10, 20), (20, 35)]);
        assert_eq!([0, 9, 10, 29, 30, 34].map(|at| POOLS.pool_of(at)), [0, 0, 1, 2, 2, 2]);
        let small = Pools { samples: 7, ..POOLS };
        assert_eq!((small.count(), small.end_of(0)), (1, 7));
    }

    #[test]
    fn chain_is_empty_at_borders_and_grows_inside_a_pool() {
        let new = (at(0, 0), &[][..]);
        assert_eq!(POOLS.chain_at(at(0, 10), new), []);
        assert_eq!(POOLS.chain_at(at(0, 14), new), [CUT.starting_at(10)]);
        let other = Cut { world_size: 3, from: 10, ..CUT };
        let begun = (at(0, 13), &[other][..]);
        assert_eq!(POOLS.chain_at(at(0, 13), begun), [other], "nothing of its own yet");
        assert_eq!(POOLS.chain_at(at(0, 17), begun), [other, CUT.starting_at(13)]);
        assert_eq!(POOLS.chain_at(at(0, 27), begun), [CUT.starting_at(20)], "another pool");
        assert_eq!(POOLS.chain_at(at(1, 17), begun), [CUT.starting_at(10)], "another epoch");
        let same = (at(0, 13), &[CUT.starting_at(10)][..]);
        assert_eq!(POOLS.chain_at(at(0, 17), same), [CUT.starting_at(10)], "the same cut goes on");
    }
}
