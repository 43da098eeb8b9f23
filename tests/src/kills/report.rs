//! What was found: mismatches, times, and what was left behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::TestDir;

/// What was there before, to tell what is left.
#[derive(Debug)]
pub struct Before {
    shared_memory: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
    descriptors: usize,
}

fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
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
    names(Path::new("/proc/self/fd")).len()
}

impl Before {
    /// As it is now.
    #[must_use]
    pub fn now(dir: &TestDir) -> Self {
        Self {
            shared_memory: names(Path::new("/dev/shm")),
            files: files(dir),
            descriptors: own_descriptors(),
        }
    }

    /// What is there now that was not, once processes that are ending have had a while.
    #[must_use]
    pub fn left(&self, dir: &TestDir) -> Value {
        let mut left = json!(null);
        for _ in 0..500 {
            let processes = processes_of(dir);
            let shared_memory = names(Path::new("/dev/shm"));
            let shared_memory: Vec<&String> = shared_memory
                .difference(&self.shared_memory)
                .filter(|name| name.contains("forebay"))
                .collect();
            left = json!({
                "processes": processes.len(),
                "shared_memory_names": shared_memory.len(),
                "sockets": dir.runtime_files().len(),
                "files": files(dir).difference(&self.files).count(),
                "descriptors": own_descriptors().saturating_sub(self.descriptors),
            });
            if is_nothing(&left) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        left
    }
}

/// Whether nothing was left.
#[must_use]
pub fn is_nothing(left: &Value) -> bool {
    left.as_object().is_some_and(|left| left.values().all(|count| count == 0))
}

/// The processes that were started in a place, this one left out.
#[must_use]
pub fn processes_of(dir: &TestDir) -> Vec<String> {
    let needle = dir.path("run").display().to_string();
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if name != own && String::from_utf8_lossy(&environment).contains(&needle) {
            found.push(name);
        }
    }
    found
}

/// Median, 99th percentile and greatest, in seconds.
#[must_use]
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
