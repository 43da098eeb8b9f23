//! Files that contain many samples each: their index, the parallel scan that builds it, and what their formats share.

mod index;
mod scan;

pub use self::index::{Extent, Origin, ScannedShard, ShardIndex};
pub use self::scan::{Pace, Scanned, scan};
use crate::folder::select::Listed;
use crate::saved_index::{Request, SavedIndex};
use forebay_dataset::error::DatasetError;

/// Applies `dataset.ids` and `dataset.limit`.
///
/// # Errors
/// The list does not match the samples; `form` describes the form of a sample's name.
pub fn select(
    request: &Request<'_>,
    found: &mut [ScannedShard],
    columns: usize,
    form: &str,
) -> Result<(), DatasetError> {
    if let Some(ids) = &request.ids {
        let mut listed = Listed::new(ids)?;
        for shard in &mut *found {
            shard.retain(columns, |path, key| listed.take(&[path, key].join(&b'/')));
        }
        listed.finish(form)?;
    }
    if let Some(limit) = request.config.limit {
        let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
        for shard in found {
            shard.truncate(left, columns);
            left -= shard.samples();
        }
    }
    Ok(())
}

/// Opens an index and reads its contents, for fuzzers.
pub fn check_index(bytes: Vec<u8>) -> Option<ShardIndex> {
    let index = ShardIndex::open(forebay_dataset::IndexBytes::Owned(bytes)).ok()?;
    for place in 0..index.shards().min(64) {
        let _ = index.shard_path(place);
    }
    for id in (0..index.samples().min(64)).map(forebay_protocol::ids::SampleId) {
        let _ = index.key(id);
        for column in 0..index.columns().min(64) {
            let _ = (index.member(id, column), index.longest(column));
        }
    }
    Some(index)
}
