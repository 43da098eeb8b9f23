//! The file of `feeders.file`: a host and port a line, `#` begins a comment.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{HostPort, MAX_FEEDERS};

/// Limit of the file's size, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Device, inode, size, and the times of content and inode, in nanoseconds.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

/// See the module's head.
#[derive(Debug)]
pub(super) struct FeedersFile {
    path: PathBuf,
    /// Of the text that was read last; `None`: none was.
    read: Option<Stamp>,
    is_reported: bool,
}

impl FeedersFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: None, is_reported: false }
    }

    /// What is in the file, if it has changed. A file that cannot be read is reported once, and what was read stays: who
    /// writes it may be about to replace it.
    pub(super) fn changed(&mut self) -> Option<Vec<HostPort>> {
        let stamp = std::fs::metadata(&self.path).ok().map(|data| {
            let times = (data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
            (data.dev(), data.ino(), data.size(), times.0, times.1, times.2, times.3)
        });
        if stamp.is_some() && stamp == self.read {
            return None;
        }
        match read(&self.path) {
            Ok(text) => {
                self.read = stamp;
                self.is_reported = false;
                Some(parse(&text, &self.path))
            }
            Err(error) => {
                if !self.is_reported {
                    self.is_reported = true;
                    tracing::warn!(
                        "feeders.file {}: {error}; it is tried again every second",
                        self.path.display()
                    );
                }
                None
            }
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    String::from_utf8(text).map_err(|_| io::Error::other("not valid UTF-8"))
}

/// The addresses in the text. The first line that has none is reported.
fn parse(text: &str, path: &Path) -> Vec<HostPort> {
    let mut found = Vec::new();
    let mut wrong = 0_u32;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        match HostPort::read(line, &format!("{}:{}", path.display(), index + 1)) {
            Ok(address) => found.push(address),
            Err(error) => {
                if wrong == 0 {
                    tracing::warn!("{error}; the line is ignored");
                }
                wrong += 1;
            }
        }
        if found.len() > MAX_FEEDERS {
            break;
        }
    }
    if wrong > 1 {
        tracing::warn!("{}: {} more lines are ignored", path.display(), wrong - 1);
    }
    found
}
