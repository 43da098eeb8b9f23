//! A cache on a local disk for a remote storage: each location is fetched once and read from the disk afterwards.
//!
//! An entry contains the bytes of one location, exactly what a sample needs, so a shuffled epoch over archives fetches
//! nothing twice. Its key is a digest of the storage, the object's name, its size and tag (for a mounted file: its
//! size, inode and times of change), and the range. So a changed object has other entries. If the index has no tag, as
//! for files on a web server, each read requests the object's tag or time; an object without either is not cached,
//! unless the configuration states that names are sufficient (`storage.immutable`).
//!
//! ```text
//! look-up      ── complete ──▶ read                        one open, one read, one close
//! │ └─ damaged ──▶ removed, logged ─┐
//! └─ missing, or the disk is slow or fails ─┴─▶ fetched ─▶ space granted ─▶ written, linked
//! └─ no space, or the disk fails ─▶ not cached, logged
//! ```
//!
//! The cache never ends a run and never changes a byte: if the disk fails, the storage is read. `folder` has the disk's
//! layout, `space` the accounting. An epoch in random order reads each sample once, so the latest entries are of no
//! more use than the first: entries are not replaced, only unused datasets are removed (`disk`, `sweep`).

mod cache_admin;
mod digest;
mod disk;
mod entry;
mod folder;
mod space;
mod sweep;
mod unpacked;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::CacheConfig;
use forebay_observe::{CacheMetrics, RequestMetrics};

pub use self::cache_admin::{CacheAdmin, CachedDataset, Verified};
use self::digest::digest_of;
use self::disk::Cache;
use self::entry::Key;
#[doc(hidden)]
pub use self::entry::cache_entry;
pub use self::unpacked::{UnpackedFiles, UnpackedStorage};
use forebay_storage::error::StorageError;
use forebay_storage::listing::Layer;
use forebay_storage::location::{FileId, FileTable, Location, ObjectStamp};
use forebay_storage::{FileStatus, Handle, Opened, RetryClass, Storage, Untagged};

/// A storage with a cache.
#[derive(Debug)]
struct CachedStorage {
    inner: Arc<dyn Storage>,
    untagged: Untagged,
    digest: Key,
    cache: Arc<Cache>,
    /// Whether the warning about a missing tag was logged.
    is_told: AtomicBool,
}

/// Contents of [`Handle::Other`].
enum Found {
    /// May be in the cache.
    Keyed(Key, Location, Identity),
    /// Is not in the cache, but may be added under the key.
    Opened(Option<Key>, Opened),
}

/// What identifies a file besides its name.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The index's stamp, which the storage compares.
    Indexed(ObjectStamp),
    /// Its status, requested a moment ago. `is_settled`: a later change would alter it.
    Asked { stamp: ObjectStamp, is_settled: bool },
    /// Nothing; with the index's stamp if there is one.
    Named(Option<ObjectStamp>),
}

impl Identity {
    /// The stamp in the key.
    fn stamp(self) -> ObjectStamp {
        match self {
            Self::Indexed(stamp) | Self::Asked { stamp, .. } => stamp,
            // No object has this size, so the key is unique.
            Self::Named(known) => known.unwrap_or(ObjectStamp { bytes: u64::MAX, tag: 0 }),
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            Self::Indexed(stamp) | Self::Asked { stamp, .. } => Some(stamp.bytes),
            Self::Named(known) => known.map(|stamp| stamp.bytes),
        }
    }

    fn is_settled(self) -> bool {
        !matches!(self, Self::Asked { is_settled: false, .. })
    }
}

/// Adds the configured cache to a storage. If there is none, or it cannot be used (which is logged), returns the
/// storage.
pub fn in_front_of(inner: Arc<dyn Storage>, config: &CacheConfig) -> Arc<dyn Storage> {
    let (Some(_), Some(scope)) = (&config.path, inner.cache_scope()) else {
        return inner;
    };
    let (digest, untagged) = (digest_of(&scope.name), scope.untagged);
    match Cache::open(config, &digest, &scope.name) {
        Ok(cache) => {
            let is_told = AtomicBool::new(false);
            Arc::new(CachedStorage { inner, untagged, digest, cache, is_told })
        }
        Err(error) => {
            tracing::warn!("the cache is not used: {error}");
            inner
        }
    }
}

