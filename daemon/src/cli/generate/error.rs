//! Why a set of data could not be generated.

use std::path::PathBuf;

/// Why a set of data could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// An option is outside its range.
    #[error("{option} = {value}: {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The value that was given.
        value: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// The folder holds files that are not a generated set.
    #[error("{}: the folder is not empty and holds no generated set; name an empty or new folder", folder.display())]
    NotOurs {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder holds a set that was made with other options.
    #[error(
        "{}: the folder holds a set made with other options ({found}; asked for: {asked}); remove the folder or name another",
        folder.display()
    )]
    OtherOptions {
        /// The folder.
        folder: PathBuf,
        /// The options of the set that is there.
        found: String,
        /// The options that were asked for.
        asked: String,
    },
    /// A file or folder could not be made, read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The encoder refused a picture.
    #[error("{}: cannot encode the picture: {reason}", path.display())]
    Encode {
        /// The file that was to hold it.
        path: PathBuf,
        /// The encoder's reason.
        reason: String,
    },
}

impl GenerateError {
    /// For `map_err`: names the file and what was tried.
    pub(in crate::cli) fn file(
        path: &std::path::Path,
        action: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, action, source }
    }
}
