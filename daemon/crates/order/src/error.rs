//! Errors of an order or of a position in it.

use forebay_protocol::cuts::{MAX_CUT_SAMPLES, MAX_CUTS};

/// Why a schedule cannot be created, or a position cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The rank does not exist.
    #[error(
        "rank {rank} does not exist in a world of {world_size}; ranks count from 0 and the world size is at least 1"
    )]
    NoSuchRank {
        /// Counted from 0.
        rank: u32,
        /// The number of ranks that share the stream.
        world_size: u32,
    },
    /// The dataset has no samples.
    #[error("the dataset has no samples; check `dataset.path`, `dataset.ids` and `dataset.limit`")]
    NoSamples,
    /// An epoch would be empty.
    #[error(
        "an epoch draws nothing: give a dataset that has samples a `repeat` or `weight` above 0"
    )]
    NoDraws,
    /// Blocks are empty, or do not begin with the first sample.
    #[error("the blocks of a dataset are empty, or do not begin with its first sample")]
    NoBlocks,
    /// A class has no samples, or there are no classes.
    #[error("there are no classes, or one without samples")]
    NoClasses,
    /// No group has enough samples.
    #[error("no group has {size} samples, so no batch has any; lower `size` in `order.group`")]
    NoGroups {
        /// Samples of a group in a batch.
        size: u64,
    },
    /// Batches that do not consist of whole groups.
    #[error(
        "batches of {batch_size} samples do not consist of `size` ({size}) samples of each group; make `batch.size` a \
         multiple of it"
    )]
    SplitGroups {
        /// Samples per rank.
        batch_size: u32,
        /// Samples of a group in a batch.
        size: u32,
    },
    /// A position within a batch of groups.
    #[error(
        "no batch begins after {samples} samples of epoch {epoch}: with `order.group` it is a multiple of `batch.size` \
         ({batch_size})"
    )]
    WithinGroups {
        /// The position's samples.
        samples: u64,
        /// The position's epoch.
        epoch: u64,
        /// Samples per rank.
        batch_size: u64,
    },
    /// `last = "drop"` without a whole global batch.
    #[error(
        "{samples} samples give no batch: with last = \"drop\" an epoch needs {needed} (batch.size {batch_size} × world size {world_size}); lower `batch.size`, or set `batch.last` to \"short\" or \"pad\""
    )]
    NoWholeBatch {
        /// Samples in an epoch.
        samples: u64,
        /// Batch size times world size.
        needed: u64,
        /// Samples per rank.
        batch_size: u32,
        /// The number of ranks that share the stream.
        world_size: u32,
    },
    /// `last = "short"` and fewer samples than ranks.
    #[error(
        "{samples} samples give no batch to some of {world_size} ranks (batch.size {batch_size}, last = \"short\"); use at most {samples} ranks, or set `batch.last = \"pad\"`"
    )]
    FewerSamplesThanRanks {
        /// Samples in an epoch.
        samples: u64,
        /// Samples per rank.
        batch_size: u32,
        /// The number of ranks that share the stream.
        world_size: u32,
    },
    /// More samples than an `index` tensor of i64 can number.
    #[error("{samples} samples are more than sample ids can count (2^63 - 1)")]
    TooManySamples {
        /// Samples in an epoch.
        samples: u64,
    },
    /// A position past the end of its epoch: it comes from another dataset.
    #[error(
        "the position has {consumed} samples consumed in epoch {epoch}, but an epoch has {samples}: it was saved with another dataset, or other `dataset.ids` or `dataset.limit`"
    )]
    BehindTheEpoch {
        /// The position's samples.
        consumed: u64,
        /// The position's epoch.
        epoch: u64,
        /// Samples in an epoch.
        samples: u64,
    },
    /// A position that no step of batches by length reaches.
    #[error(
        "no step ends after {samples} samples of epoch {epoch}: inside a pool a position of batches by length is resumed \
         with the state that was saved there, or with the same world size and `batch` keys; seek to a multiple of \
         `order.pool`"
    )]
    BetweenSteps {
        /// The position's samples.
        samples: u64,
        /// The position's epoch.
        epoch: u64,
    },
    /// The cuts of a saved state contradict its position.
    #[error(
        "the cuts in the saved state do not lead to {samples} samples of epoch {epoch}: it was saved with another \
         `order.pool`, or was changed; resume from another state, or seek to a multiple of `order.pool`"
    )]
    WrongCuts {
        /// The position's samples.
        samples: u64,
        /// The position's epoch.
        epoch: u64,
    },
    /// A pool that was continued too often with other cuts.
    #[error(
        "the pool of position {samples} of epoch {epoch} was continued with {} other world sizes or budgets already; \
         resume at the world size and budget of the last one until the pool has ended",
        MAX_CUTS
    )]
    TooManyCuts {
        /// The position's samples.
        samples: u64,
        /// The position's epoch.
        epoch: u64,
    },
    /// A large pool that was continued too often with other cuts.
    #[error(
        "the pool of position {samples} of epoch {epoch} has {pool} samples and would be cut {cuts} times to find which of \
         them were consumed; the cuts times the samples are at most {}. Resume at the world size and budget of the last \
         session until the pool has ended, or seek to a multiple of `order.pool`",
        MAX_CUT_SAMPLES
    )]
    CutsTooLong {
        /// The position's samples.
        samples: u64,
        /// The position's epoch.
        epoch: u64,
        /// The cuts, with that of the session.
        cuts: usize,
        /// The samples of the pool.
        pool: u64,
    },
    /// Batches by length and fewer samples than ranks.
    #[error(
        "{samples} samples give no batch to some of {world_size} ranks; use at most {samples} ranks"
    )]
    FewerSamplesThanRanksByLength {
        /// Samples in an epoch.
        samples: u64,
        /// The number of ranks that share the stream.
        world_size: u32,
    },
    /// Batches by length and pools of fewer samples than ranks.
    #[error(
        "a pool of {pool} samples gives no batch to some of {world_size} ranks, so none would have any; raise `order.pool` \
         to several steps' samples, or set `batch.last = \"pad\"`"
    )]
    PoolBelowRanks {
        /// Samples of a pool.
        pool: u64,
        /// The number of ranks that share the stream.
        world_size: u32,
    },
    /// Batches by shape and pools that may have fewer samples of each shape than ranks.
    #[error(
        "a pool of {pool} samples may have fewer than {world_size} of each shape, one for each rank, and give no batch; raise \
         `order.pool` to {needed} samples at least, better to several steps of each shape, list fewer `batch.buckets`, or set \
         `batch.last = \"pad\"`"
    )]
    PoolBelowShapes {
        /// Samples of a pool.
        pool: u64,
        /// The number of ranks that share the stream.
        world_size: u32,
        /// The samples with which one shape has enough.
        needed: u64,
    },
    /// The epoch is past the last possible one.
    #[error("epoch {epoch} is past the last possible one, {}", MAX_EPOCH)]
    EpochTooLarge {
        /// The position's epoch.
        epoch: u64,
    },
}

/// Epochs stay below 2⁶³, so that they fit TOML's and Python's signed numbers and the next one always exists.
pub(super) const MAX_EPOCH: u64 = i64::MAX as u64;
