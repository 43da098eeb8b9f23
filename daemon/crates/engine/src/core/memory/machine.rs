//! Memory limits of the machine and of this process's control groups, and the memory used by running daemons.

use std::fs;
use std::path::Path;

/// Directories with the machine's memory information.
pub(super) struct Machine<'a> {
    pub(super) proc: &'a Path,
    pub(super) cgroup: &'a Path,
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Self { proc: Path::new("/proc"), cgroup: Path::new("/sys/fs/cgroup") }
    }
}

/// Memory granted by the machine or a control group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// `the machine` or the control group's file.
    pub(super) by: String,
    /// Total memory.
    pub(super) limit_bytes: u64,
    /// Memory left.
    pub(super) left_bytes: u64,
    /// Shared memory in use there, rings included.
    pub(super) shared_bytes: u64,
}

impl Machine<'_> {
    /// The grants of the machine and of each control group above this process that has a limit.
    pub(super) fn grants(&self) -> Vec<Grant> {
        let mut grants = Vec::new();
        let meminfo = self.read("meminfo");
        let line = |name: &str| kibibytes(&meminfo, name);
        if let Some(left_bytes) = line("MemAvailable:") {
            grants.push(Grant {
                by: "the machine".to_owned(),
                limit_bytes: line("MemTotal:").unwrap_or(left_bytes),
                left_bytes,
                shared_bytes: line("Shmem:").unwrap_or(0),
            });
        }
        for line in self.read("self/cgroup").lines() {
            // "number:controllers:path"; version 2 has the number 0 and no controllers.
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let (root, names) = match controllers {
                "" => (self.cgroup.to_owned(), &VERSION_2),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (self.cgroup.join("memory"), &VERSION_1)
                }
                _ => continue,
            };
            let folders = root.join(path.trim_start_matches('/'));
            for folder in folders.ancestors().take_while(|folder| folder.starts_with(&root)) {
                grants.extend(grant_of(folder, names));
            }
        }
        grants
    }

    /// The first grant with less memory left than needed.
    pub(super) fn refuses(&self, needed_bytes: u64) -> Option<Grant> {
        self.grants().into_iter().find(|grant| needed_bytes > grant.left_bytes)
    }

    /// The maximal memory that this process could get, if known: constant while the machine runs.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.grants().iter().map(|grant| grant.limit_bytes).min()
    }

    /// The private memory of each other process of this program, largest first.
    pub(super) fn other_daemons(&self) -> Vec<u64> {
        let own_name = self.read("self/comm");
        let own_number = std::process::id().to_string();
        let Ok(entries) = fs::read_dir(self.proc) else { return Vec::new() };
        let mut found: Vec<u64> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own_number)
            .filter(|number| {
                !own_name.is_empty() && self.read(&format!("{number}/comm")) == own_name
            })
            .filter_map(|number| kibibytes(&self.read(&format!("{number}/status")), "RssAnon:"))
            .collect();
        found.sort_unstable_by(|one, other| other.cmp(one));
        found
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.proc.join(file)).unwrap_or_default()
    }
}

/// The bytes in a line such as "MemTotal:  9 kB".
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
}

/// Names in the folder of a control group: the files with its limit and its use, and the beginnings of two lines of
/// `memory.stat`, with the page cache that is reclaimed under pressure and with the shared memory.
pub(super) type GroupFiles = [&'static str; 4];
pub(super) const VERSION_2: GroupFiles =
    ["memory.max", "memory.current", "inactive_file ", "shmem "];
pub(super) const VERSION_1: GroupFiles =
    ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_shmem "];

/// A control group's grant, if it has a limit.
fn grant_of(
    folder: &Path,
    [limit_file, use_file, cache_line, shared_line]: &GroupFiles,
) -> Option<Grant> {
    let number =
        |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit_bytes, used) = (number(limit_file)?, number(use_file)?);
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let line = |name: &str| {
        let found = statistics.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|bytes| bytes.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    Some(Grant {
        by: folder.join(limit_file).display().to_string(),
        limit_bytes,
        left_bytes: limit_bytes.saturating_sub(used.saturating_sub(line(cache_line))),
        shared_bytes: line(shared_line),
    })
}
