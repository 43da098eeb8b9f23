//! The description of a folder of shards of records.

use serde::{Deserialize, Serialize};

use crate::parts;
use forebay_columnar::Column;
use forebay_index::folder::scan::FolderFormat;

/// The contents of a folder's `index.json`.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) shards: Vec<DescribedShard>,
    pub(crate) columns: Vec<Column>,
    pub(crate) packing: Packing,
}

/// How records are compressed within their shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Packing {
    /// Not compressed.
    #[default]
    Plain,
    /// Each record is a zstd frame.
    ByRecord,
    /// A zstd frame contains several records; a table lists the frames.
    ByFrame,
}

impl Packing {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// The number of extents per record in the index.
    pub(super) const fn columns(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::ByRecord | Self::ByFrame => parts::COLUMNS,
        }
    }
}

/// The description of a shard.
#[derive(Debug)]
pub(crate) struct DescribedShard {
    /// Relative to the folder.
    pub(crate) path: String,
    pub(crate) samples: u64,
    /// How it is compressed. A decompressed copy in the folder is used, too.
    pub(crate) compression: Option<Compression>,
}

/// How a shard's file is compressed as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Compression {
    /// The compressed file, if the description names it.
    pub(crate) path: Option<String>,
    /// The name in the description.
    pub(crate) name: String,
    /// A shell command that decompresses all shards and keeps the compressed ones; to be run in their folder.
    pub(crate) remedy: String,
}

/// A format of such folders.
pub(crate) trait Description: std::fmt::Debug + Send + Sync + 'static {
    /// Its name, and the extensions of its shards.
    const FORMAT: FolderFormat;
    /// The version of how columns are read: an index saved with another version is rebuilt.
    const READING: &'static str = "";

    /// Whether a file is a shard by its name, compressed or not.
    fn reads(name: &[u8]) -> bool;

    /// Parses `index.json`.
    ///
    /// # Errors
    /// Describes the fault.
    fn describe(text: &[u8]) -> Result<Described, String>;
}
