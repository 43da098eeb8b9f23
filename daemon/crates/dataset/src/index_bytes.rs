//! Loading an index file: mapped if no one can change it under the mapping, otherwise copied.
//!
//! A file of this user on a local file system is only ever replaced by a rename, so it is mapped, and all daemons of
//! the host share its pages. On a network file system, a rename by another host invalidates the file under the mapping
//! (ESTALE, and SIGBUS at the next access), and another user may truncate their file at any time. Such files are copied
//! into sealed memory, which is passed to the next daemon: no restart depends on the file.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;

use forebay_protocol::mapped_file::{MappedFile, map_file_read_only};
use forebay_protocol::sealed::{is_sealed, seal_written};
use std::os::fd::AsFd;

/// The bytes of an index.
#[derive(Debug)]
pub enum IndexBytes {
    /// Shared with the other daemons of the host.
    Mapped(MappedFile),
    /// Private to this process, if no file could be kept.
    Owned(Vec<u8>),
}

impl Deref for IndexBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapped) => mapped,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A file on an unknown file system is copied if it is not larger than this.
const CHEAP_BYTES: u64 = 64 << 20;

/// The location of a file system's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    OnThisHost,
    /// On another host, or in a process that may respond arbitrarily: FUSE.
    Elsewhere,
    Unknown,
}

/// Maps or copies the bytes of an open file. An empty file is an error.
///
/// # Errors
/// The system's error.
pub fn take_in(file: File) -> io::Result<IndexBytes> {
    let is_safe = is_sealed(file.as_fd()) || !is_to_be_copied(&file)?;
    let file = if is_safe { file } else { copy(file)? };
    map_file_read_only(file).map(IndexBytes::Mapped)
}

/// The user id of this process.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Whether a file is on a file system that is known to be local.
///
/// # Errors
/// The system's error.
pub fn is_on_this_host(file: &File) -> io::Result<bool> {
    kept(file).map(|kept| kept == Kept::OnThisHost)
}

fn is_to_be_copied(file: &File) -> io::Result<bool> {
    let status = file.metadata()?;
    if status.uid() != own_user() {
        return Ok(true);
    }
    Ok(match kept(file)? {
        Kept::OnThisHost => false,
        Kept::Elsewhere => true,
        Kept::Unknown => status.len() <= CHEAP_BYTES,
    })
}

fn copy(mut file: File) -> io::Result<File> {
    let copied = seal_written("forebay-index", |memory| io::copy(&mut file, memory).map(drop))?;
    Ok(copied.into())
}

fn kept(file: &File) -> io::Result<Kept> {
    let magic = rustix::fs::fstatfs(file)?.f_type;
    #[cfg(test)]
    if let Some(forced) = tests::FORCED.get() {
        return Ok(forced);
    }
    // The kernel's numbers have 32 bits; the type and the sign of the field differ between architectures.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    Ok(kept_at(magic as u32))
}

/// Numbers from `statfs(2)`, the kernel's `magic.h`, and file systems that are built outside the kernel.
fn kept_at(magic: u32) -> Kept {
    match magic {
        // ext, XFS, Btrfs, tmpfs, ramfs, overlay, ZFS, F2FS, bcachefs, squashfs, EROFS, JFS, ReiserFS, NTFS3, exFAT, FAT,
        // ISO 9660, hugetlbfs, NILFS, eCryptfs
        0xEF53 | 0x5846_5342 | 0x9123_683E | 0x0102_1994 | 0x8584_58F6 | 0x794C_7630
        | 0x2FC1_2FC1 | 0xF2F5_2010 | 0xCA45_1A4E | 0x7371_7368 | 0xE0F5_E1E2 | 0x3153_464A
        | 0x5265_4973 | 0x7366_746E | 0x2011_BAB0 | 0x4D44 | 0x9660 | 0x9584_58F6 | 0x3434
        | 0xF15F => Kept::OnThisHost,
        // NFS, SMB, CIFS, SMB 2, FUSE (virtiofs too), 9P, AFS, kAFS, Ceph, Lustre, GPFS, BeeGFS, GFS2, OCFS2, PanFS,
        // OrangeFS, Coda, VirtualBox's and VMware's shared folders
        0x6969 | 0x517B | 0xFF53_4D42 | 0xFE53_4D42 | 0x6573_5546 | 0x0102_1997 | 0x5346_414F
        | 0x6B41_4653 | 0x00C3_6400 | 0x0BD0_0BD0 | 0x4750_4653 | 0x1983_0326 | 0x0116_1970
        | 0x7461_636F | 0xAAD7_AAEA | 0x2003_0528 | 0x7375_7245 | 0x786F_4256 | 0xBACB_ACBC => {
            Kept::Elsewhere
        }
        _ => Kept::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use super::*;

    thread_local! {
        pub static FORCED: Cell<Option<Kept>> = const { Cell::new(None) };
    }

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        (folder, path)
    }

    fn taken(path: &std::path::Path, kept: Kept) -> IndexBytes {
        FORCED.set(Some(kept));
        let bytes = take_in(File::open(path).unwrap());
        FORCED.set(None);
        bytes.unwrap()
    }

    fn is_copy(bytes: &IndexBytes) -> bool {
        matches!(bytes, IndexBytes::Mapped(mapped) if is_sealed(mapped.file().as_fd()))
    }

    #[test]
    fn file_on_another_host_is_copied_and_may_be_truncated_afterwards() {
        let (_folder, path) = file_of(b"the bytes of an index");
        let [mapped, copied] = [Kept::OnThisHost, Kept::Elsewhere].map(|kept| taken(&path, kept));
        assert!(!is_copy(&mapped) && is_copy(&copied));
        assert_eq!(&*mapped, b"the bytes of an index");
        drop(mapped);
        File::create(&path).unwrap();
        // A mapping would crash this process here.
        assert_eq!(&*copied, b"the bytes of an index");
        // The copy is passed on and is not copied again.
        let IndexBytes::Mapped(copied) = copied else { panic!("it is mapped memory") };
        assert!(is_copy(&take_in(copied.file().try_clone().unwrap()).unwrap()));
    }

    #[test]
    fn file_on_an_unknown_file_system_is_copied_if_it_is_small() {
        let (_folder, path) = file_of(b"small");
        assert!(is_copy(&taken(&path, Kept::Unknown)));
        File::options().write(true).open(&path).unwrap().set_len(CHEAP_BYTES + 1).unwrap();
        assert!(!is_copy(&taken(&path, Kept::Unknown)));
    }

    #[test]
    fn file_systems_are_classified_by_magic_number() {
        use rustix::fs::{NFS_SUPER_MAGIC, PROC_SUPER_MAGIC};
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits")]
        let kept = |magic| kept_at(magic as u32);
        assert_eq!(kept(NFS_SUPER_MAGIC), Kept::Elsewhere);
        assert_eq!(kept(PROC_SUPER_MAGIC), Kept::Unknown);
        assert_eq!(kept_at(0x6573_5546), Kept::Elsewhere, "FUSE");
        assert_eq!(kept_at(0x0102_1994), Kept::OnThisHost, "tmpfs");
    }
}
