//! Where a scan's directory entries come from: a mounted file system, or a table in memory for tests and figures.
//!
//! A source lists one directory at a time and says what each entry is without asking for the status of files; it
//! decides nothing about classes, extensions or order.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use crate::dataset::error::DatasetError;

/// Bytes of directory entries that one system call may give.
const ENTRY_BUFFER_BYTES: usize = 64 * 1024;

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
pub trait DirectorySource: Sync {
    /// Calls `visit` for each entry of the directory (empty: the root) but `.` and `..`, in any order. The stamp is
    /// taken before the first entry, so that a change during the listing shows in the next comparison.
    ///
    /// # Errors
    /// The directory cannot be read; names it.
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, DatasetError>;

    /// The stamp alone.
    ///
    /// # Errors
    /// The directory cannot be asked for its status; names it.
    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, DatasetError>;
}

/// The directories below one folder of a mounted file system.
#[derive(Debug)]
pub struct LocalDirectories {
    root: OwnedFd,
    path: PathBuf,
}

impl LocalDirectories {
    /// Opens the root.
    ///
    /// # Errors
    /// It is missing, no directory, or may not be searched.
    pub fn open(path: &Path) -> Result<Self, DatasetError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| DatasetError::from_io(path.to_owned(), "opening", errno.into()))?;
        Ok(Self { root, path: path.to_owned() })
    }

    fn error(&self, directory: &[u8], action: &'static str, errno: Errno) -> DatasetError {
        let path = if directory.is_empty() {
            self.path.clone()
        } else {
            self.path.join(OsStr::from_bytes(directory))
        };
        DatasetError::from_io(path, action, errno.into())
    }

    /// What a link, or an entry whose file system does not say, leads to.
    fn resolve(&self, opened: &OwnedFd, name: &CStr, is_link: bool) -> EntryKind {
        let follow = |flags| rustix::fs::statat(opened, name, flags);
        let status = if is_link {
            follow(AtFlags::empty())
        } else {
            match follow(AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) if file_type(&status) == FileType::Symlink => {
                    return self.resolve(opened, name, true);
                }
                status => status,
            }
        };
        match status {
            Ok(status) if file_type(&status) == FileType::Directory => {
                if is_link {
                    EntryKind::LinkedDirectory((status.st_dev, status.st_ino))
                } else {
                    EntryKind::Directory
                }
            }
            // A broken link is a file to os.walk, too; reading it tells.
            _ => EntryKind::File,
        }
    }
}

fn file_type(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

fn stamp_of(status: &Stat) -> DirectoryStamp {
    DirectoryStamp {
        changed_seconds: status.st_mtime,
        changed_nanoseconds: u32::try_from(status.st_mtime_nsec).unwrap_or(0),
        identity: (status.st_dev, status.st_ino),
    }
}

impl DirectorySource for LocalDirectories {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, DatasetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let relative = if directory.is_empty() { b"." } else { directory };
        let opened =
            rustix::fs::openat(&self.root, OsStr::from_bytes(relative), flags, Mode::empty())
                .map_err(|errno| self.error(directory, "opening", errno))?;
        let status = rustix::fs::fstat(&opened)
            .map_err(|errno| self.error(directory, "asking the status of", errno))?;
        let mut buffer = vec![MaybeUninit::uninit(); ENTRY_BUFFER_BYTES];
        let mut entries = RawDir::new(&opened, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.error(directory, "listing", errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                FileType::Symlink => self.resolve(&opened, entry.file_name(), true),
                FileType::Unknown => self.resolve(&opened, entry.file_name(), false),
                _ => EntryKind::File,
            };
            visit(name, kind);
        }
        Ok(stamp_of(&status))
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, DatasetError> {
        let relative = if directory.is_empty() { b"." } else { directory };
        rustix::fs::statat(&self.root, OsStr::from_bytes(relative), AtFlags::empty())
            .map(|status| stamp_of(&status))
            .map_err(|errno| self.error(directory, "asking the status of", errno))
    }
}
