//! Listing directories of a mounted file system.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::LocalFiles;
#[cfg(any(test, feature = "testing"))]
use crate::Storage;
use crate::StorageError;
use crate::listing::{Directories, DirectoryStamp, EntryKind};

/// Size of the buffer for directory entries of one system call.
const ENTRY_BUFFER_BYTES: usize = 64 * 1024;

/// The kind of a link's target, or of an entry whose file system does not report kinds.
fn resolve(opened: &OwnedFd, name: &CStr, is_link: bool) -> EntryKind {
    let follow = |flags| rustix::fs::statat(opened, name, flags);
    let status = if is_link {
        follow(AtFlags::empty())
    } else {
        match follow(AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if file_type(&status) == FileType::Symlink => {
                return resolve(opened, name, true);
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
        // A broken link counts as a file, as for os.walk; reading it reports the error.
        _ => EntryKind::File,
    }
}

fn file_type(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

fn stamp_of(status: &Stat) -> DirectoryStamp {
    DirectoryStamp {
        modified_seconds: status.st_mtime,
        modified_nanoseconds: u32::try_from(status.st_mtime_nsec).unwrap_or(0),
        identity: (status.st_dev, status.st_ino),
    }
}

fn relative(directory: &[u8]) -> &OsStr {
    OsStr::from_bytes(if directory.is_empty() { b"." } else { directory })
}

impl LocalFiles {
    /// As [`failure`](Self::failure), but a missing directory is not reported as vanished: it was never indexed.
    fn listing_failure(
        &self,
        directory: &[u8],
        action: &'static str,
        errno: Errno,
    ) -> StorageError {
        match self.failure(directory, (action, errno)) {
            StorageError::Vanished { path }
            | StorageError::Dangling { path, .. }
            | StorageError::NotAFile { path, .. } => StorageError::System { path, action, errno },
            error => error,
        }
    }
}

impl Directories for LocalFiles {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat(&*self.root.get(), relative(directory), flags, Mode::empty())
                .map_err(|errno| self.listing_failure(directory, "opening", errno))?;
        let status = rustix::fs::fstat(&opened)
            .map_err(|errno| self.listing_failure(directory, "asking the status of", errno))?;
        let mut buffer = vec![MaybeUninit::uninit(); ENTRY_BUFFER_BYTES];
        let mut entries = RawDir::new(&opened, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.listing_failure(directory, "listing", errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                FileType::Symlink => resolve(&opened, entry.file_name(), true),
                FileType::Unknown => resolve(&opened, entry.file_name(), false),
                _ => EntryKind::File,
            };
            visit(name, kind);
            #[cfg(any(test, feature = "testing"))]
            if crate::stalling::repeats(&self.full_path(directory)) {
                visit(name, kind);
            }
        }
        Ok(stamp_of(&status))
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        rustix::fs::statat(&*self.root.get(), relative(directory), AtFlags::empty())
            .map(|status| stamp_of(&status))
            .map_err(|errno| self.listing_failure(directory, "asking the status of", errno))
    }

    fn root_is_file(&self) -> bool {
        self.root_is_file
    }
}
