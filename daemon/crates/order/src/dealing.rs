//! Parameters of an epoch's order and of its division into batches, besides what it draws from.

/// The parameters of a [`Schedule`](super::Schedule).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealing {
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether the samples of an epoch are permuted.
    pub is_shuffled: bool,
    /// The number of epochs; `None`: unlimited.
    pub epochs: Option<u64>,
    /// Samples per rank and batch, from 1.
    pub batch_size: u32,
    /// What happens to an epoch's last samples.
    pub last: Last,
}

/// What happens to an epoch's samples that do not fill a global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// They are left out, and counted.
    Drop,
    /// They are dealt to the ranks in contiguous parts that differ by at most one.
    Short,
    /// The batch is filled up from the epoch's start.
    Pad,
}
