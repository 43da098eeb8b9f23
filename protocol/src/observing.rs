//! What is asked of a running daemon from outside a session: step counts, a replay, a recording. Any connection that the
//! daemon's rules admit may ask.

use serde::{Deserialize, Serialize};

use crate::ids::Position;

/// How far a session's trainer is; small enough to be asked for many times a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSteps {
    /// The session's number in the daemon.
    pub session: u64,
    /// The stream's name.
    pub stream: String,
    /// Below `world_size`.
    pub rank: u32,
    /// At least 1.
    pub world_size: u32,
    /// The batches published so far; the next one has this number.
    pub published: u64,
    /// The batches that the client says it took.
    pub taken: u64,
    /// When it took the last of them, on the machine's monotonic clock.
    pub taken_at_ns: u64,
    /// How long it has waited for batches after its first.
    pub waited_ns: u64,
    /// Where the stream stands after the last batch published.
    pub position: Position,
    /// This rank's batches left in that epoch.
    pub batches_left: u64,
    /// This rank's batches of a full epoch.
    pub batches_per_epoch: u64,
    /// `None`: endless.
    pub epochs: Option<u64>,
    /// The slots of the ring.
    pub slots: u16,
    /// The batches that the user may keep.
    pub hold: u16,
    /// What a replay does.
    pub replay: ReplayState,
}

/// What to do about a replay. One runs at a time in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayRequest {
    /// Looks whether the trainer gives batches back as they were published, over the next `batches` of them.
    Check {
        /// The session.
        session: u64,
        /// At least 1.
        batches: u16,
    },
    /// From batch number `at` on, `batches` batches are kept and then shown again, `steps` times in all. It ends with this
    /// connection unless `Commit` follows.
    Arm {
        /// The session.
        session: u64,
        /// The number of the first batch that is kept; not published yet.
        at: u64,
        /// The batches to keep; at least 1, at most the ring's slots.
        batches: u16,
        /// The batches to show again; at least 1.
        steps: u64,
    },
    /// What was armed takes place to its end, whether or not this connection lasts: for jobs of several ranks, each of
    /// which has to be shown the same number of batches.
    Commit {
        /// The session.
        session: u64,
    },
    /// What was armed or is under way ends; the stream goes on where it was.
    Cancel {
        /// The session.
        session: u64,
    },
}

/// Where a session's replay stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayState {
    /// None was asked for.
    Idle,
    /// Batches are compared with what was published.
    Checking {
        /// The batches still to compare.
        left: u16,
    },
    /// The trainer gave back what was published.
    Checked,
    /// It begins at a batch to come.
    Armed {
        /// That batch's number.
        at: u64,
        /// Whether it takes place without the connection that armed it.
        committed: bool,
    },
    /// Batches are kept or shown again.
    Running {
        /// The number of the first batch shown again; `None`: the last of the kept ones is not published yet.
        first: Option<u64>,
        /// The batches shown again so far.
        replayed: u64,
    },
    /// The stream goes on with data.
    Done {
        /// The number of the first batch shown again.
        first: u64,
        /// The batches shown again.
        replayed: u64,
    },
    /// It was given up.
    Refused {
        /// Why, as a sentence with the remedy.
        reason: String,
    },
}

/// What to record. The answer carries a descriptor of a file in memory with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recording {
    /// What each thread does, as events of the Chrome trace format.
    Trace {
        /// For how long.
        milliseconds: u32,
    },
    /// Where the daemon's threads spend their processor time, as folded stacks.
    Profile {
        /// For how long.
        milliseconds: u32,
        /// Samples a second of processor time; 0: the time on the clock by stage instead.
        hertz: u32,
    },
}
