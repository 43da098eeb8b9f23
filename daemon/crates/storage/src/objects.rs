//! For tests: objects in memory, as in an object store. It has no descriptors and no separate directories, and an
//! opened object is one version of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::conformance::Fixture;
use super::error::StorageError;
use super::listing::{Directories, DirectoryStamp, EntryKind};
use super::{Handle, Opened, Response, Storage, Target};
use crate::location::{FileId, FileTable, Location};
use crate::version::{FileStatus, ObjectIdentity};

/// See the module's head.
#[derive(Debug, Default)]
pub struct Objects(Mutex<Bucket>);

#[derive(Debug, Default)]
struct Bucket {
    objects: BTreeMap<Vec<u8>, Object>,
    changes: u32,
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Arc<[u8]>,
    version: u32,
}

/// An open part of one version of an object.
struct OpenObject {
    bytes: Arc<[u8]>,
    start: usize,
    end: usize,
}

impl Objects {
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces an object.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let mut bucket = self.bucket();
        bucket.changes += 1;
        let object = Object { bytes: bytes.into(), version: bucket.changes };
        bucket.objects.insert(path.as_bytes().to_vec(), object);
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        let mut bucket = self.bucket();
        bucket.changes += 1;
        bucket.objects.remove(path.as_bytes());
    }

    fn find(&self, path: &[u8]) -> Result<Object, StorageError> {
        let found = self.bucket().objects.get(path).cloned();
        found.ok_or_else(|| StorageError::Vanished { path: self.full_path(path) })
    }

    fn stamp_of(bucket: &Bucket) -> DirectoryStamp {
        DirectoryStamp { modified_nanoseconds: bucket.changes, ..DirectoryStamp::default() }
    }
}

impl Directories for Objects {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        let bucket = self.bucket();
        let below = |path: &[u8]| -> Option<Vec<u8>> {
            let rest = path.strip_prefix(directory)?;
            if directory.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
                .map(<[u8]>::to_vec)
        };
        let entries: BTreeSet<(Vec<u8>, bool)> = bucket
            .objects
            .keys()
            .filter_map(|path| below(path))
            .map(|path| match path.iter().position(|byte| *byte == b'/') {
                Some(end) => (path[..end].to_vec(), true),
                None => (path, false),
            })
            .collect();
        if entries.is_empty() {
            return Err(StorageError::Vanished { path: self.full_path(directory) });
        }
        for (name, is_directory) in entries {
            visit(&name, if is_directory { EntryKind::Directory } else { EntryKind::File });
        }
        Ok(Self::stamp_of(&bucket))
    }

    fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        Ok(Self::stamp_of(&self.bucket()))
    }
}

impl Storage for Objects {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        PathBuf::from(format!("objects:/{}", String::from_utf8_lossy(relative)))
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        let object = self.find(&files.path(file))?;
        let identity = ObjectIdentity::Tag(object.version.to_string());
        Ok(FileStatus { bytes: object.bytes.len() as u64, identity })
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = files.path(location.file);
        let object = self.find(&path)?;
        let (offset, length_bytes) = (location.range.offset, object.bytes.len() as u64);
        let end = match location.range.length {
            Some(length) => offset.saturating_add(length),
            None => length_bytes.max(offset),
        };
        if end > length_bytes {
            let path = self.full_path(&path);
            return Err(StorageError::OutOfRange { path, length_bytes, offset, end });
        }
        let [start, end] = [offset, end].map(|place| usize::try_from(place).unwrap_or(usize::MAX));
        let opened = OpenObject { bytes: object.bytes, start, end };
        Ok(Opened::new(location, (end - start) as u64, Handle::Response(Box::new(opened))))
    }

    fn read_opened(
        &self,
        _files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        match opened.handle {
            Handle::Response(object) => {
                object.read(opened.length_bytes, Target::Buffer(buffer)).map(|_| ())
            }
            other => other.refuse(),
        }
    }
}

impl Response for OpenObject {
    fn read(
        self: Box<Self>,
        _length_bytes: u64,
        mut target: Target<'_>,
    ) -> Result<bool, StorageError> {
        Ok(target.take(&self.bytes[self.start..self.end]))
    }
}

impl Fixture for Arc<Objects> {
    fn storage(&self) -> Arc<dyn Storage> {
        Self::clone(self) as Arc<dyn Storage>
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        Objects::put(self, path, bytes);
    }

    fn remove(&self, path: &str) {
        Objects::remove(self, path);
    }

    fn forbid(&self, _path: &str) -> bool {
        false
    }

    fn has_folders(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Objects;
    use crate::conformance;

    #[test]
    fn objects_are_a_storage() {
        conformance::run(Arc::<Objects>::default);
    }
}
