//! Listing: the entries of one directory at a time, and when it last changed.
//!
//! A listing says what each entry is without asking for the status of files; it decides nothing about classes, extensions
//! or order.

use std::path::Path;

use super::error::StorageError;
use crate::location::ObjectStamp;

/// When a directory's entries last changed, and which directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryStamp {
    /// Seconds since 1970 of the last change of its entries.
    pub changed_seconds: i64,
    /// The rest of that time.
    pub changed_nanoseconds: u32,
    /// The device and inode, which tell a loop of links.
    pub identity: (u64, u64),
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Anything that is no directory; links to files, and broken ones, count as files.
    File,
    /// A file of which the listing tells size and tag.
    Object(ObjectStamp),
    /// A directory.
    Directory,
    /// A link to a directory, with the directory's device and inode.
    LinkedDirectory((u64, u64)),
}

/// Gives the entries of directories. Shared by the scan's threads.
pub trait Directories: Sync {
    /// Calls `visit` for each entry of the directory (empty: the root) but `.` and `..`, in any order. The stamp is
    /// taken before the first entry, so that a change during the listing shows in the next comparison.
    ///
    /// # Errors
    /// The directory cannot be read; names it.
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError>;

    /// The stamp alone.
    ///
    /// # Errors
    /// The directory cannot be asked for its status; names it.
    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError>;

    /// Whether the root is a single file; paths then count from its folder.
    fn root_is_file(&self) -> bool {
        false
    }

    /// The root's URL, where it lies on no file system of this machine. Its directories have no stamps: a saved index is
    /// taken as it is, until `forebay index` lists them anew.
    fn remote_root(&self) -> Option<&Path> {
        None
    }
}

/// What stands in front of another storage: its folders are that one's.
pub(crate) trait InFront: Sync {
    /// The other one.
    type Behind: Directories + ?Sized;

    fn behind(&self) -> &Self::Behind;
}

impl<T: InFront> Directories for T {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.behind().list(directory, visit)
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        self.behind().stamp(directory)
    }

    fn root_is_file(&self) -> bool {
        self.behind().root_is_file()
    }

    fn remote_root(&self) -> Option<&Path> {
        self.behind().remote_root()
    }
}
