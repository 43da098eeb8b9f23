//! Joins the storages of several datasets: each call goes to the file's storage.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::listing::{Directories, DirectoryStamp, EntryKind};
use super::{BodySink, DirectFile, Opened, Properties, Storage, StorageError};
use crate::location::{FileId, FileTable, Location};
use crate::version::FileStatus;

/// Position of the dataset's number in a file's number.
const PART_SHIFT: u32 = 48;

/// The storages of several datasets. File numbers are created by [`join`](Self::join).
#[derive(Debug)]
pub struct JoinedFiles(Vec<Arc<dyn Storage>>);

impl JoinedFiles {
    /// The maximal number of datasets.
    pub const MOST: usize = 1 << (u64::BITS - PART_SHIFT);

    /// From storages in the order of their datasets; at least one.
    #[must_use]
    pub fn new(storages: Vec<Arc<dyn Storage>>) -> Self {
        Self(storages)
    }

    /// The number of a file of the dataset with this position.
    #[must_use]
    pub fn join(place: usize, file: FileId) -> FileId {
        FileId((place as u64) << PART_SHIFT | file.0)
    }

    /// Dataset and file of a number that [`join`](Self::join) created.
    #[must_use]
    pub fn split(file: FileId) -> (usize, FileId) {
        ((file.0 >> PART_SHIFT) as usize, FileId(file.0 & ((1 << PART_SHIFT) - 1)))
    }

    fn of(&self, file: FileId) -> &dyn Storage {
        self.0[Self::split(file).0].as_ref()
    }

    fn first(&self) -> &dyn Storage {
        self.0[0].as_ref()
    }
}

/// The listings of the first dataset: none are used once the datasets are open.
impl Directories for JoinedFiles {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.first().list(directory, visit)
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        self.first().stamp(directory)
    }

    fn root_is_file(&self) -> bool {
        self.first().root_is_file()
    }

    fn remote_root(&self) -> Option<&Path> {
        self.first().remote_root()
    }
}

impl Storage for JoinedFiles {
    /// A path in the first dataset. The path of a sample does not come from here but from its dataset.
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.first().full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.of(file).status(files, file)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        self.of(location.file).open(files, location)
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        self.of(opened.location.file).read_opened(files, opened, buffer)
    }

    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        self.of(location.file).open_direct(files, location)
    }

    fn reads_in_pieces(&self) -> bool {
        self.0.iter().all(|storage| storage.reads_in_pieces())
    }

    fn read_in_pieces(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        sink: &mut dyn BodySink,
    ) -> Result<bool, StorageError> {
        self.of(opened.location.file).read_in_pieces(files, opened, sink)
    }

    /// Metrics of the first storage that makes requests, and of the first that has a cache.
    fn properties(&self) -> Properties<'_> {
        self.0.iter().fold(Properties::default(), |all, storage| {
            let next = storage.properties();
            Properties {
                requests: all.requests.or(next.requests),
                cache: all.cache.or(next.cache),
                bytes_per_read: all.bytes_per_read.max(next.bytes_per_read),
            }
        })
    }

    fn open_all(
        &self,
        files: &dyn FileTable,
        locations: &[Location],
        limit_bytes: u64,
        opened: &mut Vec<Opened>,
    ) -> Result<u64, StorageError> {
        // All locations of a sample belong to one dataset.
        let storage = locations.first().map_or(self.first(), |first| self.of(first.file));
        storage.open_all(files, locations, limit_bytes, opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalFiles;

    struct Names;

    impl FileTable for Names {
        fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
            path.push(b'a' + u8::try_from(JoinedFiles::split(file).1.0).unwrap());
        }
    }

    #[test]
    fn each_file_is_read_from_its_storage() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (folder, text) in folders.iter().zip(["of the first", "of the other"]) {
            std::fs::write(folder.path().join("b"), text).unwrap();
        }
        let open = |folder: &tempfile::TempDir| -> Arc<dyn Storage> {
            Arc::new(LocalFiles::open(folder.path()).unwrap())
        };
        let storage = JoinedFiles::new(folders.iter().map(open).collect());
        let (mut buffer, mut opened, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (place, text) in ["of the first", "of the other"].into_iter().enumerate() {
            let location = Location::whole(JoinedFiles::join(place, FileId(1)));
            let length = storage.open_all(&Names, &[location], 100, &mut opened).unwrap();
            assert_eq!(length, text.len() as u64);
            storage.read_all(&Names, &mut opened, &mut buffer, &mut ends).unwrap();
            assert_eq!(buffer, text.as_bytes());
            let one = storage.open(&Names, location).unwrap();
            buffer.clear();
            storage.read_opened(&Names, one, &mut buffer).unwrap();
            assert_eq!(buffer, text.as_bytes());
            let error = storage.open_all(&Names, &[location], 3, &mut opened).unwrap_err();
            let folder = folders[place].path().display().to_string();
            assert!(error.to_string().contains(&folder), "{error}");
            let status = storage.status(&Names, location.file).unwrap();
            assert_eq!(status.bytes, text.len() as u64);
        }
    }
}
