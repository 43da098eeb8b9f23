//! Hardens a daemon at its start: it cannot be traced or dumped, and inherited descriptors are closed.

use anyhow::Context as _;
use nix::sys::signal::SigSet;

/// If set to 1, debuggers, profilers and core dumps of the same user are allowed.
const DUMPABLE_VARIABLE: &str = "FOREBAY_DUMPABLE";

/// Prevents other processes of the same user from tracing this one and from reading its memory, descriptors and
/// environment, because its memory has data of its clients. Also prevents core dumps.
pub(super) fn disable_dumping() {
    if std::env::var_os(DUMPABLE_VARIABLE).is_some_and(|value| value == "1") {
        return;
    }
    // Afterwards root owns this process's files in /proc.
    forebay_affinity::open_own_autogroup();
    // No kernel refuses this call; if one did, the daemon would be as protected as any other process.
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Descriptors that were open at the start, inherited from the parent: a GPU device would keep the memory of a dead
/// trainer on the GPU, and the reader of a pipe would wait for its end.
#[derive(Debug)]
pub(super) struct Inherited(Vec<i32>);

impl Inherited {
    /// Call before the process opens anything. Excludes standard input, output and error.
    pub(super) fn find() -> Self {
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Self(Vec::new()) };
        let numbers: Vec<i32> = open
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|number| *number > 2)
            .collect();
        // Excludes the descriptor of the directory itself, which is closed by now.
        let is_open =
            |number: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
        Self(numbers.into_iter().filter(is_open).collect())
    }

    /// Closes all of them.
    pub(super) fn close(self) {
        for number in self.0 {
            let _ = nix::unistd::close(number);
        }
    }
}

/// Unblocks all signals: the mask is inherited from the thread that started this process.
pub(super) fn unblock_signals() {
    let _ = SigSet::empty().thread_set_mask();
}

/// `forebay spawn-workers`.
pub(super) fn spawn_workers() -> anyhow::Result<std::process::ExitCode> {
    Inherited::find().close();
    unblock_signals();
    forebay_workers::serve_spawner().context("starting the workers of a Python stage")
}

/// `forebay credential-process`.
pub(super) fn credential_process() -> anyhow::Result<std::process::ExitCode> {
    Inherited::find().close();
    unblock_signals();
    forebay_formats::storages::serve_credential_process()
        .context("running the command of a profile's `credential_process`")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn open_descriptors_are_found_without_the_directory_itself() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
        let Inherited(found) = Inherited::find();
        assert!(found.contains(&left.as_raw_fd()));
        for number in found {
            assert_ne!(number, 0);
        }
    }
}
