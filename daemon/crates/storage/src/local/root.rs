//! The dataset's root: a descriptor that calls start from, and the path to reopen it.
//!
//! A descriptor belongs to one mount: after a forced unmount and a new mount, or if its server has forgotten it, every
//! call fails (ESTALE, ENOTCONN, EIO). So after a failure the path is resolved again.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::error::Absence;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: ArcSwap<OwnedFd>,
    /// Without links if it could be resolved: a link's target may change later.
    path: PathBuf,
}

fn open(folder: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Root {
    pub(super) fn open(folder: &Path) -> Result<Self, Errno> {
        let descriptor = ArcSwap::from_pointee(open(folder)?);
        let path = std::fs::canonicalize(folder)
            .or_else(|_| std::path::absolute(folder))
            .unwrap_or_else(|_| folder.to_owned());
        Ok(Self { descriptor, path })
    }

    pub(super) fn get(&self) -> Guard<Arc<OwnedFd>> {
        self.descriptor.load()
    }

    /// Uses the folder that the path refers to now, if it is another one.
    pub(super) fn follow_path(&self) {
        let identity = |descriptor: &OwnedFd| {
            rustix::fs::fstat(descriptor).map(|status| (status.st_dev, status.st_ino)).ok()
        };
        if let Ok(found) = open(&self.path)
            && identity(&found) != identity(&self.get())
        {
            self.descriptor.store(Arc::new(found));
        }
    }

    /// The topmost folder above a path that is missing or empty, relative to the root, and how it is missing. `None`:
    /// only the path itself does not exist.
    pub(super) fn missing_above<'a>(&self, relative: &'a [u8]) -> Option<(&'a [u8], Absence)> {
        let Ok(root) = open(&self.path) else { return Some((b"", Absence::Root)) };
        let exists = |path: &[u8]| {
            rustix::fs::statat(&root, OsStr::from_bytes(path), AtFlags::empty()).is_ok()
        };
        let ends = relative.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for end in ends.map(|(end, _)| end) {
            let folder = &relative[..end];
            if !exists(folder) {
                // An unmounted mount point has no entries.
                return Some(if is_empty(&root, b".") {
                    (b"", Absence::Empty)
                } else if link_target(&root, folder).is_some() {
                    (folder, Absence::LinkTarget)
                } else {
                    (folder, Absence::Folder)
                });
            }
        }
        if is_empty(&root, b".") {
            return Some((b"", Absence::Empty));
        }
        // A mount point below the root exists and is empty while nothing is mounted on it.
        if let Some(end) = relative.iter().rposition(|byte| *byte == b'/')
            && is_empty(&root, &relative[..end])
        {
            return Some((&relative[..end], Absence::Empty));
        }
        let (folder, target) = link_target(&root, relative)?;
        let above = target.parent().filter(|above| !above.as_os_str().is_empty())?;
        let above = [folder, b"/", above.as_os_str().as_bytes()].concat();
        let above = if target.is_absolute() { &above[folder.len() + 1..] } else { &above };
        (!exists(above)).then_some((relative, Absence::LinkTarget))
    }

    /// The target of a path that is a link.
    pub(super) fn target_of(&self, relative: &[u8]) -> Option<PathBuf> {
        Some(link_target(&self.get(), relative)?.1)
    }
}

/// The target of a link, and the link's folder.
fn link_target<'a>(root: &OwnedFd, relative: &'a [u8]) -> Option<(&'a [u8], PathBuf)> {
    let path = OsStr::from_bytes(relative);
    let status = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
        return None;
    }
    let target = rustix::fs::readlinkat(root, path, Vec::new()).ok()?;
    let end = relative.iter().rposition(|byte| *byte == b'/');
    let folder = end.map_or(&b"."[..], |end| &relative[..end]);
    Some((folder, OsStr::from_bytes(target.as_bytes()).into()))
}

/// Whether a folder below the root has no entries. A folder that cannot be listed counts as not empty.
fn is_empty(root: &OwnedFd, folder: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = OsStr::from_bytes(folder);
    let Ok(opened) = rustix::fs::openat(root, folder, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&opened, &mut buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn missing_folders_are_distinguished_from_missing_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::create_dir_all(path.join("class/deep")).unwrap();
        fs::write(path.join("class/file"), "x").unwrap();
        let links = [
            ("class/near", "gone"),
            ("class/far", "../away/gone"),
            ("class/abroad", "/nonexistent/gone"),
            ("alone", "gone"),
            ("linked", "../away"),
        ];
        for (link, target) in links {
            std::os::unix::fs::symlink(target, path.join(link)).unwrap();
        }
        let root = Root::open(&path).unwrap();
        let missing = |relative: &'static [u8]| root.missing_above(relative);
        for present in [&b"gone"[..], b"class/gone", b"class/file", b"class/near", b"alone"] {
            assert_eq!(missing(present), None);
        }
        assert_eq!(missing(b"away/deep/file"), Some((&b"away"[..], Absence::Folder)));
        assert_eq!(missing(b"class/away/file"), Some((&b"class/away"[..], Absence::Folder)));
        assert_eq!(missing(b"linked/file"), Some((&b"linked"[..], Absence::LinkTarget)));
        for (link, _) in &links[1..3] {
            assert_eq!(missing(link.as_bytes()).unwrap().1, Absence::LinkTarget, "{link}");
        }
        fs::create_dir_all(path.join("mount/deep")).unwrap();
        assert_eq!(missing(b"mount/deep/file"), Some((&b"mount/deep"[..], Absence::Empty)));
        assert_eq!(missing(b"mount/file"), None, "the folder has other files");
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        assert_eq!(missing(b"class/file"), Some((&b""[..], Absence::Root)));
        fs::create_dir(&path).unwrap();
        assert_eq!(missing(b"class/file"), Some((&b""[..], Absence::Empty)));
        assert_eq!(missing(b"file"), Some((&b""[..], Absence::Empty)));
    }

    #[test]
    fn path_is_resolved_again_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::create_dir(&path).unwrap();
        let root = Root::open(&path).unwrap();
        let number = || rustix::fs::fstat(&*root.get()).unwrap().st_ino;
        let before = number();
        root.follow_path();
        assert_eq!(number(), before);
        fs::rename(&path, folder.path().join("old")).unwrap();
        root.follow_path();
        assert_eq!(number(), before, "the folder does not exist");
        fs::create_dir(&path).unwrap();
        root.follow_path();
        assert_ne!(number(), before);
    }
}
