//! A dataset in blocks: samples that are dear to read alone, and cheap together with their neighbours.
//!
//! An epoch permutes the blocks. So many that follow each other in that order are a group, and the samples of a group are
//! permuted exactly. So whoever walks through an epoch needs the blocks of one group at a time, and of two where one ends.
//! Where groups begin is added up once an epoch, eight bytes a block; a position is then found in the logarithm of their
//! number. It is all a function of (blocks, seed, epoch, position): of no world size, and of no position before.

use std::cell::RefCell;
use std::sync::Arc;

use super::draw::{DrawKey, Draws};
use super::error::OrderError;
use super::permutation::Permutation;
use super::purpose;

/// The blocks of a dataset, and how many are open at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// The first sample of each; the number of samples at the end.
    firsts: Vec<u64>,
    /// The blocks of a group.
    open: usize,
}

impl Blocks {
    /// The blocks that begin at these samples, of so many samples; `open` of them are a group.
    ///
    /// # Errors
    /// There are no samples, or more than can be counted; blocks that are empty or do not begin with the first sample; or
    /// groups of none.
    pub fn new(firsts: Vec<u64>, samples: u64, open: u64) -> Result<Self, OrderError> {
        let mut firsts = firsts;
        firsts.push(samples);
        if samples == 0 {
            return Err(OrderError::NoSamples);
        }
        if i64::try_from(samples).is_err() {
            return Err(OrderError::TooManySamples { samples });
        }
        if firsts[0] != 0 || !firsts.is_sorted_by(|one, next| one < next) || open == 0 {
            return Err(OrderError::NoBlocks);
        }
        Ok(Self { firsts, open: usize::try_from(open).unwrap_or(usize::MAX) })
    }

    /// The samples of all.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.firsts[self.count()]
    }

    /// How many blocks there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The blocks of a group; the last one may have fewer.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.min(self.count())
    }

    /// The memory that they take, with so many epochs' orders.
    #[must_use]
    pub fn memory_bytes(&self, orders: u64) -> u64 {
        (8 * self.firsts.len() as u64).saturating_mul(orders.saturating_add(1))
    }

    fn length(&self, block: u64) -> u64 {
        let block = place(block);
        self.firsts[block + 1] - self.firsts[block]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an index of what is in memory")]
const fn place(block: u64) -> usize {
    block as usize
}

/// The order of one epoch of blocks.
#[derive(Debug, Clone)]
pub(super) struct BlockEpoch {
    blocks: Arc<Blocks>,
    seed: u64,
    epoch: u64,
    permutation: Permutation,
    /// Where each block ends among the positions, in the order of the epoch.
    ends: Arc<[u64]>,
    /// The permutation of the group asked for last, whose table takes long to draw anew.
    group: RefCell<Option<(usize, Permutation)>>,
}

impl BlockEpoch {
    /// Takes some tens of nanoseconds a block.
    pub(super) fn new(blocks: Arc<Blocks>, seed: u64, epoch: u64) -> Self {
        let count = blocks.count() as u64;
        let permutation = Permutation::new(count, seed, epoch);
        let mut end = 0;
        let ends = (0..count).map(|number| {
            end += blocks.length(permutation.at(number));
            end
        });
        let ends = ends.collect();
        Self { blocks, seed, epoch, permutation, ends, group: RefCell::new(None) }
    }

    /// The group that a position is in, counted from 0.
    pub(super) fn group_of(&self, position: u64) -> usize {
        self.ends.partition_point(|end| *end <= position) / self.blocks.open
    }

    /// The sample at a position.
    pub(super) fn at(&self, position: u64) -> u64 {
        let group = self.group_of(position);
        let first_block = group * self.blocks.open;
        let last_block = first_block.saturating_add(self.blocks.open).min(self.ends.len());
        let ends = &self.ends[first_block..last_block];
        let start = self.end_before(first_block);
        let samples = ends[ends.len() - 1] - start;
        let place_in_group = start + self.permuted(group, samples, position - start);
        let number = first_block + ends.partition_point(|end| *end <= place_in_group);
        let block = place(self.permutation.at(number as u64));
        self.blocks.firsts[block] + (place_in_group - self.end_before(number))
    }

    /// Where the block of that place in the epoch begins.
    fn end_before(&self, number: usize) -> u64 {
        if number == 0 { 0 } else { self.ends[number - 1] }
    }

    fn permuted(&self, group: usize, samples: u64, place: u64) -> u64 {
        let mut known = self.group.borrow_mut();
        match &*known {
            Some((number, permutation)) if *number == group => permutation.at(place),
            _ => {
                let key = DrawKey { seed: self.seed, epoch: self.epoch, sample: group as u64 };
                let draws = Draws::new(key, purpose::BLOCK_GROUP);
                known.insert((group, Permutation::drawn(samples, draws))).1.at(place)
            }
        }
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
