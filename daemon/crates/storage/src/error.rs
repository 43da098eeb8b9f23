//! Why bytes could not be read, and the remedy.
//!
//! There are three kinds. *Transient* errors depend on time and are retried, for as long as their [`RetryClass`] says.
//! *Bad samples* are properties of the dataset and occur in every run. The others (permission, a broken path) end the
//! run at once. An empty file is not an error here: the decoder reports it as defective.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// For how long a failed call is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// Not at all: the error does not depend on time.
    Never,
    /// Briefly: only the file is affected, and its folder can be reached.
    File,
    /// For `dataset.outage_timeout`: the storage cannot be reached, or may be unreachable.
    Outage,
}

/// How a folder above a file is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The dataset's root does not exist.
    Root,
    /// The root, or the file's folder, has no entries, as an unmounted mount point.
    Empty,
    /// A folder below the root does not exist.
    Folder,
    /// A link's target does not exist; it may be in another file system.
    LinkTarget,
}

impl std::fmt::Display for Absence {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Root | Self::Folder => "is not there",
            Self::Empty => "is empty",
            Self::LinkTarget => "links to a folder that is not there",
        })
    }
}

/// Why a file's bytes could not be read. Every variant names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The file does not exist, though the index has it and its folder exists.
    #[error(
        "{} has vanished since the dataset was scanned, or was never there: restore it, correct the name, or scan again",
        path.display()
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The path is a link whose target does not exist. The folders of both exist.
    #[error(
        "{} is a link to {}, which does not exist; restore that file, or remove the link and scan again",
        path.display(), target.display()
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// The link's target.
        target: PathBuf,
    },
    /// A folder above the file is missing, for example because a file system is not mounted.
    #[error(
        "{} cannot be reached: {} {what}; mount or restore what should be there", path.display(), missing.display()
    )]
    Away {
        /// The file.
        path: PathBuf,
        /// The topmost missing folder.
        missing: PathBuf,
        /// How it is missing.
        what: Absence,
    },
    /// The file's length changed between opening and the end of reading.
    #[error(
        "{} changed while it was read: it had {expected_bytes} bytes and now has {found}; write files outside the \
         dataset and rename them into it", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened, or the end of the located range.
        expected_bytes: u64,
        /// The difference, such as `fewer`.
        found: &'static str,
    },
    /// The path is a directory, a pipe, a socket or a device.
    #[error("{} is {kind}, not a regular file; remove it from the dataset", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Its kind, with an article.
        kind: &'static str,
    },
    /// The file, or the located part of it, is larger than the caller allows.
    #[error("{} has {length_bytes} bytes to read, and limits.sample_bytes is {limit_bytes}; raise the limit if that is right", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The number of bytes to read.
        length_bytes: u64,
        /// The limit.
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
        /// The part's start.
        offset: u64,
        /// The part's end.
        end: u64,
    },
    /// The cache has no room for a file that is compressed as a whole.
    #[error(
        "{} is compressed, and the cache has no room for its {unpacked_bytes} or more unpacked bytes; raise cache.size, \
         name a larger disk in cache.path, or decompress it", path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The bytes unpacked so far.
        unpacked_bytes: u64,
    },
    /// A file is compressed as a whole, and there is no cache to unpack it into.
    #[error(
        "{} is compressed and must be unpacked into the cache: set cache.path to a folder, or see above why \
         that one is not used", path.display()
    )]
    NoCache {
        /// The file.
        path: PathBuf,
    },
    /// A compressed part of the file no longer unpacks as it did.
    #[error("{} cannot be unpacked at byte {offset}: it is damaged, or changed after the dataset was indexed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The part's start.
        offset: u64,
    },
    /// Unpacking a file needs more memory than is planned.
    #[error(
        "{} is compressed by zstd with a window of {} MiB (`--long` or `--ultra`), and at most {} MiB are used to unpack \
         files; compress it again: zstd -dc --long=31 FILE | zstd -19 --long=23 -o NEW",
        path.display(), window_bytes.div_ceil(1 << 20), limit_bytes >> 20
    )]
    Window {
        /// The file.
        path: PathBuf,
        /// The window size that the file requires.
        window_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// This process has no permission to read the file.
    #[error(
        "{} may not be read by this user (permission denied); give it read permission for the file and search \
         permission for its folders", path.display()
    )]
    Permission {
        /// The file.
        path: PathBuf,
    },
    /// The storage did not respond in time.
    #[error(
        "reading {} did not finish within {} s ({abandoned} reads hang now); check the storage, or raise \
         dataset.read_timeout", path.display(), limit.as_secs_f64()
    )]
    TimedOut {
        /// The file.
        path: PathBuf,
        /// `dataset.read_timeout`.
        limit: Duration,
        /// Threads of this daemon that hang in reads.
        abandoned: usize,
    },
    /// A call during opening does not return.
    #[error("{action} {} has not returned for {} s", path.display(), lasts.as_secs())]
    Hangs {
        /// The path of the call.
        path: PathBuf,
        /// The action, such as "listing".
        action: &'static str,
        /// The duration so far.
        lasts: Duration,
    },
    /// An object was replaced by another one.
    #[error(
        "{} has changed since the dataset was indexed: {what}; put it back, or run `forebay index`, which lists the dataset \
         again", path.display()
    )]
    Replaced {
        /// The object.
        path: PathBuf,
        /// How it differs from the indexed one.
        what: String,
    },
    /// A server refuses, fails or does not respond.
    #[error("{} {} failed: {}", failure.action, path.display(), failure.what)]
    Remote {
        /// The object or the folder.
        path: PathBuf,
        /// Details of the failure.
        failure: Box<RemoteFailure>,
    },
    /// Any other error of the system.
    #[error("{action} {} failed: {}{}", path.display(), std::io::Error::from(*errno), remedy(*errno))]
    System {
        /// The file.
        path: PathBuf,
        /// The action, such as "reading".
        action: &'static str,
        /// The system's error.
        errno: Errno,
    },
}

