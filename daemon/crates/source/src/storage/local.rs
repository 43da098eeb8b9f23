//! Files of a mounted file system, read whole or in part with as few system calls as can be.
//!
//! [`LocalFiles`] owns a descriptor of the dataset's root; every path is opened relative to it, so the root's own
//! folders are walked once. A call that fails in a way that may pass looks whether the root's path leads elsewhere now, as
//! after a file system was mounted again ([`root`]). A whole file costs four calls: open, size, one read that also sees the end, close; three
//! where its size and its beginning are known. A part of a file costs two: [`kept`] files stay open.
//! Everything here blocks; nothing is retried.

mod kept;
mod listing;
mod root;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use self::kept::KeptFiles;
use self::root::Root;
use super::descriptor::{Descriptor, DirectFile, OpenFile};
use super::error::StorageError;
use super::{CacheScope, FileStatus, Handle, ObjectIdentity, Opened, Storage, Untagged};
use crate::location::{FileId, FileTable, Location};

/// The files below one folder.
#[derive(Debug)]
pub struct LocalFiles {
    root: Root,
    path: PathBuf,
    root_is_file: bool,
    kept: KeptFiles,
}

/// What was tried, and what the system said.
type Failure = (&'static str, Errno);

impl LocalFiles {
    /// Opens a dataset's root. Where `root` is a file (a dataset of one array), its folder is opened, and relative paths
    /// count from there.
    ///
    /// # Errors
    /// The folder does not exist or may not be searched.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        // A status that cannot be had is no answer: opening what is a file as a folder would say that nothing is there.
        let status = rustix::fs::stat(root)
            .map_err(|errno| StorageError::from_errno(root.to_owned(), "opening", errno))?;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        let folder = match root.parent() {
            Some(parent) if is_file => {
                if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                }
            }
            _ => root,
        };
        let root = Root::open(folder)
            .map_err(|errno| StorageError::from_errno(folder.to_owned(), "opening", errno))?;
        Ok(Self {
            root,
            path: folder.to_owned(),
            root_is_file: is_file,
            kept: KeptFiles::default(),
        })
    }

    /// The error for what the system said of a path below the root: looks at the folders above a path that leads nowhere,
    /// and prepares the next try.
    fn failure(&self, relative: &[u8], (action, errno): Failure) -> StorageError {
        let path = self.full_path(relative);
        let error = match errno {
            Errno::NOENT | Errno::NOTDIR => match self.root.missing_above(relative) {
                Some((missing, what)) => {
                    StorageError::Away { path, missing: self.full_path(missing), what }
                }
                None => match self.root.target_of(relative) {
                    Some(target) => StorageError::Dangling { path, target },
                    None => StorageError::from_errno(path, action, errno),
                },
            },
            // A socket has nothing that could be opened. Of a file it says that the device below is away.
            Errno::NXIO => {
                let status = self.status_of(relative).ok();
                let other = status.and_then(|status| regular_bytes(&status, || path.clone()).err());
                other.unwrap_or_else(|| StorageError::from_errno(path, action, errno))
            }
            errno => StorageError::from_errno(path, action, errno),
        };
        if error.is_transient() {
            self.root.follow_path();
        }
        error
    }

    fn open_descriptor(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        // NONBLOCK: opening a pipe would wait for a writer; a regular file does not care.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&*self.root.get(), OsStr::from_bytes(relative), flags, Mode::empty())
    }

    fn status_of(&self, relative: &[u8]) -> Result<Stat, Errno> {
        rustix::fs::statat(&*self.root.get(), OsStr::from_bytes(relative), AtFlags::empty())
    }

    fn open_new(&self, relative: &[u8]) -> Result<(OwnedFd, Stat), Failure> {
        let descriptor = self.open_descriptor(relative).map_err(|errno| ("opening", errno))?;
        let status =
            rustix::fs::fstat(&descriptor).map_err(|errno| ("asking the size of", errno))?;
        Ok((descriptor, status))
    }

    /// The kept file, if it is still what its path leads to; else it is opened, and kept where that is of use.
    fn open_kept(&self, relative: &[u8], file: FileId) -> Result<(Descriptor, Stat), Failure> {
        let status = self.status_of(relative).map_err(|errno| ("opening", errno))?;
        if let Some(kept) = self.kept.find(file, &status) {
            return Ok((Descriptor::Kept(kept), status));
        }
        let (descriptor, status) = self.open_new(relative)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Ok((Descriptor::Own(descriptor), status));
        }
        Ok((Descriptor::Kept(self.kept.keep(file, descriptor, &status)), status))
    }
}

