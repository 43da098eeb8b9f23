//! Newtypes for the numbers that cross the border between daemon and client.

use serde::{Deserialize, Serialize};

/// The place of a sample in its dataset, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleId(pub u64);

/// The place of a slot in its ring, counted from 0. A ring has at most 65,535 slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotIndex(pub u16);

/// How often a slot has been filled, counted from 1. Only the lower 48 bits travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The number of a batch in its session, counted from 0 over seeks and epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchNumber(pub u64);

/// A place in a stream: the epoch and the samples that all ranks together have consumed in it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// Counted from 0.
    pub epoch: u64,
    /// Samples consumed in this epoch over all ranks, padding included.
    pub samples: u64,
}
