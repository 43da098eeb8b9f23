//! Why bytes could not be had, and what may be done about it.
//!
//! Three kinds. *Transient* ones depend on time and are retried, for as long as their [`RetryClass`] says. *Bad samples*
//! are properties of the dataset that every run meets in the same way. The rest (permission, a broken path) ends the run
//! at once. An empty file is no error here: its zero bytes go to the decoder, which calls them defective.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// For how long a call that failed is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// Not at all: time does not change it.
    Never,
    /// Briefly: the file alone is affected, and the folder above it can be reached.
    File,
    /// For `dataset.outage_timeout`: the storage is away, or may be.
    Outage,
}

/// How a folder above a file is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The dataset's root is not there.
    Root,
    /// The root, or the folder of the file, has no entries, as where nothing is mounted.
    Empty,
    /// A folder below the root is not there.
    Folder,
    /// A link leads to nothing, perhaps into another file system.
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

/// Why a file's bytes could not be read. Every kind names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// There is no such file, though the index has it and the folder above it is there.
    #[error("{} has vanished since the dataset was scanned; restore it, or scan again", path.display())]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The path is a link, and what it leads to is not there. The folders of both are.
    #[error(
        "{} is a link to {}, which does not exist; restore that file, or remove the link and scan again",
        path.display(), target.display()
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A folder above the file is not there, as where a file system is not mounted.
    #[error(
        "{} cannot be reached: {} {what}; mount or restore what should be there", path.display(), missing.display()
    )]
    Away {
        /// The file.
        path: PathBuf,
        /// The topmost folder that is not as it should be.
        missing: PathBuf,
        /// What is wrong with it.
        what: Absence,
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
    /// A file that is compressed as a whole has no room in the cache.
    #[error(
        "{} is compressed, and the cache has no room for what it unpacks to, {unpacked_bytes} bytes and more; raise cache.size, \
         name a larger disk in cache.path, or decompress it", path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// What was unpacked of it.
        unpacked_bytes: u64,
    },
    /// A file that is compressed as a whole, and no cache to unpack it into.
    #[error(
        "{} is compressed, and is read from the cache that it is unpacked into: name a folder in cache.path, or see above why \
         that one is not used", path.display()
    )]
    NoCache {
        /// The file.
        path: PathBuf,
    },
    /// A compressed part of the file does not unpack to what it did.
    #[error("{} cannot be unpacked at byte {offset}: it is damaged, or changed after the dataset was indexed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the part begins.
        offset: u64,
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
        "reading {} has not come to an end within {} s ({abandoned} reads hang now); look after the storage, or raise \
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
    /// A call of the opening has not returned yet.
    #[error("{action} {} has not returned for {} s", path.display(), lasts.as_secs())]
    Hangs {
        /// What it is asked of.
        path: PathBuf,
        /// What is tried, as in "listing".
        action: &'static str,
        /// For how long.
        lasts: Duration,
    },
    /// An object that another has taken the place of.
    #[error(
        "{} has changed since the dataset was indexed: {what}; put it back, or run `forebay index`, which lists the dataset \
         anew", path.display()
    )]
    Replaced {
        /// The object.
        path: PathBuf,
        /// What tells it from the indexed one.
        what: String,
    },
    /// A server refuses, fails or does not answer.
    #[error("{} {} failed: {}", failure.action, path.display(), failure.what)]
    Remote {
        /// The object or the folder.
        path: PathBuf,
        /// What is known of it.
        failure: Box<RemoteFailure>,
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

/// What a server said, or that it said nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFailure {
    /// What was tried, as in "reading".
    pub action: &'static str,
    /// What came of it, with the remedy; no secret is in it.
    pub what: String,
    /// For how long it is tried again.
    pub class: RetryClass,
    /// The pause that the server asks for.
    pub retry_after: Option<Duration>,
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
    pub(crate) fn from_errno(path: PathBuf, action: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Vanished { path },
            Errno::ACCESS | Errno::PERM => Self::Permission { path },
            Errno::ISDIR => Self::NotAFile { path, kind: "a directory" },
            errno => Self::System { path, action, errno },
        }
    }

    /// For how long the call is made again.
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

    /// How long the storage asks to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Remote { failure, .. } => failure.retry_after,
            _ => None,
        }
    }

    /// Whether another try may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.class() != RetryClass::Never
    }

    /// Whether the dataset itself is at fault, in a way that does not depend on time: the sample may then be treated
    /// like one with defective bytes.
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

/// Of a system's error that has no kind of its own here. What is not known to be final may pass: file systems report a
/// storage that is away in many ways (EIO, ESTALE, ETIMEDOUT, EHOSTDOWN, ENOTCONN, ENODEV, ESHUTDOWN, EREMOTEIO, …), and a
/// want of descriptors or memory ends, too.
pub(crate) fn class_of(errno: Errno) -> RetryClass {
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
