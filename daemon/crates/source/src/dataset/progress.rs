//! How far opening a dataset has come, reported while it lasts.

use std::ops::ControlFlow;

/// How far opening a dataset has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanProgress {
    /// Directories listed so far.
    pub directories: u64,
    /// Samples found so far.
    pub samples: u64,
    /// Of files that are read through, where it is known how many there are.
    pub files: Option<FilesRead>,
    /// Whether another daemon scans and this one waits for its index.
    pub waiting_for_another: bool,
}

/// How far files are read through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilesRead {
    /// To their ends.
    pub done: u64,
    /// All of them.
    pub all: u64,
    /// Passed so far.
    pub bytes: u64,
    /// Of all, in millionths; those under way count as far as they are.
    pub millionths: u32,
}

/// Called now and then, at least once a tenth of a second, by the thread that opens the dataset. `Break` cancels.
pub type ProgressCallback<'a> = &'a dyn Fn(ScanProgress) -> ControlFlow<()>;

/// A progress callback for those who do not care.
pub fn no_progress(_: ScanProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
