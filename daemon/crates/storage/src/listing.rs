//! Listings of directories: entries, and when they last changed.
//!
//! A listing has the kind of each entry without requesting the status of files; classes, extensions and order are
//! decided elsewhere.

use std::path::Path;

use super::error::StorageError;
use crate::version::ObjectStamp;

/// When a directory's entries last changed, and the directory's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryStamp {
    /// Last change of its entries, in seconds since 1970.
    pub modified_seconds: i64,
    /// The nanoseconds of that time.
    pub modified_nanoseconds: u32,
    /// Device and inode, to detect loops of links.
    pub identity: (u64, u64),
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Anything except a directory; links to files, and broken links, count as files.
    File,
    /// A file with size and tag from the listing.
    Object(ObjectStamp),
    /// A directory.
    Directory,
    /// A link to a directory, with the directory's device and inode.
    LinkedDirectory((u64, u64)),
}

/// Lists directories. Shared by the scan's threads.
pub trait Directories: Sync {
    /// Calls `visit` for each entry of the directory (empty: the root) except `.` and `..`, in any order. The stamp is
    /// taken before the first entry, so that the next comparison detects a change during the listing.
    ///
    /// # Errors
    /// The directory cannot be read; names it.
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError>;

    /// As [`list`](Self::list), for a storage that lists many folders at once: calls `step` whenever it gets on.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn list_in_steps(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
        step: &dyn Fn(),
    ) -> Result<DirectoryStamp, StorageError> {
        let _ = step;
        self.list(directory, visit)
    }

    /// The stamp only.
    ///
    /// # Errors
    /// The directory's status cannot be read; names the directory.
    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError>;

    /// Whether the root is a single file; paths are relative to its folder then.
    fn root_is_file(&self) -> bool {
        false
    }

    /// The root's URL, if it is not on a file system of this machine. Its directories have no stamps: a saved index is
    /// used without a check, until `forebay index` lists them again.
    fn remote_root(&self) -> Option<&Path> {
        None
    }

    /// The server, and of some providers the account, that the root's URL does not name; contains no secret. Two of them
    /// may have other data under one URL.
    fn server(&self) -> Option<String> {
        None
    }

    /// The version of all files that is read, if the storage keeps versions and has chosen one. A saved index has it.
    fn revision(&self) -> Option<String> {
        None
    }

    /// Reads the files of this version from now on: the version of the saved index.
    fn read_revision(&self, revision: &str) {
        let _ = revision;
    }
}
