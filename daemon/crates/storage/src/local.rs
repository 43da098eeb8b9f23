//! Files of a mounted file system, read whole or in part with few system calls.
//!
//! [`LocalFiles`] owns a descriptor of the dataset's root; every path is opened relative to it, so the folders above
//! the root are resolved once. After a failure that may be temporary, it checks whether the root's path now refers to
//! another folder, as after a remount ([`root`]). A whole file costs four calls: open, size, one read that also detects
//! the end, close; three if its size and its beginning are known. A part of a file costs two, since
//! [`descriptor_cache`] keeps files open. Everything here blocks; nothing is retried.

mod descriptor_cache;
mod listing;
mod root;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use self::descriptor_cache::DescriptorCache;
use self::root::Root;
use super::descriptor::{Descriptor, DirectFile, OpenFile};
use super::error::StorageError;
use super::{CacheScope, Handle, Opened, Storage, Untagged};
use crate::location::{FileId, FileTable, Location};
use crate::version::{FileStatus, ObjectIdentity};

/// The files below one folder.
#[derive(Debug)]
pub struct LocalFiles {
    root: Root,
    path: PathBuf,
    root_is_file: bool,
    /// Whether the root's file system records inode changes (`st_ctime`).
    keeps_changes: bool,
    descriptors: DescriptorCache,
}

/// Whether a file system records `st_ctime` correctly: local ones, NFS, Ceph, Lustre, GPFS, BeeGFS, GFS2 and OCFS2, by
/// the numbers of `statfs(2)` and of file systems outside the kernel's tree. FUSE, SMB, 9P, FAT and others may report
/// the modification time, the creation time, or a different time at each call.
fn keeps_changes(magic: u32) -> bool {
    matches!(
        magic,
        // ext, XFS, Btrfs, tmpfs, overlay, ZFS, F2FS, bcachefs, squashfs, EROFS, JFS, ReiserFS, NILFS.
        0xEF53 | 0x5846_5342 | 0x9123_683E | 0x0102_1994 | 0x794C_7630 | 0x2FC1_2FC1
            | 0xF2F5_2010 | 0xCA45_1A4E | 0x7371_7368 | 0xE0F5_E1E2 | 0x3153_464A | 0x5265_4973
            | 0x3434
            // NFS, Ceph, Lustre, GPFS, BeeGFS, GFS2, OCFS2.
            | 0x6969 | 0x00C3_6400 | 0x0BD0_0BD0 | 0x4750_4653 | 0x1983_0326 | 0x0116_1970
            | 0x7461_636F
    )
}

/// The action, and the system's error.
type Failure = (&'static str, Errno);

impl LocalFiles {
    /// Opens a dataset's root. If `root` is a file (a dataset of one array), its folder is opened, and paths are
    /// relative to it.
    ///
    /// # Errors
    /// The folder does not exist or may not be searched.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        // A failing status is an error: opening a file as a folder would report that it does not exist.
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
        // The kernel's numbers have 32 bits; the field's type and sign differ between architectures.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let keeps_changes = rustix::fs::fstatfs(&*root.get())
            .is_ok_and(|status| keeps_changes(status.f_type as u32));
        Ok(Self {
            root,
            path: folder.to_owned(),
            root_is_file: is_file,
            keeps_changes,
            descriptors: DescriptorCache::default(),
        })
    }

    /// The error for a failed call on a relative path: checks the folders above a path that does not exist, and
    /// prepares the next try.
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
            // A socket cannot be opened. For a file the error means that the device is gone.
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
        // NONBLOCK: opening a pipe would wait for a writer; it has no effect on a regular file.
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

    /// The cached descriptor, if the path still refers to its file; otherwise opens the file and caches it if useful.
    fn open_kept(&self, relative: &[u8], file: FileId) -> Result<(Descriptor, Stat), Failure> {
        let status = self.status_of(relative).map_err(|errno| ("opening", errno))?;
        if let Some(kept) = self.descriptors.find(file, &status) {
            return Ok((Descriptor::Kept(kept), status));
        }
        let (descriptor, status) = self.open_new(relative)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Ok((Descriptor::Own(descriptor), status));
        }
        Ok((Descriptor::Kept(self.descriptors.keep(file, descriptor, &status)), status))
    }
}

/// Refuses a path that is not a regular file.
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
        let time = |seconds, nanoseconds| (seconds, u32::try_from(nanoseconds).unwrap_or(0));
        Ok(FileStatus {
            bytes: regular_bytes(&status, full_path)?,
            identity: ObjectIdentity::Inode {
                device: status.st_dev,
                inode: status.st_ino,
                modified: time(status.st_mtime, status.st_mtime_nsec),
                changed: self.keeps_changes.then(|| time(status.st_ctime, status.st_ctime_nsec)),
            },
        })
    }

    /// A cache is useful if the folder is on a file server.
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
        let file = OpenFile { descriptor, file_bytes };
        Ok(Opened::new(location, end - range.offset, Handle::File(file)))
    }

    /// The buffer grows by the bytes and at most one more, so that a single read detects the file's end.
    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let Opened { location, length_bytes, handle, .. } = opened;
        let Handle::File(OpenFile { file_bytes, descriptor }) = handle else { handle.refuse() };
        let path = || self.full_path(&files.path(location.file));
        #[cfg(any(test, feature = "testing"))]
        super::stalling::wait(&path());
        let fail = |errno| {
            // A descriptor that was kept across an outage may never work again.
            self.descriptors.forget(location.file);
            self.failure(&files.path(location.file), ("reading", errno))
        };
        let to_the_end = location.range.length.is_none();
        let start = buffer.len();
        let wanted = usize::try_from(length_bytes).map_err(|_| fail(Errno::NOMEM))?;
        let probe = usize::from(to_the_end);
        buffer.try_reserve_exact(wanted.saturating_add(probe)).map_err(|_| fail(Errno::NOMEM))?;
        loop {
            let read = buffer.len() - start;
            // With a larger buffer the read may have returned bytes by which the file grew.
            let missing = (wanted + probe).saturating_sub(read);
            if missing == 0 {
                break;
            }
            let offset = location.range.offset + read as u64;
            let got = if to_the_end || buffer.capacity() - buffer.len() == missing {
                rustix::io::pread(&descriptor, spare_capacity(buffer), offset)
            } else {
                // A larger buffer must not be filled past the range.
                let before = buffer.len();
                buffer.resize(before + missing, 0);
                let got = rustix::io::pread(&descriptor, &mut buffer[before..], offset);
                buffer.truncate(before + got.unwrap_or(0));
                got
            };
            match got {
                Ok(0) => break,
                // A short read at the expected end is the end of the file: reads of regular files are complete.
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
            // As for a file that is not in the page cache.
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
