//! What opening a dataset takes and gives, whatever its format.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use super::Dataset;
use super::error::DatasetError;
use super::progress::{ProgressCallback, no_progress};
use crate::storage::{Patience, Storage, StorageError};

/// An open dataset, and what opening it did.
#[derive(Debug)]
pub struct Opened {
    /// Shared by all threads.
    pub dataset: Arc<dyn Dataset>,
    /// Where its bytes are read from.
    pub storage: Arc<dyn Storage>,
    /// For the log, and for `forebay index`.
    pub report: IndexReport,
}

/// What opening a format gives.
pub(super) type OpenedFormat = Result<(Arc<dyn Dataset>, IndexReport), DatasetError>;

/// What opening a dataset may use beside its configuration.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// Called while folders are scanned.
    pub progress: ProgressCallback<'a>,
    /// The index of the daemon that this one replaces: it is used as it is, without a look at the folders.
    pub previous_index: Option<&'a File>,
    /// How long a storage that is away is waited for; left out: not at all, and nobody watches the calls.
    pub patience: Option<&'a Patience>,
    /// Whether a saved index of a dataset that has no stamps is made anew.
    pub lists_anew: bool,
    /// Whether the order is one of [blocks](super::Dataset::blocks): samples then share what they are read from, where the
    /// format has blocks.
    pub by_blocks: bool,
    /// Where samples are wanted in the dataset's own order: so many at a time, of which neighbours behind a URL are read
    /// together.
    pub in_order: Option<u64>,
}

impl OpenOptions<'_> {
    /// Makes a call that may never return, where it is watched.
    pub(super) fn call<T>(&self, action: &'static str, path: &Path, call: impl FnOnce() -> T) -> T {
        match self.patience {
            Some(patience) => patience.call(action, || path.to_owned(), call),
            None => call(),
        }
    }
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self {
            progress: &no_progress,
            previous_index: None,
            patience: None,
            lists_anew: false,
            by_blocks: false,
            in_order: None,
        }
    }
}

/// What opening a dataset's index did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IndexReport {
    /// Samples in it.
    pub samples: u64,
    /// Classes; 0 where there are no labels.
    pub classes: u64,
    /// The size of the index in bytes, in its file or in memory.
    pub bytes: u64,
    /// How long it took to open or to make it.
    pub seconds: f64,
    /// Its file; `None` where the dataset needs none or none could be written.
    pub path: Option<PathBuf>,
    /// Whether a saved index was still true.
    pub reused: bool,
    /// What differs from the index before, in a sentence; `None`: there was none, or it is still true.
    pub changes: Option<String>,
    /// What the user should know: files skipped, an index that could not be kept. One sentence each.
    pub warnings: Vec<String>,
}

/// Reads a sample's bytes while a dataset is opened, or looked at.
///
/// # Errors
/// As the storage has it.
pub(super) fn read_sample(
    storage: &dyn Storage,
    dataset: &dyn Dataset,
    id: SampleId,
    limit_bytes: u64,
    bytes: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) -> Result<(), StorageError> {
    let (mut locations, mut opened) = (Vec::new(), Vec::new());
    dataset.locate(id, &mut locations);
    storage.open_all(dataset, &locations, limit_bytes, &mut opened)?;
    storage.read_all(dataset, &mut opened, bytes, ends)
}
