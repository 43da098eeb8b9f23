//! What was found: mismatches, times, and what was left behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{TestDir, names_in};

/// What was there before, to tell what is left.
#[derive(Debug)]
pub struct Before {
    shared_memory: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
    descriptors: usize,
}

/// All files of a place but its sockets.
fn files(dir: &TestDir) -> BTreeSet<PathBuf> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![dir.path("")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ if path.starts_with(dir.runtime_folder()) => {}
                _ => drop(found.insert(path)),
            }
        }
    }
    found
}

fn own_descriptors() -> usize {
    names_in(Path::new("/proc/self/fd")).len()
}

impl Before {
    /// As it is now.
    pub fn now(dir: &TestDir) -> Self {
        Self {
            shared_memory: names_in(Path::new("/dev/shm")),
            files: files(dir),
            descriptors: own_descriptors(),
        }
    }

    /// What is there now that was not, once processes that are ending have had a while.
    pub fn left(&self, dir: &TestDir) -> Value {
        let mut left = json!(null);
        for _ in 0..6000 {
            let shared_memory = names_in(Path::new("/dev/shm"));
            let shared_memory = shared_memory.difference(&self.shared_memory);
            left = json!({
                "processes": dir.processes().len(),
                "shared_memory_names": shared_memory.filter(|name| name.contains("forebay")).count(),
                "sockets": dir.runtime_files().len(),
                "files": files(dir).difference(&self.files).count(),
                "descriptors": own_descriptors().saturating_sub(self.descriptors),
            });
            if is_nothing(&left) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for file in files(dir).difference(&self.files) {
            eprintln!("left behind: {}", file.display());
        }
        left
    }
}

/// Whether nothing was left.
pub fn is_nothing(left: &Value) -> bool {
    left.as_object().is_some_and(|left| left.values().all(|count| count == 0))
}

/// Median, 99th percentile and greatest, in seconds.
pub fn percentiles(times: &mut [Duration]) -> Value {
    times.sort_unstable();
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank in a list of at most some thousands"
        )]
        let rank = ((times.len() as f64 * share).ceil() as usize).saturating_sub(1);
        times.get(rank).map(Duration::as_secs_f64)
    };
    json!({ "count": times.len(), "p50": at(0.5), "p99": at(0.99), "max": at(1.0) })
}
