//! Kills daemons, trainers and commands with SIGKILL at random instants and compares every batch that arrives with an
//! undisturbed run.
//!
//! - [`daemon`]: the daemon of a loader that goes on taking batches.
//! - [`trainer`]: trainers, commands of `forebay run`, or everything at once; each is resumed from its last checkpoint.
//! - [`shared`]: the daemon that eight trainers share; [`load`]: trainers of one load, one of which is left alone.
//! - [`feeders`]: feeders, daemons and trainers, with feeders that join and drain.
//! - [`remote`]: daemons, trainers and the server behind which the data lies, in bad weather; [`served`]: that server;
//!   [`lives`]: trainers' lives there and beside feeders.
//! - [`mod@reference`]: what an undisturbed run delivers; [`report`]: what was found, as one line of JSON.
//!
//! The data set is small, so that a kill and what follows take a fraction of a second. Times are printed, never judged.

pub mod daemon;
pub mod feeders;
pub mod lives;
pub mod load;
pub mod reference;
pub mod remote;
pub mod report;
pub mod served;
pub mod shared;
pub mod trainer;

use std::time::Duration;

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many kills.
    pub kills: u64,
    /// Decides the instants.
    pub seed: u64,
}

/// Numbers that a seed decides (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// So many random bytes.
    pub fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// A pause below a limit, to the microsecond.
    pub fn pause(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX)))
    }
}
