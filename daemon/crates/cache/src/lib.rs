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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::CacheConfig;
use forebay_storage::version::ObjectStamp;

pub use self::cache_admin::{CacheAdmin, CachedDataset, Verified};
use self::digest::digest_of;
use self::disk::Cache;
use self::entry::Key;
#[doc(hidden)]
pub use self::entry::cache_entry;
pub use self::unpacked::{UnpackedFiles, UnpackedStorage};
use forebay_storage::error::StorageError;
use forebay_storage::location::{FileId, FileTable, Location};
use forebay_storage::{Adds, Handle, Layer, Opened, Properties, RetryClass, Storage, Untagged};

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

    /// Whether bytes that are read later are added to the cache.
    fn adds(self) -> Adds {
        match self {
            // The storage compares the stamp.
            Self::Indexed(_) | Self::Named(_) => Adds::Always,
            Self::Asked { stamp, is_settled: true } => Adds::IfStill(stamp),
            Self::Asked { is_settled: false, .. } => Adds::Never,
        }
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
        if opened.length_bytes != length {
            let is_more = opened.length_bytes > length;
            return Err(StorageError::Changed {
                path: self.full_path(&files.path(location.file)),
                expected_bytes: length,
                found: if is_more { "more" } else { "fewer" },
            });
        }
        let stamp = opened.stamp;
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

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let Some((key, length, identity)) = self.find(files, location) else {
            return self.inner.open(files, location);
        };
        let adds = identity.adds();
        if let Some(length) = length.or_else(|| self.cache.length_of(&key)) {
            return Ok(Opened::new(location, length, Handle::Cached { key, adds }));
        }
        let opened = self.inner.open(files, location)?;
        let is_added = opened.length_bytes > 0 && adds != Adds::Never;
        Ok(Opened { new_key: is_added.then_some(key), ..opened })
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let start = buffer.len();
        let Opened { location, length_bytes, handle: Handle::Cached { key, adds }, .. } = opened
        else {
            let new_key = opened.new_key;
            self.inner.read_opened(files, opened, buffer)?;
            if let Some(key) = new_key {
                self.cache.missed();
                self.cache.put(&key, &buffer[start..]);
            }
            return Ok(());
        };
        if self.cache.get(&key, length_bytes, buffer) {
            return Ok(());
        }
        let fetched = self.fetch(files, location, length_bytes, buffer)?;
        let asked = || self.asked(files, location.file).map(|(stamp, _)| stamp);
        let is_same = match adds {
            Adds::Always => true,
            Adds::Never => false,
            Adds::IfStill(stamp) => fetched.or_else(asked) == Some(stamp),
        };
        if is_same {
            self.cache.put(&key, &buffer[start..]);
        }
        Ok(())
    }

    fn properties(&self) -> Properties<'_> {
        Properties { cache: Some(self.cache.metrics()), ..self.inner.properties() }
    }
}

#[cfg(test)]
mod tests;
