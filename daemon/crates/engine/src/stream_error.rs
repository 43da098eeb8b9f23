//! Why a stream cannot be opened.

use forebay_config::{ConfigError, SourceLocation};
use forebay_protocol::layout::LayoutError;
use forebay_source::dataset::DatasetError;

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
        /// Where the key stands.
        location: SourceLocation,
        /// Why.
        error: DatasetError,
    },
    /// A batch cannot be laid out.
    #[error("{source_name}: a batch cannot be laid out: {error}")]
    Layout {
        /// The configuration.
        source_name: String,
        /// Why.
        error: LayoutError,
    },
}

impl StreamError {
    /// Whether the storage was away, and not the configuration wrong.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Dataset { error, .. } if error.is_outage())
    }
}
