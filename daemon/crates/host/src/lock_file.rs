//! A lock file next to the file that it protects: one holder at a time across all processes.
//!
//! The kernel releases the lock when the holder dies; a lock file without a holder is a leftover. The holder removes the
//! file before it releases the lock, so a process that had opened it before may lock a file without a name while another
//! process locks a new file: a lock is valid only if its file is still at the path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// A held lock. Dropping it removes the file, then releases the lock.
#[derive(Debug)]
pub struct LockFile {
    // Closed after `drop`, which releases the lock.
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Takes the lock; none if another process, or another holder in this one, has it.
    ///
    /// # Errors
    /// A system error: the folder is not writable, its file system does not support locks, or the path is a symbolic
    /// link, whose target would never be the file at the path.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if lies_at(&file, path) => {
                    return Ok(Some(Self { file, path: path.to_owned() }));
                }
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // The file at the path may be another holder's, if this one's was removed.
        if lies_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lies_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn lock_is_valid_only_on_the_file_at_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let lock = LockFile::try_take(&path).unwrap().unwrap();
        assert!(LockFile::try_take(&path).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        let next = LockFile::try_take(&path).unwrap().unwrap();
        drop(lock);
        assert!(lies_at(&next.file, &path), "the first holder removed the second one's file");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn successive_holders_never_overlap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let inside = AtomicU32::new(0);
        let come_and_go = || {
            for _ in 0..2000 {
                let Some(lock) = LockFile::try_take(&path).unwrap() else { continue };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the place");
                std::hint::spin_loop();
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(lock);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(come_and_go);
            }
        });
    }

    #[test]
    fn unwritable_folders_and_links_give_a_system_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = LockFile::try_take(&folder.path().join("none/a.lock")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let (file, link) = (folder.path().join("file"), folder.path().join("a.lock"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = LockFile::try_take(&link).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }
}
