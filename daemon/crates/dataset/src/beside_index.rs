//! Files next to a dataset's index: those that grow while the dataset is read, and results that were computed once.
//!
//! The file of a result has a key of what it is of (the dataset, its index file, its source), and a digest of all. A file of
//! another key or a damaged one is no error: the result is computed again.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::index_bytes::{is_on_this_host, own_user};

/// The index's path with a further suffix.
#[must_use]
pub fn path_beside(index: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(index);
    path.push(suffix);
    path.into()
}

/// Opens such a file for reading and appending, or only for reading if it cannot be written. The flag: whether it is
/// writable. A new file is created with mode 0600.
///
/// # Errors
/// The system's error; or the file is not a regular file, belongs to another user although the configuration does not
/// name it, or is on a file system where a read may hang or locks are unreliable.
pub fn open_beside(path: &Path, is_configured: bool) -> io::Result<(File, bool)> {
    // NONBLOCK: opening a pipe at this path must not block the start.
    let open = |options: &mut OpenOptions| {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)
    };
    let (file, may_write) = match open(OpenOptions::new().read(true).append(true).create(true)) {
        Ok(file) => (file, true),
        Err(error) => (open(OpenOptions::new().read(true)).map_err(|_| error)?, false),
    };
    let refuse = |what: &str| Err(io::Error::other(what.to_owned()));
    let status = file.metadata()?;
    if !status.is_file() {
        return refuse("it is not a regular file");
    }
    if !is_configured && status.uid() != own_user() {
        return refuse("it is another user's");
    }
    if !is_on_this_host(&file)? {
        return refuse(
            "it is on a network file system; set dataset.index to a file on a disk of this host",
        );
    }
    Ok((file, may_write))
}

const DIGEST_BYTES: usize = 32;
/// So often another process may link its file first.
const MOST_LINKS: u32 = 8;

/// What a saved result is of.
pub type FileKey = [u8; DIGEST_BYTES];

/// The key of a result that was computed from a dataset, with the index file that is used, and from a source.
#[must_use]
pub fn file_key(index: &Path, fingerprint: &[u8; 32], source: &str) -> Option<FileKey> {
    let status = std::fs::metadata(index).ok()?;
    let mut hasher = blake3::Hasher::new_derive_key("forebay key of a file beside an index");
    hasher.update(fingerprint);
    for number in [status.mtime(), status.mtime_nsec(), status.size().cast_signed()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(source.as_bytes());
    Some(*hasher.finalize().as_bytes())
}

/// A saved result of so many bytes; `None`: of another size, kind or key, or damaged.
///
/// # Errors
/// As [`open_beside`].
pub fn read_checked(
    path: &Path,
    (magic, key): ([u8; 8], &FileKey),
    sizes: RangeInclusive<usize>,
    is_configured: bool,
) -> io::Result<Option<Vec<u8>>> {
    if !path.try_exists()? {
        return Ok(None);
    }
    let (file, _) = open_beside(path, is_configured)?;
    let length = file.metadata()?.len();
    let others = magic.len() + 2 * DIGEST_BYTES;
    let size = usize::try_from(length).ok().and_then(|length| length.checked_sub(others));
    if !size.is_some_and(|size| sizes.contains(&size)) {
        return Ok(None);
    }
    let mut found = Vec::new();
    file.take(length).read_to_end(&mut found)?;
    let Some((body, digest)) = found.split_last_chunk::<DIGEST_BYTES>() else { return Ok(None) };
    let head = [&magic[..], key].concat();
    if !body.starts_with(&head) || blake3::hash(body).as_bytes() != digest {
        return Ok(None);
    }
    Ok(Some(body[head.len()..].to_vec()))
}

/// Writes a result in place of an older one. A process that is killed meanwhile leaves the older one or none, and nothing
/// else where the file system has files without names.
///
/// # Errors
/// The system's error.
pub fn save_checked(
    path: &Path,
    (magic, key): ([u8; 8], &FileKey),
    bytes: &[u8],
) -> io::Result<()> {
    let mut whole = [&magic[..], key, bytes].concat();
    let digest = *blake3::hash(&whole).as_bytes();
    whole.extend(digest);
    if write_unnamed(path, &whole).is_ok() {
        return Ok(());
    }
    // Each process has another name, also one of the same number in another container; a file that a killed process has
    // left is in nobody's way.
    let beside = path_beside(path, &format!(".partial-{:016x}", random()?));
    let written = write_new(&beside, &whole).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(u64::from_le_bytes(bytes))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// Writes a file that has no name until it is complete, and then at once its own: it is not renamed, as a process that is
/// killed in between would leave the first name for ever.
fn write_unnamed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)?;
    file.sync_data()?;
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    for _ in 0..MOST_LINKS {
        match rustix::fs::linkat(CWD, &opened, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            // Another process may write the same result; who finds none meanwhile computes it.
            Err(rustix::io::Errno::EXIST) => rustix::fs::unlink(path)?,
            linked => return Ok(linked?),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"FBTEST\0\x01";

    #[test]
    fn saved_results_are_read_with_their_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.result");
        let key = [7; 32];
        let read =
            |magic, key, bytes| read_checked(&path, (magic, &key), bytes..=bytes, true).unwrap();
        assert_eq!(read(MAGIC, key, 3), None, "no file");
        save_checked(&path, (MAGIC, &key), b"abc").unwrap();
        assert_eq!(read(MAGIC, key, 3).as_deref(), Some(&b"abc"[..]));
        assert_eq!((read(MAGIC, [8; 32], 3), read(MAGIC, key, 4)), (None, None));
        assert_eq!(read(*b"FBOTHER\0", key, 3), None);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[41] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(MAGIC, key, 3), None, "damaged");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_name_is_given_once_and_replaces_the_older_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.result");
        for bytes in ["older", "newer"] {
            write_unnamed(&path, bytes.as_bytes()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes.as_bytes());
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        let threads: Vec<_> = (0..4_u8)
            .map(|thread| {
                let path = path.clone();
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        save_checked(&path, (MAGIC, &[thread; 32]), b"abc").unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let keys = (0..4).filter(|key| {
            read_checked(&path, (MAGIC, &[*key; 32]), 3..=3, true).unwrap().is_some()
        });
        assert_eq!(keys.count(), 1, "one of them is whole");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_left_by_a_killed_process_do_not_prevent_saving() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.result");
        let left = path_beside(&path, &format!(".partial-{}", std::process::id()));
        std::fs::write(&left, "some").unwrap();
        save_checked(&path, (MAGIC, &[7; 32]), b"abc").unwrap();
        assert!(read_checked(&path, (MAGIC, &[7; 32]), 0..=3, true).unwrap().is_some());
        assert_eq!(std::fs::read(&left).unwrap(), b"some");
        assert_ne!(random().unwrap(), random().unwrap());
    }
}
