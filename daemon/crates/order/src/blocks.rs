//! A dataset in blocks: samples that are expensive to read individually and cheap together with their neighbours.
//!
//! An epoch permutes the blocks. Every `open` consecutive blocks of that order are a group, and the samples of a group
//! are permuted exactly. So reading an epoch needs the blocks of one group at a time, and of two groups at a border.
//! The ends of the blocks are summed once per epoch, eight bytes per block; a position is then found in logarithmic
//! time. Everything is a function of (blocks, seed, epoch, position): independent of the world size and of earlier
//! positions.

use std::cell::RefCell;
use std::sync::Arc;

use super::draw::{DrawKey, Draws};
use super::error::OrderError;
use super::permutation::Permutation;
use super::purpose;

/// The blocks of a dataset, and how many are open at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// The first sample of each block; the number of samples at the end.
    firsts: Vec<u64>,
    /// The number of blocks of a group.
    open: usize,
}

impl Blocks {
    /// Blocks that begin at these samples; `open` of them are a group.
    ///
    /// # Errors
    /// There are no samples, or too many to count; blocks are empty or do not begin with the first sample; or groups
    /// are empty.
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

    /// The number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.firsts[self.count()]
    }

    /// The number of blocks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The number of blocks of a group; the last group may have fewer.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.min(self.count())
    }

    /// Their memory, with the orders of this number of epochs.
    #[must_use]
    pub fn memory_bytes(&self, orders: u64) -> u64 {
        (8 * self.firsts.len() as u64).saturating_mul(orders.saturating_add(1))
    }

    fn length(&self, block: u64) -> u64 {
        let block = place(block);
        self.firsts[block + 1] - self.firsts[block]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an index into memory")]
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
    /// The end of each block among the positions, in the order of the epoch.
    ends: Arc<[u64]>,
    /// The permutation of the last requested group, whose table is slow to draw.
    group: RefCell<Option<(usize, Permutation)>>,
}

impl BlockEpoch {
    /// Takes some tens of nanoseconds per block.
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

    /// The group of a position, counted from 0.
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

    /// The start of the block with this number in the epoch.
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
