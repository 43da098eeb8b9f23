//! Why a dataset could not be opened. Each message names the path or the line, and the remedy.

use std::path::PathBuf;

use rustix::io::Errno;

use crate::storage::{Absence, RetryClass, StorageError};

/// Why a dataset could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// No format of that name is registered.
    #[error("unknown dataset.format {given:?}{hint}; the formats are {known}")]
    UnknownFormat {
        /// As configured.
        given: String,
        /// Empty, or a proposal.
        hint: String,
        /// All names.
        known: String,
    },
    /// A key of the format's own.
    #[error(transparent)]
    Keys(#[from] forebay_config::ConfigError),
    /// There is nothing at the dataset's path.
    #[error("dataset.path {} does not exist; check the path, or mount what should be there", path.display())]
    Missing {
        /// The dataset's path.
        path: PathBuf,
    },
    /// Nothing at a path is what a format reads.
    #[error("{} {found}; {known}", path.display())]
    NotRecognized {
        /// What was looked at.
        path: PathBuf,
        /// What is there instead, such as `is empty`.
        found: String,
        /// What each format reads.
        known: String,
    },
    /// The dataset's path is not what the format reads.
    #[error("dataset.path {} is {found}; {format} expects {expected}", path.display())]
    WrongKind {
        /// The dataset's path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// The format's name.
        format: &'static str,
        /// What should be there.
        expected: &'static str,
    },
    /// The image folder has no class folders.
    #[error(
        "{} holds no class folders; {expected} was expected (the class is the first folder's name)", path.display()
    )]
    NoClassFolders {
        /// The dataset's path.
        path: PathBuf,
        /// Such as `…/CLASS/file.jpg`.
        expected: String,
    },
    /// Class folders that hold no samples of their own, but folders that do: the root is probably another one.
    #[error(
        "{} has class folders that hold no {extensions} files themselves, only folders that do: {names}. Their names would \
         be the labels; did you mean dataset.path = {meant:?}? If these are the classes, set dataset.nested_classes = true",
        path.display()
    )]
    NestedClasses {
        /// The dataset's path.
        path: PathBuf,
        /// The folders, at most five of them spelt out.
        names: String,
        /// What would count.
        extensions: String,
        /// The folder whose folders hold the samples.
        meant: PathBuf,
    },
    /// No sample is left.
    #[error("{} gives no samples: {reason}", path.display())]
    NoSamples {
        /// The dataset's path.
        path: PathBuf,
        /// Which key or file led to it.
        reason: String,
    },
    /// The root has no entry at all, as the folder on which nothing is mounted.
    #[error(transparent)]
    EmptyRoot(Box<Self>),
    /// Files and class folders side by side where one of the two is meant.
    #[error(
        "{} holds both {extensions} files and folders (such as {folder:?}); either all files lie in class folders, \
         or there are no folders at all", path.display()
    )]
    FilesBesideFolders {
        /// The dataset's path.
        path: PathBuf,
        /// What counts as a file.
        extensions: String,
        /// One of the folders.
        folder: String,
    },
    /// A list (`dataset.classes` or `dataset.ids`) does not fit the folder.
    #[error("{}:{line}: {message}", path.display())]
    List {
        /// The list's file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there and what to do.
        message: String,
    },
    /// A class folder that `dataset.classes` does not list.
    #[error(
        "class folder {folder:?} is not listed in {}; add it there, remove the folder, or leave dataset.classes out",
        path.display()
    )]
    ClassNotListed {
        /// The list's file.
        path: PathBuf,
        /// The folder's name.
        folder: String,
    },
    /// A link that leads back to a folder it lies in.
    #[error("{} is a link to a folder that contains it; the scan would never end. Remove the link", path.display())]
    LinkLoop {
        /// The link.
        path: PathBuf,
    },
    /// This process may not read something.
    #[error(
        "{} may not be read by this user (permission denied); give it read permission, and its folders search \
         permission", path.display()
    )]
    Permission {
        /// What may not be read.
        path: PathBuf,
    },
    /// The system reports something else.
    #[error("{action} {} failed: {source}", path.display())]
    System {
        /// What it happened to.
        path: PathBuf,
        /// What was tried, as in "reading".
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// `dataset.index` names a file that is no index of this dataset.
    #[error(
        "dataset.index {} is {what}, and is not overwritten; choose another path or remove the file", path.display()
    )]
    ForeignIndex {
        /// The configured path.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// The index that a client kept from the daemon before is not this dataset's.
    #[error(
        "the index handed over for {} is another dataset's; make a new loader, which scans the folder", path.display()
    )]
    KeptIndex {
        /// The dataset.
        path: PathBuf,
    },
    /// `dataset.index` lies among the samples.
    #[error(
        "dataset.index {} lies inside dataset.path: writing it would change the folder and so make it out of date; \
         choose a path outside", path.display()
    )]
    IndexInside {
        /// The configured path.
        path: PathBuf,
    },
    /// The first sample, which gives types and shapes, cannot be read.
    #[error("{}, the first sample, cannot be used: {reason}; repair or remove the file", path.display())]
    FirstSample {
        /// The sample's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An array file whose first axis cannot be the samples.
    #[error("{}: {reason}", path.display())]
    ArrayFile {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A file of many samples that is broken or of a kind that is not read.
    #[error("{}: {reason}", path.display())]
    BrokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, where, and what to do.
        reason: String,
    },
    /// The storage fails in another way.
    #[error(transparent)]
    Storage(StorageError),
    /// The progress callback asked to stop.
    #[error("opening the dataset was cancelled")]
    Cancelled,
}

impl DatasetError {
    /// Whether the storage was away.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        !matches!(self, Self::Missing { .. })
            && self.transient().is_some_and(|error| error.class() == RetryClass::Outage)
    }

    /// The storage's error where it is one that may pass with time.
    pub(crate) fn transient(&self) -> Option<StorageError> {
        let away = |path: &PathBuf, what| StorageError::Away {
            path: path.clone(),
            missing: path.clone(),
            what,
        };
        let error = match self {
            Self::Storage(error) => error.clone(),
            Self::Missing { path } => away(path, Absence::Root),
            Self::EmptyRoot(lack) => match &**lack {
                Self::NoClassFolders { path, .. } | Self::NoSamples { path, .. } => {
                    away(path, Absence::Empty)
                }
                _ => return None,
            },
            Self::System { path, action, source } => {
                let errno = source.raw_os_error().map(Errno::from_raw_os_error)?;
                StorageError::System { path: path.clone(), action, errno }
            }
            _ => return None,
        };
        error.is_transient().then_some(error)
    }

    /// The error for what the system said of a path.
    pub fn from_io(path: PathBuf, action: &'static str, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => Self::Permission { path },
            _ => Self::System { path, action, source },
        }
    }
}

impl From<StorageError> for DatasetError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Permission { path } => Self::Permission { path },
            StorageError::System { path, action, errno } => {
                Self::System { path, action, source: errno.into() }
            }
            error => Self::Storage(error),
        }
    }
}
