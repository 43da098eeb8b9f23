//! What can go wrong for a client, by what its user can do about it. The Python exceptions follow these variants.

use std::time::Duration;

use forebay_protocol::frames::{Fault, FaultKind};

/// Why a loader does not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake in the configuration, the target, the rank or the request.
    #[error("{0}")]
    Config(String),
    /// A bad sample under `on_bad_sample = "fail"`, or past the budget.
    #[error("{0}")]
    BadSample(String),
    /// Reading the data failed after all retries, for a reason that may pass.
    #[error("{0}")]
    Storage(String),
    /// The machine does not grant what the session needs.
    #[error("{0}")]
    Memory(String),
    /// Another client holds this stream, rank and world size.
    #[error("{0}")]
    Taken(String),
    /// Daemon and client are of different versions.
    #[error("{0}")]
    Version(String),
    /// The daemon is gone.
    #[error("{0}")]
    DaemonLost(String),
    /// Nothing moved for the time allowed.
    #[error(
        "no progress for {} s while waiting for {waited_for}; {daemon_says}; raise `timeout` if that is to be expected",
        waited.as_secs_f64()
    )]
    Timeout {
        /// The time without any progress.
        waited: Duration,
        /// For a person.
        waited_for: String,
        /// What the daemon knows of it: stage, sample and file where it is a sample.
        daemon_says: String,
    },
    /// More batches are held than the ring spares.
    #[error(
        "{held} batches are held and this ring lets {hold} be kept while the next is asked for (`ring.hold` = {hold}, \
         `ring.slots` = {slots}); drop batches earlier, keep copies (`.copy()`), or raise both keys"
    )]
    HoldLimit {
        /// The batches held.
        held: u64,
        /// The limit.
        hold: u16,
        /// The slots of the ring.
        slots: u16,
    },
    /// More batches are held on the GPU than were to be.
    #[error(
        "{held} batches are held on the device and {hold} may be (`device_hold` = {hold}); drop batches earlier, keep \
         copies (`.clone()`), or raise `device_hold`"
    )]
    DeviceHoldLimit {
        /// The batches held.
        held: usize,
        /// The limit.
        hold: usize,
    },
    /// The GPU's driver refused or failed.
    #[error("{0}")]
    Gpu(String),
    /// A saved state belongs to another stream.
    #[error("{0}")]
    StateMismatch(String),
    /// All configured epochs were delivered.
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
    /// The interrupt that was set on the loader said so.
    #[error("interrupted while waiting for {0}")]
    Interrupted(String),
    /// The loader was closed.
    #[error("the loader is closed")]
    Closed,
    /// A tensor was asked for by a name or a type that the batch does not have.
    #[error("{0}")]
    NoSuchTensor(String),
    /// What came over the border makes no sense: an error of the daemon, or of this client.
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
            FaultKind::Storage => Self::Storage(message),
            FaultKind::Taken => Self::Taken(message),
            FaultKind::Memory => Self::Memory(message),
            FaultKind::Protocol | FaultKind::Internal => Self::Protocol(message),
        }
    }
}