impl CachedStorage {
    /// What identifies a file besides its name; `None`: it is not cached.
    fn identity_of(&self, files: &dyn FileTable, file: FileId) -> Option<Identity> {
        match (files.stamp(file), self.untagged) {
            (Some(stamp), _) if stamp.tag != 0 => Some(Identity::Indexed(stamp)),
            (known, Untagged::Name) => Some(Identity::Named(known)),
            (_, Untagged::Status) => {
                let (stamp, is_settled) = self.asked(files, file)?;
                Some(Identity::Asked { stamp, is_settled })
            }
        }
    }

    /// A file's stamp from its status, and whether a later change would alter it; `None`: no tag, or an error, which is
    /// logged.
    fn asked(&self, files: &dyn FileTable, file: FileId) -> Option<(ObjectStamp, bool)> {
        let status = match self.inner.status(files, file) {
            Ok(status) => status,
            Err(error) => {
                // Temporary errors and missing files are reported by the read, too.
                if error.class() == RetryClass::Never {
                    self.tell(&format!("does not keep files without tags in listings: {error}"));
                }
                return None;
            }
        };
        let stamp = ObjectStamp::new(status.bytes, Some(&status.identity.tag()));
        if stamp.tag == 0 && status.bytes > 0 {
            let path = self.full_path(&files.path(file));
            self.tell(&format!(
                "keeps nothing that could be taken for what replaces it: the server gives neither a tag (ETag) nor a time of \
                 change (Last-Modified) of {}. Where objects never change under their names, set storage.immutable = true",
                path.display()
            ));
        }
        let is_settled = !status.identity.may_be_changing(now_seconds());
        Some((stamp, is_settled)).filter(|(stamp, _)| stamp.tag != 0)
    }

    /// Logs once why something is not cached.
    fn tell(&self, why: &str) {
        // Relaxed: logged once.
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!("the cache {why}");
        }
    }

    /// `length`: the entry's length; `None`: up to the end, of any length.
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

    /// The key of a location that may be in the cache, and its length, if known.
    fn find(
        &self,
        files: &dyn FileTable,
        location: Location,
    ) -> Option<(Key, Option<u64>, Identity)> {
        // Unpacked files are in the cache already.
        if self.inner.unpacks(&files.path(location.file)) {
            return None;
        }
        let identity = self.identity_of(files, location.file)?;
        let range = location.range;
        let end = match range.length {
            Some(length) => Some(range.offset.checked_add(length)?),
            None => identity.bytes(),
        };
        // The storage itself refuses a range past the end, and an empty range needs no entry.
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
        let opened = self.inner.open(files, location)?;
        if opened.length_bytes() != length {
            let is_more = opened.length_bytes() > length;
            return Err(StorageError::Changed {
                path: self.full_path(&files.path(location.file)),
                expected_bytes: length,
                found: if is_more { "more" } else { "fewer" },
            });
        }
        let stamp = opened.stamp();
        self.inner.read_opened(files, opened, buffer)?;
        Ok(stamp)
    }
}

fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}

impl Layer for CachedStorage {
    type Inner = dyn Storage;

    fn inner(&self) -> &Self::Inner {
        self.inner.as_ref()
    }
}

impl Storage for CachedStorage {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.inner.full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.inner.status(files, file)
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
                let opened = self.inner.open(files, location)?;
                let length = opened.length_bytes();
                let is_kept = length > 0 && identity.is_none_or(Identity::is_settled);
                (Found::Opened(key.filter(|_| is_kept), opened), length)
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
                self.inner.read_opened(files, opened, buffer)?;
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
            // The storage has compared the stamp.
            Identity::Indexed(_) | Identity::Named(_) => true,
            // It may have changed since, or may change without a new time.
            Identity::Asked { stamp, is_settled } => {
                let asked = || self.asked(files, location.file).map(|(stamp, _)| stamp);
                is_settled && fetched.or_else(asked) == Some(stamp)
            }
        };
        if is_same {
            self.cache.put(&key, &buffer[start..]);
        }
        Ok(())
    }

    fn requests(&self) -> Option<&RequestMetrics> {
        self.inner.requests()
    }

    fn bytes_per_read(&self) -> u64 {
        self.inner.bytes_per_read()
    }

    fn cache(&self) -> Option<&CacheMetrics> {
        Some(self.cache.metrics())
    }
}

#[cfg(test)]
mod tests;
