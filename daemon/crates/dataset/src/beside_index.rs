//! Files next to a dataset's index that grow while the dataset is read.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

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
