//! What a daemon does first of all: nobody looks into it, and it holds nothing of its parent's.

use nix::sys::signal::SigSet;

/// Set to 1 it keeps the daemon open to debuggers, profilers and core dumps of its own user.
const DUMPABLE_VARIABLE: &str = "FOREBAY_DUMPABLE";

/// Keeps other processes of the same user from reading this one's memory, descriptors and environment, and from tracing
/// it: what clients share with it is theirs alone. It writes no core dump either.
pub(super) fn shut_out() {
    if std::env::var_os(DUMPABLE_VARIABLE).is_some_and(|value| value == "1") {
        return;
    }
    // Refused by no kernel; were it, the daemon would be as open as any other process.
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Descriptors that were open when this process began: a parent left them to its children, such as GPU devices, which
/// would keep a dead trainer's memory on the GPU, or pipes whose readers wait for their end.
#[derive(Debug)]
pub(super) struct Inherited(Vec<i32>);

impl Inherited {
    /// To be called before this process opens anything. Standard input, output and error are not meant.
    pub(super) fn look() -> Self {
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Self(Vec::new()) };
        let numbers: Vec<i32> = open
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|number| *number > 2)
            .collect();
        // Among them was the folder that was just read, which is closed by now.
        let is_open =
            |number: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
        Self(numbers.into_iter().filter(is_open).collect())
    }

    /// Closes them.
    pub(super) fn close(self) {
        for number in self.0 {
            let _ = nix::unistd::close(number);
        }
    }
}

/// Hears all signals, whatever the thread that started this process had blocked.
pub(super) fn hear_all_signals() {
    let _ = SigSet::empty().thread_set_mask();
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_open_is_found_and_the_folder_read_for_it_is_not() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
        let Inherited(found) = Inherited::look();
        assert!(found.contains(&left.as_raw_fd()));
        for number in found {
            assert_ne!(number, 0);
        }
    }
}
