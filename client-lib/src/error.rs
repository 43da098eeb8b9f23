//! The errors of a client, grouped by what its user can do about them. The Python exceptions follow these variants.

use std::time::Duration;

use forebay_protocol::frames::{Fault, FaultKind};

/// An error of a loader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in the configuration, the target, the rank or the request.
    #[error("{0}")]
    Config(String),
    /// A bad sample with `on_bad_sample = "fail"`, or more bad samples than allowed.
    #[error("{0}")]
    BadSample(String),
    /// A user's function, a stage of the stream, raised an exception, or can no longer be called.
    #[error("{0}")]
    Stage(String),
    /// Reading the data failed after all retries, for a possibly transient reason.
    #[error("{0}")]
    Storage(String),
    /// The machine lacks memory, descriptors or threads for the session.
    #[error("{0}")]
    Memory(String),
    /// Another client is attached with this stream, rank and world size.
    #[error("{0}")]
    Taken(String),
    /// Daemon and client have different versions.
    #[error("{0}")]
    Version(String),
    /// The daemon has ended.
    #[error("{0}")]
    DaemonLost(String),
    /// No progress within the time-out.
    #[error(
        "no progress for {} s while waiting for {waited_for}; {daemon_says}; raise `timeout` if that is to be expected",
        waited.as_secs_f64()
    )]
    Timeout {
        /// The time without any progress.
        waited: Duration,
        /// What was waited for, human-readable.
        waited_for: String,
        /// The daemon's explanation: the stage, and the sample and file that it waits for.
        daemon_says: String,
    },
    /// More batches are held than the ring allows.
    #[error(
        "{held} batches are held{}{fields} and this ring allows {hold} while the next one is requested (`ring.hold` = \
         {hold}, `ring.slots` = {slots}); drop them earlier, keep copies (in Python `.copy()` of an array, `.clone()` of a \
         tensor), or raise both keys",
        if fields.is_empty() { "" } else { " by " }
    )]
    HoldLimit {
        /// The batches held.
        held: u64,
        /// The fields that hold them, human-readable, if they are counted: a caller that hands out fields one by one
        /// sets this.
        fields: String,
        /// The limit.
        hold: u16,
        /// The slots of the ring.
        slots: u16,
    },
    /// More batches are held on the GPU than allowed.
    #[error(
        "{held} batches are held on the device and {hold} are allowed (`device_hold` = {hold}); drop batches earlier, \
         keep copies (`.clone()`), or raise `device_hold`"
    )]
    DeviceHoldLimit {
        /// The batches held.
        held: usize,
        /// The limit.
        hold: usize,
    },
    /// A call of the GPU's driver failed.
    #[error("{0}")]
    Gpu(String),
    /// A saved state belongs to another stream.
    #[error("{0}")]
    StateMismatch(String),
    /// All configured epochs are finished.
    #[error("all {epochs} epochs are finished (`order.epochs` = {epochs})")]
    EpochsFinished {
        /// The configured number.
        epochs: u64,
    },
    /// This process was forked from the one that attached.
    #[error(
        "this loader was attached before a fork and belongs to the parent process; attach in the child"
    )]
    Forked,
    /// The loader's interrupt ended a wait.
    #[error("interrupted while waiting for {0}")]
    Interrupted(String),
    /// The loader was closed.
    #[error("the loader is closed")]
    Closed,
    /// A tensor was requested by a name or a type that the batch does not have.
    #[error("{0}")]
    NoSuchTensor(String),
    /// The daemon's frames or shared memory are invalid: a bug in the daemon or in this client.
    #[error("{0}")]
    Protocol(String),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let message = fault.message;
        match fault.kind {
            FaultKind::Version => Self::Version(message),
            FaultKind::Config | FaultKind::Position => Self::Config(message),
            FaultKind::BadSample => Self::BadSample(message),
            FaultKind::Stage => Self::Stage(message),
            FaultKind::Storage => Self::Storage(message),
            FaultKind::Taken => Self::Taken(message),
            FaultKind::Memory => Self::Memory(message),
            FaultKind::Protocol | FaultKind::Internal => Self::Protocol(message),
        }
    }
}
