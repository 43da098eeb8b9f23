//! Storages on top of another one.

use std::fmt::Debug;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::error::StorageError;
use super::listing::{Directories, DirectoryStamp, EntryKind};
use super::{CacheScope, DirectFile, Opened, Properties, Storage};
use crate::location::{FileId, FileTable, Location};
use crate::version::FileStatus;

/// A layer of a storage, with the methods of [`Storage`] and [`Directories`] that layers define. The inner storage
/// answers the others, except [`Storage::open_direct`] and [`Storage::read_in_pieces`], which would bypass a layer that
/// does not define them.
#[expect(
    clippy::missing_errors_doc,
    reason = "the errors are those of the same methods of `Storage`"
)]
pub trait Layer: Send + Sync + Debug {
    /// The type of the inner storage.
    type Inner: Storage + ?Sized;

    /// The inner storage.
    fn inner(&self) -> &Self::Inner;

    /// See [`Storage::open`].
    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        self.inner().open(files, location)
    }

    /// See [`Storage::read_opened`].
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        self.inner().read_opened(files, opened, buffer)
    }

    /// See [`Storage::open_direct`].
    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        let _ = (files, location);
        None
    }

    /// See [`Directories::list`].
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.inner().list(directory, visit)
    }

    /// See [`Directories::stamp`].
    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        self.inner().stamp(directory)
    }

    /// See [`Storage::status`].
    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.inner().status(files, file)
    }

    /// See [`Storage::status_if_there`].
    fn status_if_there(
        &self,
        files: &dyn FileTable,
        file: FileId,
    ) -> Result<Option<FileStatus>, StorageError> {
        self.inner().status_if_there(files, file)
    }

    /// See [`Storage::properties`].
    fn properties(&self) -> Properties<'_> {
        self.inner().properties()
    }

    /// See [`Storage::cache_scope`].
    fn cache_scope(&self) -> Option<CacheScope> {
        self.inner().cache_scope()
    }

    /// See [`Storage::unpacks`].
    fn unpacks(&self, path: &[u8]) -> bool {
        self.inner().unpacks(path)
    }

    /// See [`Storage::is_at_hand`].
    fn is_at_hand(&self, path: &[u8]) -> bool {
        self.inner().is_at_hand(path)
    }
}

impl<L: Layer> Directories for L {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        Layer::list(self, directory, visit)
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        Layer::stamp(self, directory)
    }

    fn root_is_file(&self) -> bool {
        self.inner().root_is_file()
    }

    fn remote_root(&self) -> Option<&Path> {
        self.inner().remote_root()
    }

    fn server(&self) -> Option<String> {
        self.inner().server()
    }

    fn revision(&self) -> Option<String> {
        self.inner().revision()
    }

    fn read_revision(&self, revision: &str) {
        self.inner().read_revision(revision);
    }
}

impl<L: Layer> Storage for L {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.inner().full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        Layer::status(self, files, file)
    }

    fn status_if_there(
        &self,
        files: &dyn FileTable,
        file: FileId,
    ) -> Result<Option<FileStatus>, StorageError> {
        Layer::status_if_there(self, files, file)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        Layer::open(self, files, location)
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        Layer::read_opened(self, files, opened, buffer)
    }

    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        Layer::open_direct(self, files, location)
    }

    fn properties(&self) -> Properties<'_> {
        Layer::properties(self)
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        Layer::cache_scope(self)
    }

    fn unpacks(&self, path: &[u8]) -> bool {
        Layer::unpacks(self, path)
    }

    fn is_at_hand(&self, path: &[u8]) -> bool {
        Layer::is_at_hand(self, path)
    }
}

/// A reference to a storage, or an `Arc` of one.
pub trait StoragePointer: Deref<Target: Storage> + Send + Sync + Debug {}

impl<P: Deref<Target: Storage> + Send + Sync + Debug> StoragePointer for P {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalFiles;
    use crate::conformance::Paths;

    #[derive(Debug)]
    struct NoChange(LocalFiles);

    impl Layer for NoChange {
        type Inner = LocalFiles;

        fn inner(&self) -> &LocalFiles {
            &self.0
        }
    }

    #[test]
    fn storage_below_answers_what_a_layer_does_not_but_is_not_read_past_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "bytes").unwrap();
        let storage = NoChange(LocalFiles::open(folder.path()).unwrap());
        let (files, location) = (Paths::new(["file"]), Location::whole(FileId(0)));
        let mut buffer = Vec::new();
        storage.read(&files, location, 5, &mut buffer).unwrap();
        assert_eq!(buffer, b"bytes");
        assert_eq!(storage.0.cache_scope(), Storage::cache_scope(&storage));
        assert!(storage.0.open_direct(&files, location).is_some());
        assert!(Storage::open_direct(&storage, &files, location).is_none());
    }
}
