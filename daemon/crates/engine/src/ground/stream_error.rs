//! Errors of opening a stream.

use forebay_dataset::DatasetError;
use forebay_keys::{ConfigError, SourceLocation};
use forebay_protocol::layout::LayoutError;

/// Why a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A mistake in the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The dataset cannot be used.
    #[error("{location}: {error}")]
    Dataset {
        /// The location of the key.
        location: SourceLocation,
        /// The dataset's error.
        error: DatasetError,
    },
    /// A batch cannot be laid out.
    #[error("{source_name}: a batch cannot be laid out: {error}")]
    Layout {
        /// The configuration.
        source_name: String,
        /// The layout's error.
        error: LayoutError,
    },
}

impl StreamError {
    /// Whether the storage was unavailable, so that the configuration may be right.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Dataset { error, .. } if error.is_outage())
    }
}
