//! The one error that a mistake in a configuration becomes.

use std::fmt;
use std::sync::Arc;

/// Where a key or a value stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file's path as the user gave it, `--set`, or `the dict`.
    pub source: Arc<str>,
    /// Counted from 1; 0 where there are no lines.
    pub line: u32,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(formatter, "{}", self.source)
        } else {
            write!(formatter, "{}:{}", self.source, self.line)
        }
    }
}

/// A mistake in a configuration: where it stands, the key, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct ConfigError {
    /// Where to look.
    pub location: SourceLocation,
    /// Lowercase; names the key by its full path (`batch.size`), what was expected and the remedy.
    pub message: String,
}

impl ConfigError {
    /// An error at a place.
    pub fn new(location: &SourceLocation, message: impl Into<String>) -> Self {
        Self { location: location.clone(), message: message.into() }
    }
}
