//! Listing: the entries of one directory at a time, and when it last changed.
//!
//! A listing says what each entry is without asking for the status of files; it decides nothing about classes, extensions
//! or order.

use super::error::StorageError;

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
}
