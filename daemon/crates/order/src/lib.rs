//! Maps a position to sample ids: a pure function, in constant time and memory; with blocks, both grow with their
//! number.
//!
//! [`Schedule`] divides an epoch's positions into batches and distributes them to ranks; [`Selection`] is what the
//! positions draw from: one dataset, the same in [`Blocks`], a [`Mixture`] of several, samples by weight
//! ([`Weighted`]), classes alike ([`Balanced`]) or samples of a class together ([`Grouped`]); a
//! [`Subset`](forebay_select::Subset) says which samples of the datasets these are; [`ByLength`] makes the batches from the
//! samples' lengths or shapes; [`EpochOrder`] maps a position to a sample id; [`substitute()`] finds another sample for a
//! bad one;
//! [`Draws`] provides random numbers for augmentations. Nothing here reads a clock, a thread count or a file, or stores
//! what was delivered.

#![forbid(unsafe_code)]

mod balanced;
mod blocks;
mod by_length;
mod classes;
mod counts;
mod cutting;
mod cutting_by_shape;
mod dealing;
mod draw;
mod error;
mod grouped;
mod mixture;
mod permutation;
mod pieces;
mod planning_ahead;
mod schedule;
mod schedule_by_length;
mod selection;
mod substitute;
mod weighted;

#[cfg(test)]
mod by_shape_tests;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod subset_tests;

pub use balanced::Balanced;
pub use blocks::Blocks;
pub use by_length::ByLength;
pub use classes::Classes;
pub use counts::{draws_of_repeat, draws_of_weights};
pub use cutting::{Steps, cut_into_steps};
pub use dealing::{Dealing, Last};
pub use draw::{DrawKey, Drawn, Draws};
pub use error::OrderError;
pub use grouped::Grouped;
pub use mixture::{Mixture, MixturePart};
pub use pieces::WeightChange;
pub use planning_ahead::PoolToPlan;
pub use schedule::{EpochOrder, PlannedBatch, PlannedRow, Rows, Schedule};
pub use selection::Selection;
pub use substitute::{SUBSTITUTE_DRAWS, substitute};
pub use weighted::Weighted;

/// Raised whenever order, draws or pixels change for the same input: a state that was saved under another version is
/// refused. The golden digests in this crate (order and draws) and in the operations (pixels) enforce it.
pub const STREAM_VERSION: u32 = 1;

/// Purposes of draws besides the operations of a stream, which count from 0.
mod purpose {
    /// The round keys or the table of an epoch's permutation.
    pub(super) const PERMUTATION: u64 = u64::MAX;
    /// The first of sixteen, one per attempt.
    pub(super) const SUBSTITUTE_FIRST: u64 = u64::MAX - 16;
    /// The assignment of a mixture block's rows to datasets.
    pub(super) const MIXTURE_BLOCK: u64 = u64::MAX - 17;
    /// The seed of a dataset's permutations in a mixture.
    pub(super) const MIXTURE_PART: u64 = u64::MAX - 18;
    /// A draw by weight.
    pub(super) const WEIGHTED: u64 = u64::MAX - 19;
    /// As [`MIXTURE_BLOCK`], after a change of weights within an epoch.
    pub(super) const MIXTURE_LATER_BLOCK: u64 = u64::MAX - 20;
    /// The order within some blocks of a dataset.
    pub(super) const BLOCK_GROUP: u64 = u64::MAX - 23;
    /// The order of a pool's steps, in batches by length.
    pub(super) const STEPS_OF_POOL: u64 = u64::MAX - 24;
    /// The order of a class's samples.
    pub(super) const ORDER_OF_CLASS: u64 = u64::MAX - 25;
    /// The order of some draws of a class.
    pub(super) const ROUND_OF_CLASS: u64 = u64::MAX - 26;
    /// The classes of consecutive positions, where classes are drawn alike.
    pub(super) const CLASSES_ALIKE: u64 = u64::MAX - 27;
    /// The order of groups, of batches and of the groups of batches, where a batch has several samples of a group.
    pub(super) const GROUPS: u64 = u64::MAX - 28;
}
