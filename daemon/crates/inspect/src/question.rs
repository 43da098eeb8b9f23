//! A request from another thread to the engine.

use forebay_observe::{DaemonReport, HistoryReport};
use tokio::sync::oneshot;

/// A request to the engine.
#[derive(Debug)]
pub enum Question {
    /// A report.
    Report(Answer<DaemonReport>),
    /// The history of rates.
    History(Answer<HistoryReport>),
}

/// Receives the response; the receiver may have been dropped.
pub type Answer<T> = oneshot::Sender<T>;

impl Question {
    /// Whether the response is no longer needed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Report(answer) => answer.is_closed(),
            Self::History(answer) => answer.is_closed(),
        }
    }
}
