//! Inputs and results of opening a dataset of any format.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use crate::Dataset;
use crate::error::DatasetError;
use crate::progress::{ProgressCallback, no_progress};
use forebay_storage::{Patience, Storage, StorageError};

/// An open dataset with its storage and a report.
#[derive(Debug)]
pub struct Opened {
    /// Shared by all threads.
    pub dataset: Arc<dyn Dataset>,
    /// The source of its bytes.
    pub storage: Arc<dyn Storage>,
    /// For the log, and for `forebay index`.
    pub report: IndexReport,
}

/// The result of opening a format.
pub type OpenedFormat = Result<(Arc<dyn Dataset>, IndexReport), DatasetError>;

/// Options of opening a dataset besides its configuration.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// Called while folders are scanned.
    pub progress: ProgressCallback<'a>,
    /// The index of the previous daemon; used without checking the folders.
    pub previous_index: Option<&'a File>,
    /// How long to wait for an unavailable storage. `None`: no waiting, and calls are not watched.
    pub patience: Option<&'a Patience>,
    /// Whether a saved index without stamps is rebuilt.
    pub lists_anew: bool,
    /// Whether the files of a saved index are compared also behind a URL, where a reader would notice a change.
    pub compares_files: bool,
    /// Whether the order is by [blocks](crate::Dataset::blocks): samples then share reads if the format has blocks.
    pub by_blocks: bool,
    /// If samples are requested in the dataset's order: the batch size. Neighbours in a batch that have a URL are read
    /// together.
    pub in_order: Option<u64>,
    /// The root of the samples, once their storage is open: names in `dataset.ids` may begin with it.
    pub samples_root: Option<&'a Path>,
}

impl OpenOptions<'_> {
    /// Makes a call that may hang; watched if `patience` is set.
    pub fn call<T>(&self, action: &'static str, path: &Path, call: impl FnOnce() -> T) -> T {
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
            compares_files: false,
            by_blocks: false,
            in_order: None,
            samples_root: None,
        }
    }
}

/// What opening a dataset's index did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IndexReport {
    /// The number of samples, including those that a selection leaves out.
    pub samples: u64,
    /// How many of them a selection keeps, and what selects them, as a sentence; `None`: all are used.
    pub selected: Option<String>,
    /// The number of classes; 0 without labels.
    pub classes: u64,
    /// The size of the index in bytes, in its file or in memory.
    pub bytes: u64,
    /// The time to open or to build it, in seconds.
    pub seconds: f64,
    /// Its file; `None` if the dataset needs no index or it could not be written.
    pub path: Option<PathBuf>,
    /// Whether a saved index was still valid.
    pub reused: bool,
    /// The changes since the previous index, as a sentence; `None`: there was no previous index, or it is still valid.
    pub changes: Option<String>,
    /// Warnings for the user, one sentence each: skipped files, an index that could not be saved.
    pub warnings: Vec<String>,
}

/// Reads a sample's bytes while a dataset is opened or inspected.
///
/// # Errors
/// The storage's errors.
pub fn read_sample(
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
