//! The cache's files.
//!
//! ```text
//! PATH/user-UID/           of this user only; another user's is not used
//! space, count         see `space`
//! DATASET/             one for each storage
//! live             locked by all users of the dataset
//! name             its URL or path, for messages
//! 00/ … ff/        entries, see `entry`, by the digits of their keys
//! grants               a number per process: the bytes it may still write, locked by it
//! gone-…/              a dataset that is being removed
//! ```
//!
//! An entry is written to a file without a name, which is then linked: an entry with a name is complete, except after a
//! power failure, which the checksums detect. If the file system does not support such files, or there is no `/proc` to
//! link from, the entry is written under a temporary name and renamed. An unused dataset is renamed before it is
//! removed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::libc;
use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, flock, fstat, futimens, linkat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::entry::{self, Key};

const GONE: &str = "gone-";
/// The file of grants: a number per process.
const GRANTS: &str = "grants";
const NUMBER_BYTES: u64 = 8;
/// The maximal number of writing processes.
const MAX_GRANTS: u64 = 1024;
/// How often opening is retried while the dataset is being removed.
const OPEN_TRIES: u32 = 50;

/// The cache of this user.
#[derive(Debug)]
pub(super) struct CacheFolder {
    folder: OwnedFd,
    path: PathBuf,
}

/// The entries of one storage. They are not removed as a whole as long as this exists.
#[derive(Debug)]
pub(super) struct DatasetFolder {
    folder: OwnedFd,
    /// The name of its folder.
    pub(super) name: String,
    _live: OwnedFd,
}

/// A slot in the file of grants: the bytes that one process may still write, locked by it.
#[derive(Debug)]
pub(super) struct Grant {
    file: OwnedFd,
    place: u64,
}

