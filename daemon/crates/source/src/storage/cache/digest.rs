//! What tells datasets of a cache apart.

use super::entry::Key;

/// Of a storage's name, see [`CacheScope`](crate::storage::CacheScope).
pub(super) fn digest_of(name: &str) -> Key {
    blake3::derive_key("forebay: the cache on disk, a dataset", name.as_bytes())
}
