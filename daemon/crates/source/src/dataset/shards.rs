//! Files that hold many samples each: their index, which a few threads make, and what all formats of such files share.

mod index;
mod scan;

pub(super) use self::index::{Extent, Origin, ScannedShard, ShardIndex};
pub(super) use self::scan::{Pace, Scanned, scan};
use super::error::DatasetError;
use super::folder::select::Listed;
use super::saved_index::{Request, SavedIndex, is_unchanged};
use crate::location::FileId;
use crate::storage::Storage;

/// Whether the shards are those that were scanned, of the same sizes and times.
/// Behind a URL nobody can say so cheaply: a sample's read tells an object that changed.
///
/// # Errors
/// They cannot be found, or the storage is away.
pub(super) fn are_unchanged(
    request: &Request<'_>,
    storage: &dyn Storage,
    index: &ShardIndex,
    find: impl FnOnce() -> Result<Vec<Vec<u8>>, DatasetError>,
) -> Result<bool, DatasetError> {
    if storage.remote_root().is_some() {
        return Ok(true);
    }
    let shards = find()?;
    // With a limit the last ones were not looked at.
    let are_same = |count: usize| (0..count).all(|place| index.shard_path(place) == shards[place]);
    let is_cut = request.config.limit.is_some() && index.shards() < shards.len();
    if !(index.shards() == shards.len() || is_cut) || !are_same(index.shards()) {
        return Ok(false);
    }
    for place in 0..index.shards() {
        let known = index.shard(place).map(|shard| shard.stamp);
        let read_at = index.scan_started_seconds();
        if !is_unchanged(storage, index, FileId(place as u64), known, read_at)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Applies `dataset.ids` and `dataset.limit`.
///
/// # Errors
/// A list that does not fit; `form` says what a sample's name looks like.
pub(super) fn select(
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

/// What `dataset.ids` and messages call a sample: the shard's path and the key in it.
pub(super) fn append_name(
    index: &ShardIndex,
    id: forebay_protocol::ids::SampleId,
    name: &mut Vec<u8>,
) {
    name.extend_from_slice(index.shard_path(index.shard_of(id)));
    name.push(b'/');
    name.extend_from_slice(index.key(id));
}

/// Opens an index and reads all that it holds, for fuzzers.
pub(super) fn check_index(bytes: Vec<u8>) -> Option<ShardIndex> {
    let index = ShardIndex::open(super::IndexBytes::Owned(bytes)).ok()?;
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
