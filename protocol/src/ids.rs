//! Newtypes for the numbers that daemon and client exchange.

use serde::{Deserialize, Serialize};

/// The index of a sample in its dataset, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleId(pub u64);

/// The index of a slot in its ring, from 0. A ring has at most 65,535 slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotIndex(pub u16);

/// How often a slot has been filled, counted from 1. Only the lower 48 bits are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The number of a batch in its session, counted from 0 over seeks and epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchNumber(pub u64);

/// A position in a stream: the epoch, and the samples that all ranks together have consumed in it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// Counted from 0.
    pub epoch: u64,
    /// Samples consumed in this epoch over all ranks, padding included.
    pub samples: u64,
}
