//! Why a dataset could not be packed.

use std::io;
use std::path::{Path, PathBuf};

use forebay_dataset::DatasetError;
use forebay_keys::ConfigError;
use forebay_storage::StorageError;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The result's place is taken.
    #[error("{} exists, and nothing is overwritten; name another folder with --output, or remove it", .0.display())]
    Exists(PathBuf),
    /// An interrupted run had other options or other data.
    #[error("{} was begun by a run with another {what}; give the same to go on with it, or remove it and the .packing folder beside it to begin anew", .folder.display())]
    OtherBegun {
        /// The unfinished folder.
        folder: PathBuf,
        /// The differing options, by name.
        what: String,
    },
    /// Another process packs into the same folder.
    #[error("{} is being written by another process; wait for it, or name another folder with --output", .0.display())]
    InUse(PathBuf),
    /// A field that the layout cannot store, or an option that does not apply.
    #[error("{0}")]
    Refused(String),
    /// A sample of the source is unusable.
    #[error("{}: {reason}; mend it, or leave it out of the dataset (dataset.ids)", .path.display())]
    BadSample {
        /// The sample's name.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the source was written to while it was read.
    #[error("{} changed while it was read; give the same command again once nothing writes to the dataset", .path.display())]
    Changed {
        /// The sample's name.
        path: PathBuf,
    },
    /// The disk is too small.
    #[error(
        "{}: the result takes about {needed}, and {free} are free; free some space, or name a folder of another disk with --output",
        .folder.display()
    )]
    NoSpace {
        /// The folder that the result would be in.
        folder: PathBuf,
        /// As text.
        needed: String,
        /// As text.
        free: String,
    },
    /// A file of the result could not be written.
    #[error("writing {}: {source}{}", .path.display(), remedy(.source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What was read back is not what was written.
    #[error("{}: {reason}. The result is not complete; remove it and the .packing folder beside it, pack anew, and report it if it comes again", .folder.display())]
    Differs {
        /// The unfinished folder.
        folder: PathBuf,
        /// What differs.
        reason: String,
    },
    /// The caller requested a stop.
    #[error("interrupted after {done} of {all} samples; the same command goes on with what is in {}", .folder.display())]
    Interrupted {
        /// The number of samples in complete shards.
        done: u64,
        /// The number of samples.
        all: u64,
        /// The unfinished folder.
        folder: PathBuf,
    },
    /// The source, or the result, could not be opened or read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The source could not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The configuration for the result could not be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl PackError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Write { path: path.to_owned(), source }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space and run the same command again: complete shards are kept"
        }
        io::ErrorKind::FileTooLarge => {
            "; set a smaller --shard-bytes, or raise the limit of a file's size (ulimit -f)"
        }
        _ => "",
    }
}
