//! The error for mistakes in a configuration.

use std::fmt;
use std::sync::Arc;

/// The location of a key or a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file's path as the user gave it, `--set`, or `the dict`.
    pub source: Arc<str>,
    /// Counted from 1; 0 if there are no lines.
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

/// A mistake in a configuration: its location, the key, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct ConfigError {
    /// The location.
    pub location: SourceLocation,
    /// Lowercase; names the key by its full path (`batch.size`), what was expected and the remedy.
    pub message: String,
}

impl ConfigError {
    /// An error at a location.
    pub fn new(location: &SourceLocation, message: impl Into<String>) -> Self {
        Self { location: location.clone(), message: message.into() }
    }
}
