//! Why a call of the user's function has no result.

use forebay_dataset::Defect;
use forebay_workers::{Lost, Raised};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The sample is bad, or the batch cannot be made of its samples.
    Defect(String),
    /// The user's function raised an exception, or returned an invalid result: on one line, and as Python prints it.
    Raised {
        /// On one line.
        summary: String,
        /// With the traceback; empty if nothing was raised.
        text: String,
    },
    /// No worker can be started any more.
    NoWorkers(String),
    /// The caller ends; nothing was done.
    Ending,
}

impl CallError {
    /// The function's result is invalid.
    pub(crate) fn of_result(Defect(reason): Defect) -> Self {
        Self::Raised { summary: reason, text: String::new() }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Defect(reason) | Self::NoWorkers(reason) => formatter.write_str(reason),
            Self::Raised { summary, text } if text.is_empty() => formatter.write_str(summary),
            Self::Raised { summary, text } => write!(formatter, "{summary}\n\n{text}"),
            Self::Ending => formatter.write_str("the call was given up"),
        }
    }
}

impl From<&Raised> for CallError {
    fn from(raised: &Raised) -> Self {
        Self::Raised { summary: raised.summary.clone(), text: raised.traceback.clone() }
    }
}

impl From<Lost> for CallError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::NoWorkers(reason) => Self::NoWorkers(reason),
            Lost::Ending => Self::Ending,
        }
    }
}
