//! A cache on a local disk, in front of a storage that is far away: what was fetched once is read from there.
//!
//! An entry is the bytes of one location: what a sample needs, no more, so that a shuffled epoch over archives keeps what
//! it read and fetches nothing twice. It is found by a digest of the storage, the object's name, its size and tag (of a
//! mounted file: its size, inode and time of change), and the range. So an object that changes has other entries. Where
//! the index has no tag, as for files behind a web server, each read requests the object's tag or time; an object with
//! neither gets no entries, unless the configuration says that names are enough (`storage.immutable`).
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
use std::sync::atomic::{AtomicBool, Ordering};

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
use super::{FileStatus, Handle, ObjectIdentity, Opened, Storage, Untagged};
use crate::location::{FileId, FileTable, Location, ObjectStamp};

/// See the module's head.
#[derive(Debug)]
struct CachedStorage {
    behind: Arc<dyn Storage>,
    untagged: Untagged,
    digest: Key,
    cache: Arc<Cache>,
    /// Whether it was said that something has no tag.
    is_told: AtomicBool,
}

/// What [`Handle::Other`] holds here.
enum Found {
    /// May lie in the cache.
    Keyed(Key, Location, Identity),
    /// Does not, but may be kept under the key.
    Opened(Option<Key>, Opened),
}

/// What tells a file from others of its name.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The index, which the storage compares.
    Indexed(ObjectStamp),
    /// Its status, as it was a moment ago.
    Asked(ObjectStamp),
    /// Nothing; what the index knows.
    Named(Option<ObjectStamp>),
}

impl Identity {
    /// For the key.
    fn stamp(self) -> ObjectStamp {
        match self {
            Self::Indexed(stamp) | Self::Asked(stamp) => stamp,
            // Of no size that an object has, so that nothing else has its key.
            Self::Named(known) => known.unwrap_or(ObjectStamp { bytes: u64::MAX, tag: 0 }),
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            Self::Indexed(stamp) | Self::Asked(stamp) => Some(stamp.bytes),
            Self::Named(known) => known.map(|stamp| stamp.bytes),
        }
    }
}

/// Puts the configured cache in front of a storage. Where there is none, or it cannot be used, which is said, the storage
/// is given back.
pub(super) fn in_front_of(behind: Arc<dyn Storage>, config: &CacheConfig) -> Arc<dyn Storage> {
    let (Some(_), Some(scope)) = (&config.path, behind.cache_scope()) else {
        return behind;
    };
    let (digest, untagged) = (digest_of(&scope.name), scope.untagged);
    match Cache::open(config, &digest, &scope.name) {
        Ok(cache) => {
            let is_told = AtomicBool::new(false);
            Arc::new(CachedStorage { behind, untagged, digest, cache, is_told })
        }
        Err(error) => {
            tracing::warn!("the cache is not used: {error}");
            behind
        }
    }
}

impl CachedStorage {
    /// What tells the file from others of its name; `None`: it is not kept.
    fn identity_of(&self, files: &dyn FileTable, file: FileId) -> Option<Identity> {
        match (files.stamp(file), self.untagged) {
            (Some(stamp), _) if stamp.tag != 0 => Some(Identity::Indexed(stamp)),
            (known, Untagged::Name) => Some(Identity::Named(known)),
            (_, Untagged::Status) => self.asked(files, file).map(Identity::Asked),
        }
    }

    /// A file's stamp by its status; `None`: it has no tag, which is said, or cannot be asked.
    fn asked(&self, files: &dyn FileTable, file: FileId) -> Option<ObjectStamp> {
        let status = self.behind.status(files, file).ok()?;
        let tag = match &status.identity {
            ObjectIdentity::Inode { inode, modified: (seconds, nanoseconds), .. } => {
                format!("{inode} {seconds} {nanoseconds}")
            }
            ObjectIdentity::Tag(tag) => tag.clone(),
        };
        let stamp = ObjectStamp::new(status.bytes, Some(&tag));
        // Relaxed: said once.
        if stamp.tag == 0 && !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = %self.full_path(&files.path(file)).display(),
                "the cache keeps nothing that could be taken for what replaces it: the server gives neither a tag (ETag) \
                 nor a time of change (Last-Modified). Where objects never change under their names, set \
                 storage.immutable = true"
            );
        }
        Some(stamp).filter(|stamp| stamp.tag != 0)
    }

    /// `length`: what is kept; `None`: all of it, however much that is.
    fn key(
        &self,
        files: &dyn FileTable,
        location: Location,
        stamp: ObjectStamp,
        length: Option<u64>,
    ) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.digest);
        let length = length.unwrap_or(u64::MAX);
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

    /// The key of a location that may lie in the cache, and its length, if that is known.
    fn find(
        &self,
        files: &dyn FileTable,
        location: Location,
    ) -> Option<(Key, Option<u64>, Identity)> {
        // What was unpacked is kept already.
        if self.behind.unpacks(&files.path(location.file)) {
            return None;
        }
        let identity = self.identity_of(files, location.file)?;
        let range = location.range;
        let end = match range.length {
            Some(length) => Some(range.offset.checked_add(length)?),
            None => identity.bytes(),
        };
        // What does not fit is refused by the storage itself, and nothing needs no entry.
        let bytes = identity.bytes().unwrap_or(u64::MAX);
        if end.is_some_and(|end| end > bytes || end <= range.offset) {
            return None;
        }
        let length = match location.packed() {
            Some(part) => Some(part.length.into()),
            None => end.map(|end| end - range.offset),
        };
        let key = self.key(files, location, identity.stamp(), length);
        Some((key, length, identity))
    }

    fn fetch(
        &self,
        files: &dyn FileTable,
        location: Location,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<ObjectStamp>, StorageError> {
        let opened = self.behind.open(files, location)?;
        if opened.length_bytes() != length {
            let is_more = opened.length_bytes() > length;
            return Err(StorageError::Changed {
                path: self.full_path(&files.path(location.file)),
                expected_bytes: length,
                found: if is_more { "more" } else { "fewer" },
            });
        }
        let stamp = opened.stamp();
        self.behind.read_opened(files, opened, buffer)?;
        Ok(stamp)
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
        let (key, length, identity) = match self.find(files, location) {
            Some((key, length, identity)) => {
                (Some(key), length.or_else(|| self.cache.length_of(&key)), Some(identity))
            }
            None => (None, None, None),
        };
        let (found, length) = match (key, length, identity) {
            (Some(key), Some(length), Some(identity)) => {
                (Found::Keyed(key, location, identity), length)
            }
            _ => {
                let opened = self.behind.open(files, location)?;
                let length = opened.length_bytes();
                (Found::Opened(key.filter(|_| length > 0), opened), length)
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
        let (length, start) = (opened.length_bytes(), buffer.len());
        let (key, location, identity) = match *opened.into_other::<Found>() {
            Found::Keyed(key, location, identity) => (key, location, identity),
            Found::Opened(key, opened) => {
                self.behind.read_opened(files, opened, buffer)?;
                if let Some(key) = key {
                    self.cache.missed();
                    self.cache.put(&key, &buffer[start..]);
                }
                return Ok(());
            }
        };
        if self.cache.get(&key, length, buffer) {
            return Ok(());
        }
        let fetched = self.fetch(files, location, length, buffer)?;
        let is_same = match identity {
            // The storage has compared what is known.
            Identity::Indexed(_) | Identity::Named(_) => true,
            // It may have changed since.
            Identity::Asked(stamp) => {
                fetched.or_else(|| self.asked(files, location.file)) == Some(stamp)
            }
        };
        if is_same {
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
