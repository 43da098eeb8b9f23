//! Requests that need no session: step counts, a replay, a recording. Every connection that passes the daemon's access
//! checks may send them.

use serde::{Deserialize, Serialize};

use crate::ids::Position;

/// The progress of a session; small enough to be requested many times a second.
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
    /// The batches taken, as reported by the client.
    pub taken: u64,
    /// The time of the last one, on the machine's monotonic clock.
    pub taken_at_ns: u64,
    /// The client's total wait for batches after its first.
    pub waited_ns: u64,
    /// The stream's position after the last published batch.
    pub position: Position,
    /// This rank's batches left in that epoch.
    pub batches_left: u64,
    /// This rank's batches of a full epoch.
    pub batches_per_epoch: u64,
    /// `None`: unlimited.
    pub epochs: Option<u64>,
    /// The slots of the ring.
    pub slots: u16,
    /// The number of batches that the user may hold.
    pub hold: u16,
    /// The state of the replay.
    pub replay: ReplayState,
}

/// A request about a replay. A session runs one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayRequest {
    /// Checks over the next `batches` batches that the trainer returns them unchanged.
    Check {
        /// The session.
        session: u64,
        /// At least 1.
        batches: u16,
    },
    /// Keeps `batches` batches from batch number `at` on and then replays `steps` batches from them. The replay ends with
    /// this connection unless `Commit` follows.
    Arm {
        /// The session.
        session: u64,
        /// The number of the first kept batch; not published yet.
        at: u64,
        /// The batches to keep; at least 1, at most the ring's slots.
        batches: u16,
        /// The number of batches to replay; at least 1.
        steps: u64,
    },
    /// Runs the armed replay to its end even if this connection closes: for jobs of several ranks, which must replay the
    /// same number of batches.
    Commit {
        /// The session.
        session: u64,
    },
    /// Ends an armed or running replay; the stream continues at its position.
    Cancel {
        /// The session.
        session: u64,
    },
}

/// The state of a session's replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayState {
    /// No replay.
    Idle,
    /// Batches are compared with what was published.
    Checking {
        /// The batches still to compare.
        left: u16,
    },
    /// The trainer returned the batches unchanged.
    Checked,
    /// The replay will begin at a future batch.
    Armed {
        /// That batch's number.
        at: u64,
        /// Whether it runs to its end if the connection that armed it closes.
        committed: bool,
    },
    /// Batches are being kept or replayed.
    Running {
        /// The number of the first replayed batch; `None`: the last kept batch is not published yet.
        first: Option<u64>,
        /// The batches replayed so far.
        replayed: u64,
    },
    /// The replay has ended and the stream continues.
    Done {
        /// The number of the first replayed batch.
        first: u64,
        /// The batches replayed.
        replayed: u64,
    },
    /// The replay was rejected or aborted.
    Refused {
        /// The reason, with the remedy.
        reason: String,
    },
}

/// The maximum length of a recording, in seconds.
pub const MAX_RECORDING_SECONDS: u32 = 60;
/// The maximum sampling rate of a profile, in samples per second.
pub const MAX_PROFILE_HERTZ: u32 = 1000;

/// The kind of recording. The answer carries the descriptor of an in-memory file with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recording {
    /// The activity of each thread, as events of the Chrome trace format.
    Trace {
        /// The duration.
        milliseconds: u32,
    },
    /// A CPU profile of the daemon's threads, as folded stacks.
    Profile {
        /// The duration.
        milliseconds: u32,
        /// Samples per second of CPU time; 0: wall-clock time by stage instead.
        hertz: u32,
    },
}
