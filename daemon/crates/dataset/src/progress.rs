//! Progress reports while a dataset is opened.

use std::ops::ControlFlow;
use std::time::Duration;

/// The progress of opening a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanProgress {
    /// Directories listed so far.
    pub directories: u64,
    /// Samples found so far.
    pub samples: u64,
    /// Progress of files that are read completely, if their number is known.
    pub files: Option<FilesRead>,
    /// Progress of making tokens of texts.
    pub texts: Option<TextsMade>,
    /// Whether another daemon scans and this one waits for its index.
    pub waiting_for_another: bool,
}

/// The progress of reading files completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilesRead {
    /// The number of files that are done.
    pub done: u64,
    /// The number of all files.
    pub all: u64,
    /// The bytes read so far.
    pub bytes: u64,
    /// The progress in millionths; files in progress count in part.
    pub millionths: u32,
}

/// The progress of making tokens of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextsMade {
    /// The number of texts that are done, by this process and those before it.
    pub done: u64,
    /// The number of all texts.
    pub all: u64,
    /// The tokens of the texts that are done.
    pub tokens: u64,
    /// The remaining time, from the speed of this process; `None`: not yet known.
    pub left: Option<Duration>,
}

/// Called at least every tenth of a second by the thread that opens the dataset. `Break` cancels.
pub type ProgressCallback<'a> = &'a dyn Fn(ScanProgress) -> ControlFlow<()>;

/// A progress callback that does nothing.
pub fn no_progress(_: ScanProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
