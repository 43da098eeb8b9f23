//! Files of a mounted file system, read whole or in part with as few system calls as can be.
//!
//! [`LocalFiles`] owns a descriptor of the dataset's root; every path is opened relative to it, so the root's own
//! folders are walked once. A whole file costs four calls: open, size, one read that also sees the end, close. Where
//! its size and its beginning are known, three do.
//! Everything here blocks; nothing is retried and nothing is cached but by the kernel.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use super::error::StorageError;
use crate::dataset::ByteRange;

/// The files below one folder. Cheap to clone; shared by all threads.
#[derive(Debug, Clone)]
pub struct LocalFiles {
    shared: Arc<Root>,
}

#[derive(Debug)]
struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// A file that was opened and whose length is known, so that memory can be granted before it is read.
#[derive(Debug)]
pub struct OpenFile<'p> {
    descriptor: OwnedFd,
    files: &'p LocalFiles,
    relative: &'p [u8],
    file_bytes: u64,
    offset: u64,
    length_bytes: u64,
    to_the_end: bool,
}

impl LocalFiles {
    /// Opens a dataset's root. Where `root` is a file (a dataset of one array), its folder is opened, and relative paths
    /// count from there.
    ///
    /// # Errors
    /// The folder does not exist or may not be searched.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        let folder = match root.parent() {
            Some(parent) if root.is_file() => {
                if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                }
            }
            _ => root,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(folder, flags, Mode::empty())
            .map_err(|errno| StorageError::from_errno(folder.to_owned(), "opening", errno))?;
        Ok(Self { shared: Arc::new(Root { descriptor, path: folder.to_owned() }) })
    }

    /// The path that messages name for a relative path.
    #[must_use]
    pub fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.shared.path.join(OsStr::from_bytes(relative))
    }

    /// Opens a file and learns how many bytes `range` is.
    ///
    /// # Errors
    /// The file has vanished, may not be read, is no regular file, or ends before the range does.
    pub fn open_file<'p>(
        &'p self,
        relative: &'p [u8],
        range: ByteRange,
    ) -> Result<OpenFile<'p>, StorageError> {
        let fail =
            |action, errno| StorageError::from_errno(self.full_path(relative), action, errno);
        let descriptor = self.open_descriptor(relative).map_err(|errno| fail("opening", errno))?;
        let status =
            rustix::fs::fstat(&descriptor).map_err(|errno| fail("asking the size of", errno))?;
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => None,
            FileType::Directory => Some("a directory"),
            FileType::Fifo => Some("a pipe"),
            _ => Some("a socket or a device"),
        };
        if let Some(kind) = kind {
            return Err(StorageError::NotAFile { path: self.full_path(relative), kind });
        }
        let file_bytes = u64::try_from(status.st_size).unwrap_or(0);
        let end = match range.length {
            Some(length) => range.offset.saturating_add(length),
            None => file_bytes.max(range.offset),
        };
        if end > file_bytes {
            let (path, offset) = (self.full_path(relative), range.offset);
            return Err(StorageError::OutOfRange { path, length_bytes: file_bytes, offset, end });
        }
        Ok(OpenFile {
            descriptor,
            files: self,
            relative,
            file_bytes,
            offset: range.offset,
            length_bytes: end - range.offset,
            to_the_end: range.length.is_none(),
        })
    }

    /// Opens a file of which it is known what it begins with and how long it is, to [`read`](StraightFile::read) it
    /// without asking its size. Nothing: it cannot be opened; reading it in the ordinary way tells why.
    #[must_use]
    pub fn open_straight(&self, relative: &[u8]) -> Option<StraightFile> {
        #[cfg(test)]
        if super::stalling::is_stalled(&self.full_path(relative)) {
            // As the kernel does for a file that is not in its memory.
            return None;
        }
        self.open_descriptor(relative).ok().map(StraightFile)
    }

    fn open_descriptor(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        // NONBLOCK: opening a pipe would wait for a writer; a regular file does not care.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(
            &self.shared.descriptor,
            OsStr::from_bytes(relative),
            flags,
            Mode::empty(),
        )
    }

    /// Reads the located bytes: [`open_file`](Self::open_file), then [`OpenFile::read_into`], for at most
    /// `limit_bytes`.
    ///
    /// # Errors
    /// As those two; and more than `limit_bytes` to read. The buffer then holds nothing of use.
    pub fn read(
        &self,
        relative: &[u8],
        range: ByteRange,
        limit_bytes: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        self.open_file(relative, range)?.within(limit_bytes)?.read_into(buffer)
    }
}

