//! Why bytes could not be had, and what may be done about it.
//!
//! Three kinds. *Transient* ones depend on time and are retried. *Bad samples* are properties of the dataset that every
//! run meets in the same way. The rest (permission, a broken path) ends the run at once.
//! An empty file is no error here: its zero bytes go to the decoder, which calls them defective.

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

/// Why a file's bytes could not be read. Every kind names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// There is no such file, though the index has it.
    #[error("{} has vanished since the dataset was scanned; restore it, or scan again", path.display())]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The file's length changed between opening and the end of reading.
    #[error(
        "{} changed while it was read: it had {expected_bytes} bytes and now has {found}; write files beside the \
         dataset and rename them into it", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened, or where the located range ends.
        expected_bytes: u64,
        /// What was found instead, such as `fewer`.
        found: &'static str,
    },
    /// The path leads to a directory, a pipe, a socket or a device.
    #[error("{} is {kind} and no regular file; remove it from the dataset", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is, with its article.
        kind: &'static str,
    },
    /// The file, or the located part of it, is larger than the caller allows.
    #[error("{} has {length_bytes} bytes to read, and limits.sample_bytes is {limit_bytes}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What would have to be read.
        length_bytes: u64,
        /// What the caller allows.
        limit_bytes: u64,
    },
    /// The file ends before the located part of it.
    #[error(
        "{} has {length_bytes} bytes, and the sample is at {offset} to {end}; it was cut after the dataset was opened",
        path.display()
    )]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The file's length.
        length_bytes: u64,
        /// Where the part begins.
        offset: u64,
        /// Where the part ends.
        end: u64,
    },
    /// This process may not read the file.
    #[error(
        "{} may not be read by this user (permission denied); give it read permission for the file and search \
         permission for its folders", path.display()
    )]
    Permission {
        /// The file.
        path: PathBuf,
    },
    /// The storage has not answered in time.
    #[error(
        "reading {} has not come to an end within {} s, in {attempts} attempts ({abandoned} reads hang now); look after \
         the storage, or raise dataset.read_timeout", path.display(), limit.as_secs_f64()
    )]
    TimedOut {
        /// The file.
        path: PathBuf,
        /// `dataset.read_timeout`.
        limit: Duration,
        /// How often it was tried.
        attempts: u32,
        /// Threads of this daemon that hang in reads.
        abandoned: usize,
    },
    /// The system reports something else.
    #[error("{action} {} failed: {}{}", path.display(), std::io::Error::from(*errno), remedy(*errno))]
    System {
        /// The file.
        path: PathBuf,
        /// What was tried, as in "reading".
        action: &'static str,
        /// The system's error.
        errno: Errno,
    },
}

/// What may be done about a want that other daemons or limits cause.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => {
            "; raise the limit on open files (ulimit -n), or lower the concurrency of the stage `fetch`"
        }
        Errno::NFILE => "; raise fs.file-max of the machine",
        Errno::NOMEM => "; give the daemon more memory, or lower ring.memory",
        _ => "",
    }
}

impl StorageError {
    /// The error for what the system said of a path.
    pub(super) fn from_errno(path: PathBuf, action: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Vanished { path },
            Errno::ACCESS | Errno::PERM => Self::Permission { path },
            Errno::ISDIR => Self::NotAFile { path, kind: "a directory" },
            Errno::NXIO => Self::NotAFile { path, kind: "a pipe, a socket or a device" },
            errno => Self::System { path, action, errno },
        }
    }

    /// Whether another try may help: time-outs, I/O errors, vanished and changing files, and a want of descriptors or
    /// memory.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Vanished { .. } | Self::Changed { .. } | Self::TimedOut { .. } => true,
            Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::OutOfRange { .. }
            | Self::Permission { .. } => false,
            Self::System { errno, .. } => matches!(
                *errno,
                Errno::IO
                    | Errno::TIMEDOUT
                    | Errno::INTR
                    | Errno::AGAIN
                    | Errno::STALE
                    | Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOMEM
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::CONNRESET
                    | Errno::BUSY
                    | Errno::REMOTEIO
            ),
        }
    }

    /// Whether the dataset itself is at fault, in a way that does not depend on time: the sample may then be treated
    /// like one with defective bytes.
    #[must_use]
    pub fn is_bad_sample(&self) -> bool {
        matches!(self, Self::NotAFile { .. } | Self::TooLarge { .. } | Self::OutOfRange { .. })
    }
}
