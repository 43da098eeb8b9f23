//! The control frames. Per batch, only doorbells are sent this way: frames of one byte ([`crate::wire::DOORBELL`]).
//!
//! ```text
//!   client                                daemon
//!   Hello (+ pidfd)            ──►
//!                              ◄──  Welcome | Fault
//!   [Start]  private loader    ──►        (configuration; before any Attach)
//!                              ◄──  [Kept] (+ plan, work page, index)
//!   Attach                     ──►
//!                              ◄──  [Kept] of a shared daemon
//!                              ◄──  Attached (+ data, publish, return) | Fault
//!   AttachRows, then Ask …     ──►        (in place of Attach)
//!                              ◄──  [Unanswered]
//!   Seek                       ──►
//!                              ◄──  Positioned | Fault
//!   Stats                      ──►
//!                              ◄──  StatsPart …
//!   Goodbye                    ──►        (the session ends; its slots are free)
//! ```
//!
//! A client that cannot receive descriptors sends `AttachNamed` instead of `Attach`, and the response `AttachedNamed`
//! has the names of the segments ([`crate::segment::named`]).
//!
//! Monitoring ([`crate::observing`]) needs no session. docs/design/protocol-handshakes.md describes the handshakes with a daemon that
//! replaces a dead one, and the changes of each version.

use serde::{Deserialize, Serialize};

use crate::cuts::{Cut, Pools};
use crate::identity::Identity;
use crate::ids::Position;
use crate::observing::{Recording, ReplayRequest, SessionSteps};
use crate::tensor::TensorSpec;

/// The version of frames and rings that this crate implements.
pub const PROTOCOL_VERSION: u32 = 11;
/// The parts of a configuration's fingerprint, in order.
pub const CONFIG_PARTS: [&str; 4] = ["order.seed", "order.shuffle", "operations", "output"];
/// The size of each of [`CONFIG_PARTS`] in a configuration's fingerprint.
pub const CONFIG_PART_BYTES: usize = 8;

/// A frame that a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// The first frame of a connection. May carry a pidfd of the client.
    Hello {
        /// [`PROTOCOL_VERSION`] of the client.
        protocol: u32,
        /// The client's release, for messages.
        release: String,
    },
    /// Configures a daemon that a loader has started. May carry the sealed memory of a Dataset object.
    Start(Start),
    /// Asks for a session.
    Attach(Attach),
    /// Requests another position. The client returns batches with an older serial unread.
    Seek {
        /// Counted by the client, from 1.
        serial: u64,
        /// The new position.
        position: Position,
        /// Substitutes already counted in that epoch.
        substitutes: u64,
        /// With batches by length, the cuts that led to the position; at most [`MAX_CUTS`](crate::cuts::MAX_CUTS).
        cuts: Vec<Cut>,
    },
    /// Requests statistics.
    Stats,
    /// Ends the session.
    Goodbye,
    /// Configures the daemon that replaces a dead one of loaders; carries the descriptors of `Kept`.
    Restart(Restart),
    /// Requests a session that continues in the client's existing memory; carries its data segment.
    Reattach(Reattach),
    /// Requests the progress of every session.
    Steps,
    /// Controls a replay.
    Replay(ReplayRequest),
    /// Requests a recording; the response is sent when it is complete.
    Record(Recording),
    /// As `Attach`, for a client that cannot receive descriptors: the segments get names.
    AttachNamed(Attach),
    /// Requests names of the session's dataset.
    Names(NamesRequest),
    /// Asks for a session whose batches are the rows that the client asks for.
    AttachRows {
        /// The stream's name; `None`: the daemon's first.
        stream: Option<String>,
    },
    /// Asks for rows, of a session that [`AttachRows`](Self::AttachRows) has opened. The batch's `seek_serial` is the
    /// request's number.
    Ask(RowsRequest),
}

/// The parameters of [`ClientFrame::Ask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsRequest {
    /// Counted by the client, from 1.
    pub request: u64,
    /// From one to a batch of rows, at most [`MAX_ROWS_OF_REQUEST`].
    pub rows: Vec<RowKey>,
    /// Whether `sample` is the sample's id. Otherwise it is its number among the samples that are used, in the order of
    /// their ids; the two differ if `dataset.where` or `dataset.split` selects samples.
    pub by_id: bool,
}

