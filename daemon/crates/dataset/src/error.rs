//! Errors of opening a dataset. Each message names the path or the line, and the remedy.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use forebay_storage::{Absence, RetryClass, StorageError};

/// Why a dataset could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// No format with this name is registered.
    #[error("unknown dataset.format {given:?}{hint}; the formats are {known}")]
    UnknownFormat {
        /// The configured name.
        given: String,
        /// Empty, or a suggestion.
        hint: String,
        /// The names of all formats.
        known: String,
    },
    /// One of the format's keys is invalid.
    #[error(transparent)]
    Keys(#[from] forebay_keys::ConfigError),
    /// The dataset's path does not exist.
    #[error("{}", missing(path))]
    Missing {
        /// The dataset's path.
        path: PathBuf,
    },
    /// A path has nothing that any format reads.
    #[error("{} {found}; {known}", path.display())]
    NotRecognized {
        /// The examined path.
        path: PathBuf,
        /// What was found, such as `is empty`.
        found: String,
        /// What each format reads.
        known: String,
    },
    /// The file or folder at the dataset's path is not of the kind that the format reads.
    #[error("dataset.path {} is {found}; {format} expects {expected}", path.display())]
    WrongKind {
        /// The dataset's path.
        path: PathBuf,
        /// What was found.
        found: &'static str,
        /// The format's name.
        format: &'static str,
        /// What the format expects.
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
    /// The class folders have no files, only folders that have files: the root is probably a different folder.
    #[error(
        "{} has class folders that hold no {extensions} files themselves, only folders that do: {names}. Their names would \
         be the labels; did you mean dataset.path = {meant:?}? If these are the classes, set dataset.nested_classes = true",
        path.display()
    )]
    NestedClasses {
        /// The dataset's path.
        path: PathBuf,
        /// The folders; at most five are named.
        names: String,
        /// The extensions of the expected files.
        extensions: String,
        /// The folder whose subfolders have the files.
        meant: PathBuf,
    },
    /// No samples remain.
    #[error("{} gives no samples: {reason}", path.display())]
    NoSamples {
        /// The dataset's path.
        path: PathBuf,
        /// The key or the file that caused it.
        reason: String,
    },
    /// The root is empty, like a mount point without a mount.
    #[error(transparent)]
    EmptyRoot(Box<Self>),
    /// Files and class folders are mixed; only one of the two is allowed.
    #[error(
        "{} holds both {extensions} files and folders (such as {folder:?}); either all files lie in class folders, \
         or there are no folders at all", path.display()
    )]
    FilesBesideFolders {
        /// The dataset's path.
        path: PathBuf,
        /// The extensions of files that count.
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
        /// The mistake and the remedy.
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
    /// A link to a folder that contains the link.
    #[error("{} is a link to a folder that contains it; the scan would never end. Remove the link", path.display())]
    LinkLoop {
        /// The link.
        path: PathBuf,
    },
    /// The process has no permission to read a path.
    #[error(
        "{} may not be read by this user (permission denied); give it read permission, and its folders search \
         permission", path.display()
    )]
    Permission {
        /// The path without permission.
        path: PathBuf,
    },
    /// Any other system error.
    #[error("{action} {} failed: {source}", path.display())]
    System {
        /// The path of the call.
        path: PathBuf,
        /// The action that failed, such as "reading".
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// `dataset.index` names a file that is not an index of this dataset.
    #[error(
        "dataset.index {} is {what}, and is not overwritten; choose another path or remove the file", path.display()
    )]
    ForeignIndex {
        /// The configured path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The index that a client kept from the previous daemon is for another dataset.
    #[error(
        "the index handed over for {} is another dataset's; make a new loader, which scans the folder", path.display()
    )]
    KeptIndex {
        /// The dataset.
        path: PathBuf,
    },
    /// `dataset.index` is inside the dataset's folder.
    #[error(
        "dataset.index {} lies inside dataset.path: writing it would change the folder and so make it out of date; \
         choose a path outside", path.display()
    )]
    IndexInside {
        /// The configured path.
        path: PathBuf,
    },
    /// The first sample, which determines types and shapes, cannot be read.
    #[error("{}, the first sample, cannot be used: {reason}; repair or remove the file", path.display())]
    FirstSample {
        /// The sample's file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// An array file whose first axis cannot number the samples.
    #[error("{}: {reason}", path.display())]
    ArrayFile {
        /// The file.
        path: PathBuf,
        /// The defect and the remedy.
        reason: String,
    },
    /// The data are ambiguous, and only the user can decide.
    #[error("{} {reason}", path.display())]
    Question {
        /// The examined path.
        path: PathBuf,
        /// The possibilities, with the keys for each.
        reason: String,
    },
    /// All of the samples that were read are unusable.
    #[error("{}: none of the {samples} samples that were read can be used ({named}){causes}", path.display())]
    AllUnusable {
        /// The dataset's path.
        path: PathBuf,
        /// The number of samples that were read.
        samples: u64,
        /// The first ones, each with its reason.
        named: String,
        /// Other findings; empty, or begins with a separator.
        causes: String,
    },
    /// A file of many samples that is broken or of an unsupported kind.
    #[error("{}: {reason}", path.display())]
    BrokenFile {
        /// The file.
        path: PathBuf,
        /// The defect, its position, and the remedy.
        reason: String,
    },
    /// Any other error of the storage.
    #[error(transparent)]
    Storage(StorageError),
    /// The progress callback cancelled.
    #[error("opening the dataset was cancelled")]
    Cancelled,
}

/// The message for a path that does not exist. A bucket has no folders, and nothing is mounted there.
fn missing(path: &Path) -> String {
    let shown = path.display();
    let is_web = path.starts_with("http:") || path.starts_with("https:");
    match forebay_keys::is_url(path) {
        true if is_web => format!("dataset.path {shown} does not exist; check the URL"),
        true => format!("there are no objects under {shown}; check the prefix in dataset.path"),
        false => format!(
            "dataset.path {shown} does not exist; check the path, and dataset.root if it is set, or mount what should be there"
        ),
    }
}

impl DatasetError {
    /// Whether the storage was unavailable.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        !matches!(self, Self::Missing { .. })
            && self.transient().is_some_and(|error| error.class() == RetryClass::Outage)
    }

    /// The storage's error if it may be temporary.
    pub fn transient(&self) -> Option<StorageError> {
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

    /// Converts an I/O error about a path.
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