/// A file to be read straight into an array's place. Three system calls in all: open, one read that also sees the
/// file's end, close.
#[derive(Debug)]
pub struct StraightFile(OwnedFd);

impl StraightFile {
    /// Reads a part that begins with `before` and ends with an array's elements, those straight into `elements`, where
    /// the kernel has all of it in its memory: never waits. False: it has not, its file system cannot say so, or the file
    /// is not so; `elements` then holds nothing of use.
    #[must_use]
    pub fn read(
        &self,
        range: ByteRange,
        before: &[u8],
        elements: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> bool {
        let expected = before.len() + elements.len();
        if range.length.is_some_and(|length| length != expected as u64) {
            return false;
        }
        scratch.resize(before.len() + 1, 0);
        let (found, probe) = scratch.split_at_mut(before.len());
        let probe = if range.length.is_none() { probe } else { &mut [] };
        let mut parts = [IoSliceMut::new(found), IoSliceMut::new(elements), IoSliceMut::new(probe)];
        let mut got =
            rustix::io::preadv2(&self.0, &mut parts, range.offset, ReadWriteFlags::NOWAIT);
        if got == Err(Errno::OPNOTSUPP) && lies_in_memory(&self.0) {
            got = rustix::io::preadv(&self.0, &mut parts, range.offset);
        }
        // A device gives anything, but not these bytes and then its end.
        matches!(got, Ok(got) if got == expected) && scratch[..before.len()] == *before
    }
}

/// Whether a file's bytes are the kernel's memory: no read of it waits for anything, though the file system cannot say so.
fn lies_in_memory(file: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(TMPFS_MAGIC))
}

impl OpenFile<'_> {
    /// Made only where a message needs it.
    fn path(&self) -> PathBuf {
        self.files.full_path(self.relative)
    }

    /// How many bytes [`read_into`](Self::read_into) will give.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length_bytes
    }

    /// This file, if it has no more than `limit_bytes` to read.
    ///
    /// # Errors
    /// It has more.
    pub fn within(self, limit_bytes: u64) -> Result<Self, StorageError> {
        if self.length_bytes > limit_bytes {
            let (path, length_bytes) = (self.path(), self.length_bytes);
            return Err(StorageError::TooLarge { path, length_bytes, limit_bytes });
        }
        Ok(self)
    }

    /// Replaces the buffer's contents by the bytes, and closes the file. The buffer grows to
    /// [`length`](Self::length) + 1 bytes at most: the one more lets a single read see that the file ends there.
    ///
    /// # Errors
    /// The system fails, or the file's length is no longer what it was.
    pub fn read_into(self, buffer: &mut Vec<u8>) -> Result<(), StorageError> {
        #[cfg(test)]
        super::stalling::wait(&self.path());
        buffer.clear();
        let fail = |errno| StorageError::from_errno(self.path(), "reading", errno);
        let wanted = usize::try_from(self.length_bytes).map_err(|_| fail(Errno::NOMEM))?;
        let probe = usize::from(self.to_the_end);
        buffer.try_reserve_exact(wanted.saturating_add(probe)).map_err(|_| fail(Errno::NOMEM))?;
        let changed = |found| StorageError::Changed {
            path: self.path(),
            expected_bytes: self.file_bytes,
            found,
        };
        loop {
            // A buffer that was larger already may have taken more than that of a file that grew.
            let missing = (wanted + probe).saturating_sub(buffer.len());
            if missing == 0 {
                break;
            }
            let offset = self.offset + buffer.len() as u64;
            let before = buffer.len();
            let got = if self.to_the_end || buffer.capacity() - before == missing {
                rustix::io::pread(&self.descriptor, spare_capacity(buffer), offset)
            } else {
                // A buffer that was larger already must not be filled beyond the range.
                buffer.resize(before + missing, 0);
                let got = rustix::io::pread(&self.descriptor, &mut buffer[before..], offset);
                buffer.truncate(before + got.unwrap_or(0));
                got
            };
            match got {
                Ok(0) => break,
                // A read that stops at the expected end is the end of the file: regular files give all they have.
                Ok(_) if buffer.len() == wanted => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        match buffer.len() {
            length if length < wanted => Err(changed("fewer")),
            length if length > wanted => Err(changed("more")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
