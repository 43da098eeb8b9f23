//! Files that are compressed as a whole, and what stands in front of a storage that cannot unpack them.
//!
//! An index that was made where there is a cache has places in what such files unpack to. Without the cache a read there
//! would give other bytes: it is an error.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_observe::RequestMetrics;

use super::error::StorageError;
use super::listing::InFront;
use super::{CacheScope, DirectFile, FileStatus, Opened, Storage};
use crate::codec::Codec;
use crate::location::{FileId, FileTable, Location};

/// How a file is compressed, by its name.
pub(super) fn codec_of(path: &[u8]) -> Option<Codec> {
    const ENDINGS: [(&str, Codec); 6] = [
        (".gz", Codec::Gzip),
        (".tgz", Codec::Gzip),
        (".zst", Codec::Zstd),
        (".zstd", Codec::Zstd),
        (".tzst", Codec::Zstd),
        // LitData's.
        (".zstd.bin", Codec::Zstd),
    ];
    let ends = |(ending, _): &&(&str, Codec)| {
        let start = path.len().checked_sub(ending.len());
        start.is_some_and(|start| path[start..].eq_ignore_ascii_case(ending.as_bytes()))
    };
    ENDINGS.iter().find(ends).map(|(_, codec)| *codec)
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct WithoutUnpacking(pub(crate) Arc<dyn Storage>);

impl InFront for WithoutUnpacking {
    type Behind = dyn Storage;

    fn behind(&self) -> &Self::Behind {
        self.0.as_ref()
    }
}

impl Storage for WithoutUnpacking {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.0.full_path(relative)
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        self.0.status(files, file)
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = files.path(location.file);
        match codec_of(&path) {
            Some(_) => Err(StorageError::NoCache { path: self.full_path(&path) }),
            None => self.0.open(files, location),
        }
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        self.0.read_opened(files, opened, buffer)
    }

    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        self.0.open_direct(files, location)
    }

    fn requests(&self) -> Option<&RequestMetrics> {
        self.0.requests()
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        self.0.cache_scope()
    }

    fn bytes_per_read(&self) -> u64 {
        self.0.bytes_per_read()
    }
}