/// What a row is made of, besides the stream: the same key gives the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowKey {
    /// The sample's id, or its number among the samples that are used.
    pub sample: u64,
    /// Which occurrence of the sample it is; the epoch, if each sample occurs once in an epoch.
    pub pass: u64,
}

/// The maximum number of rows of a request: what fits in a frame.
pub const MAX_ROWS_OF_REQUEST: usize = 4000;

/// The parameters of [`ClientFrame::Names`]. The response has as many names as fit in a frame, starting with the first,
/// so the daemon needs no memory for it; the client requests the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesRequest {
    /// Counted by the client and repeated in the response.
    pub request: u64,
    /// The kind of names.
    pub of: NamesOf,
}

/// The kind of names that a client requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamesOf {
    /// The classes in label order, from this label on.
    Classes {
        /// At most the number of classes.
        from: u64,
    },
    /// The files of these samples.
    Files {
        /// Ids, as in the field `index`.
        samples: Vec<u64>,
    },
    /// The labels of the samples by id, from this sample on.
    Labels {
        /// At most the number of samples.
        from: u64,
    },
}

/// The parameters of [`ClientFrame::Restart`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// As in [`Start`].
    pub local_world_size: u32,
    /// As in [`Start`].
    pub local_rank: u32,
    /// How the previous daemon ended, for the log.
    pub reason: String,
    /// The signal that ended it; `None`: it exited.
    pub signal: Option<u32>,
}

/// The parameters of [`ClientFrame::Reattach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The session, starting after the last batch that the client took from the previous daemon's ring.
    pub attach: Attach,
    /// The serial of the client's last seek, which applies to the next batches.
    pub serial: u64,
    /// The slots that the client holds, each once.
    pub leased: Vec<Leased>,
}

/// A slot that a client holds from a previous daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// Below the ring's slots.
    pub slot: u16,
    /// As in its descriptor.
    pub generation: u64,
}

/// How a daemon is restarted after its death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// The client that owns this private daemon.
    ByClient,
    /// The service manager of `forebay serve`, at the same socket.
    BySupervisor,
    /// It is not restarted: the trainer ends with it, as under `forebay run`.
    Never,
    /// Each of the clients that share it, at the same socket: the first one to find no daemon there starts the next.
    ByClients,
}

/// The parameters of [`ClientFrame::Start`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The configuration.
    pub config: ConfigSource,
    /// Keys and values that override it: a dotted key and JSON text.
    pub overrides: Vec<(String, String)>,
    /// The number of the job's ranks on this host; the daemon takes this share of the cores.
    pub local_world_size: u32,
    /// This rank's number on this host.
    pub local_rank: u32,
}

/// The source of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigSource {
    /// A TOML file's path.
    File(String),
    /// A dict, as JSON text.
    Json {
        /// The stream's name.
        name: String,
        /// The base of relative paths.
        folder: String,
        /// The text.
        text: String,
    },
}

/// The parameters of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The stream's name; `None`: the daemon's first.
    pub stream: Option<String>,
    /// Below `world_size`.
    pub rank: u32,
    /// At least 1.
    pub world_size: u32,
    /// The position of the first batch.
    pub position: Position,
    /// Substitutes already counted in that epoch.
    pub substitutes: u64,
    /// The name of the trainer among those of the stream, at most [`MAX_TRAINER_BYTES`]; each trainer has its own ranks.
    pub trainer: String,
    /// The number of samples in a batch; `None`: as configured.
    pub batch_size: Option<u32>,
    /// With batches by length, the cuts that led to the position; at most [`MAX_CUTS`](crate::cuts::MAX_CUTS).
    pub cuts: Vec<Cut>,
}

/// The longest name of a trainer.
pub const MAX_TRAINER_BYTES: usize = 64;

