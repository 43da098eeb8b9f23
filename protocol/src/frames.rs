//! The control frames. Nothing per batch goes through them but doorbells, which are frames of one byte
//! ([`crate::wire::DOORBELL`]).
//!
//! ```text
//!   client                                daemon
//!   Hello (+ pidfd)            ──►
//!                              ◄──  Welcome | Fault
//!   [Start]  private loader    ──►        (configuration; before any Attach)
//!                              ◄──  [Kept] (+ plan, index)
//!   Attach                     ──►
//!                              ◄──  Attached (+ data, publish, return) | Fault
//!   Seek                       ──►
//!                              ◄──  Positioned | Fault
//!   Stats                      ──►
//!                              ◄──  StatsPart …
//!   Goodbye                    ──►        (the session ends; its slots are free)
//! ```
//!
//! From outside a session ([`crate::observing`]), on a connection that may be one of its own:
//! ```text
//!   Steps                      ──►
//!                              ◄──  Steps
//!   Replay                     ──►
//!                              ◄──  Steps | Fault
//!   Record                     ──►
//!                              ◄──  Recorded (+ text) | Fault
//! ```
//!
//! To a daemon that took the place of a dead one (docs/protocol.md, "Death of the daemon"):
//! ```text
//!   Hello (+ pidfd)            ──►
//!                              ◄──  Welcome | Fault
//!   [Restart (+ plan, index)]  ──►        (private loader: instead of Start)
//!                              ◄──  [Kept] (+ plan, index)
//!   Reattach (+ data)          ──►
//!                              ◄──  Attached (+ data, publish, return) | Fault
//! ```

use serde::{Deserialize, Serialize};

use crate::ids::Position;
use crate::observing::{Recording, ReplayRequest, SessionSteps};
use crate::tensor::TensorSpec;

/// The version of frames and rings that this crate speaks. History:
/// - 1: the first.
/// - 2: `Restart`, `Reattach` and `Kept`; `Attached` says who starts the daemon again.
/// - 3: a tensor says what is left of it to the client's GPU (`TensorSpec::finish`).
/// - 4: `Steps`, `Replay` and `Record`.
pub const PROTOCOL_VERSION: u32 = 4;
/// What a configuration's fingerprint tells apart, in the order of its parts.
pub const CONFIG_PARTS: [&str; 4] = ["order.seed", "order.shuffle", "operations", "output"];
/// The bytes of each of [`CONFIG_PARTS`] in a configuration's fingerprint.
pub const CONFIG_PART_BYTES: usize = 8;

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// The first frame of a connection. May carry a pidfd of the client.
    Hello {
        /// [`PROTOCOL_VERSION`] of the client.
        protocol: u32,
        /// The client's release, for messages.
        release: String,
    },
    /// A private loader says what the daemon shall serve.
    Start(Start),
    /// Asks for a session.
    Attach(Attach),
    /// Asks for another position. Batches that were made for an older serial are to be returned unread.
    Seek {
        /// Counted from 1 by the client.
        serial: u64,
        /// Where to go on.
        position: Position,
        /// Substitutes already counted in that epoch.
        substitutes: u64,
    },
    /// Asks for figures.
    Stats,
    /// The client ends the session in good order.
    Goodbye,
    /// A private loader starts a daemon in a dead one's place; carries what `Kept` gave it.
    Restart(Restart),
    /// Asks for a session that goes on in memory which the client kept; carries its data segment.
    Reattach(Reattach),
    /// Asks how far every session's trainer is.
    Steps,
    /// Asks for something about a replay.
    Replay(ReplayRequest),
    /// Asks for a recording, which is answered when it is made.
    Record(Recording),
}

/// What a private loader tells the daemon that takes a dead one's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// As in [`Start`].
    pub local_world_size: u32,
    /// As in [`Start`].
    pub local_rank: u32,
    /// How the daemon before ended, for the log.
    pub reason: String,
}

/// A session that goes on after its daemon's death.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// Who asks, and where to go on: after what the client took from the ring of the daemon before.
    pub attach: Attach,
    /// The client's last seek; batches are made under it.
    pub serial: u64,
    /// The slots that the client holds. Each stands once.
    pub leased: Vec<Leased>,
}

/// A slot that a client holds from a former life of its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// Below the ring's slots.
    pub slot: u16,
    /// As its descriptor gave it.
    pub generation: u64,
}

/// Who starts a daemon again when it has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revival {
    /// The client, whose private daemon it is.
    ByClient,
    /// Whoever watches over `forebay serve`, at the same socket.
    BySupervisor,
    /// Nobody: the trainer ends with it, as under `forebay run`.
    Never,
}