/// Refuses what is no regular file.
fn regular_bytes(status: &Stat, path: impl FnOnce() -> PathBuf) -> Result<u64, StorageError> {
    let kind = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => return Ok(u64::try_from(status.st_size).unwrap_or(0)),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        _ => "a socket or a device",
    };
    Err(StorageError::NotAFile { path: path(), kind })
}

impl Storage for LocalFiles {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        if relative.is_empty() {
            return self.path.clone();
        }
        self.path.join(OsStr::from_bytes(relative))
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        let path = files.path(file);
        let full_path = || self.full_path(&path);
        let status = self
            .status_of(&path)
            .map_err(|errno| self.failure(&path, ("asking the size of", errno)))?;
        Ok(FileStatus {
            bytes: regular_bytes(&status, full_path)?,
            identity: ObjectIdentity::Inode {
                device: status.st_dev,
                inode: status.st_ino,
                modified: (status.st_mtime, u32::try_from(status.st_mtime_nsec).unwrap_or(0)),
            },
        })
    }

    /// Of use where the folder lies on a file server.
    fn cache_scope(&self) -> Option<CacheScope> {
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        Some(CacheScope { name: path.display().to_string(), untagged: Untagged::Status })
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = files.path(location.file);
        let full_path = || self.full_path(&path);
        let range = location.range;
        let opened = match range.length {
            Some(_) => self.open_kept(&path, location.file),
            None => self.open_new(&path).map(|(own, status)| (Descriptor::Own(own), status)),
        };
        let (descriptor, status) = opened.map_err(|failure| self.failure(&path, failure))?;
        let file_bytes = regular_bytes(&status, full_path)?;
        let end = match range.length {
            Some(length) => range.offset.saturating_add(length),
            None => file_bytes.max(range.offset),
        };
        if end > file_bytes {
            let (path, offset) = (full_path(), range.offset);
            return Err(StorageError::OutOfRange { path, length_bytes: file_bytes, offset, end });
        }
        let file = OpenFile { descriptor, location, file_bytes };
        Ok(Opened::new(end - range.offset, Handle::File(file)))
    }

    /// The buffer grows by the bytes and one more at most, which lets a single read see that the file ends there.
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let length_bytes = opened.length_bytes();
        let OpenFile { location, file_bytes, descriptor } = opened.into_file();
        let path = || self.full_path(&files.path(location.file));
        #[cfg(any(test, feature = "testing"))]
        super::stalling::wait(&path());
        let fail = |errno| {
            // A descriptor that was kept over an outage may never work again.
            self.kept.forget(location.file);
            self.failure(&files.path(location.file), ("reading", errno))
        };
        let to_the_end = location.range.length.is_none();
        let start = buffer.len();
        let wanted = usize::try_from(length_bytes).map_err(|_| fail(Errno::NOMEM))?;
        let probe = usize::from(to_the_end);
        buffer.try_reserve_exact(wanted.saturating_add(probe)).map_err(|_| fail(Errno::NOMEM))?;
        loop {
            let read = buffer.len() - start;
            // A buffer that was larger already may have taken more than that of a file that grew.
            let missing = (wanted + probe).saturating_sub(read);
            if missing == 0 {
                break;
            }
            let offset = location.range.offset + read as u64;
            let got = if to_the_end || buffer.capacity() - buffer.len() == missing {
                rustix::io::pread(&descriptor, spare_capacity(buffer), offset)
            } else {
                // A buffer that was larger already must not be filled beyond the range.
                let before = buffer.len();
                buffer.resize(before + missing, 0);
                let got = rustix::io::pread(&descriptor, &mut buffer[before..], offset);
                buffer.truncate(before + got.unwrap_or(0));
                got
            };
            match got {
                Ok(0) => break,
                // A read that stops at the expected end is the end of the file: regular files give all they have.
                Ok(_) if buffer.len() - start == wanted => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        let found = match (buffer.len() - start).cmp(&wanted) {
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Less => "fewer",
            std::cmp::Ordering::Greater => "more",
        };
        Err(StorageError::Changed { path: path(), expected_bytes: file_bytes, found })
    }

    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        let path = files.path(location.file);
        #[cfg(any(test, feature = "testing"))]
        if super::stalling::is_stalled(&self.full_path(&path)) {
            // As the kernel does for a file that is not in its memory.
            return None;
        }
        let descriptor = match location.range.length {
            Some(_) => self.open_kept(&path, location.file).ok()?.0,
            None => Descriptor::Own(self.open_descriptor(&path).ok()?),
        };
        Some(DirectFile { descriptor, location })
    }
}

#[cfg(test)]
mod tests;