/// A server's error response, or a missing response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFailure {
    /// The action, such as "reading".
    pub action: &'static str,
    /// The failure and its remedy; contains no secret.
    pub what: String,
    /// For how long the call is retried.
    pub class: RetryClass,
    /// The pause that the server requests.
    pub retry_after: Option<Duration>,
}

/// The remedy for errors that limits or other daemons cause.
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
    /// The error for a system error about a path.
    pub fn from_errno(path: PathBuf, action: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Vanished { path },
            Errno::ACCESS | Errno::PERM => Self::Permission { path },
            Errno::ISDIR => Self::NotAFile { path, kind: "a directory" },
            errno => Self::System { path, action, errno },
        }
    }

    /// For how long the call is retried.
    #[must_use]
    pub fn class(&self) -> RetryClass {
        match self {
            Self::Away { .. } | Self::TimedOut { .. } | Self::Hangs { .. } => RetryClass::Outage,
            Self::Vanished { .. } | Self::Dangling { .. } | Self::Changed { .. } => {
                RetryClass::File
            }
            Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::OutOfRange { .. }
            | Self::Damaged { .. }
            | Self::Window { .. }
            | Self::NoRoom { .. }
            | Self::NoCache { .. }
            | Self::Replaced { .. }
            | Self::Permission { .. } => RetryClass::Never,
            Self::Remote { failure, .. } => failure.class,
            Self::System { errno, .. } => class_of(*errno),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Vanished { path }
            | Self::Dangling { path, .. }
            | Self::Away { path, .. }
            | Self::Changed { path, .. }
            | Self::NotAFile { path, .. }
            | Self::TooLarge { path, .. }
            | Self::OutOfRange { path, .. }
            | Self::Damaged { path, .. }
            | Self::Window { path, .. }
            | Self::NoRoom { path, .. }
            | Self::NoCache { path }
            | Self::Permission { path }
            | Self::TimedOut { path, .. }
            | Self::Hangs { path, .. }
            | Self::Replaced { path, .. }
            | Self::Remote { path, .. }
            | Self::System { path, .. } => path,
        }
    }

    /// The pause that the storage requests.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Remote { failure, .. } => failure.retry_after,
            _ => None,
        }
    }

    /// Whether another try may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.class() != RetryClass::Never
    }

    /// Whether the dataset itself is at fault, independently of time: the sample may be treated like one with defective
    /// bytes.
    #[must_use]
    pub fn is_bad_sample(&self) -> bool {
        matches!(
            self,
            Self::NotAFile { .. }
                | Self::TooLarge { .. }
                | Self::OutOfRange { .. }
                | Self::Damaged { .. }
        )
    }
}

/// The class of a system error without a separate variant. Errors that are not known to be final count as temporary:
/// file systems report an unreachable storage in many ways (EIO, ESTALE, ETIMEDOUT, EHOSTDOWN, ENOTCONN, ENODEV,
/// ESHUTDOWN, EREMOTEIO, …), and a lack of descriptors or memory is temporary, too.
pub fn class_of(errno: Errno) -> RetryClass {
    match errno {
        Errno::ACCESS
        | Errno::PERM
        | Errno::ISDIR
        | Errno::NAMETOOLONG
        | Errno::LOOP
        | Errno::INVAL
        | Errno::BADF
        | Errno::FAULT
        | Errno::NOSYS
        | Errno::OPNOTSUPP
        | Errno::OVERFLOW
        | Errno::FBIG
        | Errno::SPIPE
        | Errno::ILSEQ => RetryClass::Never,
        Errno::NOENT | Errno::NOTDIR => RetryClass::File,
        _ => RetryClass::Outage,
    }
}
