//! What a command that scans a dataset shows meanwhile.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use forebay_source::dataset::ScanProgress;

/// Shows how far a scan has come, twice a second.
pub(super) fn show_progress(name: String) -> impl Fn(ScanProgress) -> ControlFlow<()> {
    let last = Mutex::new(Instant::now());
    move |progress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed().as_millis() >= 500 {
            *last = Instant::now();
            let (files, folders) = (progress.samples, progress.directories);
            let so_far = match progress.waiting_for_another {
                true => "another process scans it; waiting for its index".to_owned(),
                false => format!("{files} files in {folders} folders so far"),
            };
            // A closed standard error does not stop the scan.
            let _ = writeln!(std::io::stderr(), "{name}: {so_far}");
        }
        ControlFlow::Continue(())
    }
}
