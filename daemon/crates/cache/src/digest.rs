//! Digests that distinguish the datasets of a cache.

use super::entry::Key;

/// The digest of a storage's name, see [`CacheScope`](forebay_storage::CacheScope).
pub(super) fn digest_of(name: &str) -> Key {
    blake3::derive_key("forebay: the cache on disk, a dataset", name.as_bytes())
}