impl Grant {
    /// Writes the maximal number of these bytes.
    pub(super) fn set(&self, bytes: u64) -> Result<(), Errno> {
        write_number_at(&self.file, bytes, self.place)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

/// Locks a slot in the file of grants as long as this descriptor is open. False: another process has it.
fn lock_place(file: &OwnedFd, place: u64) -> Result<bool, Errno> {
    match change_lock(file, place, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn change_lock(file: &OwnedFd, place: u64, kind: libc::c_int) -> Result<(), Errno> {
    let start = libc::off_t::try_from(place).map_err(|_| Errno::RANGE)?;
    let lock = libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(|_| Errno::INVAL)?,
        l_whence: 0,
        l_start: start,
        l_len: NUMBER_BYTES as libc::off_t,
        l_pid: 0,
    };
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock))
        .map(|_| ())
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

/// The number in a file.
pub(super) fn read_number(file: &OwnedFd) -> Result<u64, Errno> {
    read_number_at(file, 0)
}

fn read_number_at(file: &OwnedFd, place: u64) -> Result<u64, Errno> {
    let mut number = [0; 8];
    // Past the end of the file the number is 0.
    rustix::io::pread(file, &mut number, place)?;
    Ok(u64::from_le_bytes(number))
}

pub(super) fn write_number(file: &OwnedFd, number: u64) -> Result<(), Errno> {
    write_number_at(file, number, 0)
}

fn write_number_at(file: &OwnedFd, number: u64, place: u64) -> Result<(), Errno> {
    match rustix::io::pwrite(file, &number.to_le_bytes(), place)? {
        8 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// An entry's file, found without its key.
pub(super) struct EntryFile {
    pub(super) bytes: u64,
    group: String,
    name: String,
}

impl CacheFolder {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// The reason, with the remedy.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let user = rustix::process::geteuid().as_raw();
        let path = path.join(format!("user-{user}"));
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            format!("{what} {} failed: {error}; correct cache.path", path.display())
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed("making", &error))?;
        }
        match mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("making", &errno)),
        }
        let folder =
            openat(CWD, &path, FOLDER, Mode::empty()).map_err(|errno| failed("opening", &errno))?;
        let status = fstat(&folder).map_err(|errno| failed("opening", &errno))?;
        if status.st_uid != user || status.st_mode & 0o077 != 0 {
            return Err(format!(
                "{} is not this user's alone: whoever else may write there could change samples; remove it, or name \
                 another folder in cache.path",
                path.display()
            ));
        }
        Ok(Self { folder, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// One of the files next to the datasets.
    pub(super) fn file(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// A slot for this process's grant.
    pub(super) fn grant(&self) -> Result<Grant, Errno> {
        let file = self.file(GRANTS)?;
        for place in (0..MAX_GRANTS).map(|number| number * NUMBER_BYTES) {
            if lock_place(&file, place)? {
                let grant = Grant { file, place };
                grant.set(0)?;
                return Ok(grant);
            }
        }
        Err(Errno::BUSY)
    }

    /// The maximal number of bytes that living processes may still write. Slots of dead processes are cleared.
    pub(super) fn granted_bytes(&self) -> Result<u64, Errno> {
        let file = self.file(GRANTS)?;
        let mut granted = 0_u64;
        for place in (0..MAX_GRANTS).map(|number| number * NUMBER_BYTES) {
            let bytes = read_number_at(&file, place)?;
            if bytes == 0 {
                continue;
            }
            if lock_place(&file, place)? {
                write_number_at(&file, 0, place)?;
                change_lock(&file, place, libc::F_UNLCK)?;
            } else {
                granted = granted.saturating_add(bytes);
            }
        }
        Ok(granted)
    }

    /// The name of a dataset's folder.
    pub(super) fn dataset_name(digest: &Key) -> String {
        hex(&digest[..16])
    }

    /// The entries of one storage: `digest` identifies it, `title` is its name in messages.
    pub(super) fn dataset(&self, digest: &Key, title: &str) -> Result<DatasetFolder, Errno> {
        let name = Self::dataset_name(digest);
        for _ in 0..OPEN_TRIES {
            if let Some(opened) = self.try_open_dataset(&name, title)? {
                return Ok(opened);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Errno::BUSY)
    }

    /// `None`: it is being removed.
    fn try_open_dataset(&self, name: &str, title: &str) -> Result<Option<DatasetFolder>, Errno> {
        make_folder(&self.folder, name)?;
        let folder = match openat(&self.folder, name, FOLDER, Mode::empty()) {
            // Renamed before this process could lock it.
            Err(Errno::NOENT) => return Ok(None),
            folder => folder?,
        };
        let live = match open_live(&folder) {
            Err(Errno::NOENT) => return Ok(None),
            live => live?,
        };
        match flock(&live, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let is_current = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|status| is_same(&status, &folder));
        if !is_current {
            return Ok(None);
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // The time orders the removal of datasets.
        let _ = futimens(&live, &Timestamps { last_access: omit, last_modification: now });
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = openat(&folder, "name", flags, Mode::RUSR | Mode::WUSR) {
            let _ = write_all(&file, title.as_bytes());
        }
        Ok(Some(DatasetFolder { folder, name: name.to_owned(), _live: live }))
    }

    /// The datasets in the cache, least recently used first.
    pub(super) fn datasets(&self) -> Result<Vec<String>, Errno> {
        let mut found: Vec<(i64, String)> = Vec::new();
        for name in names(&self.folder)? {
            if name.len() != 32 || name.starts_with(GONE) {
                continue;
            }
            let used = statat(&self.folder, format!("{name}/live"), AtFlags::SYMLINK_NOFOLLOW);
            found.push((used.map_or(0, |status| status.st_mtime), name));
        }
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// A dataset's title, and whether a process uses it.
    pub(super) fn describe(&self, name: &str) -> (String, bool) {
        let title = std::fs::read(self.path.join(name).join("name")).unwrap_or_default();
        let live = openat(&self.folder, name, FOLDER, Mode::empty())
            .and_then(|folder| open_live(&folder))
            .is_ok_and(|live| flock(&live, FlockOperation::NonBlockingLockExclusive).is_err());
        (String::from_utf8_lossy(&title).into_owned(), live)
    }

    /// Renames an unused dataset, so that it can be removed; its new name, or `None`: it is in use.
    pub(super) fn take_away(&self, name: &str) -> Result<Option<String>, Errno> {
        let folder = openat(&self.folder, name, FOLDER, Mode::empty())?;
        let live = open_live(&folder)?;
        match flock(&live, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let gone = format!("{GONE}{name}-{}", std::process::id());
        renameat(&self.folder, name, &self.folder, &gone)?;
        Ok(Some(gone))
    }

    /// Renamed datasets, including leftovers of processes that died during the removal.
    pub(super) fn gone(&self) -> Result<Vec<String>, Errno> {
        Ok(names(&self.folder)?.into_iter().filter(|name| name.starts_with(GONE)).collect())
    }

    /// Removes a renamed dataset, entry by entry; `removed` is called with the size of each.
    pub(super) fn remove(&self, gone: &str, removed: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        let folder = openat(&self.folder, gone, FOLDER, Mode::empty())?;
        for name in names(&folder)? {
            let Ok(group) = openat(&folder, &name, FOLDER, Mode::empty()) else {
                unlinkat(&folder, &name, AtFlags::empty())?;
                continue;
            };
            for entry in names(&group)? {
                let bytes = statat(&group, &entry, AtFlags::SYMLINK_NOFOLLOW)?.st_size;
                if let Err(errno) = unlinkat(&group, &entry, AtFlags::empty()) {
                    // An empty folder that is not an entry.
                    unlinkat(&group, &entry, AtFlags::REMOVEDIR).map_err(|_| errno)?;
                    continue;
                }
                removed(u64::try_from(bytes).unwrap_or(0));
            }
            unlinkat(&folder, &name, AtFlags::REMOVEDIR)?;
        }
        unlinkat(&self.folder, gone, AtFlags::REMOVEDIR)
    }

    /// Visits the entries of a dataset until `visit` returns false.
    pub(super) fn visit(
        &self,
        dataset: &str,
        visit: &mut dyn FnMut(EntryFile) -> bool,
    ) -> Result<(), Errno> {
        let folder = openat(&self.folder, dataset, FOLDER, Mode::empty())?;
        for group_name in names(&folder)? {
            let Ok(group) = openat(&folder, &group_name, FOLDER, Mode::empty()) else { continue };
            for name in names(&group)? {
                let Ok(status) = statat(&group, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                // Not an entry.
                if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
                    continue;
                }
                let bytes = u64::try_from(status.st_size).unwrap_or(0);
                if !visit(EntryFile { bytes, group: group_name.clone(), name }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads and verifies an entry. `false`: it is damaged, a leftover, or belongs to another key.
    pub(super) fn is_whole(
        &self,
        dataset: &str,
        file: &EntryFile,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, Errno> {
        buffer.clear();
        let path = format!("{dataset}/{}/{}", file.group, file.name);
        let opened = openat(&self.folder, path, ENTRY, Mode::empty())?;
        read_to_end(&opened, file.bytes.saturating_add(1), buffer)?;
        let key = entry::open(buffer).map(|(key, _)| key);
        Ok(key.is_some_and(|key| place(&key) == (file.group.clone(), file.name.clone())))
    }

    /// Removes one entry.
    pub(super) fn remove_entry(&self, dataset: &str, file: &EntryFile) -> Result<(), Errno> {
        let path = format!("{dataset}/{}/{}", file.group, file.name);
        unlinkat(&self.folder, path, AtFlags::empty())
    }
}

impl DatasetFolder {
    /// Appends an entry's bytes to a buffer. `Ok(None)`: no such entry; `Ok(Some(false))`: it is damaged, and the
    /// buffer's contents are undefined.
    pub(super) fn read(
        &self,
        key: &Key,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<bool>, Errno> {
        let (group, name) = place(key);
        let path = format!("{group}/{name}");
        let file = match openat(&self.folder, path, ENTRY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file?,
        };
        let start = buffer.len();
        // One byte more than expected, to detect the end.
        read_to_end(&file, entry::file_bytes(length) + 1, buffer)?;
        let is_whole = entry::open(&buffer[start..])
            .is_some_and(|(found, bytes)| found == *key && bytes.len() as u64 == length);
        let end = start + usize::try_from(length).unwrap_or(usize::MAX);
        if is_whole {
            buffer.truncate(end);
        }
        Ok(Some(is_whole))
    }

    /// The length of an entry's bytes from its file's length; `None`: no such entry.
    pub(super) fn length_of(&self, key: &Key) -> Result<Option<u64>, Errno> {
        let (group, name) = place(key);
        match statat(&self.folder, format!("{group}/{name}"), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Ok(status) => Ok(u64::try_from(status.st_size).ok().and_then(entry::bytes_of_file)),
            Err(errno) => Err(errno),
        }
    }

    /// Writes an entry. `false`: another process was faster.
    pub(super) fn write(&self, key: &Key, bytes: &[u8]) -> Result<bool, Errno> {
        self.write_by("/proc/self/fd", key, bytes)
    }

    /// `descriptors`: the folder that shows files without a name.
    pub(super) fn write_by(
        &self,
        descriptors: &str,
        key: &Key,
        bytes: &[u8],
    ) -> Result<bool, Errno> {
        let (group, name) = place(key);
        let tail = entry::tail(key, bytes);
        let access = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut opened = openat(&self.folder, &group, flags, access);
        if let Err(Errno::NOENT) = opened {
            make_folder(&self.folder, &group)?;
            opened = openat(&self.folder, &group, flags, access);
        }
        let path = format!("{group}/{name}");
        let file = match opened {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                return self.write_named(&group, &path, bytes, &tail);
            }
            file => file?,
        };
        write_all(&file, bytes)?;
        write_all(&file, &tail)?;
        let nameless = format!("{descriptors}/{}", file.as_raw_fd());
        match linkat(CWD, nameless, &self.folder, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // `/proc` is missing or may not be used.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::PERM) => {
                self.write_named(&group, &path, bytes, &tail)
            }
            Err(errno) => Err(errno),
        }
    }

    fn write_named(
        &self,
        group: &str,
        path: &str,
        bytes: &[u8],
        tail: &[u8],
    ) -> Result<bool, Errno> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a unique number.
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let written = format!("{group}/new-{}-{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.folder, &written, flags, Mode::RUSR | Mode::WUSR)?;
        let done = write_all(&file, bytes)
            .and_then(|()| write_all(&file, tail))
            .and_then(|()| renameat(&self.folder, &written, &self.folder, path));
        if done.is_err() {
            let _ = unlinkat(&self.folder, &written, AtFlags::empty());
        }
        done.map(|()| true)
    }

    /// Removes a damaged entry.
    pub(super) fn remove(&self, key: &Key) {
        let (group, name) = place(key);
        let _ = unlinkat(&self.folder, format!("{group}/{name}"), AtFlags::empty());
    }
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ENTRY: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn make_folder(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn open_live(folder: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(folder, "live", flags, Mode::RUSR | Mode::WUSR)
}

fn is_same(status: &Stat, folder: &OwnedFd) -> bool {
    fstat(folder).is_ok_and(|own| (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino))
}

/// Group and name of an entry.
fn place(key: &Key) -> (String, String) {
    let digits = hex(&key[..20]);
    (digits[..2].to_owned(), digits[2..].to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names(folder: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        // Files with other names are not part of a cache.
        let name = entry.file_name().to_str().unwrap_or_default();
        if !matches!(entry.file_type(), FileType::Symlink) && !matches!(name, "" | "." | "..") {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn write_all(file: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Appends at most this many bytes.
fn read_to_end(file: &OwnedFd, most: u64, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let most = usize::try_from(most).map_err(|_| Errno::NOMEM)?;
    buffer.try_reserve_exact(most).map_err(|_| Errno::NOMEM)?;
    let end = buffer.len() + most;
    while buffer.len() < end {
        match rustix::io::read(file, spare_capacity(buffer)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
