//! The page of samples under work in a file next to the socket, for a daemon that is restarted by others.
//!
//! A daemon under `serve` or `run` is restarted by a service manager or a user, who pass nothing on. The file's name
//! consists of the streams and the rank, so that the next daemon of the same job finds it. A daemon that has it open
//! holds its lock; it is removed at a regular end.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Stream, WorkPage};
use rustix::fs::{FlockOperation, OFlags, flock};

/// Files unused for this long are removed.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Removes the file when it is dropped.
#[derive(Debug)]
pub(super) struct WorkFile(PathBuf);

impl WorkFile {
    /// Opens the file in a folder, with the contents that the previous daemon left. If this fails, a sample that
    /// crashes the daemon is not identified, and a warning is logged.
    pub(super) fn open(
        folder: Option<&Path>,
        streams: &[Arc<Stream>],
        rank: u32,
    ) -> Option<(Self, WorkPage)> {
        let folder =
            folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let key = streams.iter().fold(0, |key: u64, stream| key.rotate_left(1) ^ stream.work_key());
        let path = folder.join(format!("forebay-{key:016x}-{rank}.work"));
        sweep(folder, &path);
        let opened = open(&path)
            .map_err(anyhow::Error::from)
            .and_then(|file| WorkPage::in_file(file).map_err(anyhow::Error::from));
        match opened {
            Ok(page) => Some((Self(path), page)),
            Err(error) => {
                tracing::warn!(
                    path = %path.display(), %error,
                    "cannot keep the samples under work: one that ends this daemon will not be found"
                );
                None
            }
        }
    }
}

impl Drop for WorkFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens and locks the file, which belongs to this user.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let status = file.metadata()?;
    if !status.is_file() || status.uid() != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::other("it is no file of this user"));
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes the files of daemons that were not restarted.
fn sweep(folder: &Path, own: &Path) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
    {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let is_one =
            name.is_some_and(|name| name.starts_with("forebay-") && name.ends_with(".work"));
        let is_old = || {
            let changed =
                std::fs::symlink_metadata(&path).and_then(|status| status.modified()).ok();
            changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age > KEPT)
        };
        if is_one && path != own && is_old() && open(&path).is_ok() {
            let _ = std::fs::remove_file(&path);
        }
    }
}
