//! What a folder of shards of records says of itself.

use serde::{Deserialize, Serialize};

use super::encoding::Encoding;

/// What a folder's `index.json` says.
#[derive(Debug)]
pub(in crate::dataset) struct Described {
    pub(in crate::dataset) shards: Vec<DescribedShard>,
    pub(in crate::dataset) columns: Vec<Column>,
}

/// A shard as it is described.
#[derive(Debug)]
pub(in crate::dataset) struct DescribedShard {
    /// Relative to the folder.
    pub(in crate::dataset) path: String,
    pub(in crate::dataset) samples: u64,
    /// How it is compressed; it can be used where it lies there decompressed, too.
    pub(in crate::dataset) compression: Option<Compression>,
}

/// How a shard's file is compressed as a whole.
#[derive(Debug, Clone)]
pub(in crate::dataset) struct Compression {
    /// The file that was written, where it is said.
    pub(in crate::dataset) path: Option<String>,
    /// As the description has it.
    pub(in crate::dataset) name: String,
    /// What decompresses all shards beside the compressed ones, to be pasted in their folder.
    pub(in crate::dataset) remedy: String,
}

/// One column of the records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::dataset) struct Column {
    pub(in crate::dataset) name: String,
    pub(in crate::dataset) encoding: Encoding,
    /// The bytes of each value, where all have the same and records do not say it.
    pub(in crate::dataset) bytes: Option<u64>,
}

/// Takes `index.json` apart.
pub(in crate::dataset) type Describe = fn(&[u8]) -> Result<Described, String>;
