//! The progress of scanning a dataset: the position, the rate, and, if known, the remaining time.

use forebay_protocol::counted::counted;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_dataset::{ScanProgress, TextsMade};
use forebay_observe::format_bytes;

/// The share of the work, in millionths, from which the remaining time is shown.
const FIRST_ESTIMATE: u32 = 1000;

/// Prints the progress of a scan twice per second.
pub(super) fn show_progress(name: String) -> impl Fn(ScanProgress) -> ControlFlow<()> {
    let begun = Instant::now();
    let last = Mutex::new(begun);
    move |progress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed().as_millis() >= 500 {
            *last = Instant::now();
            // A closed standard error does not stop the scan.
            let _ = writeln!(std::io::stderr(), "{name}: {}", words(progress, begun.elapsed()));
        }
        ControlFlow::Continue(())
    }
}

/// Samples per second since the scan began.
pub(super) fn per_second(progress: ScanProgress, elapsed: Duration) -> u64 {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    progress.samples.saturating_mul(1000) / milliseconds.max(1)
}

/// The remaining time, extrapolated from the progress if the number of files is known.
pub(super) fn left(progress: ScanProgress, elapsed: Duration) -> Option<Duration> {
    if let Some(texts) = progress.texts {
        return texts.left;
    }
    let done = progress.files?.millionths;
    let share = f64::from(done) / 1e6;
    (done >= FIRST_ESTIMATE).then(|| elapsed.mul_f64((1.0 - share).max(0.0) / share))
}

fn words(progress: ScanProgress, elapsed: Duration) -> String {
    if progress.waiting_for_another {
        return "another process scans it; waiting for its index".to_owned();
    }
    let left = left(progress, elapsed)
        .map_or(String::new(), |left| format!(", about {} s left", left.as_secs_f64().ceil()));
    if let Some(TextsMade { done, all, tokens, .. }) = progress.texts {
        return format!(
            "{done} of {} made {}{left}",
            counted(all, "text"),
            counted(tokens, "token")
        );
    }
    let (samples, rate) = (progress.samples, per_second(progress, elapsed));
    let Some(files) = progress.files else {
        let folders = progress.directories;
        return format!(
            "{} in {} so far, {rate} files/s",
            counted(samples, "file"),
            counted(folders, "folder")
        );
    };
    let bytes = match files.bytes {
        0 => String::new(),
        bytes => format!(" ({})", format_bytes(bytes)),
    };
    let (done, all) = (files.done, files.all);
    let (all, samples) = (counted(all, "file"), counted(samples, "sample"));
    format!("{done} of {all} read through{bytes}: {samples}, {rate} samples/s{left}")
}

#[cfg(test)]
mod tests {
    use forebay_dataset::FilesRead;

    use super::*;

    #[test]
    fn scan_shows_its_rate_and_the_remaining_time_if_known() {
        let seconds = Duration::from_secs(10);
        let folders = ScanProgress { directories: 3, samples: 5000, ..ScanProgress::default() };
        assert_eq!(words(folders, seconds), "5000 files in 3 folders so far, 500 files/s");
        let read = FilesRead { done: 3, all: 16, bytes: 1 << 30, millionths: 250_000 };
        let files = ScanProgress { files: Some(read), ..folders };
        assert_eq!(
            words(files, seconds),
            "3 of 16 files read through (1 GiB): 5000 samples, 500 samples/s, about 30 s left"
        );
        let begun = FilesRead { all: 16, ..FilesRead::default() };
        let files = ScanProgress { files: Some(begun), ..ScanProgress::default() };
        assert_eq!(words(files, seconds), "0 of 16 files read through: 0 samples, 0 samples/s");
        let waiting = ScanProgress { waiting_for_another: true, ..folders };
        assert!(words(waiting, seconds).contains("another process"));
    }
}
