//! A cache on a local disk, in front of a storage that is far away: what was fetched once is read from there.
//!
//! An entry is the bytes of one location: what a sample needs, no more, so that a shuffled epoch over archives keeps what
//! it read and fetches nothing twice. It is found by a digest of the storage, the object's name, its size and tag (of a
//! mounted file: its size, inode and time of change), and the range. So an object that changes has other entries, and one
//! without a tag has none.
//!
//! ```text
//! looked for   ── whole ──▶ given                       one open, one read, one close
//!      │ └─ damaged ──▶ removed, said ─┐
//!      └─ not there, or the disk is slow or fails ─┴─▶ fetched ─▶ room taken ─▶ written, linked
//!                                                                     └─ none, or the disk fails ─▶ not kept, said
//! ```
//!
//! Nothing here ends a run or changes a byte: whatever the disk does, the storage behind is asked. What lies on the disk is
//! in `folder`, how much in `space`. An epoch of a permuted order reads each sample once, so what was kept last is of no
//! more use than what was kept first: nothing is replaced, but datasets that nobody uses make room (`disk`, `sweep`).

mod digest;
mod disk;
mod entry;
mod folder;
mod keeper;
mod space;
mod sweep;
mod unpacked;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_config::CacheConfig;
use forebay_observe::{CacheMetrics, RequestMetrics};

use self::digest::digest_of;
use self::disk::Cache;
use self::entry::Key;
#[doc(hidden)]
pub use self::entry::cache_entry;
pub use self::keeper::{CacheKeeper, CachedDataset, Verified};
pub(crate) use self::unpacked::{UnpackedFiles, UnpackedStorage};
use super::error::StorageError;
use super::listing::InFront;
use super::{FileStatus, Handle, ObjectIdentity, Opened, Storage};
use crate::location::{FileId, FileTable, Location, ObjectStamp};

/// See the module's head.
#[derive(Debug)]
struct CachedStorage {
    behind: Arc<dyn Storage>,
    has_status: bool,
    digest: Key,
    cache: Arc<Cache>,
}

/// What [`Handle::Other`] holds here.
enum Found {
    /// May lie in the cache.
    Keyed(Key, Location, ObjectStamp),
    /// Does not.
    Passed(Opened),
}

/// Puts the configured cache in front of a storage. Where there is none, or it cannot be used, which is said, the storage
/// is given back.
pub(super) fn in_front_of(behind: Arc<dyn Storage>, config: &CacheConfig) -> Arc<dyn Storage> {
    let (Some(_), Some(scope)) = (&config.path, behind.cache_scope()) else {
        return behind;
    };
    let (digest, has_status) = (digest_of(&scope.name), scope.has_status);
    match Cache::open(config, &digest, &scope.name) {
        Ok(cache) => Arc::new(CachedStorage { behind, has_status, digest, cache }),
        Err(error) => {
            tracing::warn!("the cache is not used: {error}");
            behind
        }
    }
}

impl CachedStorage {
    /// What tells the file from others of its name; `None`: it is not kept.
    fn stamp_of(&self, files: &dyn FileTable, file: FileId) -> Option<ObjectStamp> {
        match files.stamp(file).filter(|stamp| stamp.tag != 0) {
            Some(stamp) => Some(stamp),
            None if self.has_status => self.behind.status(files, file).ok().map(|status| {
                let tag = match &status.identity {
                    ObjectIdentity::Inode { inode, modified: (seconds, nanoseconds), .. } => {
                        format!("{inode} {seconds} {nanoseconds}")
                    }
                    ObjectIdentity::Tag(tag) => tag.clone(),
                };
                ObjectStamp::new(status.bytes, Some(&tag))
            }),
            None => None,
        }
    }

    fn key(
        &self,
        files: &dyn FileTable,
        location: Location,
        stamp: ObjectStamp,
        length: u64,
    ) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.digest);
        for number in [stamp.bytes, stamp.tag, location.range.offset, length] {
            hasher.update(&number.to_le_bytes());
        }
        if let Some(part) = location.packed() {
            for number in [part.unpacked_bytes, part.start] {
                hasher.update(&number.to_le_bytes());
            }
        }
        hasher.update(&files.path(location.file));
        *hasher.finalize().as_bytes()
    }

    /// The key and the length of a location that may lie in the cache.
    fn find(&self, files: &dyn FileTable, location: Location) -> Option<(Found, u64)> {
        // What was unpacked is kept already.
        if self.behind.unpacks(&files.path(location.file)) {
            return None;
        }
        let stamp = self.stamp_of(files, location.file)?;
        let range = location.range;
        let end = match range.length {
            Some(length) => range.offset.checked_add(length)?,
            None => stamp.bytes,
        };
        // What does not fit is refused by the storage itself, and nothing needs no entry.
        if end > stamp.bytes || end <= range.offset {
            return None;
        }
        let length = location.packed().map_or(end - range.offset, |part| part.length.into());
        Some((Found::Keyed(self.key(files, location, stamp, length), location, stamp), length))
    }

    fn fetch(
        &self,
        files: &dyn FileTable,
        location: Location,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let opened = self.behind.open(files, location)?;
        if opened.length_bytes() != length {
            let is_more = opened.length_bytes() > length;
            return Err(StorageError::Changed {
                path: self.full_path(&files.path(location.file)),
                expected_bytes: length,
                found: if is_more { "more" } else { "fewer" },
            });
        }
        self.behind.read_opened(files, opened, buffer)
    }
}

impl InFront for CachedStorage {
    type Behind = dyn Storage;

    fn behind(&self) -> &Self::Behind {
        self.behind.as_ref()
    }
}

impl Storage for CachedStorage {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.behind.full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.behind.status(files, file)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let (found, length) = match self.find(files, location) {
            Some(found) => found,
            None => {
                let opened = self.behind.open(files, location)?;
                let length = opened.length_bytes();
                (Found::Passed(opened), length)
            }
        };
        Ok(Opened::new(length, Handle::Other(Box::new(found))))
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let length = opened.length_bytes();
        let (key, location, stamp) = match *opened.into_other::<Found>() {
            Found::Keyed(key, location, stamp) => (key, location, stamp),
            Found::Passed(opened) => return self.behind.read_opened(files, opened, buffer),
        };
        let start = buffer.len();
        if self.cache.get(&key, length, buffer) {
            return Ok(());
        }
        self.fetch(files, location, length, buffer)?;
        // An object's stamp was compared by the storage; a file's may have changed since.
        if !self.has_status || self.stamp_of(files, location.file) == Some(stamp) {
            self.cache.put(&key, &buffer[start..]);
        }
        Ok(())
    }

    fn requests(&self) -> Option<&RequestMetrics> {
        self.behind.requests()
    }

    fn bytes_per_read(&self) -> u64 {
        self.behind.bytes_per_read()
    }

    fn cache(&self) -> Option<&CacheMetrics> {
        Some(self.cache.metrics())
    }
}

#[cfg(test)]
mod tests;
