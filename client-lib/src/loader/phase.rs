//! The phases of a loader across its daemon's death; [`crate::supervisor`] draws their transitions.

/// The loader's connection to its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Attached.
    Live,
    /// Without a daemon; the batches that the last one had published are handed over meanwhile.
    Draining,
    /// The session was requested from the next daemon.
    Reattaching,
}