/// What a private loader's daemon shall serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Where the configuration comes from.
    pub config: ConfigSource,
    /// Keys and values that override it: a dotted key and JSON text.
    pub overrides: Vec<(String, String)>,
    /// How many ranks of the job run on this host; the daemon takes this share of the cores.
    pub local_world_size: u32,
    /// This rank's number on this host.
    pub local_rank: u32,
}

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigSource {
    /// A TOML file's path.
    File(String),
    /// A dict, as JSON text.
    Json {
        /// The stream's name.
        name: String,
        /// Where relative paths start.
        folder: String,
        /// The text.
        text: String,
    },
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The stream's name; `None`: the daemon's first.
    pub stream: Option<String>,
    /// Below `world_size`.
    pub rank: u32,
    /// At least 1.
    pub world_size: u32,
    /// Where to begin.
    pub position: Position,
    /// Substitutes already counted in that epoch.
    pub substitutes: u64,
}

/// What a daemon sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonFrame {
    /// Answers `Hello`.
    Welcome {
        /// [`PROTOCOL_VERSION`] of the daemon.
        protocol: u32,
        /// The daemon's release, for messages.
        release: String,
        /// The names of its streams, in the order given; empty for a private daemon before `Start`.
        streams: Vec<String>,
    },
    /// Answers `Attach`; carries the descriptors of data, publish and return.
    Attached(Box<Attached>),
    /// Answers `Seek`.
    Positioned(Positioned),
    /// A piece of the JSON text that answers `Stats`.
    StatsPart {
        /// Whether no piece follows.
        last: bool,
        /// UTF-8; pieces are cut at character borders.
        text: String,
    },
    /// The request, or the session, ended with an error.
    Fault(Fault),
    /// The daemon ends in good order.
    Goodbye,
    /// What a private loader keeps for a restart; carries the resolved plan and, for a dataset that has one, the index.
    Kept,
    /// Answers `Steps` and `Replay`.
    Steps(Vec<SessionSteps>),
    /// Answers `Record`; carries the descriptor of a file in memory.
    Recorded,
}

/// A session's terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The session's number in the daemon.
    pub session: u64,
    /// The stream's name.
    pub stream: String,
    /// The tensors of a batch.
    pub tensors: Vec<TensorSpec>,
    /// The most samples of a batch.
    pub batch_size: u32,
    /// The slots of the ring.
    pub slots: u16,
    /// The batches that the user may keep.
    pub hold: u16,
    /// The size of a slot.
    pub slot_bytes: u64,
    /// The size of the publish segment.
    pub publish_bytes: u64,
    /// The size of the return segment.
    pub return_bytes: u64,
    /// Where the stream begins: the position asked for, or the next epoch's start when nothing was left of its epoch.
    pub start: Positioned,
    /// This rank's batches of a full epoch.
    pub batches_per_epoch: u64,
    /// The data set's samples.
    pub samples_per_epoch: u64,
    /// `None`: endless.
    pub epochs: Option<u64>,
    /// BLAKE3 of what the samples are.
    pub dataset_fingerprint: [u8; 32],
    /// [`CONFIG_PART_BYTES`] of BLAKE3 for each of [`CONFIG_PARTS`].
    pub config_fingerprint: [u8; 32],
    /// Raised whenever order, draws or pixels change for the same input.
    pub stream_version: u32,
    /// Who starts this daemon again when it has died.
    pub revival: Revival,
}

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positioned {
    /// The seek that this answers; 0 for the attach.
    pub serial: u64,
    /// The position.
    pub position: Position,
    /// This rank's batches left in that epoch.
    pub batches_left: u64,
}

/// What went wrong, by the exception that it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The two sides speak different versions.
    Version,
    /// A mistake in the configuration, the data set's folder or the request.
    Config,
    /// A bad sample, under `on_bad_sample = "fail"` or past the budget.
    BadSample,
    /// Reading failed for a reason that may pass: time-outs, I/O errors, vanished files, after all retries.
    Storage,
    /// The position asked for is not in the stream.
    Position,
    /// Another client holds this stream, rank and world size.
    Taken,
    /// The client broke the protocol.
    Protocol,
    /// The machine does not grant what the session needs.
    Memory,
    /// An error of the daemon's own.
    Internal,
}

/// An error that crosses the border.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What it becomes on the other side.
    pub kind: FaultKind,
    /// For a person: the values, the place and the remedy.
    pub message: String,
}