/// A frame that a daemon sends.
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
    /// A part of the JSON text that answers `Stats`.
    StatsPart {
        /// Whether this is the last part.
        last: bool,
        /// UTF-8; cut at character boundaries.
        text: String,
    },
    /// The request, or the session, failed.
    Fault(Fault),
    /// The daemon exits normally.
    Goodbye,
    /// The restart state that a private loader, or each client of a shared daemon, keeps; carries the resolved plan, the page of samples under work and,
    /// for some datasets, the index or the Dataset object.
    Kept,
    /// Answers `Steps` and `Replay`.
    Steps(Vec<SessionSteps>),
    /// Answers `Record`; carries the descriptor of a file in memory.
    Recorded,
    /// Answers `AttachNamed`.
    AttachedNamed {
        /// As in `Attached`.
        terms: Box<Attached>,
        /// Data, publish and return. The client removes the names once it has mapped the segments.
        names: [String; 3],
    },
    /// Answers `Names`.
    Names {
        /// The request's number.
        request: u64,
        /// The number of all classes, of the requested samples, or of all samples.
        total: u64,
        /// The names, in order: UTF-8 for classes, a path's bytes for files. At least one unless none are left. For labels
        /// one element: as many as fit, each an int64, little endian; or, with a `total` of 0, why the index has none.
        names: Vec<Vec<u8>>,
    },
    /// A request's rows cannot be made. The session goes on.
    Unanswered {
        /// The request's number.
        request: u64,
        /// The first row that cannot be made.
        row: u32,
        /// The reason.
        fault: Fault,
    },
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
    /// The maximum number of samples in a batch.
    pub batch_size: u32,
    /// The slots of the ring.
    pub slots: u16,
    /// The number of batches that the user may hold.
    pub hold: u16,
    /// The size of a slot.
    pub slot_bytes: u64,
    /// The size of the publish segment.
    pub publish_bytes: u64,
    /// The size of the return segment.
    pub return_bytes: u64,
    /// The first position: the requested one, or the next epoch's start if no batch of its epoch is left.
    pub start: Positioned,
    /// The number of this rank's batches in a full epoch; with batches by length, in the epoch of the first position.
    pub batches_per_epoch: u64,
    /// The number of samples in an epoch over all ranks, including samples that `batch.last` drops.
    pub samples_per_epoch: u64,
    /// `None`: unlimited.
    pub epochs: Option<u64>,
    /// BLAKE3 of the dataset's sample table.
    pub dataset_fingerprint: [u8; 32],
    /// [`CONFIG_PART_BYTES`] of BLAKE3 for each of [`CONFIG_PARTS`].
    pub config_fingerprint: [u8; 32],
    /// Raised whenever order, draws or pixels change for the same input.
    pub stream_version: u32,
    /// The restart policy after this daemon's death.
    pub restart_policy: RestartPolicy,
    /// The values that a job's ranks must share; the client adds the world size.
    pub identity: Identity,
    /// The sources of the functions of Python stages, for saved states.
    pub python_sources: Vec<PythonSource>,
    /// The pools of batches by length; `None`: batches have one size.
    pub pools: Option<Pools>,
}

/// The source of a Python stage's function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonSource {
    /// The stage's name.
    pub stage: String,
    /// `module:function`.
    pub target: String,
    /// The module's file.
    pub file: String,
    /// The digest of the file's bytes; empty if the module has no file.
    pub digest: String,
}

/// A stream's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positioned {
    /// The seek that this answers; 0 for the attach.
    pub serial: u64,
    /// The position.
    pub position: Position,
    /// This rank's batches left in that epoch.
    pub batches_left: u64,
    /// This rank's batches of all of that epoch.
    pub batches_of_epoch: u64,
}

/// The kind of an error; it determines the client's exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// Daemon and client have different protocol versions.
    Version,
    /// An error in the configuration, the dataset's folder or the request.
    Config,
    /// A bad sample with `on_bad_sample = "fail"`, or more bad samples than allowed.
    BadSample,
    /// Reading failed for a possibly transient reason (time-out, I/O error, missing file) after all retries.
    Storage,
    /// The requested position is not in the stream.
    Position,
    /// Another client is attached with this stream, rank and world size.
    Taken,
    /// The client violated the protocol.
    Protocol,
    /// The machine lacks memory or descriptors for the session.
    Memory,
    /// An internal error of the daemon.
    Internal,
    /// The user's function raised an exception, or cannot be called.
    Stage,
}

/// An error that the daemon reports to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of error.
    pub kind: FaultKind,
    /// Human-readable: values, location and remedy.
    pub message: String,
}
